"""Kernels that fetch a step's numbers and send home what it drew, with the ring of blocks they go around."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("run by tests/kernels/test_triton_interpreted.py", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed, so its kernels cannot run here")

from radixlang.executor.step_blocks import COUNT, StepBlocks  # noqa: E402
from radixlang.kernels.mailbox import deliver, fetch  # noqa: E402

SIZE, ROWS = 5000, 600


def run(blocks: StepBlocks, sizes: list[int]) -> None:
    """Run steps of such sizes, as graphs would, a few under way at once."""
    inbox, under_way, taken = torch.zeros(SIZE, dtype=torch.int32, device=DEVICE), deque[Any](), []

    def take() -> None:
        event, block, home, seen, step = under_way.popleft()
        if event is not None:
            event.synchronize()
        assert (home == step).all()
        assert (seen == step).all()
        block.lent = 0
        taken.append(step)

    for step, size in enumerate(sizes, 1):
        block = blocks.free()
        block.out(size)[:] = step
        if DEVICE == "cuda":
            torch.cuda._sleep(1_000_000)
        fetch(blocks.out, blocks.turn, inbox[:size])
        seen = inbox[:size].clone()
        rows = size // 10
        deliver(inbox[: 2 * rows].view(2, rows), blocks.home, blocks.turn)
        blocks.ran(block)
        event = torch.cuda.Event() if DEVICE == "cuda" else None
        if event is not None:
            event.record()
        under_way.append((event, block, block.home(rows), seen, step))
        if len(under_way) > 3:
            take()
    while under_way:
        take()
    assert taken == list(range(1, len(sizes) + 1))
    assert blocks.turn.tolist() == [len(sizes) % COUNT, 0]


def test_the_device_goes_around_as_the_host_does() -> None:
    """Where there is a device, it is far behind the host, as in overlapped steps."""
    sizes = np.random.default_rng(0).integers(10, SIZE, 5 * COUNT).tolist()
    blocks = StepBlocks(SIZE, ROWS, torch.device(DEVICE))
    run(blocks, sizes)
    blocks.restart()
    run(blocks, sizes[:3])


@pytest.mark.gpu
def test_results_that_nobody_takes() -> None:
    """The host does not fill a block again that the device has still to read."""
    blocks = StepBlocks(SIZE, ROWS, torch.device("cuda"))
    seen = torch.zeros((4 * COUNT, SIZE), dtype=torch.int32, device="cuda")
    for step, inbox in enumerate(seen):
        block = blocks.free()
        block.out(SIZE)[:] = step
        torch.cuda._sleep(1_000_000)
        fetch(blocks.out, blocks.turn, inbox)
        blocks.ran(block)
    assert torch.equal(seen, torch.arange(len(seen), device="cuda", dtype=torch.int32)[:, None].expand_as(seen))
