"""The sampling parameters of all rows as columns on an accelerator, where the sampling kernel reads them.

Written when rows are set up, a copy a step at most. Must not know plans or requests.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from radixlang.platforms import Platform
from radixlang.sampling_params import SEED_MASK, RowSampling


class RowColumns:
    """`temperature` (0 is greedy), `top_p`, `min_p` float32, `top_k` int32 and `seeds` int64, all [rows]."""

    def __init__(self, rows: int, platform: Platform) -> None:
        self._platform = platform
        self._table = torch.zeros((4, rows), dtype=torch.int32, device=platform.device)
        self.temperature, self.top_p, self.min_p = self._table[:3].view(torch.float32)
        self.top_k = self._table[3]
        self.seeds = torch.zeros(rows, dtype=torch.int64, device=platform.device)

    def write(self, rows: Sequence[int], sampling: Sequence[RowSampling]) -> None:
        """Put the parameters of distinct rows in place."""
        values = np.array(
            [(0.0 if one.greedy or one.min_p >= 1 else one.temperature, one.top_p, one.min_p) for one in sampling],
            np.float32,
        )
        numbers = np.array([(row, one.top_k) for row, one in zip(rows, sampling, strict=True)], np.int32)
        seeds = np.array([one.seed & SEED_MASK for one in sampling], np.int64)
        packed = np.concatenate([seeds.view(np.int32), values.T.ravel().view(np.int32), numbers.T.ravel()])
        count = len(rows)
        home = self._platform.upload(packed)
        where = home[5 * count : 6 * count].long()
        self.seeds[where] = home[: 2 * count].view(torch.int64)
        self._table[:3, where] = home[2 * count : 5 * count].view(3, count)
        self.top_k[where] = home[6 * count :]
