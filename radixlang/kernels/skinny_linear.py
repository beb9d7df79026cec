"""Matrix products of few tokens: y = x Wᵀ where reading W is the whole cost.

A program multiplies a block of W's rows with all tokens over one split of the inner dimension; the last program
of a block to arrive joins the splits in a fixed order, so that results do not depend on timing. What follows the
product in a decoder can be part of it: bias, gated activation, the sum with the residual stream. The weight block
is the left operand of the tensor cores, whose short side the tokens then fill.

An RMSNorm between two products needs no kernel either. A program of the first sees too few numbers of a token to
know their root mean square; but that is one factor for the whole token, for which there is time until behind the
second product. So the first multiplies by the norm's weights and leaves sums of squares, and the second divides.
Must not know models.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from radixlang.kernels import chain
from radixlang.kernels.chain import prefetch, release, wait
from radixlang.kernels.tuning import SkinnyTile, next_power_of_2, upcast_dots

MAX_TOKENS = 128
MAX_SQUARES = 8192
"""sums of squares that a program can keep in its registers while it multiplies"""
_ACTIVATIONS = {None: 0, "silu": 1, "gelu_tanh": 2}


@triton.jit(do_not_specialize=["tokens"])
def _skinny_kernel(
    x_ptr,
    w_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    squares_ptr,
    norm_ptr,
    scaled_ptr,
    begun_ptr,
    partial_ptr,
    arrived_ptr,
    tokens,
    outer,
    inner,
    x_stride,
    residual_stride,
    sums,
    eps,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
    EVEN: tl.constexpr,
    BIAS: tl.constexpr,
    GATED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SQUARES: tl.constexpr,
    NORM: tl.constexpr,
    UPCAST: tl.constexpr,
    EARLY: tl.constexpr,
    CHAINED: tl.constexpr,
):
    block = tl.program_id(0)
    split = tl.program_id(1)
    n = block * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    there = m < tokens
    span = tl.cdiv(tl.cdiv(inner, BLOCK_K), SPLITS) * BLOCK_K
    start = split * span
    end = tl.minimum(start + span, inner)
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    if EARLY and CHAINED:
        release(CHAINED)
        line = tl.arange(0, BLOCK_K // 64) * 64
        for tile in range(start, end, BLOCK_K):
            wanted = (n < outer)[:, None] & (tile + line < end)[None, :]
            places = w_ptr + n.to(tl.int64)[:, None] * inner + (tile + line)[None, :]
            prefetch(places, wanted)
            if GATED:
                prefetch(places + tl.cast(outer, tl.int64) * inner, wanted)
    # what is used behind the loop is asked for here, so that it has come by then
    if BIAS:
        bias = tl.load(bias_ptr + n, mask=n < outer, other=0.0)
        if GATED:
            bias_up = tl.load(bias_ptr + outer + n, mask=n < outer, other=0.0)
    if NORM:
        norm = tl.load(norm_ptr + n, mask=n < outer, other=0.0)
    wait(CHAINED)
    stored = there[None, :] & (n < outer)[:, None]
    if RESIDUAL:
        place = residual_ptr + m.to(tl.int64)[None, :] * residual_stride + n[:, None]
        residual = tl.load(place, mask=stored, other=0.0)
    if SQUARES:
        s = tl.arange(0, SQUARES)[:, None]
        squares = tl.load(squares_ptr + s * BLOCK_M + m[None, :], mask=s < sums, other=0.0)
    for tile in range(start, end, BLOCK_K):
        k = tile + tl.arange(0, BLOCK_K)
        places = w_ptr + n.to(tl.int64)[:, None] * inner + k[None, :]
        if EVEN:
            w = tl.load(places)
        else:
            w = tl.load(places, mask=(n < outer)[:, None] & (k < inner)[None, :], other=0.0)
        if GATED:
            places += tl.cast(outer, tl.int64) * inner
            if EVEN:
                w_up = tl.load(places)
            else:
                w_up = tl.load(places, mask=(n < outer)[:, None] & (k < inner)[None, :], other=0.0)
        seen = there[None, :]
        if not EVEN:
            seen = seen & (k < inner)[:, None]
        x = tl.load(x_ptr + m.to(tl.int64)[None, :] * x_stride + k[:, None], mask=seen, other=0.0)
        if UPCAST:
            x = x.to(tl.float32)
            w = w.to(tl.float32)
        acc = tl.dot(w, x, acc)
        if GATED:
            if UPCAST:
                w_up = w_up.to(tl.float32)
            up = tl.dot(w_up, x, up)
    if not EARLY:
        # not before: the next kernel's programs would take bandwidth and shared memory from this one's
        release(CHAINED)

    if SPLITS > 1:
        size: tl.constexpr = BLOCK_N * BLOCK_M
        cell = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + m[None, :]
        # [blocks, SPLITS, product | up]
        stride: tl.constexpr = size * (2 if GATED else 1)
        mine = partial_ptr + (block * SPLITS + split).to(tl.int64) * stride
        tl.store(mine + cell, acc)
        if GATED:
            tl.store(mine + size + cell, up)
        tl.debug_barrier()
        before = tl.atomic_add(arrived_ptr + block, 1, sem="acq_rel")
        if before != SPLITS - 1:
            return
        tl.store(arrived_ptr + block, 0)
        acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        part = partial_ptr + (block * SPLITS).to(tl.int64) * stride
        for _s in tl.static_range(SPLITS):
            acc += tl.load(part + cell, cache_modifier=".cg")
            if GATED:
                up += tl.load(part + size + cell, cache_modifier=".cg")
            part += stride

    if SQUARES:
        inverse = 1.0 / tl.sqrt(tl.sum(squares, 0) / inner + eps)
        acc *= inverse[None, :]
        if GATED:
            up *= inverse[None, :]
    if BIAS:
        acc += bias.to(tl.float32)[:, None]
        if GATED:
            up += bias_up.to(tl.float32)[:, None]
    if GATED:
        turn = acc
        if GATED == 2:
            turn = 1.5957691216057308 * acc * (1.0 + 0.044715 * acc * acc)
        acc = acc / (1.0 + tl.exp(-turn)) * up
    if RESIDUAL:
        acc += residual.to(tl.float32)
    goal = m.to(tl.int64)[None, :] * outer + n[:, None]
    rounded = acc.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + goal, rounded, mask=stored)
    if NORM:
        # of the sum as it is stored, so that a later reader sees the same numbers
        acc = tl.where(stored, rounded.to(tl.float32), 0.0)
        tl.store(
            scaled_ptr + goal, (acc * norm.to(tl.float32)[:, None]).to(scaled_ptr.dtype.element_ty), mask=stored
        )
        tl.store(begun_ptr + block * BLOCK_M + m, tl.sum(acc * acc, 0))


@dataclass(frozen=True)
class BegunNorm:
    """The RMSNorm of s [T, N], of which the division by the root mean square is left to the product that reads it.

    Only bfloat16 has the range for it: where a norm's result is of size one, s can be of any.
    """

    norm: torch.Tensor
    """[N] the norm's weights"""
    scaled: torch.Tensor
    """[T, N] s * norm, in the dtype of s"""
    squares: torch.Tensor
    """[blocks, padded T] float32: of each token, the sums of squares of s over blocks of N"""


