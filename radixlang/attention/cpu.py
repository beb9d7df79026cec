"""Attention on the CPU with compiled kernels that read the pages in place: no gather, no padding, no mask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from radixlang.attention import AttentionLayer
from radixlang.forward import ForwardBatch
from radixlang.kernels import cpu

if TYPE_CHECKING:
    from radixlang.kernels.tuning import TreeTile
    from radixlang.models.spec import ModelSpec


class CpuAttention:
    """The `cpu` backend."""

    reads_back = False
    tree: Mapping[int, TreeTile] = {}

    def __init__(self, spec: ModelSpec, page_size: int, device: torch.device) -> None:
        from radixlang.kernels.cpu import attention

        self._kernels = attention

    @staticmethod
    def supports(spec: ModelSpec, device: str) -> str | None:
        if device != "cpu":
            return f"It runs on CPUs, not on {device}."
        if not cpu.available():
            return "It needs numba: pip install 'radixlang[cpu]'."
        return None

    def plan(self, batch: ForwardBatch) -> None:
        return None

    def forward(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: ForwardBatch,
        plan: None,
    ) -> torch.Tensor:
        how = (layer.scale, layer.window, layer.softcap)
        # The kernels compute in float32; a model of another dtype gets its own back.
        q, dtype = q.float(), q.dtype
        if batch.max_query == 1:
            out = self._kernels.decode(q, k_cache, v_cache, batch.page_table, batch.rows, batch.lengths, *how)
        else:
            out = self._kernels.extend(
                q, k_cache, v_cache, batch.page_table, batch.rows, batch.query_starts, batch.lengths, *how
            )
        return out.to(dtype)
