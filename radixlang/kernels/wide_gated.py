"""The gated product silu(x Wgᵀ) * (x Wuᵀ) of some hundred tokens in one round of programs.

A program takes all tokens, so that each weight is read once, and as many outputs as give every multiprocessor one
program: a second round of a few would take as long as the first. That number is rarely a power of two, as blocks
must be; so a program's outputs come in *pieces* that are, such as 64 + 32 + 16. The rows of a piece lie in both
halves of the weight: a box of a descriptor [half, row, inner] brings both at once, and they are multiplied as one
operand, for the tensor cores read x again for each. Must not know models.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from radixlang.kernels import chain
from radixlang.kernels.chain import prefetch, release, wait
from radixlang.kernels.tuning import WideTile, next_power_of_2, upcast_dots

LINE = tl.constexpr(64)
"""numbers of a 128-byte line"""


@triton.jit(do_not_specialize=["tokens"])
def _wide_gated_kernel(
    x_rows,
    w_pieces,
    w_ptr,
    out_ptr,
    tokens,
    outer,
    inner,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PIECES: tl.constexpr,
    WIDTH: tl.constexpr,
    AHEAD: tl.constexpr,
    UPCAST: tl.constexpr,
    CHAINED: tl.constexpr,
):
    first = tl.program_id(0) * BLOCK_N
    if CHAINED and AHEAD > 0:
        row = tl.arange(0, 2 * WIDTH)
        output = first + row % WIDTH
        wanted = (row % WIDTH < BLOCK_N) & (output < outer)
        places = w_ptr + (row // WIDTH * outer + output).to(tl.int64) * inner
        for k in range(0, tl.minimum(AHEAD * BLOCK_K, inner), LINE):
            prefetch(places + k, wanted)
    wait(CHAINED)
    sums = ()
    for i in tl.static_range(len(PIECES)):
        sums += (tl.zeros([BLOCK_M, 2 * PIECES[i]], tl.float32),)  # type: ignore[assignment]
    for k in range(0, inner, BLOCK_K):
        x = x_rows.load([0, k])
        if UPCAST:
            x = x.to(tl.float32)
        n = first
        added = ()
        for i in tl.static_range(len(PIECES)):
            # rows behind a half's end are zeros, not the next half's
            w = w_pieces[i].load([0, n, k]).reshape(2 * PIECES[i], BLOCK_K)
            if UPCAST:
                w = w.to(tl.float32)
            added += (tl.dot(x, w.T, sums[i]),)  # type: ignore[assignment]
            n += PIECES[i]
        sums = added
    # not before: the next kernel's programs would take bandwidth and shared memory from this one's
    release(CHAINED)
    m = tl.arange(0, BLOCK_M)[:, None]
    for i in tl.static_range(len(PIECES)):
        gate, up = tl.split(sums[i].reshape(BLOCK_M, 2, PIECES[i]).permute(0, 2, 1))
        made = gate / (1.0 + tl.exp(-gate)) * up
        n = first + tl.arange(0, PIECES[i])[None, :]
        place = out_ptr + m.to(tl.int64) * outer + n
        tl.store(place, made.to(out_ptr.dtype.element_ty), mask=(m < tokens) & (n < outer))
        first += PIECES[i]


def wide_gated(x: torch.Tensor, weight: torch.Tensor, *, tile: WideTile) -> torch.Tensor:
    """x [T, K] (dense rows) times weight [2 I, K] (dense), gates first → silu(gate) * up [T, I], float32 sums
    rounded once. T ≤ `tuning.MAX_WIDE_TOKENS`; half precision; rows begin at multiples of 16 bytes."""
    tokens, inner = x.shape
    outer = weight.shape[0] // 2
    out = torch.empty((tokens, outer), dtype=x.dtype, device=x.device)
    if not tokens:
        return out
    block_m, block_n = max(64, next_power_of_2(tokens)), sum(tile.pieces)
    halves = weight.view(2, outer, inner)
    _wide_gated_kernel[(triton.cdiv(outer, block_n),)](
        TensorDescriptor.from_tensor(x, [block_m, tile.block_k]),
        tuple(TensorDescriptor.from_tensor(halves, [2, piece, tile.block_k]) for piece in tile.pieces),
        weight,
        out,
        tokens,
        outer,
        inner,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=tile.block_k,
        PIECES=tile.pieces,
        WIDTH=next_power_of_2(block_n),
        AHEAD=tile.ahead,
        UPCAST=upcast_dots(x.dtype),
        num_warps=tile.warps,
        num_stages=tile.stages,
        **chain.options(),
    )
    return out
