"""Attention of few queries a row over a long paged cache: decoding and verification.

A program takes one row, one KV head with all the query heads that share it, and one split of the row's keys.
Splits are joined by their log-sum-exp: a few by the last program to arrive, many by a second kernel. In a decode
step the kernel can begin at the projection: every program prepares its own queries, and the one whose split holds
the newest position prepares the new key, uses it, and writes it to the cache with its value. Or it goes on from
what `tree_attention` has made of the beginnings that rows share. Must not know requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from radixlang.kernels import chain
from radixlang.kernels.attention_tile import add_sink, bounded, page_ids, score_factors, sweep
from radixlang.kernels.chain import begin, prefetch, release, wait
from radixlang.kernels.rope_write import turned
from radixlang.kernels.tree_attention import Prefixes
from radixlang.kernels.tuning import MAX_DECODE_ROWS, DecodeTile, next_power_of_2, upcast_dots

FEW_SPLITS = 2
"""more than these are joined by a kernel of their own"""


@triton.jit
def _share(
    length, begin, count, window, num_splits, BLOCK_N: tl.constexpr, WINDOWED: tl.constexpr, TREE: tl.constexpr
):
    """(first key, keys a split) of a row: whole tiles, the same for all splits. With TREE from key `begin` on."""
    lo = 0
    if WINDOWED:
        lo = tl.maximum(length - count - window + 1, 0) // BLOCK_N * BLOCK_N
    if TREE:
        lo = begin
    return lo, tl.maximum(tl.cdiv(tl.cdiv(length - lo, num_splits), BLOCK_N), 1) * BLOCK_N


@triton.jit
def _joined(
    partial_ptr,
    lse_ptr,
    place,
    used,
    num_splits,
    sink,
    D: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """The result [BLOCK_D] of one query and head out of its first `used` splits. `sink` is in base 2."""
    s = tl.arange(0, BLOCK_S)
    d = tl.arange(0, BLOCK_D)
    lse = tl.load(lse_ptr + place * num_splits + s, mask=s < used, other=float("-inf"), cache_modifier=".cg")
    m = tl.maximum(tl.max(lse, 0), sink)
    base = tl.where(m == float("-inf"), 0.0, m)
    weight = tl.exp2(lse - base)
    total = tl.sum(weight, 0) + tl.exp2(sink - base)
    there = (lse > float("-inf"))[:, None] & (d < D)[None, :]
    parts = partial_ptr + (place * num_splits + s)[:, None] * D + d[None, :]
    part = tl.load(parts, mask=there, other=0.0, cache_modifier=".cg")
    return tl.sum(part * weight[:, None], 0) / tl.where(total > 0.0, total, 1.0)


@triton.jit
def _from_prefix(
    m, l, acc, partial_ptr, lse_ptr, place, used, lanes, slots, D: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Fold in what is in the first `used` slots of the queries at `place` [M], of which those in `lanes` exist."""
    d = tl.arange(0, BLOCK_D)
    there = lanes[:, None] & (d < D)[None, :]
    for slot in range(used):
        at = place * slots + slot
        lse = tl.load(lse_ptr + at, mask=lanes, other=float("-inf"))
        part = tl.load(partial_ptr + at[:, None] * D + d[None, :], mask=there, other=0.0)
        m_new = tl.maximum(m, lse)
        base = tl.where(m_new == float("-inf"), 0.0, m_new)
        weight = tl.exp2(lse - base)
        shrink = tl.exp2(m - base)
        l = l * shrink + weight
        acc = acc * shrink[:, None] + part * weight[:, None]
        m = m_new
    return m, l, acc


