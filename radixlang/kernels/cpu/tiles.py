"""Matrix product with packed weights: float32 activations times weights of any `Format`, dequantised in registers.

Weights lie in *panels* of 16 output channels: for every group of inputs first the codes (16 channels of one
input side by side, so a vector's lanes are channels), then the group's scales and minima. A *tile* multiplies
a few rows with a few panels and keeps the sums in registers.

One rule makes results independent of the batch: every output is the sum over inputs 0 … K-1 in that order, one
fused multiply-add each, of the weight `fma(code, scale, minimum)`. All tile shapes, and the path that first
writes the weights of a panel out as float32, do exactly that, so a row's result is the same bits for any M.

Knows nothing of torch or files; `linear.py` does the packing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
    I64,
    VF,
    VI,
    entry,
    intrinsic,
    kernel,
    load_f32,
    load_i64,
    store_f32,
)

PANEL = simd.LANES
BLOCK = 4 * PANEL
"""Output channels are padded to this many: four panels, the widest tile."""


@dataclass(frozen=True)
class Format:
    """How weights lie in a panel. `group` inputs share a scale (for float kinds it is only the loop's stride)."""

    kind: str
    group: int
    half: bool = False
    minimum: bool = False

    @property
    def code_bytes(self) -> int:
        """Bytes of a group's codes in one panel."""
        return self.group * PANEL * {"q4": 1, "q8": 2, "bf16": 4, "f32": 8}[self.kind] // 2

    @property
    def scale_bytes(self) -> int:
        """Bytes of one group's scales (or minima) in one panel."""
        return PANEL * (2 if self.half else 4)

    @property
    def group_bytes(self) -> int:
        """Bytes of one group in one panel."""
        scales = 0 if self.kind in ("bf16", "f32") else 1 + self.minimum
        return self.code_bytes + scales * self.scale_bytes


FORMATS = (
    Format("f32", 4),
    Format("bf16", 4),
    Format("q4", 32, half=True, minimum=True),
    Format("q4", 32, half=False, minimum=True),
    Format("q8", 32, half=True),
    Format("q8", 16, half=False),
    Format("q8", 32, half=False, minimum=True),
)


def _wide() -> bool:
    """Whether 512-bit registers are really used: LLVM splits them on the Intel parts that slow down with them."""
    name = simd.config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
    features = simd.config.CPU_FEATURES
    has = "+avx512f" in features if features else bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))
    return name.startswith("znver") and name not in ("znver1", "znver2", "znver3") and has


WIDE = _wide()
_ROWS = (8, 4, 2) if WIDE else (4, 4, 2)
_PANELS = 2 if WIDE else 1
_GEMM_ROWS = 12 if WIDE else 6
MANY = 24 if WIDE else 16
"""From this many rows weights are first written out as float32, a block at a time."""


def _weights(b: Any, form: Format, base: Any) -> Iterator[Any]:
    """IR: the weight vector of each input of the group at address `base`, in order, emitted as it is asked for."""

    def at(offset: int) -> Any:
        return b.add(base, ir.Constant(I64, offset))

    def scales(offset: int) -> Any:
        if not form.half:
            return simd.load_as(b, at(offset), VF)
        return b.fpext(simd.load_as(b, at(offset), ir.VectorType(ir.HalfType(), PANEL), 2), VF)

    if form.kind == "f32":
        for k in range(form.group):
            yield simd.load_as(b, at(k * 64), VF)
        return
    if form.kind == "bf16":
        for k in range(form.group):
            half = simd.load_as(b, at(k * 32), ir.VectorType(ir.IntType(16), PANEL), 2)
            yield b.bitcast(b.shl(b.zext(half, VI), simd.const(VI, 16)), VF)
        return
    scale = scales(form.code_bytes)
    minimum = scales(form.code_bytes + form.scale_bytes) if form.minimum else None

    def value(code: Any, factor: Any) -> Any:
        return b.fmul(code, factor) if minimum is None else simd.fma(b, code, factor, minimum)

    if form.kind == "q8":
        for k in range(form.group):
            code = b.sitofp(b.sext(simd.load_as(b, at(k * PANEL), ir.VectorType(I8, PANEL), 1), VI), VF)
            yield value(code, scale)
        return
    # Input 4j + w is nibble j of word w. Masking leaves code · 16^j, an exact float, and the scale takes the
    # 16^-j, exact as well: no shift is needed. Nibble 7 would be the sign, so it is shifted down.
    words = form.group // 8
    for j in range(8):
        factor = scale if j in (0, 7) else b.fmul(scale, simd.const(VF, 16.0**-j))
        for w in range(words):
            word = simd.load_as(b, at(w * 64), VI)
            if j == 7:
                code = b.lshr(word, simd.const(VI, 28))
            else:
                code = b.and_(word, simd.const(VI, 0xF << 4 * j))
            yield value(b.sitofp(code, VF), factor)


