"""Tree attention: what rows share of their prefixes is read once for all of them, at decoding.

Rows below a node of the prefix tree have the same keys there. Their queries are packed into one tile, (row, head)
pairs that share a KV head, which sweeps the node's keys once; each row gets the normalised sum over them and its
log-sum-exp in a slot of its own. `decode_attention` starts a row from its slots and reads only the keys behind
them: partial softmax sums join exactly, whatever the cut. (The cut of a prefix and its suffixes is that of
Juravsky et al., "Hydragen", 2024; many levels as in Yao et al., "DeFT", 2025, or Pan et al., "FastTree", 2025.)

The work is a list on the device (`tree_work`), so that a graph can hold the launch: as many programs as the chip
runs at once take turns at it. Must not know requests, nor who decided what is shared.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from radixlang.kernels import chain
from radixlang.kernels.attention_tile import page_ids, score_factors, sweep
from radixlang.kernels.chain import release, wait
from radixlang.kernels.tree_work import ITEM, SLOTS, TreeWork
from radixlang.kernels.tuning import TreeTile, next_power_of_2, upcast_dots


@triton.jit(do_not_specialize=["table_stride", "slots", "number_ptr", "items_ptr", "order_ptr"])
def _tree_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    k_tiles,
    v_tiles,
    table_ptr,
    number_ptr,
    items_ptr,
    order_ptr,
    partial_ptr,
    lse_ptr,
    scale,
    cap,
    slots,
    table_stride,
    q_token,
    q_head,
    k_page,
    k_slot,
    k_head,
    v_page,
    v_slot,
    v_head,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr,
    ITEM: tl.constexpr,
    TMA: tl.constexpr,
    SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
    CHAINED: tl.constexpr,
):
    release(CHAINED)
    # the work was written before any layer ran
    units = tl.load(number_ptr) * KV_HEADS
    lane = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    wait(CHAINED)
    for unit in range(tl.program_id(0), units, tl.num_programs(0)):
        kv_head = unit % KV_HEADS
        item = items_ptr + unit // KV_HEADS * ITEM
        first = tl.load(item)
        used = lane < tl.load(item + 1) * GROUP
        table = table_ptr + tl.load(item + 2).to(tl.int64) * table_stride
        slot = tl.load(item + 3)
        start = tl.load(item + 4)
        end = tl.load(item + 5)
        token = tl.load(order_ptr + first + lane // GROUP, mask=used, other=0).to(tl.int64)
        head = kv_head * GROUP + lane % GROUP
        there = used[:, None] & (d < D)[None, :]
        q = tl.load(q_ptr + token[:, None] * q_token + head[:, None] * q_head + d[None, :], mask=there, other=0.0)
        if UPCAST:
            q = q.to(tl.float32)
        m, l, acc = sweep(
            q,
            tl.full([BLOCK_M], float("-inf"), tl.float32),
            tl.zeros([BLOCK_M], tl.float32),
            tl.zeros([BLOCK_M, BLOCK_D], tl.float32),
            lane,
            table,
            page_ids(table, start, end, PAGE, BLOCK_N),
            k_ptr + kv_head * k_head,
            v_ptr + kv_head * v_head,
            start,
            end,
            scale,
            cap,
            0,
            k_page,
            k_slot,
            v_page,
            v_slot,
            k_tiles,
            v_tiles,
            kv_head * D,
            D,
            BLOCK_D,
            BLOCK_N,
            PAGE,
            TMA,
            False,
            False,
            SOFTCAP,
            UPCAST,
            PRECISION,
            "",
        )
        place = (token * KV_HEADS * GROUP + head) * slots + slot
        norm = tl.where(l > 0.0, l, 1.0)
        tl.store(lse_ptr + place, tl.where(l > 0.0, m + tl.log2(norm), float("-inf")), mask=used)
        tl.store(partial_ptr + place[:, None] * D + d[None, :], acc / norm[:, None], mask=there)


@dataclass(frozen=True)
class Prefixes:
    """What `decode_attention` starts the rows of a batch from.

    `begins` [B] int32 are the keys that a row need not read any more and `used` [B] int32 the slots that hold what
    came of them: `partial` [B, heads, slots, D] float32, normalised, and `lse` [B, heads, slots] float32, the
    base-2 log-sum-exp of scores.
    """

    begins: torch.Tensor
    used: torch.Tensor
    partial: torch.Tensor
    lse: torch.Tensor


def tree_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    work: TreeWork,
    *,
    scale: float,
    softcap: float = 0.0,
    tile: TreeTile,
) -> Prefixes:
    """Attention of one query a row over the parts of its prefix that are in `work`; shapes as in
    `decode_attention`.

    Every item has at most `tile.block_m // (heads / kv_heads)` rows, whose newest tokens see all of its keys;
    `start` and `end` are multiples of the page size and of `tile.block_n`. With `tile.tma` as in
    `extend_attention`.
    """
    tokens, heads, head_dim = q.shape
    page_size, kv_heads = k_cache.shape[1], k_cache.shape[2]
    partial = torch.empty((tokens, heads, SLOTS, head_dim), dtype=torch.float32, device=q.device)
    lse = torch.empty((tokens, heads, SLOTS), dtype=torch.float32, device=q.device)
    factor, cap = score_factors(scale, softcap)
    k_tiles, v_tiles = k_cache, v_cache
    if tile.tma:
        block = [tile.block_n, head_dim]
        k_tiles, v_tiles = (
            TensorDescriptor.from_tensor(cache.view(-1, kv_heads * head_dim), block)
            for cache in (k_cache, v_cache)
        )
    _tree_kernel[(tile.programs,)](
        q,
        k_cache,
        v_cache,
        k_tiles,
        v_tiles,
        page_table,
        work.number,
        work.items,
        work.order,
        partial,
        lse,
        factor,
        cap,
        SLOTS,
        page_table.stride(0),
        q.stride(0),
        q.stride(1),
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        D=head_dim,
        BLOCK_M=tile.block_m,
        BLOCK_D=max(16, next_power_of_2(head_dim)),
        BLOCK_N=tile.block_n,
        PAGE=page_size,
        ITEM=ITEM,
        TMA=tile.tma,
        SOFTCAP=softcap > 0.0,
        UPCAST=upcast_dots(q.dtype),
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=tile.warps,
        num_stages=tile.stages,
        **chain.options(),
    )
    return Prefixes(work.begins, work.used, partial, lse)
