"""The collectives over Gloo, and what the GPU ones read from the environment."""

from __future__ import annotations

import os

import pytest
import torch

from radixlang.errors import ConfigError
from radixlang.parallel import Solo, connect
from radixlang.parallel.nccl import keep_multicast_off
from tests.parallel.ranks import as_ranks


@pytest.mark.parametrize("size", [2, 3])
def test_collectives(size, tmp_path):
    def body(group):
        x = torch.arange(6.0).view(2, 3) * 10**group.rank
        return group.all_reduce(x.clone()), group.all_gather_last_dim(x), group.least(7 - group.rank)

    want = torch.arange(6.0).view(2, 3)
    for total, parts, least in as_ranks(size, tmp_path, body):
        assert torch.equal(total, want * sum(10**rank for rank in range(size)))
        assert torch.equal(parts, torch.cat([want * 10**rank for rank in range(size)], 1))
        assert least == 7 - (size - 1)


def test_one_rank_needs_nobody():
    group = connect(0, 1, "", torch.device("cpu"))
    assert isinstance(group, Solo)
    x = torch.ones(2, 3)
    assert group.all_reduce(x) is x
    assert group.least(3) == 3


def test_other_devices_are_refused():
    with pytest.raises(ConfigError, match="--tp-size 2 works on cuda and cpu"):
        connect(0, 2, "", torch.device("xpu"))


def test_multicast_stays_off_unless_the_environment_says_otherwise(monkeypatch):
    monkeypatch.delenv("NCCL_NVLS_ENABLE", raising=False)
    monkeypatch.setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "0")
    keep_multicast_off()
    assert os.environ["NCCL_NVLS_ENABLE"] == "0"
    assert os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "0"