@intrinsic(prefer_literal=True)
def tile(typingctx, form, rows, panels, x, x_stride, count, w, panel_bytes, groups, out, out_stride):  # type: ignore[no-untyped-def]
    """`out[0:count, 0:16·panels] = x[0:count] @ weights`; literal `form`, `rows` ≥ count, `panels`.

    Strides are in bytes. Rows past `count` repeat the last one.
    """
    what, height, width = FORMATS[form.literal_value], rows.literal_value, panels.literal_value

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        x, x_stride, count, w, panel_bytes, groups, out, out_stride = args[3:]
        last = b.sub(count, ir.Constant(I64, 1))
        index = [ir.Constant(I64, m) for m in range(height)]
        index = [b.select(b.icmp_signed("<", m, last), m, last) for m in index] if height > 1 else index
        sources = [b.add(x, b.mul(m, x_stride)) for m in index]
        sums = [[cgutils.alloca_once(b, VF) for _ in range(width)] for _ in range(height)]
        for row in sums:
            for place in row:
                b.store(simd.const(VF, 0.0), place)
        with cgutils.for_range(b, groups) as loop:
            start = b.mul(loop.index, ir.Constant(I64, what.group * 4))
            base = b.add(w, b.mul(loop.index, ir.Constant(I64, what.group_bytes)))
            at = [b.add(source, start) for source in sources]
            # All panels of one input together, or LLVM would keep every input's activations at hand and spill.
            streams = [
                _weights(b, what, b.add(base, b.mul(panel_bytes, ir.Constant(I64, p)))) for p in range(width)
            ]
            for k, vectors in enumerate(zip(*streams, strict=True)):
                for m in range(height):
                    scalar = simd.splat(b, simd.load_as(b, b.add(at[m], ir.Constant(I64, 4 * k)), F32))
                    for place, weight in zip(sums[m], vectors, strict=True):
                        b.store(simd.fma(b, scalar, weight, b.load(place)), place)
        for m in range(height):
            target = b.add(out, b.mul(index[m], out_stride))
            for p in range(width):
                simd.store_as(b, b.load(sums[m][p]), b.add(target, ir.Constant(I64, 64 * p)))
        return context.get_dummy_value()

    return types.void(form, rows, panels, *[types.int64] * 8), codegen


@intrinsic(prefer_literal=True)
def unpack(typingctx, form, w, groups, out):  # type: ignore[no-untyped-def]
    """Write one panel's weights as float32 `[K, 16]` to `out`."""
    what = FORMATS[form.literal_value]

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        _, w, groups, out = args
        with cgutils.for_range(b, groups) as loop:
            base = b.add(w, b.mul(loop.index, ir.Constant(I64, what.group_bytes)))
            target = b.add(out, b.mul(loop.index, ir.Constant(I64, what.group * 64)))

            for k, weight in enumerate(_weights(b, what, base)):
                simd.store_as(b, weight, b.add(target, ir.Constant(I64, 64 * k)))
        return context.get_dummy_value()

    return types.void(form, types.int64, types.int64, types.int64), codegen


# fmt: off
(X, X_STRIDE, M, W, PANEL_BYTES, GROUPS, BLOCKS, OUT, OUT_STRIDE, BIAS, SCRATCH, SCRATCH_STRIDE, CHUNKS,
 PACKED, PARTS) = range(15)
# fmt: on


@kernel
def _add_bias(out, stride, count, bias):  # type: ignore[no-untyped-def]
    for m in range(count):
        for lane in range(BLOCK):
            at = out + m * stride + 4 * lane
            store_f32(at, load_f32(at) + load_f32(bias + 4 * lane))


