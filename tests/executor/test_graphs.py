"""Batch sizes of decode graphs. (That graphs give the same text is tested on a GPU: tests/engine/test_gpu.py.)"""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("triton", reason="Triton is not installed, so there are no graphs")

from radixlang.executor.graphs import MAX_BATCH, ladder


@pytest.mark.parametrize("largest", [1, 3, 8, 100, 256, 300, MAX_BATCH])
def test_ladder(largest: int) -> None:
    sizes = ladder(largest)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == largest
    assert sizes[0] == 1
    for smaller, larger in itertools.pairwise(sizes):
        padded = larger - smaller - 1
        assert padded <= max(3, larger // 8, 7), f"a step of {smaller + 1} rows would run as {larger}"
