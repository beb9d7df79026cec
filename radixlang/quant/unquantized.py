"""Weights as plain matrices of the computing dtype, on any device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from radixlang.quant import StoredWeight


class DenseLinear:
    """`F.linear`."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, nbytes: int | None = None) -> None:
        self.weight = weight
        self.bias = bias
        own = weight.nbytes + (0 if bias is None else bias.nbytes)
        self.nbytes = own if nbytes is None else nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class DenseEmbedding:
    """`F.embedding`."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight
        self.nbytes = weight.nbytes

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, self.weight)

    def head(self) -> DenseLinear:
        return DenseLinear(self.weight, None, nbytes=0)


class Unquantized:
    """The method of dense weights."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype

    def linear(self, weights: Sequence[StoredWeight], biases: Sequence[StoredWeight]) -> DenseLinear:
        return DenseLinear(self._joined(weights), self._joined(biases) if biases else None)

    def embedding(self, weight: StoredWeight) -> DenseEmbedding:
        return DenseEmbedding(self._joined([weight]))

    def _joined(self, parts: Sequence[StoredWeight]) -> torch.Tensor:
        """All parts under each other in one new tensor, so that at most one part exists twice."""
        rows = sum(part.shape[0] for part in parts)
        out = torch.empty((rows, *parts[0].shape[1:]), dtype=self.dtype, device=self.device)
        start = 0
        for part in parts:
            out[start : start + part.shape[0]].copy_(part.dense())
            start += part.shape[0]
        return out
