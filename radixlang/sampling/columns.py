"""The sampling parameters of all rows as columns on an accelerator, where the sampling kernels read them.

Written when rows are set up, a copy a step at most. Must not know plans or requests.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from radixlang.platforms import Platform
from radixlang.sampling_params import SEED_MASK, RowSampling

_FLOATS = 6
_INTS = 2
_LONGS = 4


class RowColumns:
    """All columns are [rows]: float32 `temperature` (0 is greedy), `top_p`, `min_p`, `frequency`, `presence` and
    `repetition`, int32 `top_k` and `least`, int64 `seeds` and the addresses of the rows' `EditBuffers`."""

    def __init__(self, rows: int, platform: Platform) -> None:
        self._platform = platform
        self._narrow = torch.zeros((_FLOATS + _INTS, rows), dtype=torch.int32, device=platform.device)
        self._wide = torch.zeros((_LONGS, rows), dtype=torch.int64, device=platform.device)
        floats = self._narrow[:_FLOATS].view(torch.float32)
        self.temperature, self.top_p, self.min_p, self.frequency, self.presence, self.repetition = floats
        self.top_k, self.least = self._narrow[_FLOATS:]
        self.seeds, self.values, self.words, self.bias = self._wide

    def write(
        self, rows: Sequence[int], sampling: Sequence[RowSampling], addresses: Sequence[tuple[int, int, int]]
    ) -> None:
        """Put the parameters of distinct rows in place, and where their buffers are."""
        floats = np.array(
            [
                (
                    0.0 if one.greedy or one.min_p >= 1 else one.temperature,
                    one.top_p,
                    one.min_p,
                    one.frequency_penalty,
                    one.presence_penalty,
                    one.repetition_penalty,
                )
                for one in sampling
            ],
            np.float32,
        )
        ints = np.array([(one.top_k, one.min_new_tokens) for one in sampling], np.int32)
        wide = [(one.seed & SEED_MASK, *at) for one, at in zip(sampling, addresses, strict=True)]
        narrow = np.concatenate([floats.T.view(np.int32), ints.T, np.array([rows], np.int32)])
        packed = np.concatenate([np.array(wide, np.int64).T.ravel().view(np.int32), narrow.ravel()])
        home = self._platform.upload(packed)
        longs = home[: 2 * _LONGS * len(rows)].view(torch.int64).view(_LONGS, len(rows))
        rest = home[2 * _LONGS * len(rows) :].view(-1, len(rows))
        where = rest[-1].long()
        self._wide[:, where] = longs
        self._narrow[:, where] = rest[:-1]

    def draw(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        drawn: torch.Tensor,
        next_token: torch.Tensor,
        home: torch.Tensor,
    ) -> torch.Tensor:
        """Change the logits [S, vocab] of table rows as these ask for, draw, count: see `kernels.sampling.sample`.

        Rows with drawn < 0 are passed over.
        """
        from radixlang.kernels.edits import Edits
        from radixlang.kernels.sampling import sample

        return sample(
            logits,
            self.temperature,
            self.top_k,
            self.top_p,
            self.min_p,
            self.seeds,
            drawn,
            rows=rows,
            next_token=next_token,
            home=home,
            edits=Edits(
                self.values, self.words, self.bias, self.frequency, self.presence, self.repetition, self.least
            ),
        )
