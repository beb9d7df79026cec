"""Programmatic dependent launch: a kernel is placed on the chip while the one before it still runs.

A kernel that is launched with `options()` must call `begin` before it reads what earlier kernels wrote, or writes
what they read; what it does before (fetching weights) overlaps their end. Must not know what kernels compute.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl

from radixlang.kernels.tuning import interpreted


@triton.jit
def begin(CHAINED: tl.constexpr):
    """Let the next kernel take its place, and wait until all earlier ones have finished and are visible."""
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def prefetch_rows(pointers, size):
    """Ask for `size` bytes (a multiple of 16) from each pointer (16-byte aligned) on to be in the L2 cache."""
    sizes = tl.zeros(pointers.shape, tl.int32) + size
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;",
        "=r,l,r",
        [pointers.to(tl.int64), sizes],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@lru_cache
def available() -> bool:
    """True on NVIDIA chips from compute capability 9.0 on, unless RADIXLANG_DISABLE_PDL=1 is set."""
    if interpreted() or os.environ.get("RADIXLANG_DISABLE_PDL", "0") == "1":
        return False
    if torch.version.cuda is None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability()[0] >= 9


@lru_cache
def options() -> dict[str, Any]:
    """Keyword arguments of a chained launch."""
    return {"CHAINED": True, "launch_pdl": True} if available() else {"CHAINED": False}
