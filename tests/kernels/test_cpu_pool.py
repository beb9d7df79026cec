"""Sharing work: every chunk once, from several threads at a time, in recordings, and with memory used again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from radixlang.kernels.cpu import available

if not available():
    pytest.skip("numba is not installed", allow_module_level=True)

from radixlang.kernels.cpu import fused, pool
from radixlang.kernels.cpu.linear import pack


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_any_number_of_threads_gives_the_same_bits(threads: int) -> None:
    generator = torch.Generator().manual_seed(1)
    layer, x = pack(torch.randn(640, 96, generator=generator)), torch.randn(70, 96, generator=generator)
    want = torch.cat([layer(x[i : i + 1]) for i in range(len(x))])
    for _ in range(200):
        assert torch.equal(layer(x), want)


def test_callers_do_not_disturb_each_other(threads: int) -> None:
    layer, x = pack(torch.randn(320, 64)), torch.randn(40, 64)
    want = layer(x).clone()
    with ThreadPoolExecutor(4) as callers:
        assert all(callers.map(lambda _: all(torch.equal(layer(x), want) for _ in range(50)), range(4)))


def test_recording_runs_again_on_what_its_inputs_hold(threads: int) -> None:
    first, second, x = pack(torch.randn(128, 64)), pack(torch.randn(64, 128)), torch.randn(20, 64)
    weight = torch.rand(128)
    with pool.recording() as recording:
        out = second(fused.rms_norm(first(x), weight, 1e-5))
        assert pool.is_recording()
    assert not pool.is_recording()
    for _ in range(5):
        x.copy_(torch.randn(20, 64))
        recording.run()
        assert torch.equal(out, second(fused.rms_norm(first(x), weight, 1e-5)))


def test_memory_is_used_again_only_when_nobody_looks() -> None:
    with pool.recording():
        a = pool.empty(4, 16)
        view, place = a.view(64)[3:], a.data_ptr()
        del a
        other = pool.empty(64)
        assert other.data_ptr() != place
        del view
        assert pool.empty(8, 8).data_ptr() == place


def test_what_was_noted_keeps_its_memory() -> None:
    """However little its arena keeps: a long prompt needs more, and nothing of it has been computed yet."""
    arena = pool.Arena(64)
    with pool.recording(arena) as noted:
        a = pool.empty(64, 4096)
        place = a.data_ptr()
        del a
        other = np.empty((64, 4096), np.float32)
        assert other.ctypes.data != place
        assert pool.empty(64, 4096).data_ptr() == place
    del noted
    assert arena._kept <= 64


@pytest.mark.parametrize(("rows", "size"), [(1, 16), (3, 80), (40, 4096)])
def test_best(rows: int, size: int) -> None:
    x = torch.randint(-50, 50, (rows, size)).float()  # many ties
    x[0, 5] = -torch.inf
    x[-1, -1] = 99
    values, places = fused.best(x)
    assert torch.equal(values, x.amax(-1))
    assert torch.equal(places, torch.stack([(row == row.max()).nonzero()[0, 0] for row in x]))


@pytest.mark.parametrize("place", [0, 7, 17, 63, 70])
def test_best_tells_numbers_that_are_none(place: int) -> None:
    x = torch.randn(3, 80)
    x[1, place] = torch.nan
    x[2] = -torch.inf
    values, _ = fused.best(x)
    assert values.isnan().tolist() == [False, True, False]
    assert values[2] == -torch.inf
