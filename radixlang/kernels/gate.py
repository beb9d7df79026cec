"""A place in a stream, or in a CUDA graph, behind which nothing runs before another stream says so.

An event orders two streams as well, but what a graph waits for is fixed when it is captured. A gate is a number in
device memory: a graph holds the kernel that looks at it, whether there is anything to wait for or not.

Whoever shuts a gate must have put what opens it on its stream before it launches what waits: then nothing can wait
for ever. Must not know what is waited for.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _gate_kernel(shut_ptr):
    # An atomic read with acquire order: what was written before the gate was opened is visible to what follows.
    while tl.atomic_add(shut_ptr, 0, sem="acquire") != 0:
        pass


def wait_open(gate: torch.Tensor) -> None:
    """What is launched next begins when `gate[0]` is 0. int32, aligned to 16 bytes; one warp looks."""
    # Not chained (`kernels.chain`): the kernels behind it take no place on the chip while it waits, which the
    # kernels that open it may need.
    _gate_kernel[(1,)](gate, num_warps=1)
