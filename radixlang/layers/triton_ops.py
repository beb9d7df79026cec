"""The layer operations by the package's Triton kernels; also under Triton's interpreter.

Products of few tokens take the activation or sum that follows into the kernel, and the norm before: those of very
few tokens do it themselves, the others end what the product before them has begun. Larger ones go to the library,
with the sum into the stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from radixlang.kernels import library_linear
from radixlang.kernels.activation import gelu_tanh_mul, silu_mul
from radixlang.kernels.matvec import matvec
from radixlang.kernels.norm import add_rms_norm, rms_norm
from radixlang.kernels.rope_write import rope_write, rotary_angles
from radixlang.kernels.skinny_linear import MAX_TOKENS, BegunNorm, can_begin_norm, skinny_add, skinny_linear
from radixlang.kernels.tuning import MatvecTile, SkinnyTile, chip, matvec_tile, skinny_tile
from radixlang.layers.attention import Attention
from radixlang.layers.ops import NormBehind, Steps, TorchOps
from radixlang.quant import Linear
from radixlang.quant.unquantized import DenseLinear

if TYPE_CHECKING:
    from radixlang.forward import ForwardContext

Tile = MatvecTile | SkinnyTile | None
"""the kernel of ours that multiplies, None for the library"""
Pending = torch.Tensor | BegunNorm | None
"""what `linear_add` leaves to the next norm: to add a part's output, to end what was begun, or all of it"""


class Rotation(NamedTuple):
    """Cosines and sines [T, dim / 2] float32 of a step's tokens."""

    cos: torch.Tensor
    sin: torch.Tensor


class TritonOps(Steps):
    """`Ops` (see `layers.ops`); the few cases without a kernel run in plain torch."""

    def __init__(self) -> None:
        self._torch = TorchOps()
        self._tiles: dict[tuple[int, int, int, bool], Tile] = {}

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
            None,
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
        self, x: Pending, stream: torch.Tensor, weight: torch.Tensor, eps: float, linear: Linear
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tile = self._tile(stream, linear)
        normed, rest, stream = self._normed(x, stream, weight, eps, tile)
        return _product(normed, linear, tile, **rest), stream

    def norm_gated(
        self,
        x: Pending,
        stream: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        linear: Linear,
        activation: str,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tile = self._tile(stream, linear, activation)
        normed, rest, stream = self._normed(x, stream, weight, eps, tile)
        if tile is None:
            return self.gated(_product(normed, linear, None), activation), stream
        return _product(normed, linear, tile, activation=activation, **rest), stream

    def _normed(
        self, x: Pending, stream: torch.Tensor, weight: torch.Tensor, eps: float, tile: Tile
    ) -> tuple[torch.Tensor | BegunNorm, dict[str, Any], torch.Tensor]:
        """(what to multiply, what of the norm the kernel of `tile` shall then do itself, the stream)."""
        if isinstance(x, BegunNorm):
            assert x.norm is weight, "linear_add was told of another norm"
            assert isinstance(tile, SkinnyTile), "linear_add was told of another product"
            return x, {"eps": eps}, stream
        if isinstance(tile, MatvecTile) and x is None:
            return stream, {"norm": weight, "eps": eps}, stream
        normed, stream = self.norm(x, stream, weight, eps)
        return normed, {}, stream

    def linear_add(
        self, x: torch.Tensor, stream: torch.Tensor, linear: Linear, behind: NormBehind | None
    ) -> tuple[Pending, torch.Tensor]:
        tile = self._tile(x, linear)
        if tile is None:
            if isinstance(linear, DenseLinear) and linear.bias is None and x.dtype != torch.float32:
                return None, library_linear.add_linear(x, linear.weight, stream)
            return linear(x), stream
        if isinstance(tile, SkinnyTile) and behind is not None and self._begins(stream, tile, behind):
            assert isinstance(linear, DenseLinear)
            norm = behind.weight
            return skinny_add(x, linear.weight, linear.bias, residual=stream, norm=norm, tile=tile), stream
        return None, _product(x, linear, tile, residual=stream)

    def linear(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        return _product(x, linear, self._tile(x, linear))

    def _begins(self, stream: torch.Tensor, tile: SkinnyTile, behind: NormBehind) -> bool:
        """True if a product with this tile shall begin the norm behind it, which only one of its kind can end."""
        reader = self._tile(stream, behind.linear, behind.activation)
        return can_begin_norm(stream, tile) and isinstance(reader, SkinnyTile)

    def _tile(self, x: torch.Tensor, linear: Linear, activation: str | None = None) -> Tile:
        """Who shall multiply, and how; `activation`: with a gated one behind."""
        tokens = x.shape[0]
        if not 0 < tokens <= MAX_TOKENS or x.dtype == torch.float32 or not isinstance(linear, DenseLinear):
            return None
        if activation == "gelu":  # no kernel has it
            return None
        (outer, inner), gated = linear.weight.shape, activation is not None
        key = (tokens, outer, inner, gated)
        if key not in self._tiles:
            sizes = {"tokens": tokens, "outer": outer // 2 if gated else outer, "inner": inner}
            few = matvec_tile(chip(x.device), **sizes, gated=gated)
            self._tiles[key] = few or skinny_tile(chip(x.device), **sizes, gated=gated)
        return self._tiles[key]


def _product(x: torch.Tensor | BegunNorm, linear: Linear, tile: Tile, **more: Any) -> torch.Tensor:
    """By whatever `tile` is for; `more` is what else a kernel of ours shall do."""
    if isinstance(tile, SkinnyTile):
        assert isinstance(linear, DenseLinear)
        return skinny_linear(x, linear.weight, linear.bias, tile=tile, **more)
    assert isinstance(x, torch.Tensor)
    if tile is None:
        if isinstance(linear, DenseLinear) and linear.bias is None:
            return library_linear.linear(x, linear.weight)
        return linear(x)
    assert isinstance(linear, DenseLinear)
    return matvec(x, linear.weight, linear.bias, tile=tile, **more)
