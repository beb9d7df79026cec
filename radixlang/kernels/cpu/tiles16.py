"""The same matrix product with activations as 16-bit integers: a scale per row and group of inputs.

A group's product `Σ code · x` is exact in 32-bit integers and takes half the instructions of float32 (multiply
pairs and add); then it is scaled and added to the float32 sum over groups. The scale of a group of activations
is a power of two; the only error is rounding to at most 2⁻¹⁵ of the group's largest, where bfloat16 rounds each
to 2⁻⁹. Weights whose scale is zero must have codes zero. Again every shape of tile
does the same operations in the same order, so a row's result is the same bits for any number of rows.

Input i of a group is paired with input i + group/2: that is how the nibbles of `tiles.py` fall. Only for
quantised weights on x86 with AVX2. Knows nothing of torch.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils

from radixlang.kernels.cpu import simd
from radixlang.kernels.cpu.simd import (
    F32,
    I8,
    I32,
    I64,
    VF,
    VI,
    entry,
    intrinsic,
    load_i64,
    vadd,
    vload,
    vstore,
)
from radixlang.kernels.cpu.tiles import (
    _PANELS,
    BIAS,
    BLOCKS,
    CHUNKS,
    FORMATS,
    GROUPS,
    OUT,
    OUT_STRIDE,
    PACKED,
    PANEL,
    PANEL_BYTES,
    PARTS,
    SCRATCH,
    SCRATCH_STRIDE,
    WIDE,
    M,
    W,
)

MANY = 1 << 30 if WIDE else 16
"""From this many rows a block's codes are first written out as 16-bit pairs. Never with wide registers: there
taking the codes apart costs nothing, the multiplications leave room for it."""
_HEIGHT = 8 if WIDE else 4


def _supported() -> bool:
    features = simd.config.CPU_FEATURES
    if not llvmlite.binding.get_process_triple().startswith("x86_64"):
        return False
    return "+avx2" in features if features else bool(llvmlite.binding.get_host_cpu_features().get("avx2"))


SUPPORTED = _supported()


def _has_vnni() -> bool:
    """Whether multiply, add pairs and accumulate is one instruction."""
    features = simd.config.CPU_FEATURES
    names = ("avx512vnni", "avx512vl") if WIDE else ("avxvnni",)
    if features:
        return all(f"+{name}" in features.split(",") for name in names)
    return all(llvmlite.binding.get_host_cpu_features().get(name) for name in names)


VNNI = SUPPORTED and _has_vnni()


def record_bytes(group: int) -> int:
    """Bytes of one group of one row: pairs of integers, their scale (an exponent to add), their scaled sum."""
    return (group // 2 + 2) * 4


@intrinsic(prefer_literal=True)
def quantise(typingctx, group, x, record):  # type: ignore[no-untyped-def]
    """One row's group: float32 at `x` → its record at `record`."""
    size = group.literal_value
    half = size // 2

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        _, x, record = args
        vf, vi, hi = ir.VectorType(F32, size), ir.VectorType(I32, size), ir.VectorType(I32, half)
        value = simd.load_as(b, x, vf)
        # As integers the magnitudes have the same order; what is not a number is the largest.
        bits = b.and_(b.bitcast(value, vi), simd.const(vi, 0x7FFFFFFF))
        largest = b.bitcast(simd.call(b, f"llvm.vector.reduce.umax.v{size}i32", I32, bits), F32)
        # The power of two that brings the largest to at most 32767, as a float's exponent. Never 2^-1: where a
        # weight's scale is zero, that would make infinity of it.
        least = b.bitcast(b.fmul(largest, ir.Constant(F32, 1 / 32767)), I32)
        exponent = b.lshr(b.add(least, ir.Constant(I32, 0x7FFFFF)), ir.Constant(I32, 23))
        low, hole = ir.Constant(I32, 127 - 90), ir.Constant(I32, 126)
        exponent = b.select(b.icmp_signed("<", exponent, low), low, exponent)
        exponent = b.select(b.icmp_signed("==", exponent, hole), ir.Constant(I32, 127), exponent)
        shift = ir.Constant(I32, 23)
        scale = b.bitcast(b.shl(exponent, shift), F32)
        inverse = b.bitcast(b.shl(b.sub(ir.Constant(I32, 254), exponent), shift), F32)
        power = b.shl(b.sub(exponent, ir.Constant(I32, 127)), shift)
        whole = b.fptosi(
            simd.call(b, f"llvm.rint.v{size}f32", vf, b.fmul(value, simd.splat(b, inverse, size))), vi
        )
        total = b.sitofp(simd.call(b, f"llvm.vector.reduce.add.v{size}i32", I32, whole), F32)
        undefined = ir.Constant(vi, ir.Undefined)
        low, high = (
            b.shuffle_vector(whole, undefined, ir.Constant(hi, list(range(at, at + half)))) for at in (0, half)
        )
        pairs = b.or_(b.and_(low, simd.const(hi, 0xFFFF)), b.shl(high, simd.const(hi, 16)))
        simd.store_as(b, pairs, record)
        simd.store_as(b, power, b.add(record, ir.Constant(I64, half * 4)))
        simd.store_as(b, b.fmul(total, scale), b.add(record, ir.Constant(I64, half * 4 + 4)))
        return context.get_dummy_value()

    return types.void(group, types.int64, types.int64), codegen


