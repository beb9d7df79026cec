"""The Triton attention backend: the default on GPUs.

Chooses per step between the two paged kernels: few queries a row take the split-KV decode kernel, anything else
the extend kernel. Before the former, tree attention reads what the rows share, in steps that say so; a layer with
a window goes without, for it does not see most of that. Runs on the CPU only under Triton's interpreter, for
tests. Must not know requests.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from radixlang.kernels import tuning

if TYPE_CHECKING:
    from radixlang.attention import AttentionLayer, Fused, ProjectedLayer
    from radixlang.forward import ForwardBatch
    from radixlang.models.spec import ModelSpec

GPU_TYPES = ("cuda", "xpu")
MAX_HEAD_DIM = 256
ELEMENT_SIZES = (2, 4)


@dataclass(frozen=True)
class AttentionPlan:
    """The step's kernel and its launch settings by the cache's bytes an element; one of the two is empty."""

    decode: dict[int, tuning.DecodeTile]
    extend: dict[int, tuning.ExtendTile]
    fused: Fused | None = None
    """see `attention.FusedPlan`"""


class TritonAttention:
    """Paged attention by `decode_attention.py`, `tree_attention.py` and `extend_attention.py` of the kernels."""

    reads_back = False

    def __init__(self, spec: ModelSpec, page_size: int, device: torch.device | str) -> None:
        from radixlang.kernels.decode_attention import decode_attention, decode_projected
        from radixlang.kernels.extend_attention import extend_attention
        from radixlang.kernels.tree_attention import tree_attention

        self._decode = decode_attention
        self._decode_projected = decode_projected
        self._extend = extend_attention
        self._tree = tree_attention
        self._heads = spec.num_heads
        self._kv_heads = spec.num_kv_heads
        self._head_dim = spec.head_dim
        self._chip = tuning.chip(device)
        self._extend_tiles = {
            size: tuning.extend_tile(self._chip, head_dim=spec.head_dim, element_size=size, page_size=page_size)
            for size in ELEMENT_SIZES
        }
        self.tree: dict[int, tuning.TreeTile] = {}
        if not all(layer.window for layer in spec.layers):
            tiles = {
                size: tuning.tree_tile(
                    self._chip,
                    heads=spec.num_heads,
                    kv_heads=spec.num_kv_heads,
                    head_dim=spec.head_dim,
                    element_size=size,
                    page_size=page_size,
                )
                for size in ELEMENT_SIZES
            }
            self.tree = {size: tile for size, tile in tiles.items() if tile is not None}

    @staticmethod
    def supports(spec: ModelSpec, device: str) -> str | None:
        """None, or why this backend cannot run `spec` on `device`."""
        kind = torch.device(device).type
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed; `pip install triton`."
        if kind not in GPU_TYPES and not tuning.interpreted():
            return f"Its kernels need a GPU, and the device is {kind}."
        if spec.encoder:
            return "Triton attention is causal and over pages; an encoder needs neither."
        if spec.head_dim > MAX_HEAD_DIM:
            return (
                f"Triton attention takes head dimensions up to {MAX_HEAD_DIM}, and the model's is {spec.head_dim}."
            )
        return None

    def plan(self, batch: ForwardBatch) -> AttentionPlan:
        """Choose the kernel and its settings from what the host knows; reads no device memory."""
        queries = batch.max_query * (self._heads // self._kv_heads)
        if queries > tuning.MAX_DECODE_ROWS:
            return AttentionPlan(decode={}, extend=self._extend_tiles)
        # Several queries a row are rare: one compiled kernel must do for them, whatever the batch.
        one = batch.max_query == 1
        tiles = {
            size: tuning.decode_tile(
                self._chip,
                batch=batch.size if one else 1,
                queries=queries if one else tuning.MAX_DECODE_ROWS,
                max_length=batch.max_length,
                kv_heads=self._kv_heads,
                head_dim=self._head_dim,
                element_size=size,
                page_size=batch.page_size,
            )
            for size in ELEMENT_SIZES
        }
        if not one:
            tiles = {size: replace(tile, splits=max(2, tile.splits // batch.size)) for size, tile in tiles.items()}
        if batch.tree is not None and self._head_dim > 128:
            # what a row begins with takes registers, too
            tiles = {size: replace(tile, warps=max(4, tile.warps)) for size, tile in tiles.items()}
        # Tree attention wants the queries before the decode kernel runs.
        fused = one and batch.separate and batch.tree is None and all(tile.projected for tile in tiles.values())
        return AttentionPlan(tiles, {}, partial(self._fused, tiles) if fused else None)

    def _fused(
        self,
        tiles: dict[int, tuning.DecodeTile],
        layer: ProjectedLayer,
        qkv: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor] | None,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: ForwardBatch,
    ) -> torch.Tensor:
        """See `attention.Fused`; sinks as in `forward`."""
        return self._decode_projected(
            qkv,
            k_cache,
            v_cache,
            batch.page_table,
            batch.rows,
            batch.slots,
            batch.lengths,
            heads=layer.heads,
            angles=angles,
            q_weight=layer.q_norm,
            k_weight=layer.k_norm,
            eps=layer.eps,
            scale=layer.scale,
            window=layer.window,
            softcap=layer.softcap,
            sinks=getattr(layer, "sinks", None),
            tile=tiles[k_cache.element_size()],
        )

    def forward(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: ForwardBatch,
        plan: AttentionPlan,
    ) -> torch.Tensor:
        """q [T, heads, head_dim] → [T, heads, head_dim]; rows of length 0 give zeros.

        A layer may carry `sinks` [heads]: a score per head that takes weight and gives nothing.
        """
        tensors = (
            q,
            k_cache,
            v_cache,
            batch.page_table,
            batch.rows,
            batch.query_starts,
            batch.lengths,
        )
        sinks: torch.Tensor | None = getattr(layer, "sinks", None)
        size = k_cache.element_size()
        if plan.decode:
            prefixes = None
            if batch.tree is not None and not layer.window:
                prefixes = self._tree(
                    q,
                    k_cache,
                    v_cache,
                    batch.page_table,
                    batch.tree,
                    scale=layer.scale,
                    softcap=layer.softcap,
                    tile=self.tree[size],
                )
            return self._decode(
                *tensors,
                scale=layer.scale,
                window=layer.window,
                softcap=layer.softcap,
                sinks=sinks,
                max_query=batch.max_query,
                tile=plan.decode[size],
                prefixes=prefixes,
            )
        return self._extend(
            *tensors,
            scale=layer.scale,
            window=layer.window,
            softcap=layer.softcap,
            sinks=sinks,
            tile=plan.extend[size],
        )
