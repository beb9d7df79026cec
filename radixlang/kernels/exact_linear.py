"""Matrix products whose rows do not depend on their number: y = x Wᵀ with the same bits for a token in any batch.

The inner dimension is cut into *segments*, as many as the weight's shape alone says. Within one, the tensor cores
add products up in the order of the inner dimension; segments are added in order, in float32. With few tokens the
segments run as programs of their own, so that all of the chip reads the weight, and the last to arrive adds them;
with many tokens one program takes them in turn. Tiles may then differ with the number of tokens: each element sees
the same additions, provided that the chip's matrix instruction treats its columns alike (`layers/exact_ops.py`
tries that out). W is the left operand, so that few tokens fill the instruction's short side. Must not know models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from radixlang.kernels import chain
from radixlang.kernels.chain import release, wait
from radixlang.kernels.tuning import Chip, interpreted, next_power_of_2, upcast_dots

UNIT = 128
"""segments are multiples of this, and steps of the inner dimension divide it"""
ALIGNMENT = 8
"""the inner dimension is a multiple of this: rows then begin at multiples of 16 bytes"""
SEGMENT_BLOCKS = 96
"""programs of 64 outputs that fill a chip well enough"""
MAX_SEGMENTS = 8
TOKEN_GROUP = 8
"""token blocks that go through the weight together"""
_ACTIVATIONS = {None: 0, "silu": 1, "gelu_tanh": 2}


@dataclass(frozen=True)
class ExactTile:
    """`block_n` outputs (of each half, if gated) times `block_m` tokens, in steps of `block_k`."""

    block_n: int
    block_m: int
    block_k: int
    warps: int
    stages: int


def segments(outer: int, inner: int) -> int:
    """Into how many segments the inner dimension of `outer` outputs is cut: enough to fill a chip at one token."""
    blocks, units = -(-outer // 64), -(-inner // UNIT)
    count = 1
    while count < MAX_SEGMENTS and count * blocks < SEGMENT_BLOCKS and units >= 4 * count:
        count *= 2
    return count


def tile_of(chip: Chip, tokens: int, gated: bool, cut: int, element_size: int = 2) -> ExactTile:
    """The tile for a number of tokens; `cut` is the number of segments."""
    if interpreted():  # the host's library, too, adds in one order, but in another one for every tile
        return ExactTile(64, 32, 64, 4, 1)
    few = max(16, next_power_of_2(tokens))
    if tokens <= 64:
        tile = ExactTile(64, few, 128, 4, 4 if gated or few == 64 else 6)
    elif tokens <= 256:
        tile = ExactTile(64, 128, 64, 4, 3 if gated else 4)
    elif gated or cut > 1:
        tile = ExactTile(128, 128, 64, 8, 4)
    else:
        tile = ExactTile(128, 256, 64, 8, 4)
    step = (tile.block_n * (2 if gated else 1) + tile.block_m) * tile.block_k * element_size
    return replace(tile, stages=max(1, min(tile.stages, chip.shared_bytes // step)))


@triton.jit
def _multiplied(
    w_desc,
    x_desc,
    n,
    m,
    outer,
    start,
    end,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GATED: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """One segment's products [BLOCK_N, BLOCK_M] of the outputs from `n` on; if gated, also of those `outer` on."""
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up = acc
    for k in range(start, end, BLOCK_K):
        w = w_desc.load([n, k])
        x = x_desc.load([m, k])
        if UPCAST:
            w = w.to(tl.float32)
            x = x.to(tl.float32)
        acc = tl.dot(w, x.T, acc, input_precision="ieee")
        if GATED:
            w_up = w_desc.load([outer + n, k])
            if UPCAST:
                w_up = w_up.to(tl.float32)
            up = tl.dot(w_up, x.T, up, input_precision="ieee")
    return acc, up


