"""The layer operations by the package's Triton kernels; also under Triton's interpreter."""

from __future__ import annotations

import torch

from radixlang.kernels.activation import gelu_tanh_mul, silu_mul
from radixlang.kernels.norm import add_rms_norm, rms_norm
from radixlang.kernels.rope_write import rope_write
from radixlang.layers.attention import Attention
from radixlang.layers.ops import TorchOps, cos_sin

Rotation = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class TritonOps:
    """`Ops` (see `layers.ops`); the few cases without a kernel run in plain torch."""

    def __init__(self) -> None:
        self._torch = TorchOps()

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return rms_norm(x, weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return add_rms_norm(x, residual, weight, eps)

    def rotation(self, positions: torch.Tensor, inverse: torch.Tensor, factor: float) -> Rotation:
        """Cosines and sines [T, dim / 2] of this step's tokens, and each token's place in them."""
        places = torch.arange(positions.shape[0], device=positions.device)
        return *cos_sin(positions, inverse, factor), places

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
        cos, sin, places = rotation
        parts = qkv.view(qkv.shape[0], -1, layer.head_dim)
        q, k, v = parts.split((layer.heads, layer.kv_heads, layer.kv_heads), 1)
        return rope_write(
            q,
            k,
            v,
            cos,
            sin,
            places,
            slots,
            k_cache,
            v_cache,
            q_weight=layer.q_norm,
            k_weight=layer.k_norm,
            eps=layer.eps,
        )

    def gated(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        if activation == "gelu":
            return self._torch.gated(gate_up, activation)
        return silu_mul(gate_up) if activation == "silu" else gelu_tanh_mul(gate_up)

    def take(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x[index]
