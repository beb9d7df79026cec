"""The inner loop both attention kernels share: one block of queries sweeps a run of cached keys.

Softmax is kept online and in base 2. K and V are found page by page; the page ids of the next tile are fetched
while the present one is used, so that the look-up never stands between two tiles. Must not know batches.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

LOG2E = math.log2(math.e)


def score_factors(scale: float, softcap: float) -> tuple[float, float]:
    """(scale, cap) as `sweep` wants them: base-2 scores, and for a cap the argument of its exponential."""
    if softcap:
        return 2.0 * scale / softcap, softcap * LOG2E
    return scale * LOG2E, 0.0


@triton.jit
def page_ids(table, start, end, PAGE: tl.constexpr, BLOCK_N: tl.constexpr, PACK: tl.constexpr = 1):
    """Pages of the keys of the tile at `start`, each `PACK` times; the sink page 0 beyond `end`."""
    if PAGE % BLOCK_N == 0:
        return tl.load(table + start // PAGE, mask=start < end, other=0)
    else:
        keys = start + tl.arange(0, BLOCK_N * PACK) // PACK
        return tl.load(table + keys // PAGE, mask=keys < end, other=0)


@triton.jit
def _load_tile(
    page,
    tile,
    end,
    k_base,
    v_base,
    k_page,
    k_slot,
    k_head,
    v_page,
    v_slot,
    v_head,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr,
    ONE_PAGE: tl.constexpr,
    MASKED: tl.constexpr,
    EVICT: tl.constexpr,
    PACK: tl.constexpr,
):
    """K [BLOCK_D, BLOCK_N * PACK] and V [BLOCK_N * PACK, BLOCK_D] of the tile at `tile`, through pointers: the
    keys of `PACK` neighbouring heads, head by head within a key."""
    d = tl.arange(0, BLOCK_D)
    n = tl.arange(0, BLOCK_N * PACK) // PACK
    other = tl.arange(0, BLOCK_N * PACK) % PACK
    keys = tile + n
    if ONE_PAGE:
        k_keys = page.to(tl.int64) * k_page + (tile % PAGE + n) * k_slot
        v_keys = page.to(tl.int64) * v_page + (tile % PAGE + n) * v_slot
    else:
        k_keys = page.to(tl.int64) * k_page + (keys % PAGE) * k_slot
        v_keys = page.to(tl.int64) * v_page + (keys % PAGE) * v_slot
    if PACK > 1:
        k_keys += other * k_head
        v_keys += other * v_head
    if MASKED or D != BLOCK_D:
        k_there = (keys < end)[None, :] & (d < D)[:, None]
        v_there = (keys < end)[:, None] & (d < D)[None, :]
        k = tl.load(k_base + k_keys[None, :] + d[:, None], mask=k_there, other=0.0, eviction_policy=EVICT)
        v = tl.load(v_base + v_keys[:, None] + d[None, :], mask=v_there, other=0.0, eviction_policy=EVICT)
    else:
        k = tl.load(k_base + k_keys[None, :] + d[:, None], eviction_policy=EVICT)
        v = tl.load(v_base + v_keys[:, None] + d[None, :], eviction_policy=EVICT)
    return k, v


@triton.jit
def bounded(score, scale, cap, SOFTCAP: tl.constexpr):
    """Products q·k as base-2 scores, soft-capped if asked for."""
    if SOFTCAP:
        # cap * tanh(x), with tanh(x) = 1 - 2 / (1 + exp(2x)); exact limits when exp overflows
        return cap * (1.0 - 2.0 / (1.0 + tl.exp(score * scale)))
    else:
        return score * scale


@triton.jit
def _own_head(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PACK: tl.constexpr, GROUP: tl.constexpr):
    """[BLOCK_M, BLOCK_N * PACK]: whether a key is of the KV head that the query looks at."""
    of_head = tl.arange(0, BLOCK_N * PACK) % PACK
    return of_head[None, :] == (tl.arange(0, BLOCK_M) // GROUP % PACK)[:, None]


@triton.jit
def sweep(
    q,
    m,
    l,
    acc,
    position,
    table,
    page,
    k_base,
    v_base,
    start,
    end,
    scale,
    cap,
    window,
    k_page,
    k_slot,
    v_page,
    v_slot,
    k_tiles,
    v_tiles,
    column,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr,
    TMA: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
    EVICT: tl.constexpr,
    PACK: tl.constexpr = 1,
    GROUP: tl.constexpr = 1,
    k_head=0,
    v_head=0,
    KEYS_LEFT: tl.constexpr = False,
):
    """Fold keys [start, end) into the running maximum m, sum l [M] and accumulator acc [M, BLOCK_D].

    `start` is a multiple of BLOCK_N and `page` the `page_ids` there; `position` [M] are the queries' places in
    the row. With MASKED off every key must be visible to every query of its head, and `end` a multiple of BLOCK_N
    if D is BLOCK_D. Keys at or beyond `end` are never read: a page's tail may hold anything. With TMA, tiles of
    runs without MASKED come through the descriptors `k_tiles` and `v_tiles` of the cache as a matrix
    [pages * PAGE, kv_heads * D], from `column` on, or, with PACK, as [pages * PAGE, kv_heads, D], from head
    `column` on; a tile lies in one page. EVICT is the cache hint of the other loads, "" for none.

    With PACK, a tile holds the keys of PACK KV heads (`k_head`, `v_head` apart), which are neighbours in memory:
    reads are longer, and of the rows that a product has anyway more are of use. GROUP queries see the first head,
    the next GROUP the second, and so on.

    KEYS_LEFT makes keys and values the left operands, which Hopper's tensor cores read from shared memory without
    a way through registers: for tiles of at least 64 keys and few queries.
    """
    ONE_PAGE: tl.constexpr = PAGE % BLOCK_N == 0
    for tile in range(start, end, BLOCK_N):
        following = page_ids(table, tile + BLOCK_N, end, PAGE, BLOCK_N, PACK)
        if TMA and not MASKED:
            slot = page * PAGE + tile % PAGE
            if PACK > 1:
                k = tl.trans(k_tiles.load([slot, column, 0]).reshape(BLOCK_N * PACK, BLOCK_D))
                v = v_tiles.load([slot, column, 0]).reshape(BLOCK_N * PACK, BLOCK_D)
            else:
                k = tl.trans(k_tiles.load([slot, column]))
                v = v_tiles.load([slot, column])
        else:
            k, v = _load_tile(
                page,
                tile,
                end,
                k_base,
                v_base,
                k_page,
                k_slot,
                k_head,
                v_page,
                v_slot,
                v_head,
                D,
                BLOCK_D,
                BLOCK_N,
                PAGE,
                ONE_PAGE,
                MASKED,
                EVICT,
                PACK,
            )
        if UPCAST:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        if KEYS_LEFT:
            product = tl.trans(tl.dot(tl.trans(k), tl.trans(q), input_precision=PRECISION))
        else:
            product = tl.dot(q, k, input_precision=PRECISION)
        # without a cap, scores stay as they are until the exponential, which scales them in its own multiply-add
        if SOFTCAP:
            score = bounded(product, scale, cap, SOFTCAP)
            factor = 1.0
        else:
            score = product
            factor = scale
        if MASKED:
            keys = tile + tl.arange(0, BLOCK_N * PACK) // PACK
            visible = keys[None, :] <= position[:, None]
            if PACK > 1:
                visible = visible & _own_head(q.shape[0], BLOCK_N, PACK, GROUP)
            if WINDOWED:
                visible = visible & (keys[None, :] > position[:, None] - window)
            score = tl.where(visible, score, float("-inf"))
        elif PACK > 1:
            score = tl.where(_own_head(q.shape[0], BLOCK_N, PACK, GROUP), score, float("-inf"))
        m_new = tl.maximum(m, tl.max(score, 1) * factor)
        # a query that has seen no key yet keeps m = -inf; subtracting 0 then makes its weights exp2(-inf) = 0
        base = tl.where(m_new == float("-inf"), 0.0, m_new)
        weight = tl.exp2(score * factor - base[:, None])
        shrink = tl.exp2(m - base)
        l = l * shrink + tl.sum(weight, 1)
        weight = weight.to(v.dtype)
        if KEYS_LEFT:
            scaled = tl.trans(acc * shrink[:, None])
            acc = tl.trans(tl.dot(tl.trans(v), tl.trans(weight), scaled, input_precision=PRECISION))
        else:
            acc = tl.dot(weight, v, acc * shrink[:, None], input_precision=PRECISION)
        m = m_new
        page = following
    return m, l, acc


@triton.jit
def add_sink(m, l, acc, sink):
    """Fold in a sink: a key of score `sink` (natural log) per query whose value is zero."""
    sink = sink * 1.4426950408889634
    m_new = tl.maximum(m, sink)
    shrink = tl.exp2(m - m_new)
    return m_new, l * shrink + tl.exp2(sink - m_new), acc * shrink[:, None]
