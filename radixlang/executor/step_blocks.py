"""Host memory for steps in graphs, used again: what a step brings to the device, and what comes home from it.

A ring of blocks, pinned where kernels of an accelerator read and write it (see `kernels.mailbox`): the device
goes around by itself, a block with every run of a graph. A block belongs to one step from its launch until its
result has been taken. That has waited for everything the step put on the stream, so that no kernel reads or
writes the block any more when another step gets it. Must not know plans or graphs.
"""

from __future__ import annotations

import torch

from radixlang.plan import Ints

COUNT = 32
"""more than steps are ever under way at once: the engine has two"""


class StepBlock:
    """`numbers` int32 out, two for each of `rows` home."""

    def __init__(self, numbers: torch.Tensor, home: torch.Tensor) -> None:
        self._numbers: Ints = numbers.numpy()
        self._home: Ints = home.numpy()
        # Views by size: steps come in few sizes, and a slice takes as long as a small copy.
        self._outs: dict[int, Ints] = {}
        self._homes: dict[int, Ints] = {}
        self.lent = 0
        """which step has the block, counted over all of them; 0 again when it has been waited for and what came
        home has been copied"""

    def out(self, size: int) -> Ints:
        """The first `size` numbers; they hold what they held last."""
        view = self._outs.get(size)
        if view is None:
            view = self._outs[size] = self._numbers[:size]
        return view

    def home(self, rows: int) -> Ints:
        """[2, rows] what a step of a graph of so many rows has sent home; valid when its work has been waited for,
        and until the block is given back."""
        view = self._homes.get(rows)
        if view is None:
            view = self._homes[rows] = self._home[: 2 * rows].reshape(2, rows)
        return view


class StepBlocks:
    """The ring; the sizes are those of the largest step.

    `out` and `home` int32 [COUNT, …] are its memory, `turn` int32 [2] on `device` where the device is in it.
    """

    def __init__(self, numbers: int, rows: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.out = torch.zeros((COUNT, numbers), dtype=torch.int32, pin_memory=pinned)
        self.home = torch.zeros((COUNT, 2 * rows), dtype=torch.int32, pin_memory=pinned)
        self.turn = torch.zeros(2, dtype=torch.int32, device=device)
        self._blocks = [StepBlock(*pair) for pair in zip(self.out, self.home, strict=True)]
        self._runs = 0

    def restart(self) -> None:
        """Forget how often graphs have been run."""
        self.turn.zero_()
        self._runs = 0

    def free(self) -> StepBlock:
        """The block of the next step. It stays that until a graph has been run for it."""
        block = self._blocks[self._runs % COUNT]
        if block.lent and self.turn.is_cuda:
            # The result of a step long ago was never asked for, and nobody has waited for it.
            torch.cuda.synchronize(self.turn.device)
        return block

    def ran(self, block: StepBlock) -> int:
        """A graph has been run for the free block: a step has it now. → `block.lent`"""
        self._runs += 1
        block.lent = self._runs
        return self._runs
