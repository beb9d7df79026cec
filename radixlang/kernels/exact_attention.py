"""Attention with the same bits for a query, whether it comes alone, in a batch or as part of a prompt.

A row's keys are cut into *chunks* whose ends depend on their place alone: 256 keys at first, longer ones further
on, so that a long row has few. Within a chunk tiles of keys are folded into a softmax that starts afresh; chunks
are folded together in ascending order by one formula. A program that has a row's chunks to itself does so in
registers; where few rows must fill the chip, programs share them, leave each chunk's result in memory, and a
second kernel folds these. Keys a query may not see weigh exactly nothing, so it makes no difference which other
queries share its tile. One body serves decoding and prompts. Must not know requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from radixlang.kernels import chain
from radixlang.kernels.attention_tile import page_ids, score_factors
from radixlang.kernels.chain import begin, release, wait
from radixlang.kernels.extend_attention import first_tiles
from radixlang.kernels.tuning import Chip, interpreted, next_power_of_2, upcast_dots

MAX_GROUP = 64
"""query heads that may share a KV head"""
PROGRAMS_PER_UNIT = 2
"""programs wanted per multiprocessor before rows are no longer shared"""


@dataclass(frozen=True)
class ExactAttentionTile:
    """`block_m` (query, head) rows, 16 a warp, against tiles of `block_n` keys."""

    block_m: int
    block_n: int
    warps: int
    stages: int


def tile_of(chip: Chip, *, one: bool, split: bool, head_dim: int, element_size: int) -> ExactAttentionTile:
    """The tile; of all its numbers `block_n` alone has a say in the result, and that depends on the model only."""
    width = next_power_of_2(head_dim)
    block_n = 64 if element_size == 2 and width <= 128 else 32
    wide = not one and width <= 128 and element_size == 2 and not interpreted()
    block_m = 128 if wide else 64
    step = 2 * block_n * width * element_size
    # two programs a multiprocessor; those that share rows also turn their values around in shared memory
    stages = max(1, min(2 if split else 3, (chip.shared_bytes - block_m * width * element_size) // step))
    return ExactAttentionTile(block_m, block_n, block_m // 16, stages)


def chunk_of(key: int) -> int:
    """The chunk that holds a key; as the kernels have it."""
    if key < 4096:
        return key // 256
    return 16 + (key - 4096) // 1024 if key < 32768 else 44 + (key - 32768) // 4096


@triton.jit
def _chunk_of(key):
    far = tl.where(key < 32768, 16 + (key - 4096) // 1024, 44 + (key - 32768) // 4096)
    return tl.where(key < 4096, key // 256, far)


@triton.jit
def _chunk_start(chunk):
    far = tl.where(chunk < 44, 4096 + (chunk - 16) * 1024, 32768 + (chunk - 44) * 4096)
    return tl.where(chunk < 16, chunk * 256, far)


@triton.jit
def _fold(top, total, values, m, l, acc, factor):
    """Fold a chunk's maximum m, sum l [M] and values acc [M, D] into those of the chunks before it."""
    best = tl.maximum(top, m)
    safe = tl.where(best == float("-inf"), 0.0, best)
    before = tl.exp2((top - safe) * factor)
    now = tl.exp2((m - safe) * factor)
    total = tl.fma(total, before, l * now)
    values = tl.fma(values, tl.broadcast_to(before[:, None], values.shape), acc * now[:, None])
    return best, total, values


@triton.jit
def _result(top, total, values, sink, factor, SINKS: tl.constexpr):
    """The values divided by the sum of weights; `sink` [M] (natural log) joins that sum."""
    if SINKS:
        scaled, sink = top * factor, sink * 1.4426950408889634
        best = tl.maximum(scaled, sink)
        shrink = tl.exp2(scaled - best)
        total = tl.fma(total, shrink, tl.exp2(sink - best))
        values = values * shrink[:, None]
    return values * (1.0 / tl.where(total > 0.0, total, 1.0))[:, None]


@triton.jit
def _keep(m, l, acc, chunk, m_ptr, l_ptr, acc_ptr, there, d, heads, D: tl.constexpr):
    """Leave a chunk's result in memory; the pointers are those of the rows' chunk 0."""
    tl.store(m_ptr + chunk * heads, m, mask=there)
    tl.store(l_ptr + chunk * heads, l, mask=there)
    place = acc_ptr[:, None] + chunk * heads * D + d[None, :]
    tl.store(place, acc, mask=there[:, None] & (d < D)[None, :])


