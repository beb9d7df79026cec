"""Matrix products by cuBLASLt with an algorithm from the chip's table, where its own choice was measured slower.

The library chooses by rules of thumb; for some shapes another of its kernels is up to a fifth faster (see
`benchmarks/gpu_tune_library.py`). Algorithms are named as cuBLASLt numbers them in the attributes of its
`cublasLtMatmulAlgoConfigAttributes_t`. A version of the library that does not know one refuses it, and the product
is computed as torch does it. https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api
"""

from __future__ import annotations

import ctypes
import logging
from dataclasses import fields
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F

from radixlang.kernels.tuning import LibraryAlgorithm, chip, library_algorithm

logger = logging.getLogger(__name__)

_COMPUTE_32F, _R_32F = 68, 0
_TYPES = {torch.float16: 2, torch.bfloat16: 14}
_DESC_TRANSA = 3
ALGORITHM = 66  # the family of Hopper's kernels
#: bytes; those of the tables need 4 at most
WORKSPACE = 1 << 16
#: attribute's number and type
CONFIG = {
    "tile": (1, ctypes.c_uint32),
    "swizzle": (4, ctypes.c_uint32),
    "custom": (5, ctypes.c_uint32),
    "stages": (6, ctypes.c_uint32),
    "cluster": (8, ctypes.c_uint16),
}
assert CONFIG.keys() == {field.name for field in fields(LibraryAlgorithm)}

Algorithm = ctypes.c_uint64 * 8
_size = ctypes.c_size_t


class Found(ctypes.Structure):
    """`cublasLtMatmulHeuristicResult_t`"""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class Refused(Exception):
    """The library is not there, or does not take what it is asked."""


class Library:
    """cuBLASLt's functions on one device; all raise `Refused` where they report an error."""

    def __init__(self) -> None:
        try:
            self._functions = ctypes.CDLL(f"libcublasLt.so.{(torch.version.cuda or '').partition('.')[0]}")
        except OSError as error:
            raise Refused(str(error)) from None
        self.handle = ctypes.c_void_p()
        self("Create", ctypes.byref(self.handle))
        # One for all products, which run one after the other. Graphs hold its address: it is never freed.
        self.workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda")

    def __call__(self, name: str, *arguments: Any) -> None:
        status = getattr(self._functions, f"cublasLt{name}")(*arguments)
        if status:
            raise Refused(f"cublasLt{name}: {status}")


@lru_cache
def library(device: int) -> Library:
    with torch.cuda.device(device):
        return Library()


class Problem:
    """out [tokens, outer] = factor · out + x [tokens, inner] · weight [outer, inner]ᵀ, as the library knows it.

    Its matrices are column-major, so that it sees outᵀ = weight · xᵀ. Raises `Refused`.
    """

    def __init__(self, device: int, dtype: torch.dtype, tokens: int, outer: int, inner: int) -> None:
        self.dtype, self.library = dtype, library(device)
        self._desc = ctypes.c_void_p()
        self.library("MatmulDescCreate", ctypes.byref(self._desc), _COMPUTE_32F, _R_32F)
        transposed = ctypes.c_int32(1)
        self.library("MatmulDescSetAttribute", self._desc, _DESC_TRANSA, ctypes.byref(transposed), _size(4))
        self._layouts: list[ctypes.c_void_p] = []
        for rows, columns in ((inner, outer), (inner, tokens), (outer, tokens)):
            made, sizes = (
                ctypes.c_void_p(),
                (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)),
            )
            self.library("MatrixLayoutCreate", ctypes.byref(made), _TYPES[dtype], *sizes)
            self._layouts.append(made)

    @property
    def arguments(self) -> tuple[ctypes.c_void_p, ...]:
        """Operation and layouts of weight, x, out before and after, as the library's functions take them."""
        return (self._desc, *self._layouts, self._layouts[-1])

    def algorithm(self, numbers: LibraryAlgorithm) -> Any:
        """The library's form of it."""
        made, found, kind = Algorithm(), Found(), _TYPES[self.dtype]
        kinds = (_COMPUTE_32F, _R_32F, kind, kind, kind, kind)
        self.library("MatmulAlgoInit", self.library.handle, *kinds, ALGORITHM, ctypes.byref(made))
        for name, (attribute, number) in CONFIG.items():
            value = number(getattr(numbers, name))
            size = _size(ctypes.sizeof(number))
            self.library("MatmulAlgoConfigSetAttribute", ctypes.byref(made), attribute, ctypes.byref(value), size)
        both = ctypes.byref(made), ctypes.byref(found)
        self.library("MatmulAlgoCheck", self.library.handle, *self.arguments, *both)
        if found.workspace > WORKSPACE:
            raise Refused(f"{numbers} needs {found.workspace} bytes")
        return made

    def __del__(self) -> None:
        for layout in getattr(self, "_layouts", ()):
            self.library("MatrixLayoutDestroy", layout)
        if getattr(self, "_desc", None):
            self.library("MatmulDescDestroy", self._desc)


