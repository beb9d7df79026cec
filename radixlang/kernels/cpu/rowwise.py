"""The kernels behind `fused.py`: normalisation, gated activation, rotary embedding with the write to the cache.

Tasks are int64 arrays of addresses, strides in bytes and sizes. Float32, sizes multiples of sixteen. Knows
nothing of torch.
"""

from __future__ import annotations

import math

import numpy as np

from radixlang.kernels.cpu.simd import (
    entry,
    kernel,
    load_f32,
    load_i64,
    store_f32,
    store_i64,
    vadd,
    vdiv,
    vexp,
    vfind,
    vfma,
    vload,
    vmax,
    vmul,
    vnan,
    vpeak,
    vsplat,
    vstore,
    vsum,
)

# fmt: off
COUNT, CHUNKS, X, X_STRIDE, SIZE, OUT, RESIDUAL, WEIGHT, EPS, OFFSET, ACTIVATION = range(11)
(COS, SIN, ANGLES, POSITIONS, SLOTS, K, V, PAGE, TOKEN, HEAD, PAGE_SIZE, HEADS, GROUPS, HALF, Q_NORM,
 K_NORM) = range(11, 27)
# fmt: on
TASK = 27
SILU, GELU_TANH = 0, 1


@kernel
def _normalise(x, out, size, weight, eps, offset):  # type: ignore[no-untyped-def]
    total = vsplat(0.0)
    for i in range(0, 4 * size, 64):
        total = vfma(vload(x + i), vload(x + i), total)
    factor, shift = vsplat(np.float32(1.0 / math.sqrt(vsum(total) / np.float32(size) + eps))), vsplat(offset)
    for i in range(0, 4 * size, 64):
        vstore(out + i, vmul(vmul(vload(x + i), factor), vadd(vload(weight + i), shift)))


@kernel
def _norm_row(task, i):  # type: ignore[no-untyped-def]
    size, residual = load_i64(task + 8 * SIZE), load_i64(task + 8 * RESIDUAL)
    x = load_i64(task + 8 * X) + i * load_i64(task + 8 * X_STRIDE)
    if residual != 0:
        total = residual + i * size * 4
        for k in range(0, 4 * size, 64):
            vstore(total + k, vadd(vload(total + k), vload(x + k)))
        x = total
    out, weight = load_i64(task + 8 * OUT) + i * size * 4, load_i64(task + 8 * WEIGHT)
    _normalise(x, out, size, weight, load_f32(task + 8 * EPS), load_f32(task + 8 * OFFSET))


@kernel
def _gate_row(task, i):  # type: ignore[no-untyped-def]
    size, activation = load_i64(task + 8 * SIZE), load_i64(task + 8 * ACTIVATION)
    gate = load_i64(task + 8 * X) + i * load_i64(task + 8 * X_STRIDE)
    out, one = load_i64(task + 8 * OUT) + i * size * 4, vsplat(1.0)
    for k in range(0, 4 * size, 64):
        g = vload(gate + k)
        # tanh GELU is x · sigmoid(2 √(2/π) (x + 0.044715 x³)), so both are x / (1 + e^-z).
        z = vmul(g, vsplat(-1.0))
        if activation == GELU_TANH:
            z = vmul(vmul(z, vsplat(1.5957691216057308)), vfma(vmul(g, g), vsplat(0.044715), one))
        vstore(out + k, vmul(vdiv(g, vadd(one, vexp(z))), vload(gate + 4 * size + k)))


@kernel
def _turn(x, out, cos, sin, half, size):  # type: ignore[no-untyped-def]
    for i in range(0, 4 * half, 64):
        a, b, c, s = vload(x + i), vload(x + 4 * half + i), vload(cos + i), vload(sin + i)
        vstore(out + i, vfma(a, c, vmul(vmul(b, s), vsplat(-1.0))))
        vstore(out + 4 * half + i, vfma(b, c, vmul(a, s)))
    for i in range(8 * half, 4 * size, 64):
        vstore(out + i, vload(x + i))


