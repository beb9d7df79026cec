"""Frequency, presence and repetition penalties: token counts of the rows that have them, on the device.

Frequency and presence penalties see generated tokens only, the repetition penalty sees the prompt as well.
Rows take a slot only while they have penalties (most have none). A slot also lists its tokens, so that a step
touches these and not the whole vocabulary; an entry may be listed twice or be left from an earlier owner:
every entry's new value follows from the counts alone, so that does no harm.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from radixlang.plan import Ints
from radixlang.platforms import Platform


class TokenCounts:
    """`output` float32 [slots, vocab]: times each token was generated; `seen` bool: in prompt or output.

    `listed` int64 [slots, capacity]: the tokens of each slot, `_used[slot]` of them.
    """

    def __init__(self, vocab: int, platform: Platform) -> None:
        self._platform = platform
        device = platform.device
        self.output = torch.zeros((0, vocab), dtype=torch.float32, device=device)
        self.seen = torch.zeros((0, vocab), dtype=torch.bool, device=device)
        self.listed = torch.zeros((0, 64), dtype=torch.int64, device=device)
        self._used = np.zeros(0, np.int64)
        self._slots: dict[int, int] = {}
        self._free: list[int] = []

    def slot(self, row: int) -> int | None:
        """The row's slot, None where it has no penalties."""
        return self._slots.get(row)

    def release(self, row: int) -> None:
        """Take the row's slot back."""
        slot = self._slots.pop(row, None)
        if slot is not None:
            self._free.append(slot)

    def start(self, row: int, prompt: Ints, output: Ints) -> None:
        """Give the row a slot that counts these tokens."""
        self.release(row)
        if not self._free:
            self._add_slots()
        slot = self._slots[row] = self._free.pop()
        self.output[slot] = 0
        self.seen[slot] = False
        ids, times = np.unique(output, return_counts=True)
        self.output[slot, self._platform.upload(ids.astype(np.int64))] = self._platform.upload(
            times.astype(np.float32)
        )
        everything = np.unique(np.concatenate([prompt, output])).astype(np.int64)
        where = self._platform.upload(everything)
        self.seen[slot, where] = True
        self._make_room(len(everything))
        self.listed[slot, : len(everything)] = where
        self._used[slot] = len(everything)

    def _add_slots(self) -> None:
        old = len(self.output)
        more = max(4, old)
        self.output, self.seen, self.listed = (
            torch.cat([table, table.new_zeros((more, table.shape[1]))])
            for table in (self.output, self.seen, self.listed)
        )
        self._used = np.concatenate([self._used, np.zeros(more, np.int64)])
        self._free.extend(range(old + more - 1, old - 1, -1))

    def _make_room(self, tokens: int) -> None:
        slots, capacity = self.listed.shape
        if tokens > capacity:
            more = max(tokens - capacity, capacity)
            self.listed = torch.cat([self.listed, self.listed.new_zeros((slots, more))], 1)

    def add(self, slots: npt.NDArray[np.int64], tokens: torch.Tensor) -> None:
        """Count one generated token for each of some distinct slots."""
        self._make_room(int(self._used[slots].max()) + 1)
        where, place = self._platform.upload(np.stack([slots, self._used[slots]]))
        self.output[where, tokens] += 1
        self.seen[where, tokens] = True
        self.listed[where, place] = tokens
        self._used[slots] += 1

    def penalise(
        self, logits: torch.Tensor, rows: torch.Tensor, slots: npt.NDArray[np.int64], factors: torch.Tensor
    ) -> None:
        """Change `logits[rows]` by the counts of `slots`; `factors` [3, P, 1]: frequency, presence, repetition."""
        frequency, presence, repetition = factors
        where = self._platform.upload(slots)[:, None]
        tokens = self.listed[where[:, 0], : int(self._used[slots].max())]
        output = self.output[where, tokens]
        values = logits[rows[:, None], tokens] - frequency * output - presence * (output > 0)
        factor = torch.where(self.seen[where, tokens], repetition, 1.0)
        logits[rows[:, None], tokens] = torch.where(values > 0, values / factor, values * factor)
