"""Vectors and raw memory for numba code: sixteen float32 lanes, addresses as int64, explicit fused multiply-add.

numba's loops leave the choice of vectors to LLVM; a quantised matrix-vector product wants it made by hand, so
these intrinsics emit vector LLVM instructions, which LLVM lowers to one AVX-512, two AVX or four NEON
registers. Knows nothing of weights or attention.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import threading
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models, register_default
from numba.extending import intrinsic as _intrinsic

from radixlang.kept_code import compile_kept

# numba rewrites these signatures (the typing context disappears), which no type checker can know.
intrinsic: Any = _intrinsic
config: Any = numba.config

LANES = 16
F32, I32, I64, I8 = ir.FloatType(), ir.IntType(32), ir.IntType(64), ir.IntType(8)
VF = ir.VectorType(F32, LANES)
VI = ir.VectorType(I32, LANES)


class _Vector(types.Type):
    """The numba type of `VF`."""

    def __init__(self) -> None:
        super().__init__(name="radixlang.vector16f")


vector = _Vector()


@register_default(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, VF)


def load_as(builder: Any, address: Any, kind: Any, align: int = 4) -> Any:
    """IR: the value of type `kind` at an int64 address."""
    result = builder.load(builder.inttoptr(address, kind.as_pointer()))
    result.align = align
    return result


def store_as(builder: Any, value: Any, address: Any, align: int = 4) -> None:
    """IR: write `value` at an int64 address."""
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = align


def splat(builder: Any, scalar: Any, lanes: int = LANES) -> Any:
    """IR: a scalar in every lane."""
    kind = ir.VectorType(scalar.type, lanes)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(
        one, ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(I32, lanes), [0] * lanes)
    )


def const(kind: Any, value: Any) -> Any:
    """IR: a constant vector."""
    return ir.Constant(kind, [value] * kind.count)


def call(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """IR: call an LLVM intrinsic by its full name."""
    function = builder.module.declare_intrinsic(name, fnty=ir.FunctionType(result, [a.type for a in args]))
    return builder.call(function, args)


def prefetch(builder: Any, address: Any, write: bool = False) -> None:
    """IR: bring the cache line at an int64 address near, `write`: to be written; any address is allowed."""
    pointer = builder.inttoptr(address, I8.as_pointer())
    numbers = [ir.Constant(I32, n) for n in (int(write), 3, 1)]
    call(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, *numbers)


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """IR: a·b + c, rounded once."""
    return call(builder, "llvm.fma.v16f32", VF, a, b, c)


def _emit(signature_of: Any, emit: Any) -> Any:
    """An intrinsic whose LLVM code is `emit(builder, *args)`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = emit(builder, *args)
        return context.get_dummy_value() if value is None else value

    return signature_of, codegen


@intrinsic
def load_i64(typingctx, address):  # type: ignore[no-untyped-def]
    return _emit(types.int64(types.int64), lambda b, a: load_as(b, a, I64, 8))


@intrinsic
def load_i32(typingctx, address):  # type: ignore[no-untyped-def]
    return _emit(types.int32(types.int64), lambda b, a: load_as(b, a, I32))


@intrinsic
def load_f32(typingctx, address):  # type: ignore[no-untyped-def]
    return _emit(types.float32(types.int64), lambda b, a: load_as(b, a, F32))


@intrinsic
def store_f32(typingctx, address, value):  # type: ignore[no-untyped-def]
    return _emit(types.void(types.int64, types.float32), lambda b, a, v: store_as(b, v, a))


@intrinsic
def store_i64(typingctx, address, value):  # type: ignore[no-untyped-def]
    return _emit(types.void(types.int64, types.int64), lambda b, a, v: store_as(b, v, a, 8))


@intrinsic
def fetch_add(typingctx, address, value):  # type: ignore[no-untyped-def]
    """Atomic: add to the int64 at `address`, return what it was."""
    return _emit(
        types.int64(types.int64, types.int64),
        lambda b, a, v: b.atomic_rmw("add", b.inttoptr(a, I64.as_pointer()), v, "acq_rel"),
    )


