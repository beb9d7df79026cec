"""Runs a compiled kernel on the threads PyTorch already owns.

A second thread pool next to PyTorch's would fight it for the cores: both spin while they wait. So kernels are
started through `GOMP_parallel` of the very OpenMP library that torch loaded; without one they run on the
calling thread. Knows nothing of what the kernels compute.
"""

from __future__ import annotations

import ctypes
import glob
import os
from collections.abc import Callable
from functools import cache

import torch


@cache
def _openmp() -> ctypes.CDLL | None:
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    for path in [*glob.glob(os.path.join(folder, "libgomp*.so*")), None]:
        try:
            library = ctypes.CDLL(path)
            library.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
            library.GOMP_parallel.restype = None
            library.GOMP_barrier  # noqa: B018  both must be there
        except (OSError, AttributeError):
            continue
        return library
    return None


@cache
def starter() -> Callable[[int, int, int, int], None] | None:
    """`GOMP_parallel(function, data, threads, flags)`, or None where torch brings no OpenMP library we know."""
    library = _openmp()
    return None if library is None else library.GOMP_parallel


@cache
def barrier_address() -> int:
    """Address of `GOMP_barrier`, 0 if there is none (then one thread runs everything)."""
    library = _openmp()
    return 0 if library is None else ctypes.cast(library.GOMP_barrier, ctypes.c_void_p).value or 0


def threads() -> int:
    """Threads a kernel runs on: torch's number, 1 without a shared OpenMP library."""
    return torch.get_num_threads() if starter() is not None else 1


_serial = ctypes.CFUNCTYPE(None, ctypes.c_int64)


def run(function: int, task: int, count: int) -> None:
    """Call the C function at `function` with the address `task` on `count` threads and wait for them."""
    start = starter()
    if start is None or count == 1:
        _serial(function)(task)
    else:
        start(function, task, count, 0)
