"""Dense weights whose products give a row the same bits whatever rows come with it; for GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from radixlang.errors import ConfigError
from radixlang.kernels.exact_linear import ALIGNMENT, exact_linear
from radixlang.kernels.tuning import chip
from radixlang.quant import StoredWeight
from radixlang.quant.unquantized import DenseEmbedding, DenseLinear, Unquantized


class ExactLinear(DenseLinear):
    """`kernels.exact_linear`; the keyword arguments are passed on, for what follows a product."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, nbytes: int | None = None) -> None:
        super().__init__(weight, bias, nbytes)
        self._chip = chip(weight.device)

    def __call__(
        self,
        x: torch.Tensor,
        *,
        activation: str | None = None,
        residual: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        return exact_linear(
            x, self.weight, self.bias, chip=self._chip, activation=activation, residual=residual, dtype=dtype
        )


class ExactEmbedding(DenseEmbedding):
    """`F.embedding`, and an exact head."""

    def head(self) -> ExactLinear:
        return ExactLinear(self.weight, None, nbytes=0)


class Exact(Unquantized):
    """The method of `--enable-deterministic-inference`."""

    def linear(self, weights: Sequence[StoredWeight], biases: Sequence[StoredWeight]) -> ExactLinear:
        inputs = weights[0].shape[1]
        if inputs % ALIGNMENT:
            raise ConfigError(
                f"--enable-deterministic-inference needs weights whose inputs are a multiple of {ALIGNMENT}, and "
                f"{weights[0].name} has {inputs}; leave the flag out for this model."
            )
        return ExactLinear(self._joined(weights), self._joined(biases) if biases else None)

    def embedding(self, weight: StoredWeight) -> ExactEmbedding:
        return ExactEmbedding(self._joined([weight]))
