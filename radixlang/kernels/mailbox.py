"""A step's numbers are fetched from host memory by its first kernel, and what it drew is sent home by its last.

A copy between two graphs makes the device wait three times: until the engine of the copies has seen that the
one graph has ended, for the copy, and until the other graph has seen that. So kernels in the graphs read and
write pinned memory themselves. Which of several blocks is a step's, the device counts for itself: steps come in
the order in which the host has filled the blocks. Must not know what the numbers mean.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixlang.kernels import chain
from radixlang.kernels.chain import begin

BLOCK = 1024


@triton.jit(do_not_specialize=["size"])
def _fetch_kernel(blocks_ptr, turn_ptr, out_ptr, size, stride, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    turn = tl.load(turn_ptr)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # the host writes there: nothing that is kept of an earlier turn may be read
    x = tl.load(blocks_ptr + turn.to(tl.int64) * stride + i, mask=i < size, other=0, cache_modifier=".cv")
    tl.store(out_ptr + i, x, mask=i < size)
    tl.debug_barrier()
    if tl.atomic_add(turn_ptr + 1, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        tl.store(turn_ptr + 1, 0)
        tl.store(turn_ptr, (turn + 1) % COUNT)


@triton.jit(do_not_specialize=["size"])
def _deliver_kernel(
    x_ptr, blocks_ptr, turn_ptr, size, stride, COUNT: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr
):
    begin(CHAINED)
    turn = (tl.load(turn_ptr) + COUNT - 1) % COUNT
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < size, other=0)
    tl.store(blocks_ptr + turn.to(tl.int64) * stride + i, x, mask=i < size)


def fetch(blocks: torch.Tensor, turn: torch.Tensor, out: torch.Tensor) -> None:
    """Copy the first numbers of block turn[0] into `out` [n], and let turn[0] be the next block.

    blocks int32 [count, ≥ n], pinned where it is the host's; turn int32 [2] on the device, of which the second is
    0 between kernels.
    """
    size = out.shape[0]
    _fetch_kernel[(triton.cdiv(size, BLOCK),)](
        blocks, turn, out, size, blocks.stride(0), COUNT=blocks.shape[0], BLOCK=BLOCK, num_warps=4
    )


def deliver(x: torch.Tensor, blocks: torch.Tensor, turn: torch.Tensor) -> None:
    """Copy x [n], any dense shape, to the beginning of the block [count, ≥ n] whose numbers were fetched last."""
    size = x.numel()
    _deliver_kernel[(triton.cdiv(size, BLOCK),)](
        x, blocks, turn, size, blocks.stride(0), COUNT=blocks.shape[0], BLOCK=BLOCK, num_warps=4, **chain.options()
    )
