"""The attention backends of `--enable-deterministic-inference`: a query's bits depend on it and its keys alone.

Whatever else is in the step, and whether it decodes or reads a prompt. Must not know requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from radixlang.attention.cpu import CpuAttention
from radixlang.attention.triton import TritonAttention
from radixlang.kernels import tuning

if TYPE_CHECKING:
    from radixlang.attention import AttentionLayer
    from radixlang.forward import ForwardBatch
    from radixlang.models.spec import ModelSpec


class ExactTritonAttention:
    """Paged attention by `kernels/exact_attention.py`, for all steps."""

    reads_back = False
    tree: Mapping[int, tuning.TreeTile] = {}
    """Where a row's sum over its keys is cut would depend on who shares them: none."""

    def __init__(self, spec: ModelSpec, page_size: int, device: torch.device | str) -> None:
        from radixlang.kernels.exact_attention import exact_attention

        self._attend = exact_attention
        self._chip = tuning.chip(device)

    @staticmethod
    def supports(spec: ModelSpec, device: str) -> str | None:
        """None, or why this backend cannot run `spec` on `device`."""
        return TritonAttention.supports(spec, device)

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
        """As in `TritonAttention`."""
        return self._attend(
            q,
            k_cache,
            v_cache,
            batch.page_table,
            batch.rows,
            batch.query_starts,
            batch.lengths,
            scale=layer.scale,
            window=layer.window,
            softcap=layer.softcap,
            sinks=getattr(layer, "sinks", None),
            max_query=batch.max_query,
            max_length=batch.max_length,
            chip=self._chip,
        )


class ExactCpuAttention(CpuAttention):
    """The kernel of prompts for all rows: the one for single queries adds up in another order."""

    @staticmethod
    def supports(spec: ModelSpec, device: str) -> str | None:
        if spec.head_dim % 16:
            return (
                f"Its kernels take head dimensions that are multiples of 16, and the model's is {spec.head_dim}."
            )
        return CpuAttention.supports(spec, device)

    def forward(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: ForwardBatch,
        plan: None,
    ) -> torch.Tensor:
        return self._kernels.extend(
            q,
            k_cache,
            v_cache,
            batch.page_table,
            batch.rows,
            batch.query_starts,
            batch.lengths,
            layer.scale,
            layer.window,
            layer.softcap,
            singles=False,
        )
