"""The layer operations by the package's Triton kernels; also under Triton's interpreter.

Products of few tokens take the activation or sum that follows into the kernel, those of very few also the norm
before. Larger ones go to torch, and the sum into the stream into the library's product.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from radixlang.kernels.activation import gelu_tanh_mul, silu_mul
from radixlang.kernels.matvec import matvec
from radixlang.kernels.norm import add_rms_norm, rms_norm
from radixlang.kernels.rope_write import rope_write, rotary_angles
from radixlang.kernels.skinny_linear import MAX_TOKENS, skinny_linear
from radixlang.kernels.tuning import MatvecTile, SkinnyTile, chip, matvec_tile, skinny_tile
from radixlang.layers.attention import Attention
from radixlang.layers.ops import Steps, TorchOps
from radixlang.quant import Linear
from radixlang.quant.unquantized import DenseLinear

if TYPE_CHECKING:
    from radixlang.forward import ForwardContext

Tile = MatvecTile | SkinnyTile


@dataclass
class Rotation:
    """Cosines and sines [T, dim / 2] float32 of a step's tokens."""

    cos: torch.Tensor
    sin: torch.Tensor

    @cached_property
    def places(self) -> torch.Tensor:
        """[T]: where in them each token's are, for a kernel that can do with a table of all positions."""
        return torch.arange(self.cos.shape[0], device=self.cos.device)


class TritonOps(Steps):
    """`Ops` (see `layers.ops`); the few cases without a kernel run in plain torch."""

    def __init__(self) -> None:
        self._torch = TorchOps()
        self._tiles: dict[tuple[int, int, int, bool], Tile | None] = {}

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return rms_norm(x, weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return add_rms_norm(x, residual, weight, eps)

    def rotation(self, positions: torch.Tensor, inverse: torch.Tensor, factor: float) -> Rotation:
        return Rotation(*rotary_angles(positions, inverse, factor))

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        layer: Attention,
        rotation: Rotation | None,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        if rotation is None:
            return self._torch.rotate_and_store(qkv, layer, None, k_cache, v_cache, slots)
        parts = qkv.view(qkv.shape[0], -1, layer.head_dim)
        q, k, v = parts.split((layer.heads, layer.kv_heads, layer.kv_heads), 1)
        return rope_write(
            q,
            k,
            v,
            rotation.cos,
            rotation.sin,
            rotation.places,
            slots,
            k_cache,
            v_cache,
            q_weight=layer.q_norm,
            k_weight=layer.k_norm,
            eps=layer.eps,
        )

    def attend(
        self,
        qkv: torch.Tensor,
        layer: Attention,
        rotation: Rotation | None,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        context: ForwardContext,
    ) -> torch.Tensor:
        """In one kernel where the step's plan offers that (`attention.FusedPlan`)."""
        fused = getattr(context.plan, "fused", None)
        if fused is None:
            return super().attend(qkv, layer, rotation, k_cache, v_cache, context)
        angles = None if rotation is None else (rotation.cos, rotation.sin)
        out: torch.Tensor = fused(layer, qkv, angles, k_cache, v_cache, context.batch)
        return out

    def gated(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        if activation == "gelu":
            return self._torch.gated(gate_up, activation)
        return silu_mul(gate_up) if activation == "silu" else gelu_tanh_mul(gate_up)

    def norm_linear(
        self, x: torch.Tensor | None, stream: torch.Tensor, weight: torch.Tensor, eps: float, linear: Linear
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tile = self._tile(stream, linear, False)
        if x is None and isinstance(tile, MatvecTile):
            return _product(stream, linear, tile, norm=weight, eps=eps), stream
        return super().norm_linear(x, stream, weight, eps, linear)

    def norm_gated(
        self,
        x: torch.Tensor | None,
        stream: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        linear: Linear,
        activation: str,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tile = None if activation == "gelu" else self._tile(stream, linear, True)
        if x is None and isinstance(tile, MatvecTile):
            return _product(stream, linear, tile, activation=activation, norm=weight, eps=eps), stream
        normed, stream = self.norm(x, stream, weight, eps)
        if tile is None:
            return self.gated(linear(normed), activation), stream
        return _product(normed, linear, tile, activation=activation), stream

    def linear_add(
        self, x: torch.Tensor, stream: torch.Tensor, linear: Linear
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        tile = self._tile(x, linear, False)
        if tile is not None:
            return None, _product(x, linear, tile, residual=stream)
        if isinstance(linear, DenseLinear) and linear.bias is None and x.dtype != torch.float32:
            return None, stream.addmm_(x, linear.weight.t())
        return linear(x), stream

    def linear(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        tile = self._tile(x, linear, False)
        return linear(x) if tile is None else _product(x, linear, tile)

    def _tile(self, x: torch.Tensor, linear: Linear, gated: bool) -> Tile | None:
        """How a kernel of ours shall multiply; None where torch's product is to be used."""
        tokens = x.shape[0]
        if not 0 < tokens <= MAX_TOKENS or x.dtype == torch.float32 or not isinstance(linear, DenseLinear):
            return None
        outer, inner = linear.weight.shape
        key = (tokens, outer, inner, gated)
        if key not in self._tiles:
            sizes = {"tokens": tokens, "outer": outer // 2 if gated else outer, "inner": inner}
            few = matvec_tile(chip(x.device), **sizes, gated=gated)
            self._tiles[key] = few or skinny_tile(chip(x.device), **sizes, gated=gated)
        return self._tiles[key]


def _product(x: torch.Tensor, linear: Linear, tile: Tile, **more: Any) -> torch.Tensor:
    """By the kernel that `tile` is for; `more` is what else the kernel shall do."""
    assert isinstance(linear, DenseLinear)
    if isinstance(tile, MatvecTile):
        return matvec(x, linear.weight, linear.bias, tile=tile, **more)
    return skinny_linear(x, linear.weight, linear.bias, tile=tile, **more)