def can_begin_norm(stream: torch.Tensor, tile: SkinnyTile) -> bool:
    """True if a product with this tile that is added to `stream` [T, N] shall also begin the norm of the sum."""
    tokens, outer = stream.shape
    sums = next_power_of_2(triton.cdiv(outer, tile.block_n))
    return tile.begin_norm and stream.dtype == torch.bfloat16 and sums * _padded(tokens) <= MAX_SQUARES


def _padded(tokens: int) -> int:
    return max(16, next_power_of_2(tokens))


def skinny_linear(
    x: torch.Tensor | BegunNorm,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    eps: float = 0.0,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
    tile: SkinnyTile,
) -> torch.Tensor:
    """x [T, K] (dense rows) times weight [N, K] (dense), T ≤ 128 → [T, N], float32 sums rounded once.

    A norm that was begun is ended, with `eps`. activation "silu" or "gelu_tanh": the first half of the outputs is
    a gate, and act(gate) * second half [T, N / 2] is returned. residual [T, N]: is added, in place, and returned.
    """
    values = x.scaled if isinstance(x, BegunNorm) else x
    outer = weight.shape[0] // 2 if activation else weight.shape[0]
    out = residual
    if out is None:
        out = torch.empty((values.shape[0], outer), dtype=values.dtype, device=values.device)
    squares = x.squares if isinstance(x, BegunNorm) else None
    _launch(
        values, weight, bias, out, tile, squares=squares, eps=eps, activation=activation, add=residual is not None
    )
    return out


def skinny_add(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    residual: torch.Tensor,
    norm: torch.Tensor,
    tile: SkinnyTile,
) -> BegunNorm:
    """Add the product of x and weight (as in `skinny_linear`) to residual [T, N], and begin the RMSNorm with the
    weights `norm` [N] of the sum; `can_begin_norm` tells for which sizes."""
    squares = (triton.cdiv(weight.shape[0], tile.block_n), _padded(x.shape[0]))
    begun = BegunNorm(
        norm, torch.empty_like(residual), torch.empty(squares, dtype=torch.float32, device=residual.device)
    )
    _launch(x, weight, bias, residual, tile, add=True, begun=begun)
    return begun


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    tile: SkinnyTile,
    *,
    squares: torch.Tensor | None = None,
    eps: float = 0.0,
    activation: str | None = None,
    add: bool,
    begun: BegunNorm | None = None,
) -> None:
    """out [T, outer] = or, if `add`, += what is made of x."""
    tokens, inner = x.shape
    outer = out.shape[1]
    block_m = _padded(tokens)
    blocks = triton.cdiv(outer, tile.block_n)
    partial: torch.Tensor = out
    if tile.splits > 1:
        cells = tile.block_n * block_m * (2 if activation else 1)
        partial = torch.empty(blocks * tile.splits * cells, dtype=torch.float32, device=x.device)
    even = inner % (tile.block_k * tile.splits) == 0 and outer % tile.block_n == 0
    _skinny_kernel[(blocks, tile.splits)](
        x,
        weight,
        x if bias is None else bias,
        out,
        out,
        out if squares is None else squares,
        out if begun is None else begun.norm,
        out if begun is None else begun.scaled,
        out if begun is None else begun.squares,
        partial,
        chain.arrivals(x.device),
        tokens,
        outer,
        inner,
        x.stride(0),
        out.stride(0),
        0 if squares is None else squares.shape[0],
        eps,
        BLOCK_M=block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        SPLITS=tile.splits,
        EVEN=even,
        BIAS=bias is not None,
        GATED=_ACTIVATIONS[activation],
        RESIDUAL=add,
        SQUARES=0 if squares is None else next_power_of_2(squares.shape[0]),
        NORM=begun is not None,
        UPCAST=upcast_dots(x.dtype),
        EARLY=tile.early,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **chain.options(),
    )
