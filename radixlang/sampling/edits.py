"""Buffers of the rows whose logits are changed before a draw, where draws are made by kernels.

A row takes a buffer only while it has penalties, a bias or a least length (most have none); buffers never move, so
that kernels and graphs find them by their addresses. What is in them is told in `kernels/edits.py`: the kernels
also keep the counts, so nothing here is touched between a row's set-up and its end. Must not know requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from radixlang.kernels.edit_words import END, PROMPT, TIMES
from radixlang.plan import Ints
from radixlang.platforms import Platform
from radixlang.sampling_params import RowSampling


@dataclass
class _Buffer:
    values: torch.Tensor
    """float32 [vocab]"""
    words: torch.Tensor
    """int16 [vocab]"""
    bias: torch.Tensor | None = None
    """float32 [vocab]; made when the first owner needs it"""
    biased: bool = False
    """the owner needs it"""


class EditBuffers:
    """6 bytes a token of the vocabulary for each row that has changes, 10 with a bias."""

    def __init__(self, vocab: int, platform: Platform) -> None:
        self._vocab = vocab
        self._platform = platform
        self._of: dict[int, _Buffer] = {}
        self._free: list[_Buffer] = []

    def setup(self, row: int, sampling: RowSampling, prompt: Ints, output: Ints) -> None:
        """The row changes hands: to a request with these tokens."""
        old = self._of.pop(row, None)
        if old is not None:
            self._free.append(old)
        ends = [token for token in sampling.end_ids if token < self._vocab] if sampling.min_new_tokens else []
        if not (sampling.penalised or sampling.logit_bias or ends):
            return
        buffer = self._of[row] = self._free.pop() if self._free else self._new()
        generated, times = np.unique(output, return_counts=True)
        parts = [
            (generated, np.minimum(times, TIMES)),
            (seen := np.unique(prompt), np.full(len(seen), PROMPT)),
            (last := np.unique(ends), np.full(len(last), END)),
        ]
        tokens, bits = self._platform.upload(
            np.concatenate([np.stack(part) for part in parts], 1).astype(np.int32)
        )
        # Each part has other bits, so a sum is their union.
        buffer.words.zero_().index_add_(0, tokens, bits.short())
        bias = {token: value for token, value in sampling.logit_bias.items() if token < self._vocab}
        buffer.biased = bool(bias)
        if bias:
            if buffer.bias is None:
                buffer.bias = torch.empty_like(buffer.values)
            where = self._platform.upload(np.array(list(bias), np.int64))
            buffer.bias.zero_()[where] = self._platform.upload(np.array(list(bias.values()), np.float32))

    def addresses(self, row: int) -> tuple[int, int, int]:
        """Of the row's values, words and bias; 0 for what it has not."""
        buffer = self._of.get(row)
        if buffer is None:
            return 0, 0, 0
        bias = buffer.bias.data_ptr() if buffer.biased and buffer.bias is not None else 0
        return buffer.values.data_ptr(), buffer.words.data_ptr(), bias

    def changed(self, row: int) -> torch.Tensor | None:
        """The logits [vocab] the row's last token was drawn from, None if they were not changed."""
        buffer = self._of.get(row)
        return None if buffer is None else buffer.values

    def _new(self) -> _Buffer:
        device = self._platform.device
        return _Buffer(
            torch.empty(self._vocab, dtype=torch.float32, device=device),
            torch.empty(self._vocab, dtype=torch.int16, device=device),
        )