class Product:
    """A problem's product by one algorithm, with the old `out` times `factor`, 0 or 1. Raises `Refused`."""

    def __init__(self, problem: Problem, numbers: LibraryAlgorithm, factor: float) -> None:
        self._problem, self._factors = problem, (ctypes.c_float(1.0), ctypes.c_float(factor))
        self._algorithm = problem.algorithm(numbers)

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """All three are dense; on torch's current stream. → out."""
        library, (desc, of_weight, of_x, before, after) = self._problem.library, self._problem.arguments
        one, factor = self._factors
        result = ctypes.c_void_p(out.data_ptr())
        library(
            "Matmul",
            library.handle,
            desc,
            ctypes.byref(one),
            ctypes.c_void_p(weight.data_ptr()),
            of_weight,
            ctypes.c_void_p(x.data_ptr()),
            of_x,
            ctypes.byref(factor),
            result,
            before,
            result,
            after,
            ctypes.byref(self._algorithm),
            ctypes.c_void_p(library.workspace.data_ptr()),
            _size(WORKSPACE),
            ctypes.c_void_p(torch.cuda.current_stream(x.device).cuda_stream),
        )
        return out


@lru_cache(maxsize=1024)
def _product(
    device: torch.device, dtype: torch.dtype, tokens: int, outer: int, inner: int, add: bool
) -> Product | None:
    """None: as torch does it."""
    algorithm = library_algorithm(chip(device), tokens=tokens, outer=outer, inner=inner)
    if algorithm is None or device.index is None or dtype not in _TYPES:
        return None
    try:
        return Product(Problem(device.index, dtype, tokens, outer, inner), algorithm, float(add))
    except Refused as error:
        logger.info("%s: %d × %d × %d as torch does it", error, tokens, outer, inner)
        return None


def forget() -> None:
    """Look products up again: the chip's table has changed."""
    _product.cache_clear()


def _dense(*tensors: torch.Tensor) -> bool:
    """True where the kernels can read all of them; AlgoCheck is told sizes, but no addresses."""
    return all(tensor.is_contiguous() and tensor.data_ptr() % 16 == 0 for tensor in tensors)


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [T, K], weight [N, K] → [T, N]."""
    product = _product(x.device, x.dtype, x.shape[0], *weight.shape, False)
    if product is None or not _dense(x, weight):
        return F.linear(x, weight)
    return product(x, weight, x.new_empty((x.shape[0], weight.shape[0])))


def add_linear(x: torch.Tensor, weight: torch.Tensor, stream: torch.Tensor) -> torch.Tensor:
    """stream [T, N] += x [T, K] · weight [N, K]ᵀ; → the stream."""
    product = _product(x.device, x.dtype, x.shape[0], *weight.shape, True)
    if product is None or not _dense(x, weight, stream):
        return stream.addmm_(x, weight.t())
    return product(x, weight, stream)
