"""The layer operations of `--enable-deterministic-inference` on GPUs: one way for every number of tokens.

Norms, rotation and activations of `TritonOps` treat a row by itself anyway; what is different is that products
never change their kernel. Must not know models.
"""

from __future__ import annotations

from typing import Any

import torch

from radixlang.layers.ops import NormBehind
from radixlang.layers.triton_ops import TritonOps
from radixlang.quant import Linear
from radixlang.quant.exact import ExactLinear


class ExactOps(TritonOps):
    """`Ops` (see `layers.ops`) over the linears of `quant.exact`."""

    def norm_linear(
        self, x: Any, stream: torch.Tensor, weight: torch.Tensor, eps: float, linear: Linear
    ) -> tuple[torch.Tensor, torch.Tensor]:
        normed, stream = self.norm(x, stream, weight, eps)
        return linear(normed), stream

    def norm_gated(
        self,
        x: Any,
        stream: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        linear: Linear,
        activation: str,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert isinstance(linear, ExactLinear)
        normed, stream = self.norm(x, stream, weight, eps)
        if activation == "gelu":
            return self.gated(linear(normed), activation), stream
        return linear(normed, activation=activation), stream

    def linear_add(
        self, x: torch.Tensor, stream: torch.Tensor, linear: Linear, behind: NormBehind | None
    ) -> tuple[None, torch.Tensor]:
        assert isinstance(linear, ExactLinear)
        return None, linear(x, residual=stream)

    def linear(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        """The output matrix's product, in float32: draws inside and outside of graphs then read the same type, and
        add up probabilities in the same order."""
        assert isinstance(linear, ExactLinear)
        return linear(x, dtype=torch.float32)
