"""The kernels behind `attention.py`: one query over a row's pages, and blocks of queries over packed keys.

Tasks are int64 arrays of addresses, strides in bytes and sizes, named below. Float32 only; head sizes are
multiples of sixteen. Knows nothing of torch.
"""

from __future__ import annotations

import numpy as np

from radixlang.kernels.cpu.simd import (
    entry,
    kernel,
    load_f32,
    load_i32,
    load_i64,
    store_f32,
    vadd,
    vdiv,
    vexp,
    vfma,
    vload,
    vmax,
    vmaximum,
    vmul,
    vsplat,
    vstore,
    vsum,
)
from radixlang.kernels.cpu.tiles import WIDE, tile

# fmt: off
(Q, Q_TOKEN, Q_HEAD, K, V, PAGE, TOKEN, HEAD, TABLE, TABLE_ROW, ROWS, LENGTHS, OUT, ITEMS, H, G, D,
 PAGE_SIZE, SCALE, WINDOW, SOFTCAP, SCRATCH, SCRATCH_STRIDE, PACKED_AT, BLOCKS, CHUNKS, TOKENS) = range(27)
# fmt: on
TASK = 27
QUERIES = 8
"""Queries of a block in `extend`."""
KEYS = 32
"""Keys are packed by this many."""


@kernel
def _softmax(scores, low, high, padded, softcap, scale):  # type: ignore[no-untyped-def]
    """Exponentials of scores `low … high-1` in place, zeros elsewhere up to `padded` (by 16); their sum."""
    start = low // 16 * 16
    if softcap > 0:
        one, double = vsplat(1.0), vsplat(2 * scale / softcap)
        for i in range(4 * start, 4 * high, 64):
            # cap · tanh(s) = cap · (1 - 2 / (e^2s + 1))
            s = vadd(vexp(vmul(vload(scores + i), double)), one)
            vstore(scores + i, vmul(vadd(one, vdiv(vsplat(-2.0), s)), vsplat(softcap)))
        scale = np.float32(1.0)
    for i in range(start, low):
        store_f32(scores + 4 * i, -1e30)
    for i in range(high, padded):
        store_f32(scores + 4 * i, -1e30)
    for i in range(0, 4 * start, 64):
        vstore(scores + i, vsplat(0.0))
    peak = vload(scores + 4 * start)
    for i in range(4 * start + 64, 4 * padded, 64):
        peak = vmaximum(peak, vload(scores + i))
    shift, factor, total = vsplat(-vmax(peak) * scale), vsplat(scale), vsplat(0.0)
    for i in range(4 * start, 4 * padded, 64):
        p = vexp(vfma(vload(scores + i), factor, shift))
        vstore(scores + i, p)
        total = vadd(total, p)
    return vsum(total)


@kernel
def _one_query(task, q, out, table, kv_offset, length, scores):  # type: ignore[no-untyped-def]
    """One head of one query over keys `begin … length-1` of its row."""
    k_cache, v_cache = load_i64(task + 8 * K) + kv_offset, load_i64(task + 8 * V) + kv_offset
    page_bytes, token_bytes = load_i64(task + 8 * PAGE), load_i64(task + 8 * TOKEN)
    page_size, size, window = load_i64(task + 8 * PAGE_SIZE), load_i64(task + 8 * D), load_i64(task + 8 * WINDOW)
    begin = max(0, length - window) if window > 0 else 0
    key = begin
    while key < length:
        page, at = key // page_size, key % page_size
        stop = min(length, (page + 1) * page_size)
        k = k_cache + load_i32(table + 4 * page) * page_bytes + at * token_bytes
        for key in range(key, stop):  # noqa: B020
            total = vmul(vload(q), vload(k))
            for d in range(64, size * 4, 64):
                total = vfma(vload(q + d), vload(k + d), total)
            store_f32(scores + 4 * (key - begin), vsum(total))
            k += token_bytes
        key = stop
    count = length - begin
    padded = (count + 15) // 16 * 16
    total = _softmax(scores, 0, count, padded, load_f32(task + 8 * SOFTCAP), load_f32(task + 8 * SCALE))
    inverse = vsplat(1.0 / total)
    for d in range(0, size * 4, 256):
        wide = size * 4 - d >= 256
        step = 256 if wide else 64
        for part in range(d, min(size * 4, d + 256), step):
            a0 = a1 = a2 = a3 = vsplat(0.0)
            key = begin
            while key < length:
                page, at = key // page_size, key % page_size
                stop = min(length, (page + 1) * page_size)
                v = v_cache + load_i32(table + 4 * page) * page_bytes + at * token_bytes + part
                for i in range(key - begin, stop - begin):
                    p = vsplat(load_f32(scores + 4 * i))
                    a0 = vfma(p, vload(v), a0)
                    if wide:
                        a1 = vfma(p, vload(v + 64), a1)
                        a2 = vfma(p, vload(v + 128), a2)
                        a3 = vfma(p, vload(v + 192), a3)
                    v += token_bytes
                key = stop
            vstore(out + part, vmul(a0, inverse))
            if wide:
                vstore(out + part + 64, vmul(a1, inverse))
                vstore(out + part + 128, vmul(a2, inverse))
                vstore(out + part + 192, vmul(a3, inverse))