@kernel
def _rope_row(task, i):  # type: ignore[no-untyped-def]
    size, half, heads = load_i64(task + 8 * SIZE), load_i64(task + 8 * HALF), load_i64(task + 8 * HEADS)
    groups, page_size = load_i64(task + 8 * GROUPS), load_i64(task + 8 * PAGE_SIZE)
    x = load_i64(task + 8 * X) + i * load_i64(task + 8 * X_STRIDE)
    angle = load_i64(load_i64(task + 8 * POSITIONS) + 8 * i) * load_i64(task + 8 * ANGLES)
    cos, sin = load_i64(task + 8 * COS) + angle, load_i64(task + 8 * SIN) + angle
    slot = load_i64(load_i64(task + 8 * SLOTS) + 8 * i)
    place = slot // page_size * load_i64(task + 8 * PAGE) + slot % page_size * load_i64(task + 8 * TOKEN)
    q_norm, k_norm = load_i64(task + 8 * Q_NORM), load_i64(task + 8 * K_NORM)
    eps, offset = load_f32(task + 8 * EPS), load_f32(task + 8 * OFFSET)
    out = load_i64(task + 8 * OUT) + i * heads * size * 4
    for _ in range(heads):
        if q_norm != 0:
            _normalise(x, x, size, q_norm, eps, offset)
        _turn(x, out, cos, sin, half, size)
        x += size * 4
        out += size * 4
    for group in range(groups):
        if k_norm != 0:
            _normalise(x, x, size, k_norm, eps, offset)
        k = load_i64(task + 8 * K) + place + group * load_i64(task + 8 * HEAD)
        _turn(x, k, cos, sin, half, size)
        v, source = load_i64(task + 8 * V) + place + group * load_i64(task + 8 * HEAD), x + groups * size * 4
        for d in range(0, 4 * size, 64):
            vstore(v + d, vload(source + d))
        x += size * 4


@kernel
def _best_row(task, i):  # type: ignore[no-untyped-def]
    size = load_i64(task + 8 * SIZE)
    x = load_i64(task + 8 * X) + i * load_i64(task + 8 * X_STRIDE)
    a = b = c = d = vload(x)
    whole = size // 64 * 256
    for k in range(0, whole, 256):
        a, b = vpeak(a, vload(x + k)), vpeak(b, vload(x + k + 64))
        c, d = vpeak(c, vload(x + k + 128)), vpeak(d, vload(x + k + 192))
    for k in range(whole, 4 * size, 64):
        a = vpeak(a, vload(x + k))
    a = vpeak(vpeak(a, b), vpeak(c, d))
    best, place = vmax(a), 0
    if vnan(a) != 0:
        best = np.float32(np.nan)
    store_f32(load_i64(task + 8 * RESIDUAL) + 4 * i, best)
    for k in range(0, 4 * size, 64):
        lane = vfind(vload(x + k), best)
        if lane < 16:
            place = k // 4 + lane
            break
    store_i64(load_i64(task + 8 * OUT) + 8 * i, place)


@kernel
def _take_row(task, i):  # type: ignore[no-untyped-def]
    size = load_i64(task + 8 * SIZE)
    place = load_i64(load_i64(task + 8 * POSITIONS) + 8 * i)
    x, out = (
        load_i64(task + 8 * X) + place * load_i64(task + 8 * X_STRIDE),
        load_i64(task + 8 * OUT) + i * size * 4,
    )
    for k in range(0, 4 * size, 64):
        vstore(out + k, vload(x + k))


@kernel
def _begin(task, chunk):  # type: ignore[no-untyped-def]
    return load_i64(task + 8 * COUNT) * chunk // load_i64(task + 8 * CHUNKS)


@entry
def norm(task, chunk, thread):  # type: ignore[no-untyped-def]
    for i in range(_begin(task, chunk), _begin(task, chunk + 1)):
        _norm_row(task, i)


@entry
def gate(task, chunk, thread):  # type: ignore[no-untyped-def]
    for i in range(_begin(task, chunk), _begin(task, chunk + 1)):
        _gate_row(task, i)


@entry
def rope(task, chunk, thread):  # type: ignore[no-untyped-def]
    for i in range(_begin(task, chunk), _begin(task, chunk + 1)):
        _rope_row(task, i)


@entry
def take(task, chunk, thread):  # type: ignore[no-untyped-def]
    for i in range(_begin(task, chunk), _begin(task, chunk + 1)):
        _take_row(task, i)


@entry
def best(task, chunk, thread):  # type: ignore[no-untyped-def]
    """Largest value (float32, to `RESIDUAL`) and its first index (int64, to `OUT`) of each row."""
    for i in range(_begin(task, chunk), _begin(task, chunk + 1)):
        _best_row(task, i)
