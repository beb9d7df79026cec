"""Programmatic dependent launch: a kernel is placed on the chip while the one before it still runs.

A kernel that is launched with `options()` must `wait` before it reads what earlier kernels wrote, or writes what
they read. One of its programs at least must wait in any case, so that "this kernel has finished" says the same of
all before it. Must not know what kernels compute.
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
    release(CHAINED)
    wait(CHAINED)


@triton.jit
def wait(CHAINED: tl.constexpr):
    """Wait until all earlier kernels have finished and what they wrote is visible."""
    if CHAINED:
        tl.extra.cuda.gdc_wait()


@triton.jit
def release(CHAINED: tl.constexpr):
    """Let the next kernel take its place, once every program of this one has said so or ended."""
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def prefetch(places, wanted):
    """Ask for the 128-byte lines at the pointers `places`, where `wanted` (of the same rank), to be brought into
    the second-level cache. Changes nothing else, so it may be done before `wait`. Only for chained kernels."""
    addresses = places.to(tl.int64)
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
        "=r,l,r",
        [addresses, tl.broadcast_to(wanted, addresses.shape).to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


MAX_ARRIVALS = 16384


@lru_cache
def arrivals(device: torch.device) -> torch.Tensor:
    """Counters by which the programs that share a result find out who is last; all zero between kernels.

    Kernels may share them: only one is past its `wait` at a time.
    """
    return torch.zeros(MAX_ARRIVALS, dtype=torch.int32, device=device)


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