@numba.njit(inline="always")
def _few(form, x, x_stride, count, w, panel_bytes, groups, out, out_stride):  # type: ignore[no-untyped-def]
    """One block of channels for a few rows, dequantising for each tile of rows anew (from the L1 cache)."""
    m = 0
    while m < count:
        left = count - m
        if left == 1:
            tile(
                form, 1, 4, x + m * x_stride, x_stride, 1, w, panel_bytes, groups, out + m * out_stride, out_stride
            )
            m += 1
        elif left == 2:
            for p in range(0, 4, 2):
                tile(
                    form, 2, 2, x + m * x_stride, x_stride, 2, w + p * panel_bytes, panel_bytes, groups,
                    out + m * out_stride + 64 * p, out_stride,
                )  # fmt: skip
            m += 2
        elif left <= 4 or not WIDE:
            for p in range(0, 4, _PANELS):
                tile(
                    form, 4, _PANELS, x + m * x_stride, x_stride, min(left, 4), w + p * panel_bytes, panel_bytes,
                    groups, out + m * out_stride + 64 * p, out_stride,
                )  # fmt: skip
            m += 4
        else:
            for p in range(0, 4, _PANELS):
                tile(
                    form, 8, _PANELS, x + m * x_stride, x_stride, min(left, 8), w + p * panel_bytes, panel_bytes,
                    groups, out + m * out_stride + 64 * p, out_stride,
                )  # fmt: skip
            m += 8


@kernel
def _dense(x, x_stride, count, w, panel_bytes, groups, out, out_stride):  # type: ignore[no-untyped-def]
    """One block of channels for many rows, weights float32 panels."""
    for p in range(0, 4, _PANELS):
        for m in range(0, count, _GEMM_ROWS):
            tile(
                0, _GEMM_ROWS, _PANELS, x + m * x_stride, x_stride, min(count - m, _GEMM_ROWS),
                w + p * panel_bytes, panel_bytes, groups, out + m * out_stride + 64 * p, out_stride,
            )  # fmt: skip


@numba.njit(inline="always")
def _linear(form, group, task, chunk, thread):  # type: ignore[no-untyped-def]
    x, x_stride, count = load_i64(task + 8 * X), load_i64(task + 8 * X_STRIDE), load_i64(task + 8 * M)
    weights, panel_bytes = load_i64(task + 8 * W), load_i64(task + 8 * PANEL_BYTES)
    groups, blocks, chunks = load_i64(task + 8 * GROUPS), load_i64(task + 8 * BLOCKS), load_i64(task + 8 * CHUNKS)
    out, out_stride, bias = load_i64(task + 8 * OUT), load_i64(task + 8 * OUT_STRIDE), load_i64(task + 8 * BIAS)
    scratch = load_i64(task + 8 * SCRATCH) + thread * load_i64(task + 8 * SCRATCH_STRIDE)
    for block in range(blocks * chunk // chunks, blocks * (chunk + 1) // chunks):
        w = weights + block * 4 * panel_bytes
        target = out + block * BLOCK * 4
        if form == 0 and count >= MANY:
            _dense(x, x_stride, count, w, panel_bytes, groups, target, out_stride)
        elif count < MANY:
            _few(form, x, x_stride, count, w, panel_bytes, groups, target, out_stride)
        else:
            dense_bytes = groups * group * 64
            for p in range(4):
                unpack(form, w + p * panel_bytes, groups, scratch + p * dense_bytes)
            _dense(x, x_stride, count, scratch, dense_bytes, groups * group // 4, target, out_stride)
        if bias != 0:
            _add_bias(target, out_stride, count, bias + block * BLOCK * 4)


@entry
def linear_f32(task, chunk, thread):  # type: ignore[no-untyped-def]
    _linear(0, 4, task, chunk, thread)


@entry
def linear_bf16(task, chunk, thread):  # type: ignore[no-untyped-def]
    _linear(1, 4, task, chunk, thread)


@entry
def linear_q4_half(task, chunk, thread):  # type: ignore[no-untyped-def]
    _linear(2, 32, task, chunk, thread)


@entry
def linear_q4_float(task, chunk, thread):  # type: ignore[no-untyped-def]
    _linear(3, 32, task, chunk, thread)


@entry
def linear_q8_half(task, chunk, thread):  # type: ignore[no-untyped-def]
    _linear(4, 32, task, chunk, thread)


@entry
def linear_q8_float(task, chunk, thread):  # type: ignore[no-untyped-def]
    _linear(5, 16, task, chunk, thread)


@entry
def linear_q8_minimum(task, chunk, thread):  # type: ignore[no-untyped-def]
    _linear(6, 32, task, chunk, thread)


LINEAR = (
    linear_f32, linear_bf16, linear_q4_half, linear_q4_float, linear_q8_half, linear_q8_float, linear_q8_minimum,
)  # fmt: skip
"""The kernel of each of `FORMATS`."""
