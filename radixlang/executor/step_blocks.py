"""Host memory for steps in graphs, used again: what a step brings to the device, and what comes home from it.

Pinned where an accelerator copies from and to it: a fresh pinned tensor for every step costs more than its copy.
A block belongs to one step from its launch until its result has been taken. That has waited for everything the
step put on the stream, so that no copy reads or writes the block any more when another step gets it. A step whose
result nobody takes keeps its block, and torch frees pinned memory only when the copies have passed. Must
not know plans or graphs.
"""

from __future__ import annotations

import torch

from radixlang.plan import Ints


class StepBlock:
    """`numbers` int32 out, two for each of `rows` home."""

    def __init__(self, numbers: int, rows: int, pinned: bool) -> None:
        self._out = torch.zeros(numbers, dtype=torch.int32, pin_memory=pinned)
        self._home = torch.zeros(2 * rows, dtype=torch.int32, pin_memory=pinned)
        # Views by size: steps come in few sizes, and a slice of a tensor takes as long as a small copy.
        self._outs: dict[int, tuple[torch.Tensor, Ints]] = {}
        self._homes: dict[int, tuple[torch.Tensor, Ints]] = {}

    def out(self, size: int) -> tuple[torch.Tensor, Ints]:
        """The first `size` numbers, as a tensor and as an array; they hold what they held last."""
        views = self._outs.get(size)
        if views is None:
            part = self._out[:size]
            views = self._outs[size] = part, part.numpy()
        return views

    def take_home(self, tensor: torch.Tensor) -> Ints:
        """Begin the copy of int32 [2, n] to the host → its values, valid when the step's work has been waited for
        and until the block is given back."""
        rows = tensor.shape[1]
        views = self._homes.get(rows)
        if views is None:
            part = self._home[: 2 * rows].view(2, rows)
            views = self._homes[rows] = part, part.numpy()
        views[0].copy_(tensor, non_blocking=True)
        return views[1]


class StepBlocks:
    """As many blocks as steps were under way at once; the sizes are those of the largest step."""

    def __init__(self, numbers: int, rows: int, pinned: bool) -> None:
        self._sizes = numbers, rows, pinned
        self._free: list[StepBlock] = []

    def take(self) -> StepBlock:
        """A block that no step uses."""
        return self._free.pop() if self._free else StepBlock(*self._sizes)

    def give(self, block: StepBlock) -> None:
        """The block's step has been waited for, and what came home has been copied."""
        self._free.append(block)
