"""Blocks of host memory are one step's at a time, and copies never meet another step's numbers."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

from radixlang.executor.step_blocks import StepBlocks

SIZE, ROWS = 1 << 18, 512


def test_a_block_is_lent_to_one_step_at_a_time() -> None:
    blocks = StepBlocks(8, 3, False)
    first, second = blocks.take(), blocks.take()
    assert first is not second
    blocks.give(first)
    assert blocks.take() is first
    _, numbers = first.out(5)
    numbers[:] = 7
    tensor, _ = first.out(8)
    assert tensor.tolist() == [7] * 5 + [0] * 3
    assert second.out(8)[0].tolist() == [0] * 8


def test_what_comes_home_has_the_shape_of_its_step() -> None:
    block = StepBlocks(8, 3, False).take()
    two = torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)
    assert block.take_home(two).tolist() == two.tolist()
    three = torch.arange(6, dtype=torch.int32).view(2, 3)
    assert block.take_home(three).tolist() == three.tolist()


@pytest.mark.gpu
@pytest.mark.parametrize("given_back", [True, False])
def test_copies_from_a_slow_stream(given_back: bool) -> None:
    """The stream is far behind the host, as in overlapped steps; a block that is dropped is freed by torch, whose
    next block would be the same memory if it did not wait for the copy."""
    from radixlang.platforms.accelerator import AcceleratorPlatform

    platform = AcceleratorPlatform("cuda")
    blocks = StepBlocks(SIZE, ROWS, True)
    steps = 40
    seen = torch.zeros((steps, SIZE), dtype=torch.int32, device="cuda")
    under_way: deque[tuple[Any, Any, int]] = deque()
    used: set[int] = set()
    for step in range(steps):
        block = blocks.take()
        used.add(id(block))
        staged, numbers = block.out(SIZE)
        numbers[:] = step + 1

        def work(row: torch.Tensor = seen[step], block: Any = block, staged: torch.Tensor = staged) -> np.ndarray:
            torch.cuda._sleep(1_000_000)
            row.copy_(staged, non_blocking=True)
            return block.take_home(row[: 2 * ROWS].view(2, ROWS))

        pending = platform.submit(work)
        if not given_back:
            del block, staged, numbers, pending, work
            continue
        under_way.append((pending, block, step))
        if len(under_way) > 1:
            earlier, its_block, number = under_way.popleft()
            assert (earlier.wait() == number + 1).all()
            blocks.give(its_block)
    torch.cuda.synchronize()
    assert torch.equal(seen, torch.arange(1, steps + 1, device="cuda", dtype=torch.int32)[:, None].expand_as(seen))
    assert not given_back or len(used) == 2
