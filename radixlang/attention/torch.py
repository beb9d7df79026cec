"""Attention in plain torch: runs on every device, and is the oracle the fast backends are compared with.

Rows with one new token are padded to one batch; every other row is computed alone. On accelerators a step
with longer rows reads their lengths back, so this backend is for CPUs and for tests. Slots past a row's
length may hold anything, NaN included, and are zeroed before they are multiplied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from radixlang.attention import AttentionLayer
from radixlang.forward import ForwardBatch

if TYPE_CHECKING:
    from radixlang.kernels.tuning import TreeTile
    from radixlang.models.spec import ModelSpec

SCORE_BYTES = 64 << 20
"""bound on the scores held at once where they are written out (soft cap)"""


@dataclass
class _Single:
    """Rows with one new token: `index` [S] into T (None when these are all tokens), pages [S, n].

    `valid` [S, n * page_size]: the slot belongs to the row.
    """

    index: torch.Tensor | None
    pages: torch.Tensor
    lengths: torch.Tensor
    valid: torch.Tensor
    full: bool
    """no slot is invalid"""
    masks: dict[int, torch.Tensor] = field(default_factory=dict)
    """window → allowed [S, 1, 1, keys]"""


@dataclass
class _Long:
    """One row with several new tokens: T[begin:end], `length` in all."""

    begin: int
    end: int
    length: int
    pages: torch.Tensor
    masks: dict[int, torch.Tensor] = field(default_factory=dict)
    """window → allowed [new, keys]"""


@dataclass
class TorchPlan:
    single: _Single | None
    long: list[_Long]


class TorchAttention:
    """The `torch_native` backend."""

    reads_back = True
    tree: Mapping[int, TreeTile] = {}

    def __init__(self, spec: ModelSpec, page_size: int, device: torch.device) -> None:
        self.page_size = page_size

    @staticmethod
    def supports(spec: ModelSpec, device: str) -> str | None:
        return None

    def plan(self, batch: ForwardBatch) -> TorchPlan:
        pages = -(-batch.max_length // batch.page_size)
        if batch.max_query == 1:
            return TorchPlan(self._single(batch, None, batch.rows, batch.lengths, pages), [])
        starts = batch.query_starts.tolist()
        lengths = batch.lengths.tolist()
        ones = [b for b in range(batch.size) if starts[b + 1] - starts[b] == 1]
        single = None
        if ones:
            chosen = torch.tensor(ones, device=batch.rows.device)
            index = batch.query_starts.long()[chosen]
            most = -(-max(lengths[b] for b in ones) // batch.page_size)
            single = self._single(batch, index, batch.rows[chosen], batch.lengths[chosen], most)
        long = []
        for b in range(batch.size):
            if starts[b + 1] - starts[b] > 1:
                used = -(-lengths[b] // batch.page_size)
                table = batch.page_table[batch.rows[b].long(), :used].long()
                long.append(_Long(starts[b], starts[b + 1], lengths[b], table))
        return TorchPlan(single, long)

    @staticmethod
    def _single(
        batch: ForwardBatch, index: torch.Tensor | None, rows: torch.Tensor, lengths: torch.Tensor, pages: int
    ) -> _Single:
        table = batch.page_table[rows.long(), :pages].long()
        keys = torch.arange(pages * batch.page_size, device=table.device)
        # A padded row (length 0) reads the sink's first slot, so that its softmax is over something.
        lengths = lengths.long().clamp(min=1)[:, None]
        valid = keys < lengths
        full = table.device.type == "cpu" and bool(valid.all())
        return _Single(index, table, lengths, valid, full)

    def forward(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: ForwardBatch,
        plan: TorchPlan,
    ) -> torch.Tensor:
        single = plan.single
        if single is not None and single.index is None:
            return self._decode(layer, q, k_cache, v_cache, single)
        out = torch.empty_like(q)
        if single is not None:
            out[single.index] = self._decode(layer, q[single.index], k_cache, v_cache, single)
        for row in plan.long:
            out[row.begin : row.end] = self._extend(layer, q[row.begin : row.end], k_cache, v_cache, row)
        return out

    def _decode(
        self, layer: AttentionLayer, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, rows: _Single
    ) -> torch.Tensor:
        mask = rows.masks.get(layer.window)
        if mask is None:
            allowed = rows.valid
            if layer.window:
                keys = torch.arange(allowed.shape[1], device=allowed.device)
                allowed = allowed & (keys >= rows.lengths - layer.window)
            mask = rows.masks[layer.window] = allowed[:, None, None, :]
        k, v = (cache[rows.pages].flatten(1, 2) for cache in (k_cache, v_cache))
        if not rows.full:
            garbage = ~rows.valid[:, :, None, None]
            k.masked_fill_(garbage, 0)
            v.masked_fill_(garbage, 0)
        k, v = k.to(q.dtype).transpose(1, 2), v.to(q.dtype).transpose(1, 2)
        return _attend(layer, q[:, :, None], k, v, mask)[:, :, 0]

    def _extend(
        self, layer: AttentionLayer, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, row: _Long
    ) -> torch.Tensor:
        new = row.end - row.begin
        mask = row.masks.get(layer.window)
        if mask is None:
            keys = torch.arange(row.length, device=q.device)
            at = torch.arange(row.length - new, row.length, device=q.device)[:, None]
            mask = keys <= at
            if layer.window:
                mask &= keys > at - layer.window
            row.masks[layer.window] = mask
        k, v = (
            cache[row.pages].flatten(0, 1)[: row.length].to(q.dtype).transpose(0, 1)[None]
            for cache in (k_cache, v_cache)
        )
        return _attend(layer, q.transpose(0, 1)[None], k, v, mask)[0].transpose(0, 1)


def _attend(
    layer: AttentionLayer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """q [B, heads, new, dim], k and v [B, kv_heads, keys, dim], mask [(B, 1,) new, keys] → like q."""
    if not layer.softcap:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=layer.scale, enable_gqa=True)
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    out = torch.empty_like(q)
    step = max(1, SCORE_BYTES // (4 * q.shape[0] * q.shape[1] * k.shape[2]))
    for begin in range(0, q.shape[2], step):
        part = slice(begin, begin + step)
        scores = (q[:, :, part] @ k.transpose(2, 3)).float() * layer.scale
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
        scores.masked_fill_(~mask[..., part, :], -torch.inf)
        out[:, :, part] = scores.softmax(-1).to(v.dtype) @ v
    return out
