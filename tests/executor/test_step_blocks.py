"""Blocks of host memory are one step's at a time."""

from __future__ import annotations

import torch

from radixlang.executor.step_blocks import COUNT, StepBlocks

CPU = torch.device("cpu")


def test_a_block_is_lent_to_one_step_at_a_time() -> None:
    blocks = StepBlocks(8, 3, CPU)
    seen = []
    for step in range(COUNT):
        block = blocks.free()
        assert blocks.free() is block, "no graph has been run"
        block.out(5)[:] = step
        assert blocks.ran(block) == block.lent == step + 1
        seen.append(block)
    assert len(set(map(id, seen))) == COUNT
    assert blocks.free() is seen[0]
    assert seen[3].out(8).tolist() == [3] * 5 + [0] * 3


def test_what_comes_home_has_the_shape_of_its_step() -> None:
    blocks = StepBlocks(8, 3, CPU)
    blocks.home[0] = torch.arange(6, dtype=torch.int32)
    block = blocks.free()
    assert block.home(2).tolist() == [[0, 1], [2, 3]]
    assert block.home(3).tolist() == [[0, 1, 2], [3, 4, 5]]