@entry
def decode(task, chunk, thread):  # type: ignore[no-untyped-def]
    """Items are (row, head): the row's one new token; a chunk is some items in a row. `TOKENS`, int64 a row, says
    which token of the step that is; with 0 token i is row i's."""
    heads, groups, size = load_i64(task + 8 * H), load_i64(task + 8 * G), load_i64(task + 8 * D)
    items, chunks = load_i64(task + 8 * ITEMS), load_i64(task + 8 * CHUNKS)
    scores = load_i64(task + 8 * SCRATCH) + thread * load_i64(task + 8 * SCRATCH_STRIDE)
    for item in range(items * chunk // chunks, items * (chunk + 1) // chunks):
        row, head = item // heads, item % heads
        length = load_i32(load_i64(task + 8 * LENGTHS) + 4 * row)
        token, tokens = row, load_i64(task + 8 * TOKENS)
        if tokens != 0:
            token = load_i64(tokens + 8 * row)
        out = load_i64(task + 8 * OUT) + (token * heads + head) * size * 4
        if length == 0:
            for d in range(0, size * 4, 64):
                vstore(out + d, vsplat(0.0))
            continue
        q = load_i64(task + 8 * Q) + token * load_i64(task + 8 * Q_TOKEN) + head * load_i64(task + 8 * Q_HEAD)
        table = load_i64(task + 8 * TABLE) + load_i32(load_i64(task + 8 * ROWS) + 4 * row) * load_i64(
            task + 8 * TABLE_ROW
        )
        _one_query(task, q, out, table, head * groups // heads * load_i64(task + 8 * HEAD), length, scores)


@entry
def pack_keys(task, item, thread):  # type: ignore[no-untyped-def]
    """A chunk is (row, kv head, 32 keys): keys to `[keys/16, D, 16]`, values to `[D/16, keys, 16]` of its area.

    `BLOCKS` is an int64 table [rows, 3]: where the row's area starts (address), its padded keys, items before it.
    """
    groups, size = load_i64(task + 8 * G), load_i64(task + 8 * D)
    page_bytes, token_bytes = load_i64(task + 8 * PAGE), load_i64(task + 8 * TOKEN)
    page_size, blocks = load_i64(task + 8 * PAGE_SIZE), load_i64(task + 8 * BLOCKS)
    row = 0
    while load_i64(blocks + 24 * row + 40) <= item:
        row += 1
    area, padded = load_i64(blocks + 24 * row), load_i64(blocks + 24 * row + 8)
    index = item - load_i64(blocks + 24 * row + 16)
    group, first = index % groups, index // groups * KEYS
    length = load_i32(load_i64(task + 8 * LENGTHS) + 4 * row)
    table = load_i64(task + 8 * TABLE) + load_i32(load_i64(task + 8 * ROWS) + 4 * row) * load_i64(
        task + 8 * TABLE_ROW
    )
    keys = area + group * 2 * padded * size * 4
    values = keys + padded * size * 4
    for key in range(first, first + KEYS):
        target = keys + key // 16 * size * 64 + key % 16 * 4
        if key >= length:
            for d in range(size):
                store_f32(target + d * 64, 0.0)
            for d in range(0, size, 16):
                vstore(values + d * padded * 4 + key * 64, vsplat(0.0))
            continue
        source = load_i32(table + 4 * (key // page_size)) * page_bytes + key % page_size * token_bytes
        source += group * load_i64(task + 8 * HEAD)
        k, v = load_i64(task + 8 * K) + source, load_i64(task + 8 * V) + source
        for d in range(size):
            store_f32(target + d * 64, load_f32(k + 4 * d))
        for d in range(0, size, 16):
            vstore(values + d * padded * 4 + key * 64, vload(v + 4 * d))


@kernel
def _product(x, x_stride, count, w, panel_bytes, groups, out, out_stride):  # type: ignore[no-untyped-def]
    """`out[count ≤ 8, 32] = x @ w`, w two float32 panels."""
    if WIDE:
        tile(0, 8, 2, x, x_stride, count, w, panel_bytes, groups, out, out_stride)
    else:
        for m in range(0, count, 4):
            for p in range(2):
                tile(
                    0, 4, 1, x + m * x_stride, x_stride, min(4, count - m), w + p * panel_bytes, panel_bytes,
                    groups, out + m * out_stride + 64 * p, out_stride,
                )  # fmt: skip


@kernel
def _narrow_product(x, x_stride, count, w, panel_bytes, groups, out, out_stride):  # type: ignore[no-untyped-def]
    for m in range(0, count, 4):
        tile(
            0, 4, 1, x + m * x_stride, x_stride, min(4, count - m), w, panel_bytes, groups, out + m * out_stride,
            out_stride,
        )  # fmt: skip


@entry
def extend(task, item, thread):  # type: ignore[no-untyped-def]
    """A chunk is (block of 8 queries, head), blocks listed in `PACKED_AT` as int64 [blocks, 4]: row, first token
    of the block, its queries, keys the first query may see."""
    heads, groups, size = load_i64(task + 8 * H), load_i64(task + 8 * G), load_i64(task + 8 * D)
    window, blocks = load_i64(task + 8 * WINDOW), load_i64(task + 8 * BLOCKS)
    q_token, scale, softcap = (
        load_i64(task + 8 * Q_TOKEN),
        load_f32(task + 8 * SCALE),
        load_f32(task + 8 * SOFTCAP),
    )
    stride = load_i64(task + 8 * SCRATCH_STRIDE)
    scores = load_i64(task + 8 * SCRATCH) + thread * stride
    score_row = stride // QUERIES
    block = load_i64(task + 8 * PACKED_AT) + 32 * (item // heads)
    head = item % heads
    row, token, count, visible = (
        load_i64(block),
        load_i64(block + 8),
        load_i64(block + 16),
        load_i64(block + 24),
    )
    area, padded = load_i64(blocks + 24 * row), load_i64(blocks + 24 * row + 8)
    keys = area + head * groups // heads * 2 * padded * size * 4
    values = keys + padded * size * 4
    q = load_i64(task + 8 * Q) + token * q_token + head * load_i64(task + 8 * Q_HEAD)
    out = load_i64(task + 8 * OUT) + (token * heads + head) * size * 4
    # Query i sees keys lowest+i … visible+i-1; whole blocks of keys are multiplied, the rest is masked.
    begin = max(0, visible - window) // KEYS * KEYS if window > 0 else 0
    end = (visible + count - 1 + KEYS - 1) // KEYS * KEYS
    for key in range(begin, end, KEYS):
        _product(
            q,
            q_token,
            count,
            keys + key * size * 4,
            size * 64,
            size // 4,
            scores + 4 * (key - begin),
            score_row,
        )
    for i in range(count):
        line = scores + i * score_row
        low = max(begin, visible + i - window) if window > 0 else 0
        total = _softmax(line, low - begin, visible + i - begin, end - begin, softcap, scale)
        # A line has sixteen floats more than keys.
        vstore(line + score_row - 64, vsplat(1.0 / total))
    for d in range(0, size, 32):
        if size - d >= 32:
            _product(
                scores, score_row, count, values + (d * padded + begin * 16) * 4, padded * 64,
                (end - begin) // 4, out + 4 * d, heads * size * 4,
            )  # fmt: skip
        else:
            _narrow_product(
                scores, score_row, count, values + (d * padded + begin * 16) * 4, padded * 64,
                (end - begin) // 4, out + 4 * d, heads * size * 4,
            )  # fmt: skip
    for i in range(count):
        inverse, at = vload(scores + (i + 1) * score_row - 64), out + i * heads * size * 4
        for d in range(at, at + 4 * size, 64):
            vstore(d, vmul(vload(d), inverse))