@intrinsic
def load_shared(typingctx, address):  # type: ignore[no-untyped-def]
    """Atomic: the int64 at `address`, which other threads write."""

    def emit(b: Any, a: Any) -> Any:
        return b.load_atomic(b.inttoptr(a, I64.as_pointer()), "seq_cst", 8)

    return _emit(types.int64(types.int64), emit)


@intrinsic
def store_shared(typingctx, address, value):  # type: ignore[no-untyped-def]
    """Atomic: write the int64 at `address`, which other threads read."""

    def emit(b: Any, a: Any, v: Any) -> None:
        b.store_atomic(v, b.inttoptr(a, I64.as_pointer()), "seq_cst", 8)

    return _emit(types.void(types.int64, types.int64), emit)


@intrinsic
def exchange_if(typingctx, address, expected, value):  # type: ignore[no-untyped-def]
    """Atomic: write `value` if the int64 at `address` is `expected`; whether it was."""

    def emit(b: Any, a: Any, old: Any, new: Any) -> Any:
        pair = b.cmpxchg(b.inttoptr(a, I64.as_pointer()), old, new, "seq_cst", "seq_cst")
        return b.zext(b.extract_value(pair, 1), I64)

    return _emit(types.int64(types.int64, types.int64, types.int64), emit)


@intrinsic
def pause(typingctx):  # type: ignore[no-untyped-def]
    """Tell the processor that this is a waiting loop."""
    x86 = llvmlite.binding.get_process_triple().startswith(("x86_64", "i686"))

    def emit(b: Any) -> None:
        if x86:
            call(b, "llvm.x86.sse2.pause", ir.VoidType())

    return _emit(types.void(), emit)


@intrinsic
def call_work(typingctx, address, task, chunk, thread):  # type: ignore[no-untyped-def]
    """Call the `entry` function at `address`."""
    kind = ir.FunctionType(ir.VoidType(), [I64] * 3)

    def emit(b: Any, a: Any, *numbers: Any) -> None:
        b.call(b.inttoptr(a, kind.as_pointer()), numbers)

    return _emit(types.void(*[types.int64] * 4), emit)


@intrinsic
def call_number(typingctx, address, number):  # type: ignore[no-untyped-def]
    """Call the C function `f(unsigned)` at `address`."""
    kind = ir.FunctionType(I32, [I32])

    def emit(b: Any, a: Any, n: Any) -> None:
        b.call(b.inttoptr(a, kind.as_pointer()), [b.trunc(n, I32)])

    return _emit(types.void(types.int64, types.int64), emit)


@intrinsic
def vload(typingctx, address):  # type: ignore[no-untyped-def]
    return _emit(vector(types.int64), lambda b, a: load_as(b, a, VF))


@intrinsic
def vstore(typingctx, address, value):  # type: ignore[no-untyped-def]
    return _emit(types.void(types.int64, vector), lambda b, a, v: store_as(b, v, a))


@intrinsic
def vpeak(typingctx, a, b):  # type: ignore[no-untyped-def]
    """The larger lanes; not a number where either is none."""
    return _emit(vector(vector, vector), lambda b, x, y: call(b, "llvm.maximum.v16f32", VF, x, y))


@intrinsic
def vnan(typingctx, a):  # type: ignore[no-untyped-def]
    """1 if a lane is not a number, else 0."""

    def emit(b: Any, x: Any) -> Any:
        bits = b.bitcast(b.fcmp_unordered("uno", x, x), ir.IntType(LANES))
        return b.zext(b.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0)), I64)

    return _emit(types.int64(vector), emit)


@intrinsic
def vfind(typingctx, a, value):  # type: ignore[no-untyped-def]
    """Index of the first lane equal to `value`, sixteen if none is."""

    def emit(b: Any, x: Any, value: Any) -> Any:
        bits = b.bitcast(b.fcmp_ordered("==", x, splat(b, value)), ir.IntType(LANES))
        return b.zext(call(b, "llvm.cttz.i16", bits.type, bits, ir.Constant(ir.IntType(1), 0)), I64)

    return _emit(types.int64(vector, types.float32), emit)


@intrinsic
def vsplat(typingctx, value):  # type: ignore[no-untyped-def]
    return _emit(vector(types.float32), splat)


@intrinsic
def vadd(typingctx, a, b):  # type: ignore[no-untyped-def]
    return _emit(vector(vector, vector), lambda b, x, y: b.fadd(x, y))


