"""Linears and tables of which every tensor-parallel rank holds a part; to a model they look like whole ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from radixlang.layers.ops import Ops
    from radixlang.parallel import TensorParallel
    from radixlang.quant import Embedding, Linear


class ReducedLinear:
    """A linear whose inputs are split: the result is the sum over the ranks. One rank alone adds the bias."""

    def __init__(self, part: Linear, ops: Ops, parallel: TensorParallel) -> None:
        self._part = part
        self._ops = ops
        self._parallel = parallel
        self.nbytes = part.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._parallel.all_reduce(self._ops.linear(x, self._part))


class GatheredHead:
    """An output matrix whose `vocab` rows are split, `rows` a rank: the result is every rank's, side by side."""

    def __init__(self, part: Linear, ops: Ops, parallel: TensorParallel, rows: int, vocab: int) -> None:
        self._part = part
        self._ops = ops
        self._parallel = parallel
        self._rows = rows
        self._vocab = vocab
        self.nbytes = part.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = self._ops.linear(x, self._part)
        if out.shape[1] < self._rows:
            out = F.pad(out, (0, self._rows - out.shape[1]))
        return self._parallel.all_gather_last_dim(out)[:, : self._vocab].contiguous()


class ShardedEmbedding:
    """A table whose rows are split; this rank's begin with row `first`, `rows` a rank."""

    def __init__(
        self, part: Embedding, ops: Ops, parallel: TensorParallel, bounds: tuple[int, int], rows: int, vocab: int
    ) -> None:
        self._part = part
        self._ops = ops
        self._parallel = parallel
        self._first, self._end = bounds
        self._rows = rows
        self._vocab = vocab
        self.nbytes = part.nbytes

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """ids [T] int64 → rows [T, hidden]; each is one rank's, the others add zeros."""
        at = (ids - self._first).clamp_(0, self._end - self._first - 1)
        foreign = (ids < self._first) | (ids >= self._end)
        return self._parallel.all_reduce(self._part(at).masked_fill_(foreign[:, None], 0.0))

    def head(self) -> GatheredHead:
        return GatheredHead(self._part.head(), self._ops, self._parallel, self._rows, self._vocab)