@triton.jit
def _sweep(
    q,
    m,
    l,
    acc,
    top,
    total,
    values,
    fresh,
    position,
    table,
    k_base,
    v_base,
    m_ptr,
    l_ptr,
    acc_ptr,
    used,
    heads,
    start,
    end,
    scale,
    cap,
    factor,
    window,
    k_page,
    k_slot,
    v_page,
    v_slot,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Fold keys [start, end) into the running chunk (m, l, acc), and chunks that are complete into (top, total,
    values), or into memory. `fresh` is where the next chunk begins; the rest is as in `attention_tile`."""
    ONE_PAGE: tl.constexpr = PAGE % BLOCK_N == 0
    d = tl.arange(0, BLOCK_D)
    n = tl.arange(0, BLOCK_N)
    page = page_ids(table, start, end, PAGE, BLOCK_N)
    for tile in range(start, end, BLOCK_N):
        if tile == fresh:
            if SPLIT:
                _keep(m, l, acc, _chunk_of(tile) - 1, m_ptr, l_ptr, acc_ptr, used, d, heads, D)
            else:
                top, total, values = _fold(top, total, values, m, l, acc, factor)
            fresh = _chunk_start(_chunk_of(tile) + 1)
            m = tl.full(m.shape, float("-inf"), tl.float32)
            l = tl.zeros(l.shape, tl.float32)
            acc = tl.zeros(acc.shape, tl.float32)
        following = page_ids(table, tile + BLOCK_N, end, PAGE, BLOCK_N)
        keys = tile + n
        if ONE_PAGE:
            k_keys = page.to(tl.int64) * k_page + (tile % PAGE + n) * k_slot
            v_keys = page.to(tl.int64) * v_page + (tile % PAGE + n) * v_slot
        else:
            k_keys = page.to(tl.int64) * k_page + (keys % PAGE) * k_slot
            v_keys = page.to(tl.int64) * v_page + (keys % PAGE) * v_slot
        if MASKED or D != BLOCK_D:
            k_there = (keys < end)[None, :] & (d < D)[:, None]
            v_there = (keys < end)[:, None] & (d < D)[None, :]
            k = tl.load(k_base + k_keys[None, :] + d[:, None], mask=k_there, other=0.0)
            v = tl.load(v_base + v_keys[:, None] + d[None, :], mask=v_there, other=0.0)
        else:
            k = tl.load(k_base + k_keys[None, :] + d[:, None])
            v = tl.load(v_base + v_keys[:, None] + d[None, :])
        if UPCAST:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        score = tl.dot(q, k, input_precision=PRECISION)
        if SOFTCAP:
            score = cap * (1.0 - 2.0 / (1.0 + tl.exp(score * scale)))
        if MASKED:
            visible = keys[None, :] <= position[:, None]
            if WINDOWED:
                visible = visible & (keys[None, :] > position[:, None] - window)
            score = tl.where(visible, score, float("-inf"))
        m_new = tl.maximum(m, tl.max(score, 1))
        base = tl.where(m_new == float("-inf"), 0.0, m_new)
        factors = tl.full(score.shape, 1.0, tl.float32) * factor
        weight = tl.exp2(tl.fma(score, factors, tl.broadcast_to((-base * factor)[:, None], score.shape)))
        shrink = tl.exp2((m - base) * factor)
        l = tl.fma(l, shrink, tl.sum(weight, 1))
        acc = tl.dot(weight.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
        m = m_new
        page = following
    return m, l, acc, top, total, values, fresh


@triton.jit(
    do_not_specialize=[
        "window",
        "batch",
        "splits",
        "capacity",
        "table_stride",
        "rows_ptr",
        "starts_ptr",
        "lengths_ptr",
    ]
)
def _exact_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    rows_ptr,
    starts_ptr,
    lengths_ptr,
    sinks_ptr,
    out_ptr,
    m_ptr,
    l_ptr,
    acc_ptr,
    scale,
    cap,
    factor,
    window,
    batch,
    splits,
    capacity,
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
    PAGE: tl.constexpr,
    ONE: tl.constexpr,
    SPLIT: tl.constexpr,
    SINKS: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
    CHAINED: tl.constexpr,
):
    release(CHAINED)
    kv_head = tl.program_id(0)
    heads = tl.num_programs(0) * GROUP
    if ONE:
        b = tl.program_id(1)
        first = b
        count = 1
        offset = 0
    else:
        # late tiles see the most keys: start them first
        tile = tl.num_programs(1) - 1 - tl.program_id(1)
        b = 0
        above = batch
        while above - b > 1:
            middle = (b + above) // 2
            inside = first_tiles(tl.load(starts_ptr + middle), middle, GROUP, BLOCK_M) <= tile
            b = tl.where(inside, middle, b)
            above = tl.where(inside, above, middle)
        first = tl.load(starts_ptr + b)
        count = tl.load(starts_ptr + b + 1) - first
        offset = (tile - first_tiles(first, b, GROUP, BLOCK_M)) * BLOCK_M
    length = tl.load(lengths_ptr + b)
    prefix = length - count
    first_query = prefix + offset // GROUP
    end = tl.minimum(prefix + tl.minimum((offset + BLOCK_M - 1) // GROUP, count - 1) + 1, length)
    start = 0
    if WINDOWED:
        start = tl.maximum(first_query - window + 1, 0) // BLOCK_N * BLOCK_N
    if SPLIT:
        split = tl.program_id(2)
        lowest = _chunk_of(start)
        share = tl.cdiv(_chunk_of(tl.maximum(end - 1, 0)) + 1 - lowest, splits)
        start = tl.maximum(_chunk_start(lowest + split * share), start)
        if (split > 0) & (start >= end):
            return  # (a first one waits, for the kernels behind)
        end = tl.minimum(_chunk_start(lowest + (split + 1) * share), end)
    wait(CHAINED)
    if offset >= count * GROUP:
        return

    lane = offset + tl.arange(0, BLOCK_M)
    token = (first + lane // GROUP).to(tl.int64)
    head = kv_head * GROUP + lane % GROUP
    d = tl.arange(0, BLOCK_D)
    used = lane < count * GROUP
    there = used[:, None] & (d < D)[None, :]
    q = tl.load(q_ptr + token[:, None] * q_token + head[:, None] * q_head + d[None, :], mask=there, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    position = prefix + lane // GROUP
    table = table_ptr + tl.load(rows_ptr + b).to(tl.int64) * table_stride
    k_base = k_ptr + kv_head * k_head
    v_base = v_ptr + kv_head * v_head
    # [tokens, capacity, heads], and for the values [.., D]
    slot = token * capacity * heads + head
    m_at = m_ptr + slot
    l_at = l_ptr + slot
    acc_at = acc_ptr + slot * D
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    top, total, values = m, l, acc
    fresh = _chunk_start(_chunk_of(start) + 1)
    if not WINDOWED:
        # tiles before the diagonal are visible to every query of the block
        whole = tl.maximum(tl.minimum(first_query + 1, end), 0) // BLOCK_N * BLOCK_N
        m, l, acc, top, total, values, fresh = _sweep(
            q,
            m,
            l,
            acc,
            top,
            total,
            values,
            fresh,
            position,
            table,
            k_base,
            v_base,
            m_at,
            l_at,
            acc_at,
            used,
            heads,
            start,
            whole,
            scale,
            cap,
            factor,
            window,
            k_page,
            k_slot,
            v_page,
            v_slot,
            D,
            BLOCK_D,
            BLOCK_N,
            PAGE,
            SPLIT,
            False,
            False,
            SOFTCAP,
            UPCAST,
            PRECISION,
        )
        start = tl.maximum(start, whole)
    m, l, acc, top, total, values, fresh = _sweep(
        q,
        m,
        l,
        acc,
        top,
        total,
        values,
        fresh,
        position,
        table,
        k_base,
        v_base,
        m_at,
        l_at,
        acc_at,
        used,
        heads,
        start,
        end,
        scale,
        cap,
        factor,
        window,
        k_page,
        k_slot,
        v_page,
        v_slot,
        D,
        BLOCK_D,
        BLOCK_N,
        PAGE,
        SPLIT,
        True,
        WINDOWED,
        SOFTCAP,
        UPCAST,
        PRECISION,
    )
    if SPLIT:
        _keep(m, l, acc, _chunk_of(tl.maximum(end - 1, 0)), m_at, l_at, acc_at, used, d, heads, D)
    else:
        top, total, values = _fold(top, total, values, m, l, acc, factor)
        sink = l
        if SINKS:
            sink = tl.load(sinks_ptr + head, mask=used, other=0.0).to(tl.float32)
        result = _result(top, total, values, sink, factor, SINKS)
        place = token[:, None] * heads * D + head[:, None] * D + d[None, :]
        tl.store(out_ptr + place, result.to(out_ptr.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["window", "capacity", "lengths_ptr"])
def _fold_kernel(
    m_ptr,
    l_ptr,
    acc_ptr,
    lengths_ptr,
    sinks_ptr,
    out_ptr,
    factor,
    window,
    capacity,
    heads,
    D: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SINKS: tl.constexpr,
    WINDOWED: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """The chunks of one token and a few heads, in ascending order."""
    begin(CHAINED)
    head = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    token = tl.program_id(1).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    used = head < heads
    there = used[:, None] & (d < D)[None, :]
    length = tl.load(lengths_ptr + token)
    lowest = 0
    if WINDOWED:
        lowest = _chunk_of(tl.maximum(length - window, 0))
    chunks = tl.where(length > 0, _chunk_of(tl.maximum(length - 1, 0)) + 1, 0)
    top = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    values = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
    for chunk in tl.range(lowest, chunks, num_stages=4):
        slot = (token * capacity + chunk) * heads + head
        m = tl.load(m_ptr + slot, mask=used, other=float("-inf"))
        l = tl.load(l_ptr + slot, mask=used, other=0.0)
        acc = tl.load(acc_ptr + slot[:, None] * D + d[None, :], mask=there, other=0.0)
        top, total, values = _fold(top, total, values, m, l, acc, factor)
    sink = total
    if SINKS:
        sink = tl.load(sinks_ptr + head, mask=used, other=0.0).to(tl.float32)
    result = _result(top, total, values, sink, factor, SINKS)
    place = (token * heads + head)[:, None] * D + d[None, :]
    tl.store(out_ptr + place, result.to(out_ptr.dtype.element_ty), mask=there)


def exact_attention(
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
    max_length: int,
    chip: Chip,
) -> torch.Tensor:
    """Causal attention of any number of new tokens a row; shapes and rules as in `decode_attention`.

    No row is longer than `max_length`. A query's bits depend on it and the keys and values before it alone.
    """
    tokens, heads, head_dim = q.shape
    page_size, kv_heads = k_cache.shape[1], k_cache.shape[2]
    group, batch, one = heads // kv_heads, rows.shape[0], max_query == 1
    out = torch.empty((tokens, heads, head_dim), dtype=q.dtype, device=q.device)
    m = l = acc = out
    # Splits share whole chunks; a prompt has tiles enough without.
    capacity = chunk_of(max(max_length, 1) - 1) + 1
    splits = max(1, min(capacity, PROGRAMS_PER_UNIT * chip.units // (batch * kv_heads))) if one else 1
    tile = tile_of(chip, one=one, split=splits > 1, head_dim=head_dim, element_size=k_cache.element_size())
    if splits > 1:
        m, l = torch.empty((2, tokens, capacity, heads), dtype=torch.float32, device=q.device)
        acc = torch.empty((tokens, capacity, heads, head_dim), dtype=torch.float32, device=q.device)
    scale, cap = score_factors(scale, softcap)
    factor = 1.0 if softcap else scale
    block_d = max(16, next_power_of_2(head_dim))
    no_fusion = {"enable_fp_fusion": False}  # the kernels round alike wherever a product meets a sum
    tiles = batch if one else tokens * group // tile.block_m + batch
    _exact_attention_kernel[(kv_heads, tiles, splits)](
        q,
        k_cache,
        v_cache,
        page_table,
        rows,
        query_starts,
        lengths,
        out if sinks is None else sinks,
        out,
        m,
        l,
        acc,
        scale,
        cap,
        factor,
        window,
        batch,
        splits,
        capacity,
        page_table.stride(0),
        q.stride(0),
        q.stride(1),
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        GROUP=group,
        D=head_dim,
        BLOCK_M=tile.block_m,
        BLOCK_D=block_d,
        BLOCK_N=tile.block_n,
        PAGE=page_size,
        ONE=one,
        SPLIT=splits > 1,
        SINKS=sinks is not None,
        WINDOWED=window > 0,
        SOFTCAP=softcap > 0.0,
        UPCAST=upcast_dots(q.dtype),
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=tile.warps,
        num_stages=tile.stages,
        **no_fusion,
        **chain.options(),
    )
    if splits > 1:
        block_h = 4
        _fold_kernel[(triton.cdiv(heads, block_h), tokens)](
            m,
            l,
            acc,
            lengths,
            out if sinks is None else sinks,
            out,
            factor,
            window,
            capacity,
            heads,
            D=head_dim,
            BLOCK_H=block_h,
            BLOCK_D=block_d,
            SINKS=sinks is not None,
            WINDOWED=window > 0,
            num_warps=4,
            **no_fusion,
            **chain.options(),
        )
    return out