@triton.jit(
    do_not_specialize=[
        "window", "num_splits", "table_stride", "prefix_slots", "rows_ptr", "starts_ptr", "lengths_ptr",
        "slots_ptr", "begins_ptr", "used_ptr",
    ]
)  # fmt: skip
def _decode_kernel(
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
    cos_ptr,
    sin_ptr,
    slots_ptr,
    q_weight_ptr,
    k_weight_ptr,
    begins_ptr,
    used_ptr,
    prefix_ptr,
    prefix_lse_ptr,
    out_ptr,
    partial_ptr,
    lse_ptr,
    arrived_ptr,
    eps,
    scale,
    cap,
    window,
    num_splits,
    prefix_slots,
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
    BLOCK_S: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    SINKS: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
    ONE: tl.constexpr,
    LAST_JOINS: tl.constexpr,
    PROJECTED: tl.constexpr,
    HALF: tl.constexpr,
    RUN: tl.constexpr,
    NORM: tl.constexpr,
    EVICT: tl.constexpr,
    PREFETCH: tl.constexpr,
    TREE: tl.constexpr,
    PACK: tl.constexpr,
    KEYS_LEFT: tl.constexpr,
    TMA: tl.constexpr,
    CHAINED: tl.constexpr,
):
    release(CHAINED)
    kv_head = tl.program_id(0) * PACK
    b = tl.program_id(1)
    split = tl.program_id(2)
    kv_heads = tl.num_programs(0) * PACK
    heads = kv_heads * GROUP
    # the batch is described before any layer runs: it may be read before the last kernel has finished
    length = tl.load(lengths_ptr + b)
    first = b
    count = 1
    if not ONE:
        first = tl.load(starts_ptr + b)
        count = tl.load(starts_ptr + b + 1) - first
    begin = 0
    if TREE:
        begin = tl.load(begins_ptr + b)
    lo, span = _share(length, begin, count, window, num_splits, BLOCK_N, WINDOWED, TREE)
    start = lo + split * span
    end = tl.minimum(start + span, length)
    if SPLIT and ONE and (split > 0) & (start >= length):
        return  # nobody looks at splits without keys (a first one waits, for the kernels behind)
    # what the sweep reads: in a projected step the newest position is not in the cache yet
    last = length - count
    if PROJECTED:
        newest = (start < length) & (end == length)
        end = tl.minimum(end, length - 1)
        last = length - 2
        window -= 1
    table = table_ptr + tl.load(rows_ptr + b).to(tl.int64) * table_stride
    page = page_ids(table, start, end, PAGE, BLOCK_N, PACK)
    k_base = k_ptr + kv_head * k_head
    v_base = v_ptr + kv_head * v_head
    if PREFETCH and CHAINED:
        keys = start + tl.arange(0, BLOCK_N * PACK) // PACK
        column = tl.arange(0, BLOCK_N * PACK) % PACK
        pages = (page + tl.zeros([BLOCK_N * PACK], tl.int32)).to(tl.int64)
        LINE: tl.constexpr = 1024 // k_ptr.dtype.element_ty.primitive_bitwidth
        line = tl.arange(0, (BLOCK_D + LINE - 1) // LINE) * LINE
        wanted = (keys < end)[:, None] & (line < D)[None, :]
        k_keys = pages * k_page + keys % PAGE * k_slot + column * k_head
        v_keys = pages * v_page + keys % PAGE * v_slot + column * v_head
        prefetch(k_base + k_keys[:, None] + line[None, :], wanted)
        prefetch(v_base + v_keys[:, None] + line[None, :], wanted)
    wait(CHAINED)

    lane = tl.arange(0, BLOCK_M)
    # rows of the tile: the heads of one query, then those of the next
    QUERY: tl.constexpr = GROUP * PACK
    token = (first + lane // QUERY).to(tl.int64)
    head = kv_head * GROUP + lane % QUERY
    d = tl.arange(0, BLOCK_D)
    used = lane < count * QUERY
    there = used[:, None] & (d < D)[None, :]
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if PROJECTED:
        row = q_ptr + b.to(tl.int64) * q_token
        cos = cos_ptr + b.to(tl.int64) * HALF
        sin = sin_ptr + b.to(tl.int64) * HALF
        q = turned(row + head * q_head, used, q_weight_ptr, cos, sin, eps, D, BLOCK_D, HALF, RUN, NORM)
        q = q.to(q_ptr.dtype.element_ty)
        if newest:
            one = tl.arange(0, 1)
            k_new = turned(
                row + (heads + kv_head + one) * q_head,
                one == 0,
                k_weight_ptr, cos, sin, eps, D, BLOCK_D, HALF, RUN, NORM,
            )  # fmt: skip
            v_new = tl.load(row + (heads + kv_heads + kv_head) * q_head + d, mask=d < D, other=0.0)
            # what is used is what later steps will read
            k_new = k_new.to(k_ptr.dtype.element_ty)
            v_new = v_new.to(v_ptr.dtype.element_ty)
            slot = tl.load(slots_ptr + b).to(tl.int64)
            k_goal = k_base + slot // PAGE * k_page + slot % PAGE * k_slot
            v_goal = v_base + slot // PAGE * v_page + slot % PAGE * v_slot
            tl.store(k_goal + d[None, :], k_new, mask=(d < D)[None, :])
            tl.store(v_goal + d, v_new, mask=d < D)
            product = tl.sum(q.to(tl.float32) * k_new.to(tl.float32), 1)
            m = bounded(product, scale, cap, SOFTCAP)
            l = tl.full([BLOCK_M], 1.0, tl.float32)
            acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32) + v_new.to(tl.float32)[None, :]
    else:
        q = tl.load(q_ptr + token[:, None] * q_token + head[:, None] * q_head + d[None, :], mask=there, other=0.0)
    if TREE:
        slots_used = tl.where(split == 0, tl.load(used_ptr + b), 0)
        m, l, acc = _from_prefix(
            m, l, acc, prefix_ptr, prefix_lse_ptr, token * heads + head, slots_used, used, prefix_slots, D, BLOCK_D
        )
    if UPCAST:
        q = q.to(tl.float32)
    # Two runs of tiles: by descriptor those that every query sees whole, and the others, which pay for masks.
    # Without descriptors there is only the second.
    whole = start
    if TMA:
        whole = tl.maximum(tl.minimum(end, last + 1) // BLOCK_N * BLOCK_N, start)
    for run in tl.static_range(0 if TMA else 1, 2):
        m, l, acc = sweep(
            q,
            m,
            l,
            acc,
            last + lane // QUERY,
            table,
            page if run == 0 or not TMA else page_ids(table, whole, end, PAGE, BLOCK_N, PACK),
            k_base,
            v_base,
            start if run == 0 else whole,
            whole if run == 0 else end,
            scale,
            cap,
            window,
            k_page,
            k_slot,
            v_page,
            v_slot,
            k_tiles,
            v_tiles,
            kv_head * D if PACK == 1 else kv_head,
            D,
            BLOCK_D,
            BLOCK_N,
            PAGE,
            TMA,
            run == 1,
            WINDOWED,
            SOFTCAP,
            UPCAST,
            PRECISION,
            EVICT,
            PACK,
            GROUP,
            k_head,
            v_head,
            KEYS_LEFT,
        )
    if SPLIT:
        place = (token * heads + head) * num_splits + split
        norm = tl.where(l > 0.0, l, 1.0)
        tl.store(lse_ptr + place, tl.where(l > 0.0, m + tl.log2(norm), float("-inf")), mask=used)
        # an empty split leaves its partial sums unwritten; the join does not read what has lse -inf
        tl.store(
            partial_ptr + place[:, None] * D + d[None, :],
            acc / norm[:, None],
            mask=there & (l > 0.0)[:, None],
        )
        if LAST_JOINS:
            used_splits = tl.maximum(tl.cdiv(length - lo, span), 1)
            counter = arrived_ptr + b * kv_heads + kv_head
            tl.debug_barrier()
            if tl.atomic_add(counter, 1, sem="acq_rel") == used_splits - 1:
                tl.store(counter, 0)
                for g in tl.static_range(QUERY):
                    this = kv_head * GROUP + g
                    sink = float("-inf")
                    if SINKS:
                        sink = tl.load(sinks_ptr + this).to(tl.float32) * 1.4426950408889634
                    at = b.to(tl.int64) * heads + this
                    result = _joined(partial_ptr, lse_ptr, at, used_splits, num_splits, sink, D, BLOCK_S, BLOCK_D)
                    tl.store(out_ptr + at * D + d, result.to(out_ptr.dtype.element_ty), mask=d < D)
    else:
        if SINKS:
            m, l, acc = add_sink(m, l, acc, tl.load(sinks_ptr + head, mask=used, other=0.0).to(tl.float32))
        result = acc / tl.where(l > 0.0, l, 1.0)[:, None]
        place = token[:, None] * heads * D + head[:, None] * D + d[None, :]
        tl.store(out_ptr + place, result.to(out_ptr.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["window", "num_splits", "lengths_ptr", "begins_ptr"])
def _join_kernel(
    partial_ptr,
    lse_ptr,
    lengths_ptr,
    begins_ptr,
    sinks_ptr,
    out_ptr,
    window,
    num_splits,
    D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SINKS: tl.constexpr,
    WINDOWED: tl.constexpr,
    ONE: tl.constexpr,
    TREE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    begin(CHAINED)
    head = tl.program_id(0)
    token = tl.program_id(1).to(tl.int64)
    place = token * tl.num_programs(0) + head
    d = tl.arange(0, BLOCK_D)
    used = num_splits
    if ONE:
        length = tl.load(lengths_ptr + token)
        first = 0
        if TREE:
            first = tl.load(begins_ptr + token)
        lo, span = _share(length, first, 1, window, num_splits, BLOCK_N, WINDOWED, TREE)
        used = tl.cdiv(length - lo, span)
    sink = float("-inf")
    if SINKS:
        sink = tl.load(sinks_ptr + head).to(tl.float32) * 1.4426950408889634
    result = _joined(partial_ptr, lse_ptr, place, used, num_splits, sink, D, BLOCK_S, BLOCK_D)
    tl.store(out_ptr + place * D + d, result.to(out_ptr.dtype.element_ty), mask=d < D)


@dataclass(frozen=True)
class _Projected:
    """What prepares the queries and the newest key of a decode step; no angles turn nothing."""

    angles: tuple[torch.Tensor, torch.Tensor] | None
    slots: torch.Tensor
    q_weight: torch.Tensor | None
    k_weight: torch.Tensor | None
    eps: float


def decode_attention(
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
    max_query: int,
    tile: DecodeTile,
    prefixes: Prefixes | None = None,
) -> torch.Tensor:
    """Causal attention of at most `max_query` new tokens a row; their K and V are already in the cache.

    q [T, heads, D], any strides but a dense D; caches [pages, page, kv_heads, D]; page_table [., .] int32;
    rows, lengths [B] int32; query_starts [B + 1] int32. Returns a new [T, heads, D]; a row of length 0 gives
    zeros, tokens of no row are left unwritten. Where `max_query` is 1 each row has exactly one token, row i the
    i-th, and `query_starts` is not read. Meant for
    max_query * heads / kv_heads ≤ `MAX_DECODE_ROWS`; beyond that `extend_attention` is faster.
    With `prefixes`, which are for one query a row and no window, the rows go on from there. With `tile.tma` the
    caches must be dense, and what prefixes leave out whole pages.
    """
    return _launch(
        q, k_cache, v_cache, page_table, rows, query_starts, lengths,
        scale, window, softcap, sinks, max_query, tile, None, prefixes,
    )  # fmt: skip


def decode_projected(
    qkv: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    rows: torch.Tensor,
    slots: torch.Tensor,
    lengths: torch.Tensor,
    *,
    heads: int,
    angles: tuple[torch.Tensor, torch.Tensor] | None,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    tile: DecodeTile,
) -> torch.Tensor:
    """`rope_write` and `decode_attention` of one new token a row, in one kernel → a new [B, heads, D].

    qkv [B, (heads + 2 kv_heads) * D], dense rows; angles (cosines, sines) [B, R / 2] float32, dense, of the rows'
    new positions, None for no rotation; slots [B] as in `rope_write`, and lengths [B] count the new token. A row
    of length 0 gives zeros and writes nothing. No row may read the page slot that another row writes.
    """
    new = _Projected(angles, slots, q_weight, k_weight, eps)
    q = qkv.view(qkv.shape[0], -1, k_cache.shape[3])[:, :heads]
    return _launch(
        q, k_cache, v_cache, page_table, rows, rows, lengths, scale, window, softcap, sinks, 1, tile, new, None
    )  # fmt: skip


def _pack(wanted: int, queries: int, kv_heads: int, rows: int) -> int:
    """KV heads a tile: as many of the wanted ones as divide the heads and whose queries fit into its `rows`."""
    pack = wanted
    while pack > 1 and (kv_heads % pack or pack * queries > rows):
        pack //= 2
    return pack


def _launch(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    rows: torch.Tensor,
    query_starts: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    window: int,
    softcap: float,
    sinks: torch.Tensor | None,
    max_query: int,
    tile: DecodeTile,
    new: _Projected | None,
    prefixes: Prefixes | None,
) -> torch.Tensor:
    """Launch the kernel, and the second one where it needs one; `new` is None if q is prepared and K, V stored."""
    assert prefixes is None or (max_query == 1 and not window), "prefixes are for one query a row and no window"
    tokens, heads, head_dim = q.shape
    page_size, kv_heads = k_cache.shape[1], k_cache.shape[2]
    group = heads // kv_heads
    splits = tile.splits
    # many splits in one program take longer than a kernel of many programs
    last_joins = max_query == 1 and splits <= FEW_SPLITS and rows.shape[0] * kv_heads <= chain.MAX_ARRIVALS
    # one compiled kernel for single queries, one for several
    block_m = max(16 if max_query == 1 else MAX_DECODE_ROWS, next_power_of_2(max_query * group))
    out = torch.empty((tokens, heads, head_dim), dtype=q.dtype, device=q.device)
    partial = lse = out
    if splits > 1:
        partial = torch.empty((tokens, heads, splits, head_dim), dtype=torch.float32, device=q.device)
        lse = torch.empty((tokens, heads, splits), dtype=torch.float32, device=q.device)
    factor, cap = score_factors(scale, softcap)
    cos, sin = (q, q) if new is None or new.angles is None else new.angles
    half = 0 if new is None or new.angles is None else cos.shape[1]
    normed = new is not None and new.q_weight is not None
    # a projected step prepares one new key a program
    pack = 1 if new else _pack(tile.pack, max_query * group, kv_heads, block_m)
    keys = tile.block // pack
    # Not by descriptor: keys of a window, few of whose tiles need no mask; and tiles longer than a page, which
    # they become where they hold fewer heads than asked for.
    tma = tile.tma and not window and page_size % keys == 0
    k_tiles, v_tiles = k_cache, v_cache
    if tma:
        shape, box = [-1, kv_heads * head_dim], [keys, head_dim]
        if pack > 1:
            shape, box = [-1, kv_heads, head_dim], [keys, pack, head_dim]
        k_tiles, v_tiles = (TensorDescriptor.from_tensor(cache.view(shape), box) for cache in (k_cache, v_cache))
    _decode_kernel[(kv_heads // pack, rows.shape[0], splits)](
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
        cos,
        sin,
        lengths if new is None else new.slots,
        q if new is None or new.q_weight is None else new.q_weight,
        q if new is None or new.k_weight is None else new.k_weight,
        lengths if prefixes is None else prefixes.begins,
        lengths if prefixes is None else prefixes.used,
        partial if prefixes is None else prefixes.partial,
        partial if prefixes is None else prefixes.lse,
        out,
        partial,
        lse,
        chain.arrivals(q.device),
        0.0 if new is None else new.eps,
        factor,
        cap,
        window,
        splits,
        0 if prefixes is None else prefixes.lse.shape[2],
        page_table.stride(0),
        q.stride(0),
        q.stride(1),
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        GROUP=group,
        D=head_dim,
        BLOCK_M=block_m,
        BLOCK_D=max(16, next_power_of_2(head_dim)),
        BLOCK_N=keys,
        BLOCK_S=FEW_SPLITS,
        PAGE=page_size,
        SPLIT=splits > 1,
        SINKS=sinks is not None,
        WINDOWED=window > 0,
        SOFTCAP=softcap > 0.0,
        ONE=max_query == 1,
        LAST_JOINS=last_joins,
        PROJECTED=new is not None,
        HALF=half,
        RUN=math.gcd(half, 8),
        NORM=normed,
        EVICT="evict_first" if tile.evict_first else "",
        PREFETCH=tile.prefetch,
        TREE=prefixes is not None,
        PACK=pack,
        KEYS_LEFT=tile.keys_left,
        TMA=tma,
        UPCAST=upcast_dots(q.dtype),
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=tile.warps,
        num_stages=tile.stages,
        **(chain.options() if tile.chained else {"CHAINED": False}),
    )
    if splits > 1 and not last_joins:
        block_s = next_power_of_2(max(splits, 16))
        _join_kernel[(heads, tokens)](
            partial,
            lse,
            lengths,
            lengths if prefixes is None else prefixes.begins,
            out if sinks is None else sinks,
            out,
            window,
            splits,
            D=head_dim,
            BLOCK_N=keys,
            WINDOWED=window > 0,
            ONE=max_query == 1,
            TREE=prefixes is not None,
            BLOCK_S=block_s,
            BLOCK_D=max(16, next_power_of_2(head_dim)),
            SINKS=sinks is not None,
            num_warps=4 if block_s * head_dim >= 2048 else 2,
            **chain.options(),
        )
    return out
