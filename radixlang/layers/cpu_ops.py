"""The layer operations by the package's compiled CPU kernels; for float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from radixlang.kernels.cpu import fused
from radixlang.layers.attention import Attention
from radixlang.layers.cpu_replay import Replays
from radixlang.layers.ops import Steps, TorchOps, cos_sin

if TYPE_CHECKING:
    from radixlang.forward import ForwardBatch
    from radixlang.layers.ops import LayersBody

Rotation = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class CpuOps(Steps):
    """`Ops` (see `layers.ops`); a layer that does not rotate runs in plain torch."""

    def __init__(self) -> None:
        self._torch = TorchOps()
        self._replays = Replays()

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return fused.rms_norm(x, weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return fused.add_rms_norm(x, residual, weight, eps), residual

    def rotation(self, positions: torch.Tensor, inverse: torch.Tensor, factor: float) -> Rotation:
        """Cosines and sines [T, dim / 2] of this step's tokens, and each token's place in them."""
        return *cos_sin(positions, inverse, factor), torch.arange(positions.shape[0])

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
        return fused.rope_and_store(
            qkv,
            cos,
            sin,
            places,
            slots,
            k_cache,
            v_cache,
            layer.heads,
            layer.kv_heads,
            layer.q_norm,
            layer.k_norm,
            layer.eps,
        )

    def gated(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        return fused.gated(gate_up, activation)

    def take(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return fused.take(x, index)

    def run_layers(
        self, body: LayersBody, stream: torch.Tensor, rotations: list[Any], batch: ForwardBatch
    ) -> torch.Tensor:
        return self._replays.run(body, stream, rotations, batch)


class ExactCpuOps(CpuOps):
    """The operations of `--enable-deterministic-inference`: those of `CpuOps`, which treat a row by itself.

    What `attention.exact` runs depends on the rows' lengths, so that a decode step cannot be rerun either.
    """

    def run_layers(
        self, body: LayersBody, stream: torch.Tensor, rotations: list[Any], batch: ForwardBatch
    ) -> torch.Tensor:
        return self._replays.once(body, stream, rotations, batch)