@triton.jit(do_not_specialize=["tokens"])
def _exact_linear_kernel(
    w_desc,
    x_desc,
    bias_ptr,
    residual_ptr,
    out_ptr,
    partial_ptr,
    arrived_ptr,
    tokens,
    outer,
    inner,
    segment,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SEGMENTS: tl.constexpr,
    SPLIT: tl.constexpr,
    GROUP: tl.constexpr,
    BIAS: tl.constexpr,
    GATED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    UPCAST: tl.constexpr,
    CHAINED: tl.constexpr,
):
    wait(CHAINED)
    tile = tl.program_id(0)
    blocks_n = tl.cdiv(outer, BLOCK_N)
    blocks_m = tl.cdiv(tokens, BLOCK_M)
    # a few token blocks at a time, so that what runs together shares both operands in the cache
    first = tile // (GROUP * blocks_n) * GROUP
    width = tl.minimum(blocks_m - first, GROUP)
    within = tile % (GROUP * blocks_n)
    block_n = within // width * BLOCK_N
    block_m = (first + within % width) * BLOCK_M
    n = block_n + tl.arange(0, BLOCK_N)
    m = block_m + tl.arange(0, BLOCK_M)

    if SEGMENTS == 1:
        acc, up = _multiplied(
            w_desc, x_desc, block_n, block_m, outer, 0, inner, BLOCK_N, BLOCK_M, BLOCK_K, GATED, UPCAST
        )
    elif not SPLIT:
        acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        for start in tl.range(0, inner, segment, num_stages=1):
            end = tl.minimum(start + segment, inner)
            part, part_up = _multiplied(
                w_desc, x_desc, block_n, block_m, outer, start, end, BLOCK_N, BLOCK_M, BLOCK_K, GATED, UPCAST
            )
            acc += part
            if GATED:
                up += part_up
    else:
        start = tl.program_id(1) * segment
        end = tl.minimum(start + segment, inner)
        acc, up = _multiplied(
            w_desc, x_desc, block_n, block_m, outer, start, end, BLOCK_N, BLOCK_M, BLOCK_K, GATED, UPCAST
        )
    # not before: the next kernel's programs would take bandwidth and shared memory from this one's
    release(CHAINED)

    if SPLIT:
        # [tiles, SEGMENTS, product | up]
        size: tl.constexpr = BLOCK_N * BLOCK_M
        stride: tl.constexpr = size * (2 if GATED else 1)
        cell = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
        mine = partial_ptr + (tile * SEGMENTS + tl.program_id(1)).to(tl.int64) * stride
        tl.store(mine + cell, acc)
        if GATED:
            tl.store(mine + size + cell, up)
        tl.debug_barrier()
        before = tl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel")
        if before != SEGMENTS - 1:
            return
        tl.store(arrived_ptr + tile, 0)
        acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        part = partial_ptr + (tile * SEGMENTS).to(tl.int64) * stride
        for _s in tl.static_range(SEGMENTS):
            acc += tl.load(part + cell, cache_modifier=".cg")
            if GATED:
                up += tl.load(part + size + cell, cache_modifier=".cg")
            part += stride

    if BIAS:
        acc += tl.load(bias_ptr + n, mask=n < outer, other=0.0).to(tl.float32)[:, None]
        if GATED:
            up += tl.load(bias_ptr + outer + n, mask=n < outer, other=0.0).to(tl.float32)[:, None]
    if GATED:
        turn = acc
        if GATED == 2:
            turn = 1.5957691216057308 * acc * (1.0 + 0.044715 * acc * acc)
        acc = acc / (1.0 + tl.exp(-turn)) * up
    stored = (m < tokens)[None, :] & (n < outer)[:, None]
    place = m.to(tl.int64)[None, :] * outer + n[:, None]
    if RESIDUAL:
        acc += tl.load(residual_ptr + place, mask=stored, other=0.0).to(tl.float32)
    tl.store(out_ptr + place, acc.to(out_ptr.dtype.element_ty), mask=stored)


def exact_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    chip: Chip,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    tile: ExactTile | None = None,
) -> torch.Tensor:
    """x [T, K] times weight [N, K] (dense) → [T, N] of `dtype` (x's), float32 sums rounded once.

    A row's bits depend on that row, the weight and nothing else; K must be a multiple of `ALIGNMENT`. activation
    "silu" or "gelu_tanh": the first half of the outputs is a gate, and act(gate) * second half [T, N / 2] is
    returned. residual [T, N] (dense): is added, in place, and returned. `tile` overrides what `tile_of` says.
    """
    x = x.contiguous()
    tokens, inner = x.shape
    rows = weight.shape[0]
    outer = rows // 2 if activation else rows
    out = residual
    if out is None:
        out = torch.empty((tokens, outer), dtype=dtype or x.dtype, device=x.device)
    if not tokens:
        return out
    cut = segments(outer, inner)
    segment = -(-inner // (cut * UNIT)) * UNIT
    cut = -(-inner // segment)
    tile = tile or tile_of(chip, tokens, activation is not None, cut, x.element_size())
    tiles = triton.cdiv(outer, tile.block_n) * triton.cdiv(tokens, tile.block_m)
    split = cut > 1 and tiles < min(chip.units, chain.MAX_ARRIVALS)
    partial: torch.Tensor = out
    if split:
        cells = tile.block_n * tile.block_m * (2 if activation else 1)
        partial = torch.empty(tiles * cut * cells, dtype=torch.float32, device=x.device)
    _exact_linear_kernel[(tiles, cut if split else 1)](
        TensorDescriptor.from_tensor(weight, [tile.block_n, tile.block_k]),
        TensorDescriptor.from_tensor(x, [tile.block_m, tile.block_k]),
        x if bias is None else bias,
        out,
        out,
        partial,
        chain.arrivals(x.device),
        tokens,
        outer,
        inner,
        segment,
        BLOCK_N=tile.block_n,
        BLOCK_M=tile.block_m,
        BLOCK_K=tile.block_k,
        SEGMENTS=cut,
        SPLIT=split,
        GROUP=TOKEN_GROUP,
        BIAS=bias is not None,
        GATED=_ACTIVATIONS[activation],
        RESIDUAL=residual is not None,
        UPCAST=upcast_dots(x.dtype),
        num_warps=tile.warps,
        num_stages=tile.stages,
        # a product and a sum are rounded one after the other wherever they meet, in every variant of the kernel
        enable_fp_fusion=False,
        **chain.options(),
    )
    return out