@intrinsic
def vmul(typingctx, a, b):  # type: ignore[no-untyped-def]
    return _emit(vector(vector, vector), lambda b, x, y: b.fmul(x, y))


@intrinsic
def vdiv(typingctx, a, b):  # type: ignore[no-untyped-def]
    return _emit(vector(vector, vector), lambda b, x, y: b.fdiv(x, y))


@intrinsic
def vfma(typingctx, a, b, c):  # type: ignore[no-untyped-def]
    return _emit(vector(vector, vector, vector), fma)


def _halves(builder: Any, value: Any, combine: Any) -> Any:
    """IR: reduce the lanes pairwise, in a fixed order."""
    count = LANES
    while count > 1:
        count //= 2
        undefined = ir.Constant(value.type, ir.Undefined)
        low, high = (
            builder.shuffle_vector(value, undefined, ir.Constant(ir.VectorType(I32, count), list(lanes)))
            for lanes in (range(count), range(count, 2 * count))
        )
        value = combine(low, high)
    return builder.extract_element(value, ir.Constant(I32, 0))


@intrinsic
def vsum(typingctx, a):  # type: ignore[no-untyped-def]
    return _emit(types.float32(vector), lambda b, v: _halves(b, v, b.fadd))


@intrinsic
def vmax(typingctx, a):  # type: ignore[no-untyped-def]
    return _emit(
        types.float32(vector), lambda b, v: _halves(b, v, lambda x, y: b.select(b.fcmp_ordered(">", x, y), x, y))
    )


@intrinsic
def vmaximum(typingctx, a, b):  # type: ignore[no-untyped-def]
    return _emit(vector(vector, vector), lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))


def exp(b: Any, x: Any) -> Any:
    """IR: e^x to about 2 ulp; below -87 zero, above 88 held at e^88."""
    low = b.fcmp_ordered("<", x, const(VF, -87.0))
    x = b.select(b.fcmp_ordered(">", x, const(VF, 88.0)), const(VF, 88.0), x)
    x = b.select(low, const(VF, -87.0), x)
    n = call(b, "llvm.rint.v16f32", VF, b.fmul(x, const(VF, 1 / math.log(2))))
    # x - n·ln 2 with ln 2 in two parts: the first has few bits, so its product is exact.
    r = fma(b, n, const(VF, -0.693359375), x)
    r = fma(b, n, const(VF, 2.12194440e-4), r)
    p = const(VF, 1 / 5040)
    for term in (720, 120, 24, 6, 2, 1, 1):
        p = fma(b, p, r, const(VF, 1 / term))
    power = b.shl(b.add(b.fptosi(n, VI), const(VI, 127)), const(VI, 23))
    return b.select(low, const(VF, 0.0), b.fmul(p, b.bitcast(power, VF)))


@intrinsic
def vexp(typingctx, a):  # type: ignore[no-untyped-def]
    return _emit(vector(vector), exp)


def kernel(function: Any) -> Any:
    """Compile a function for use by `entry` functions, without bounds checks."""
    return numba.njit(nogil=True, error_model="numpy", boundscheck=False)(function)


_SIGNATURE = types.void(types.int64, types.int64, types.int64)
_compiling = threading.Lock()


@functools.cache
def _cache_folder() -> str:
    """Where compiled kernels are kept: named after the sources, since numba itself watches one file only."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    own, home = os.environ.get("RADIXLANG_CACHE"), os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    base = config.CACHE_DIR or Path(own or Path(home) / "radixlang") / "kernels"
    return str(Path(base).expanduser() / digest.hexdigest()[:16])


def entry(function: Any) -> Any:
    """Compile `f(task, chunk, thread)` of int64 for `pool`; its machine code is kept on disk.

    Returns a function that compiles (or loads) on its first call and then gives the code's address.
    """
    compiled: list[Any] = []

    def address() -> int:
        if not compiled:
            with _compiling:
                before = config.CACHE_DIR
                config.CACHE_DIR = _cache_folder()
                try:
                    compiled.append(
                        compile_kept(function, lambda kept: numba.cfunc(_SIGNATURE, cache=kept)(function))
                    )
                finally:
                    config.CACHE_DIR = before
        return compiled[0].address

    return address