def _pair(b: Any, form: Any, base: Any, i: int) -> Any:
    """IR: codes of inputs i and i + group/2, as 16-bit halves of each lane."""

    def at(offset: int) -> Any:
        return b.add(base, ir.Constant(I64, offset))

    if form.kind == "q4":
        words = form.group // 8
        word = simd.load_as(b, at(i % words * 64), VI)
        shift = 4 * (i // words)
        return b.and_(b.lshr(word, simd.const(VI, shift)) if shift else word, simd.const(VI, 0x000F000F))
    low, high = (
        b.sext(simd.load_as(b, at(k * PANEL), ir.VectorType(I8, PANEL), 1), VI) for k in (i, i + form.group // 2)
    )
    return b.or_(b.and_(low, simd.const(VI, 0xFFFF)), b.shl(high, simd.const(VI, 16)))


def _scales(b: Any, form: Any, base: Any) -> tuple[Any, Any]:
    """IR: the group's scales and minima (None) as float32 vectors."""
    found: list[Any] = [None, None]
    for i in range(1 + form.minimum):
        address = b.add(base, ir.Constant(I64, form.code_bytes + i * form.scale_bytes))
        if form.half:
            found[i] = b.fpext(simd.load_as(b, address, ir.VectorType(ir.HalfType(), PANEL), 2), VF)
        else:
            found[i] = simd.load_as(b, address, VF)
    return found[0], found[1]


def _dot(b: Any, total: Any, weights: Any, pair: Any) -> Any:
    """IR: total + low·low + high·high in every lane."""
    if VNNI and WIDE:
        return simd.call(b, "llvm.x86.avx512.vpdpwssd.512", VI, total, weights, pair)
    if WIDE:
        v = ir.VectorType(ir.IntType(16), 32)
        product = simd.call(b, "llvm.x86.avx512.pmaddw.d.512", VI, b.bitcast(weights, v), b.bitcast(pair, v))
        return b.add(total, product)
    v, half = ir.VectorType(ir.IntType(16), 16), ir.VectorType(I32, 8)
    undefined = ir.Constant(VI, ir.Undefined)
    halves = []
    for lanes in (range(8), range(8, 16)):
        pick = ir.Constant(half, list(lanes))
        before, *parts = (b.shuffle_vector(s, undefined, pick) for s in (total, weights, pair))
        if VNNI:
            halves.append(simd.call(b, "llvm.x86.avx512.vpdpwssd.256", half, before, *parts))
        else:
            product = simd.call(b, "llvm.x86.avx2.pmadd.wd", half, *(b.bitcast(part, v) for part in parts))
            halves.append(b.add(before, product))
    return b.shuffle_vector(halves[0], halves[1], ir.Constant(VI, list(range(16))))


def _spread_bytes(form: Any) -> int:
    """Bytes of a group in one panel once written out as pairs: codes, float32 scales and minima."""
    return int(form.group // 2 + 1 + form.minimum) * 64


@intrinsic(prefer_literal=True)
def spread(typingctx, form, w, groups, out):  # type: ignore[no-untyped-def]
    """Write one panel's codes as 16-bit pairs and its scales as float32 to `out`."""
    what = FORMATS[form.literal_value]

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        _, w, groups, out = args
        with cgutils.for_range(b, groups) as loop:
            base = b.add(w, b.mul(loop.index, ir.Constant(I64, what.group_bytes)))
            target = b.add(out, b.mul(loop.index, ir.Constant(I64, _spread_bytes(what))))
            vectors = [_pair(b, what, base, i) for i in range(what.group // 2)]
            vectors += [s for s in _scales(b, what, base) if s is not None]
            for i, vector in enumerate(vectors):
                simd.store_as(b, vector, b.add(target, ir.Constant(I64, 64 * i)))
        return context.get_dummy_value()

    return types.void(form, types.int64, types.int64, types.int64), codegen


@intrinsic(prefer_literal=True)
def tile16(typingctx, form, ready, rows, panels, x, x_stride, count, w, panel_bytes, groups, out, out_stride):  # type: ignore[no-untyped-def]
    """`out[0:count, 0:16·panels] = x @ weights`; `x` the rows' records; literal `ready`: `w` was `spread`."""
    what, height, width = FORMATS[form.literal_value], rows.literal_value, panels.literal_value
    done = bool(ready.literal_value)
    half = what.group // 2

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        x, x_stride, count, w, panel_bytes, groups, out, out_stride = args[4:]
        # Rows past `count` repeat the last one.
        last = b.sub(count, ir.Constant(I64, 1))
        index = [ir.Constant(I64, m) for m in range(height)]
        index = [b.select(b.icmp_signed("<", m, last), m, last) for m in index] if height > 1 else index
        rows = [b.add(x, b.mul(m, x_stride)) for m in index]
        sums = [[cgutils.alloca_once(b, VF) for _ in range(width)] for _ in range(height)]
        for row in sums:
            for place in row:
                b.store(simd.const(VF, 0.0), place)
        group_bytes = _spread_bytes(what) if done else what.group_bytes
        if height > 2:
            # The results' lines: a store that waits for its line holds up all that come after it.
            for target in (b.add(out, b.mul(m, out_stride)) for m in index):
                for p in range(width):
                    simd.prefetch(b, b.add(target, ir.Constant(I64, 64 * p)), write=True)
        with cgutils.for_range(b, groups) as loop:
            at = b.mul(loop.index, ir.Constant(I64, record_bytes(what.group)))
            records = [b.add(row, at) for row in rows]
            base = b.add(w, b.mul(loop.index, ir.Constant(I64, group_bytes)))
            bases = [b.add(base, b.mul(panel_bytes, ir.Constant(I64, p))) for p in range(width)]
            if not done:
                # The panels that come next: streams this short are over before the processor has noticed them.
                ahead = b.mul(panel_bytes, ir.Constant(I64, width))
                for at in bases:
                    for line in range(0, what.group_bytes, 64):
                        simd.prefetch(b, b.add(b.add(at, ahead), ir.Constant(I64, line)))

            def value(i: int, m: int, kind: Any) -> Any:
                return simd.splat(b, simd.load_as(b, b.add(records[m], ir.Constant(I64, i * 4)), kind))

            products = [[simd.const(VI, 0)] * width for _ in range(height)]
            for i in range(half):
                codes = [
                    simd.load_as(b, b.add(at, ir.Constant(I64, 64 * i)), VI) if done else _pair(b, what, at, i)
                    for at in bases
                ]
                for m in range(height):
                    pair = value(i, m, I32)
                    for p in range(width):
                        products[m][p] = _dot(b, products[m][p], codes[p], pair)
            for p in range(width):
                if done:
                    at = [b.add(bases[p], ir.Constant(I64, 64 * (half + i))) for i in range(2)]
                    scale = simd.load_as(b, at[0], VF)
                    minimum = simd.load_as(b, at[1], VF) if what.minimum else None
                else:
                    scale, minimum = _scales(b, what, bases[p])
                for m in range(height):
                    # Times a power of two by adding to the exponent, which leaves the multipliers alone.
                    scaled = b.bitcast(b.add(b.bitcast(scale, VI), value(half, m, I32)), VF)
                    total = simd.fma(b, b.sitofp(products[m][p], VF), scaled, b.load(sums[m][p]))
                    if minimum is not None:
                        total = simd.fma(b, value(half + 1, m, F32), minimum, total)
                    b.store(total, sums[m][p])
        for m in range(height):
            target = b.add(out, b.mul(index[m], out_stride))
            for p in range(width):
                simd.store_as(b, b.load(sums[m][p]), b.add(target, ir.Constant(I64, 64 * p)))
        return context.get_dummy_value()

    return types.void(form, ready, rows, panels, *[types.int64] * 8), codegen


@numba.njit(inline="always")
def _few(form, x, x_stride, count, w, panel_bytes, groups, out, out_stride):  # type: ignore[no-untyped-def]
    """Two panels for at most `_HEIGHT` rows."""
    if count <= 2:
        tile16(form, 0, 2, 2, x, x_stride, count, w, panel_bytes, groups, out, out_stride)
    elif count <= 4:
        for p in range(0, 2, _PANELS):
            at, target = w + p * panel_bytes, out + 64 * p
            tile16(form, 0, 4, _PANELS, x, x_stride, count, at, panel_bytes, groups, target, out_stride)
    else:
        for p in range(0, 2, _PANELS):
            at, target = w + p * panel_bytes, out + 64 * p
            tile16(form, 0, _HEIGHT, _PANELS, x, x_stride, count, at, panel_bytes, groups, target, out_stride)


@numba.njit(inline="always")
def _quantise(group, task, chunk):  # type: ignore[no-untyped-def]
    count, chunks, groups = load_i64(task), load_i64(task + 8), load_i64(task + 16)
    x, x_stride, rows = load_i64(task + 24), load_i64(task + 32), load_i64(task + 40)
    record = (group // 2 + 2) * 4
    for m in range(count * chunk // chunks, count * (chunk + 1) // chunks):
        for g in range(groups):
            quantise(group, x + m * x_stride + g * group * 4, rows + (m * groups + g) * record)


@entry
def quantise_16(task, chunk, thread):  # type: ignore[no-untyped-def]
    """Task: rows, chunks, groups, address and stride in bytes of the floats, address of the records."""
    _quantise(16, task, chunk)


@entry
def quantise_32(task, chunk, thread):  # type: ignore[no-untyped-def]
    _quantise(32, task, chunk)


QUANTISE = {16: quantise_16, 32: quantise_32}


@numba.njit(inline="always")
def _linear(form, group, extra, task, chunk, thread):  # type: ignore[no-untyped-def]
    count, groups = load_i64(task + 8 * M), load_i64(task + 8 * GROUPS)
    row_bytes, rows = groups * (group // 2 + 2) * 4, load_i64(task + 8 * PACKED)
    weights, panel_bytes = load_i64(task + 8 * W), load_i64(task + 8 * PANEL_BYTES)
    blocks, chunks = load_i64(task + 8 * BLOCKS), load_i64(task + 8 * CHUNKS)
    out, out_stride, bias = load_i64(task + 8 * OUT), load_i64(task + 8 * OUT_STRIDE), load_i64(task + 8 * BIAS)
    scratch = load_i64(task + 8 * SCRATCH) + thread * load_i64(task + 8 * SCRATCH_STRIDE)
    ready_bytes = groups * (group // 2 + extra) * 64
    # A chunk is a part of the rows times some neighbouring pairs of panels. One row alone takes four panels at
    # once, or it would wait for its own sums.
    parts = load_i64(task + 8 * PARTS)
    width = 4 if count == 1 else 2
    units, chunks = blocks * 4 // width, chunks // parts
    part, chunk = chunk // chunks, chunk % chunks
    begin, end = count * part // parts, count * (part + 1) // parts
    for unit in range(units * chunk // chunks, units * (chunk + 1) // chunks):
        w, target = weights + unit * width * panel_bytes, out + unit * width * 64
        if count == 1:
            tile16(form, 0, 1, 4, rows, row_bytes, 1, w, panel_bytes, groups, target, out_stride)
        elif count < MANY:
            for m in range(begin, end, _HEIGHT):
                _few(
                    form, rows + m * row_bytes, row_bytes, min(_HEIGHT, end - m), w, panel_bytes, groups,
                    target + m * out_stride, out_stride,
                )  # fmt: skip
        else:
            for p in range(2):
                spread(form, w + p * panel_bytes, groups, scratch + p * ready_bytes)
            for p in range(0, 2, _PANELS):
                for m in range(begin, end, _HEIGHT):
                    tile16(
                        form, 1, _HEIGHT, _PANELS, rows + m * row_bytes, row_bytes, min(_HEIGHT, end - m),
                        scratch + p * ready_bytes, ready_bytes, groups, target + m * out_stride + 64 * p,
                        out_stride,
                    )  # fmt: skip
        if bias != 0:
            for m in range(begin, end):
                for lane in range(width):
                    at = target + m * out_stride + 64 * lane
                    vstore(at, vadd(vload(at), vload(bias + (unit * width + lane) * 64)))


@entry
def linear_q4_half(task, chunk, thread):  # type: ignore[no-untyped-def]
    _linear(2, 32, 2, task, chunk, thread)


@entry
def linear_q4_float(task, chunk, thread):  # type: ignore[no-untyped-def]
    _linear(3, 32, 2, task, chunk, thread)


@entry
def linear_q8_half(task, chunk, thread):  # type: ignore[no-untyped-def]
    _linear(4, 32, 1, task, chunk, thread)


@entry
def linear_q8_float(task, chunk, thread):  # type: ignore[no-untyped-def]
    _linear(5, 16, 1, task, chunk, thread)


@entry
def linear_q8_minimum(task, chunk, thread):  # type: ignore[no-untyped-def]
    _linear(6, 32, 2, task, chunk, thread)


LINEAR = dict(enumerate((linear_q4_half, linear_q4_float, linear_q8_half, linear_q8_float, linear_q8_minimum), 2))
"""The kernel by number of the format in `tiles.FORMATS`; the float formats have none."""
