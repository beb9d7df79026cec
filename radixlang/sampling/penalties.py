"""Token counts of the rows that have penalties, on the device.

Frequency and presence penalties see generated tokens only, the repetition penalty sees the prompt as well.
Rows take a slot of the counts only while they need one: most requests have no penalties.
"""

from __future__ import annotations

import numpy as np
import torch

from radixlang.platforms import Platform
from radixlang.plan import Ints


class TokenCounts:
    """`output` float32 [slots, vocab]: times each token was generated; `seen` bool: in prompt or output."""

    def __init__(self, vocab: int, platform: Platform) -> None:
        self._platform = platform
        self._vocab = vocab
        device = platform.device
        self.output = torch.zeros((0, vocab), dtype=torch.float32, device=device)
        self.seen = torch.zeros((0, vocab), dtype=torch.bool, device=device)
        self._slots: dict[int, int] = {}
        self._free: list[int] = []

    def slot(self, row: int) -> int | None:
        """The row's slot, None where it has no penalties."""
        return self._slots.get(row)

    def release(self, row: int) -> None:
        slot = self._slots.pop(row, None)
        if slot is not None:
            self._free.append(slot)

    def start(self, row: int, prompt: Ints, output: Ints) -> None:
        """Give the row a slot that counts these tokens."""
        self.release(row)
        if not self._free:
            self._grow()
        slot = self._slots[row] = self._free.pop()
        self.output[slot] = 0
        self.seen[slot] = False
        ids, times = np.unique(output, return_counts=True)
        where = self._platform.upload(ids.astype(np.int64))
        self.output[slot, where] = self._platform.upload(times.astype(np.float32))
        self.seen[slot, where] = True
        self.seen[slot, self._platform.upload(np.unique(prompt).astype(np.int64))] = True

    def _grow(self) -> None:
        old = len(self.output)
        more = max(4, old)
        self.output = torch.cat([self.output, self.output.new_zeros((more, self._vocab))])
        self.seen = torch.cat([self.seen, self.seen.new_zeros((more, self._vocab))])
        self._free.extend(range(old + more - 1, old - 1, -1))

    def add(self, slots: torch.Tensor, tokens: torch.Tensor) -> None:
        """Count one generated token for each of some distinct slots."""
        self.output[slots, tokens] += 1
        self.seen[slots, tokens] = True
