"""Attention of many queries a row over its paged prefix and, causally, over themselves.

Serves prefill, chunks and mixed steps: the new tokens' K and V are already in the cache, so prefix and new
tokens are read alike. A program takes a block of (query, head) pairs that share a KV head, in the flat order
query * group + head, so that any group size fills the block. Must not know requests.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from radixlang.kernels.attention_tile import add_sink, page_ids, score_factors, sweep
from radixlang.kernels.tuning import ExtendTile, next_power_of_2, upcast_dots

ROWS_AT_ONCE = 256
"""rows of the batch that a program looks through for its own"""


@triton.jit
def first_tiles(starts, rows, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """First tiles of `rows` whose tokens begin at `starts`: at least as many after the row before as that needs.

    floor(x / M) + b grows by at least ceil(n / M) when x grows by n and b by one, so rows find room for their
    tiles without a prefix sum over tile counts; a spare tile at a row's end returns at once.
    """
    return starts * GROUP // BLOCK_M + rows


@triton.jit
def _used_rows(starts_ptr, batch, total, BLOCK_R: tl.constexpr):
    """Rows up to the last that has a token; those behind it pad the batch."""
    used = 0
    for first in range(0, batch, BLOCK_R):
        rows = first + tl.arange(0, BLOCK_R)
        starts = tl.load(starts_ptr + rows, mask=rows < batch, other=total)
        used += tl.sum((starts < total).to(tl.int32), 0)
    return used


@triton.jit
def _row_of(tile, starts_ptr, used, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr):
    """The row that `tile` belongs to: the last whose first tile is not after it."""
    begun = 0
    for first in range(0, used, BLOCK_R):
        rows = first + tl.arange(0, BLOCK_R)
        starts = tl.load(starts_ptr + rows, mask=rows < used, other=0)
        mine = (rows < used) & (first_tiles(starts, rows, GROUP, BLOCK_M) <= tile)
        begun += tl.sum(mine.to(tl.int32), 0)
    return begun - 1


@triton.jit(do_not_specialize=["window", "batch", "table_stride", "rows_ptr", "starts_ptr", "lengths_ptr"])
def _extend_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    k_tiles,
    v_tiles,
    table_ptr,
    rows_ptr,
    starts_ptr,
    lengths_ptr,
    sinks_ptr,
    out_ptr,
    scale,
    cap,
    window,
    batch,
    table_stride,
    q_token,
    q_head,
    k_page,
    k_slot,
    k_head,
    v_page,
    v_slot,
    v_head,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    PAGE: tl.constexpr,
    TMA: tl.constexpr,
    SINKS: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    kv_head = tl.program_id(0)
    heads = tl.num_programs(0) * GROUP
    total = tl.load(starts_ptr + batch)
    used = _used_rows(starts_ptr, batch, total, BLOCK_R)
    # late tiles see the most keys: start them first
    tile = total * GROUP // BLOCK_M + used - 1 - tl.program_id(1)
    if tile < 0:
        return
    b = _row_of(tile, starts_ptr, used, GROUP, BLOCK_M, BLOCK_R)
    first = tl.load(starts_ptr + b)
    count = tl.load(starts_ptr + b + 1) - first
    offset = (tile - first_tiles(first, b, GROUP, BLOCK_M)) * BLOCK_M
    if offset >= count * GROUP:
        return

    length = tl.load(lengths_ptr + b)
    prefix = length - count
    lane = offset + tl.arange(0, BLOCK_M)
    token = (first + lane // GROUP).to(tl.int64)
    head = kv_head * GROUP + lane % GROUP
    d = tl.arange(0, BLOCK_D)
    used = lane < count * GROUP
    there = used[:, None] & (d < D)[None, :]
    q = tl.load(q_ptr + token[:, None] * q_token + head[:, None] * q_head + d[None, :], mask=there, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)

    first_query = prefix + offset // GROUP
    last_query = prefix + tl.minimum((offset + BLOCK_M - 1) // GROUP, count - 1)
    end = tl.minimum(last_query + 1, length)
    position = prefix + lane // GROUP
    table = table_ptr + tl.load(rows_ptr + b).to(tl.int64) * table_stride
    k_base = k_ptr + kv_head * k_head
    v_base = v_ptr + kv_head * v_head
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    # Three runs of tiles: where windows begin, where every query sees every key, and the diagonal. Only the outer
    # two pay for masks; without a window the first is empty.
    below = tl.maximum(tl.minimum(first_query + 1, length), 0) // BLOCK_N * BLOCK_N
    start = 0
    inside = 0
    if WINDOWED:
        start = tl.maximum(first_query - window + 1, 0) // BLOCK_N * BLOCK_N
        inside = tl.cdiv(tl.maximum(last_query - window + 1, 0), BLOCK_N) * BLOCK_N
        inside = tl.minimum(inside, below)
    for run in tl.static_range(0 if WINDOWED else 1, 3):
        low = start if run == 0 else (inside if run == 1 else below)
        high = inside if run == 0 else (below if run == 1 else end)
        m, l, acc = sweep(
            q,
            m,
            l,
            acc,
            position,
            table,
            page_ids(table, low, high, PAGE, BLOCK_N),
            k_base,
            v_base,
            low,
            high,
            scale,
            cap,
            window,
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
            run != 1,
            WINDOWED,
            SOFTCAP,
            UPCAST,
            PRECISION,
            "",
        )
    if SINKS:
        m, l, acc = add_sink(m, l, acc, tl.load(sinks_ptr + head, mask=used, other=0.0).to(tl.float32))
    result = acc / tl.where(l > 0.0, l, 1.0)[:, None]
    place = token[:, None] * heads * D + head[:, None] * D + d[None, :]
    tl.store(out_ptr + place, result.to(out_ptr.dtype.element_ty), mask=there)


def extend_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    rows: torch.Tensor,
    query_starts: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    tile: ExtendTile,
) -> torch.Tensor:
    """Causal attention of any number of new tokens a row; shapes and rules as in `decode_attention`.

    The grid depends on the shapes alone, so that a graph can hold it; rows without tokens may end the batch.
    With `tile.tma` the caches must be dense and every tile must lie in one page (`tuning.extend_tile` sees to it).
    """
    tokens, heads, head_dim = q.shape
    page_size, kv_heads = k_cache.shape[1], k_cache.shape[2]
    group = heads // kv_heads
    batch = rows.shape[0]
    out = torch.empty((tokens, heads, head_dim), dtype=q.dtype, device=q.device)
    factor, cap = score_factors(scale, softcap)
    k_tiles, v_tiles = k_cache, v_cache
    if tile.tma:
        block = [tile.block_n, head_dim]
        k_tiles, v_tiles = (
            TensorDescriptor.from_tensor(cache.view(-1, kv_heads * head_dim), block)
            for cache in (k_cache, v_cache)
        )
    _extend_kernel[(kv_heads, tokens * group // tile.block_m + batch)](
        q,
        k_cache,
        v_cache,
        k_tiles,
        v_tiles,
        page_table,
        rows,
        query_starts,
        lengths,
        out if sinks is None else sinks,
        out,
        factor,
        cap,
        window,
        batch,
        page_table.stride(0),
        q.stride(0),
        q.stride(1),
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        GROUP=group,
        D=head_dim,
        BLOCK_M=tile.block_m,
        BLOCK_D=max(16, next_power_of_2(head_dim)),
        BLOCK_N=tile.block_n,
        BLOCK_R=ROWS_AT_ONCE,
        PAGE=page_size,
        TMA=tile.tma,
        SINKS=sinks is not None,
        WINDOWED=window > 0,
        SOFTCAP=softcap > 0.0,
        UPCAST=upcast_dots(q.dtype),
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out
