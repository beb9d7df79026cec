"""The FlashAttention-3 backend: prompts on Hopper GPUs by the library's kernels, decoding by our own.

The extra `hopper` brings precompiled kernels (Shah et al., "FlashAttention-3", 2024) that read our pages as they
are. They are called as bare operators: the package's Python layer costs more than a launch. Steps of few queries a
row, and layers that the library cannot do (soft cap, float32, a cache of another dtype), are the Triton backend's.

A page's tail must hold finite numbers here, for the library multiplies it by zero. Must not know requests.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from radixlang.attention.triton import AttentionPlan, TritonAttention

if TYPE_CHECKING:
    from radixlang.attention import AttentionLayer
    from radixlang.forward import ForwardBatch
    from radixlang.models.spec import ModelSpec

LIBRARY = "flash_attn_3._C"
CAPABILITY = (9, 0)
#: what the package was compiled for
HEAD_DIMS = (64, 128, 192, 256)
DTYPES = (torch.float16, torch.bfloat16)
#: (query, head) pairs of one tile of the library
TILE_ROWS = 128
#: keys that are worth a split of their own
SPLIT_KEYS = 512
MAX_SPLITS = 32


@dataclass(frozen=True, kw_only=True)
class Fa3Plan(AttentionPlan):
    """A step with prompts: the rows' own page table [B, pages] int32, and in how many parts keys may be split."""

    pages: torch.Tensor
    splits: int


class Fa3Attention(TritonAttention):
    """`TritonAttention` with the library in place of the extend kernel, where it can be."""

    def __init__(self, spec: ModelSpec, page_size: int, device: torch.device | str) -> None:
        super().__init__(spec, page_size, device)
        importlib.import_module(LIBRARY)
        self._library = torch.ops.flash_attn_3.fwd.default

    @staticmethod
    def supports(spec: ModelSpec, device: str) -> str | None:
        """None, or why this backend cannot run `spec` on `device`."""
        if (reason := TritonAttention.supports(spec, device)) is not None:
            return reason
        if torch.device(device).type != "cuda" or not _is_hopper(device):
            return "FlashAttention-3 needs a Hopper GPU (sm_90)."
        if spec.head_dim not in HEAD_DIMS:
            known = ", ".join(map(str, HEAD_DIMS))
            return f"FlashAttention-3 takes head dimensions {known}, and the model's is {spec.head_dim}."
        if spec.attention_softcap:
            return "FlashAttention-3 is compiled without soft caps on scores, and the model has one."
        return missing()

    def plan(self, batch: ForwardBatch) -> AttentionPlan:
        """Choose the kernel; a step with prompts gathers its rows of the page table, on the device."""
        plan = super().plan(batch)
        if plan.decode:
            return plan
        used = -(-batch.max_length // batch.page_size)
        pages = batch.page_table[:, :used].index_select(0, batch.rows)
        return Fa3Plan(decode=plan.decode, extend=plan.extend, pages=pages, splits=self._splits(batch))

    def _splits(self, batch: ForwardBatch) -> int:
        """Parts of a row's keys such that few queries over a long prefix fill the chip.

        Not left to the library, which reckons with one row only: its buffers for the parts of many rows would
        take gigabytes. These take at most a tile for each multiprocessor.
        """
        rows = batch.input_ids.shape[0] * self._heads // self._kv_heads
        tiles = (rows // TILE_ROWS + batch.size) * self._kv_heads
        return max(1, min(self._chip.units // tiles, batch.max_length // SPLIT_KEYS, MAX_SPLITS))

    def forward(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: ForwardBatch,
        plan: AttentionPlan,
    ) -> torch.Tensor:
        """As `TritonAttention.forward`. Sinks of another dtype than bfloat16 are not rounded but go to Triton."""
        sinks: torch.Tensor | None = getattr(layer, "sinks", None)
        if (
            not isinstance(plan, Fa3Plan)
            or layer.softcap
            or q.dtype not in DTYPES
            or k_cache.dtype != q.dtype
            or (sinks is not None and sinks.dtype != torch.bfloat16)
        ):
            return super().forward(layer, q, k_cache, v_cache, batch, plan)
        out: torch.Tensor = self._library(
            q,
            k_cache,
            v_cache,
            cu_seqlens_q=batch.query_starts,
            seqused_k=batch.lengths,
            max_seqlen_q=batch.max_query,
            page_table=plan.pages,
            softmax_scale=layer.scale,
            is_causal=True,
            # our window counts the query's own key, the library's only those before it
            window_size_left=layer.window - 1 if layer.window else -1,
            window_size_right=0,
            num_splits=1 if sinks is not None else plan.splits,
            sinks=sinks,
        )[0]
        return out


def _is_hopper(device: str) -> bool:
    # AMD's architectures are numbered alike
    available = torch.cuda.is_available() and torch.version.hip is None
    return available and torch.cuda.get_device_capability(device) == CAPABILITY


def missing() -> str | None:
    """None if the library can be loaded, else what to do, in a sentence."""
    if importlib.util.find_spec("flash_attn_3") is None:
        return "FlashAttention-3 is not installed; pip install 'radixlang[hopper]'."
    try:
        importlib.import_module(LIBRARY)
    except Exception as error:  # a wheel for another torch fails in its own ways
        return f"FlashAttention-3 does not load beside this torch ({error}); it needs one built for CUDA 13."
    if "sinks" not in str(torch.ops.flash_attn_3.fwd.default._schema):
        return "The installed FlashAttention-3 is another build; pip install 'radixlang[hopper]'."
    return None
