"""Building the executors of several ranks: devices, memory, the KV pool's share."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from radixlang.config import Config
from radixlang.errors import ConfigError
from radixlang.executor import build
from radixlang.platforms import find_platform, place_rank
from tests.models.test_parity import make


def test_the_rank_with_the_least_memory_sizes_all_pools(tmp_path, monkeypatch):
    make("Llama", {}, tmp_path)
    found = itertools.count(40, 20)
    # Before weights load nobody looks at more than whether there is room.
    monkeypatch.setattr(build, "kv_pages", lambda _, memory, *__, **___: next(found) if memory.weights else 100)
    config = Config.from_flat(
        model_path=str(tmp_path), tp_size=2, dtype="float32", page_size=4, num_threads=1, device="cpu"
    ).resolve()

    def run(rank):
        return build.build_executor(config, lambda *_: None, rank, str(tmp_path / "ranks"))

    with ThreadPoolExecutor(2) as pool:
        ranks = list(pool.map(run, range(2)))
    for executor, shape in ranks:
        assert shape.num_pages == 40
        for k, v in executor.pool.layers:
            assert k.shape == v.shape == (40, 4, 1, 12), "one of the two KV heads"
        executor.close()


class Accelerators:
    type = "cuda"


@pytest.fixture
def four_gpus(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: Accelerators())
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)


@pytest.mark.parametrize(
    ("device", "rank", "ranks", "place"),
    [("auto", 0, 1, "auto"), ("auto", 1, 2, "cuda:1"), ("cuda", 3, 4, "cuda:3"), ("cuda:2", 1, 2, "cuda:3")],
)
def test_each_rank_has_a_device(four_gpus, device, rank, ranks, place):
    assert place_rank(device, None, rank, ranks) == (place, None)


@pytest.mark.parametrize(
    ("device", "ranks", "words"),
    [
        ("auto", 5, "--tp-size 5 needs 5 cuda devices, but there are 4;"),
        ("cuda:3", 2, "but there are 1 from cuda:3 on"),
        ("cuda:7", 2, "but there are 0 from cuda:7 on"),
    ],
)
def test_more_ranks_than_devices(four_gpus, device, ranks, words):
    with pytest.raises(ConfigError, match=words):
        place_rank(device, None, 0, ranks)


def test_a_device_that_is_not_there(four_gpus):
    with pytest.raises(ConfigError, match="--device cuda:4 cannot be used: cuda devices here are 0 to 3"):
        find_platform("cuda:4")


def test_ranks_on_a_cpu_share_its_cores(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert place_rank("cpu", None, 1, 3) == ("cpu", 2)
    assert place_rank("cpu", 5, 1, 3) == ("cpu", 5)
    assert place_rank("cpu", None, 0, 1) == ("cpu", None)
