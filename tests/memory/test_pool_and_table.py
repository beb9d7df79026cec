"""KV pool and request table."""

from __future__ import annotations

import numpy as np
import torch

from radixlang.memory.kv_pool import KvPool
from radixlang.memory.request_table import RequestTable
from tests.memory.test_sizing import spec


def test_pool_layout_sink_and_copies() -> None:
    pool = KvPool(spec(), 5, 2, torch.bfloat16, torch.device("cpu"))
    assert len(pool.layers) == 30
    assert pool.layers[0][0].shape == (5, 2, 3, 64)
    assert pool.nbytes == 46_080 // 2 * 10
    for k, v in pool.layers:
        assert not k[0].any()
        assert not v[0].any()
        for page in range(1, 5):
            k[page], v[page] = page, -page
    pool.copy(torch.tensor([1, 2]), torch.tensor([4, 3]))
    for k, v in pool.layers:
        assert k[:, 0, 0, 0].tolist() == [0, 1, 2, 2, 1]
        assert v[:, 1, 2, 63].tolist() == [0, -1, -2, -2, -1]


def test_table_host_and_device_agree() -> None:
    cpu = RequestTable(4, 3, torch.device("cpu"))
    cpu.host_pages[2, 1] = 7
    assert cpu.pages[2, 1] == 7
    assert cpu.next_token.dtype == torch.int64
    # On another device the table is a copy that `write` brings up to date.
    other = RequestTable(4, 3, torch.device("cpu"))
    other._shared, other.pages = False, torch.zeros(4, 3, dtype=torch.int32)
    new = np.array([[1, 0, 9], [3, 2, 8]], np.int32)
    other.host_pages[new[:, 0], new[:, 1]] = new[:, 2]
    other.write(torch.from_numpy(new))
    other.write(torch.zeros((0, 3), dtype=torch.int32))
    assert torch.equal(other.pages, torch.from_numpy(other.host_pages))
