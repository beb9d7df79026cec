"""Copies rows that do not touch each other from pinned host memory to the device, in one order to the copy engine.

    source  ├ row 0 ┤ ........ ├ row 1 ┤ ........       every `stride(0)` bytes
    target  ├ row 0 ┤├ row 1 ┤

torch copies such rows into pageable memory first, and waits for that. Must not know what is in them.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

import torch

_HOST, _DEVICE = 1, 2
"""CU_MEMORYTYPE_HOST and CU_MEMORYTYPE_DEVICE"""


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D of the driver's interface (cuda.h)."""

    _fields_ = (
        ("src_x", ctypes.c_size_t),
        ("src_y", ctypes.c_size_t),
        ("src_type", ctypes.c_int),
        ("src_host", ctypes.c_void_p),
        ("src_device", ctypes.c_uint64),
        ("src_array", ctypes.c_void_p),
        ("src_pitch", ctypes.c_size_t),
        ("dst_x", ctypes.c_size_t),
        ("dst_y", ctypes.c_size_t),
        ("dst_type", ctypes.c_int),
        ("dst_host", ctypes.c_void_p),
        ("dst_device", ctypes.c_uint64),
        ("dst_array", ctypes.c_void_p),
        ("dst_pitch", ctypes.c_size_t),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


def available() -> bool:
    """Whether `copy_rows` takes rows that do not touch each other; otherwise they must."""
    return torch.version.cuda is not None


@lru_cache
def _driver() -> ctypes.CDLL:
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuMemcpy2DAsync_v2.argtypes = (ctypes.POINTER(_Copy2D), ctypes.c_void_p)
    driver.cuMemcpy2DAsync_v2.restype = ctypes.c_int
    return driver


def copy_rows(target: torch.Tensor, source: torch.Tensor) -> None:
    """target [n, width] uint8 on the device, dense; source [n, width] uint8 in pinned memory, its rows dense. On
    the current stream; both stay alive until it has passed.

    Raises:
        RuntimeError: the driver refuses the copy.
    """
    if source.is_contiguous():
        target.copy_(source, non_blocking=True)
        return
    rows, width = source.shape
    order = _Copy2D(
        src_type=_HOST,
        src_host=source.data_ptr(),
        src_pitch=source.stride(0),
        dst_type=_DEVICE,
        dst_device=target.data_ptr(),
        dst_pitch=target.stride(0),
        width=width,
        height=rows,
    )
    stream = torch.cuda.current_stream(target.device).cuda_stream
    error = _driver().cuMemcpy2DAsync_v2(ctypes.byref(order), stream)
    if error:
        raise RuntimeError(f"The driver refuses a copy of {rows} rows of {width} bytes (CUDA error {error}).")
