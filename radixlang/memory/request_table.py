"""The request table: for each row of a running request its pages and its next token. Row 0 is the sink.

The page table exists twice, on the host for computing write slots and on the device for attention; on a CPU
both are the same memory. Written only by submitted work, so both are always in step order.
"""

from __future__ import annotations

import numpy as np
import torch


class RequestTable:
    """`pages` int32 [rows, max_pages] (0, the sink, where nothing is written) and `next_token` int64 [rows]."""

    def __init__(self, rows: int, max_pages: int, device: torch.device) -> None:
        self.host_pages = np.zeros((rows, max_pages), np.int32)
        self._shared = device.type == "cpu"
        shared = torch.from_numpy(self.host_pages)
        self.pages = shared if self._shared else shared.to(device)
        self.next_token = torch.zeros(rows, dtype=torch.int64, device=device)

    @property
    def rows(self) -> int:
        return self.host_pages.shape[0]

    def write(self, new_pages: torch.Tensor) -> None:
        """Enter (row, index, page) triples, int32 [P, 3], which `host_pages` already has, on the device."""
        if not self._shared and len(new_pages):
            where = new_pages.long()
            self.pages[where[:, 0], where[:, 1]] = new_pages[:, 2]
