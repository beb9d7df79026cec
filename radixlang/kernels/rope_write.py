"""Query and key preparation in one pass: per-head RMSNorm, rotation, and K and V into their pages.

A program takes one token and a few heads: query heads are normalised, rotated and stored densely; key heads
likewise, but into the cache, with their values beside them. Must not know models or attention.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixlang.kernels import chain
from radixlang.kernels.chain import begin
from radixlang.kernels.tuning import next_power_of_2


@triton.jit
def _rotate(
    source,
    target,
    heads,
    count,
    source_head,
    target_head,
    weight_ptr,
    cos,
    sin,
    eps,
    offset,
    D: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_P: tl.constexpr,
    NORM: tl.constexpr,
):
    """Heads `heads` [N] of one token from `source` to `target`: halves [0, HALF) and [HALF, 2 HALF) are turned
    against each other, [2 HALF, D) passes."""
    REST: tl.constexpr = D - 2 * HALF
    r = tl.arange(0, BLOCK_R)
    p = tl.arange(0, BLOCK_P)
    here = (heads < count)[:, None]
    turned = here & (r < HALF)[None, :]
    passed = here & (p < REST)[None, :]
    place = source + heads[:, None] * source_head
    a = tl.load(place + r[None, :], mask=turned, other=0.0).to(tl.float32)
    b = tl.load(place + HALF + r[None, :], mask=turned, other=0.0).to(tl.float32)
    rest = a
    if REST > 0:
        rest = tl.load(place + 2 * HALF + p[None, :], mask=passed, other=0.0).to(tl.float32)
    if NORM:
        square = tl.sum(a * a, 1) + tl.sum(b * b, 1)
        if REST > 0:
            square += tl.sum(rest * rest, 1)
        inverse = (1.0 / tl.sqrt(square / D + eps))[:, None]
        a = a * inverse * (tl.load(weight_ptr + r, mask=r < HALF, other=0.0).to(tl.float32) + offset)[None, :]
        b = (
            b
            * inverse
            * (tl.load(weight_ptr + HALF + r, mask=r < HALF, other=0.0).to(tl.float32) + offset)[None, :]
        )
        if REST > 0:
            weight = tl.load(weight_ptr + 2 * HALF + p, mask=p < REST, other=0.0).to(tl.float32) + offset
            rest = rest * inverse * weight[None, :]
    goal = target + heads[:, None] * target_head
    kind = target.dtype.element_ty
    tl.store(goal + r[None, :], (a * cos - b * sin).to(kind), mask=turned)
    tl.store(goal + HALF + r[None, :], (b * cos + a * sin).to(kind), mask=turned)
    if REST > 0:
        tl.store(goal + 2 * HALF + p[None, :], rest.to(kind), mask=passed)


@triton.jit
def turned(
    heads,
    here,
    weight_ptr,
    cos_ptr,
    sin_ptr,
    eps,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HALF: tl.constexpr,
    RUN: tl.constexpr,
    NORM: tl.constexpr,
):
    """Heads at the pointers `heads` [N], where `here` [N], normed and turned like `_rotate` does: float32
    [N, BLOCK_D].

    Each element is computed with its partner of the other half at hand, so that the result lies as attention
    wants it. `cos_ptr` and `sin_ptr` are the token's; HALF 0 turns nothing; RUN divides HALF: so many neighbours
    have neighbouring partners.
    """
    d = tl.arange(0, BLOCK_D)
    there = here[:, None] & (d < D)[None, :]
    x = tl.load(heads[:, None] + d[None, :], mask=there, other=0.0).to(tl.float32)
    inverse = x
    if NORM:
        inverse = (1.0 / tl.sqrt(tl.sum(x * x, 1) / D + eps))[:, None]
        x = x * inverse * tl.load(weight_ptr + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
    if HALF > 0:
        partner = tl.where(d < HALF, d + HALF, tl.where(d < 2 * HALF, d - HALF, d))
        partner = tl.max_contiguous(tl.multiple_of(partner, RUN), RUN)
        pair = tl.where(d < HALF, d, d - HALF)
        pair = tl.max_contiguous(tl.multiple_of(pair, RUN), RUN)
        other = tl.load(heads[:, None] + partner[None, :], mask=there, other=0.0).to(tl.float32)
        if NORM:
            weight = tl.load(weight_ptr + partner, mask=d < D, other=0.0).to(tl.float32)
            other = other * inverse * weight[None, :]
        cos = tl.load(cos_ptr + pair, mask=d < 2 * HALF, other=1.0)
        sin = tl.load(sin_ptr + pair, mask=d < 2 * HALF, other=0.0)
        x = x * cos[None, :] + other * tl.where(d < HALF, -sin, sin)[None, :]
    return x


@triton.jit(do_not_specialize=["positions_ptr", "slots_ptr"])
def _rope_write_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    slots_ptr,
    q_weight_ptr,
    k_weight_ptr,
    out_ptr,
    k_cache_ptr,
    v_cache_ptr,
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    table_stride,
    k_page,
    k_slot,
    k_cache_head,
    v_page,
    v_slot,
    v_cache_head,
    eps,
    offset,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_H: tl.constexpr,
    NORM: tl.constexpr,
    TABLE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    begin(CHAINED)
    Q_BLOCKS: tl.constexpr = (Q_HEADS + BLOCK_H - 1) // BLOCK_H
    BLOCKS: tl.constexpr = Q_BLOCKS + (KV_HEADS + BLOCK_H - 1) // BLOCK_H
    # one dimension of programs: the others end at 65,535
    token = (tl.program_id(0) // BLOCKS).to(tl.int64)
    block = tl.program_id(0) % BLOCKS
    position = token
    if TABLE:
        position = tl.load(positions_ptr + token).to(tl.int64)
    r = tl.arange(0, BLOCK_R)
    cos = tl.load(cos_ptr + position * table_stride + r, mask=r < HALF, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + position * table_stride + r, mask=r < HALF, other=0.0).to(tl.float32)[None, :]
    if block < Q_BLOCKS:
        heads = block * BLOCK_H + tl.arange(0, BLOCK_H)
        _rotate(
            q_ptr + token * q_token,
            out_ptr + token * Q_HEADS * D,
            heads,
            Q_HEADS,
            q_head,
            D,
            q_weight_ptr,
            cos,
            sin,
            eps,
            offset,
            D,
            HALF,
            BLOCK_R,
            BLOCK_P,
            NORM,
        )
    else:
        heads = (block - Q_BLOCKS) * BLOCK_H + tl.arange(0, BLOCK_H)
        slot = tl.load(slots_ptr + token).to(tl.int64)
        page = slot // PAGE
        within = slot % PAGE
        _rotate(
            k_ptr + token * k_token,
            k_cache_ptr + page * k_page + within * k_slot,
            heads,
            KV_HEADS,
            k_head,
            k_cache_head,
            k_weight_ptr,
            cos,
            sin,
            eps,
            offset,
            D,
            HALF,
            BLOCK_R,
            BLOCK_P,
            NORM,
        )
        d = tl.arange(0, BLOCK_D)
        there = (heads < KV_HEADS)[:, None] & (d < D)[None, :]
        v = tl.load(v_ptr + token * v_token + heads[:, None] * v_head + d[None, :], mask=there, other=0.0)
        goal = v_cache_ptr + page * v_page + within * v_slot + heads[:, None] * v_cache_head + d[None, :]
        tl.store(goal, v.to(v_cache_ptr.dtype.element_ty), mask=there)


def rope_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    slots: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
) -> torch.Tensor:
    """Write rotated k and plain v to their slots of the cache; return rotated q, new and dense.

    q [T, heads, D], k and v [T, kv_heads, D], views of a fused projection are fine; cos and sin
    [positions, R / 2] float32 for a rotation of the first R ≤ D dimensions, halves paired (i with i + R / 2);
    positions [T], None where cos and sin are the tokens' own; slots [T] = page * page_size + offset; caches
    [pages, page, kv_heads, D]. With weights [D], q and k heads first get RMSNorm with (weight + weight_offset);
    both or neither must be given.
    """
    if (q_weight is None) != (k_weight is None):
        raise ValueError("rope_write needs both q_weight and k_weight or neither; pass ones for the other.")
    tokens, q_heads, head_dim = q.shape
    kv_heads = k.shape[1]
    half = cos.shape[1]
    out = torch.empty((tokens, q_heads, head_dim), dtype=q.dtype, device=q.device)
    if not tokens:
        return out
    block_h = min(8, next_power_of_2(kv_heads))
    grid = ((triton.cdiv(q_heads, block_h) + triton.cdiv(kv_heads, block_h)) * tokens,)
    _rope_write_kernel[grid](
        q,
        k,
        v,
        cos,
        sin,
        slots if positions is None else positions,
        slots,
        q if q_weight is None else q_weight,
        k if k_weight is None else k_weight,
        out,
        k_cache,
        v_cache,
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        cos.stride(0),
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        eps,
        weight_offset,
        Q_HEADS=q_heads,
        KV_HEADS=kv_heads,
        D=head_dim,
        PAGE=k_cache.shape[1],
        HALF=half,
        BLOCK_R=next_power_of_2(half),
        BLOCK_P=next_power_of_2(max(head_dim - 2 * half, 1)),
        BLOCK_D=next_power_of_2(head_dim),
        BLOCK_H=block_h,
        TABLE=positions is not None,
        NORM=q_weight is not None,
        num_warps=4 if block_h * head_dim >= 512 else 1,
        **chain.options(),
    )
    return out


@triton.jit(do_not_specialize=["positions_ptr"])
def _angles_kernel(
    positions_ptr,
    inverse_ptr,
    cos_ptr,
    sin_ptr,
    factor,
    HALF: tl.constexpr,
    BLOCK_R: tl.constexpr,
    CHAINED: tl.constexpr,
):
    begin(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    r = tl.arange(0, BLOCK_R)
    position = tl.load(positions_ptr + token).to(tl.float32)
    angle = position * tl.load(inverse_ptr + r, mask=r < HALF, other=0.0)
    tl.store(cos_ptr + token * HALF + r, tl.cos(angle) * factor, mask=r < HALF)
    tl.store(sin_ptr + token * HALF + r, tl.sin(angle) * factor, mask=r < HALF)


def rotary_angles(
    positions: torch.Tensor, inverse: torch.Tensor, factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """factor * (cosine, sine) [T, R / 2] float32 of positions [T] times `inverse` [R / 2] float32 (radians)."""
    tokens, half = positions.shape[0], inverse.shape[0]
    cos, sin = torch.empty((2, tokens, half), dtype=torch.float32, device=positions.device)
    if tokens:
        _angles_kernel[(tokens,)](
            positions,
            inverse,
            cos,
            sin,
            float(factor),
            HALF=half,
            BLOCK_R=next_power_of_2(half),
            num_warps=1,
            **chain.options(),
        )
    return cos, sin
