"""RMSNorm, alone or fused with the residual addition before it.

A program normalises a few whole vectors; sums and products are float32 and rounded once. Must not know models.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixlang.kernels import chain
from radixlang.kernels.chain import begin
from radixlang.kernels.tuning import next_power_of_2


@triton.jit(do_not_specialize=["count"])
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    sum_ptr,
    count,
    inner,
    x_outer,
    x_inner,
    residual_stride,
    eps,
    offset,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    VECTORS: tl.constexpr,
    ADD: tl.constexpr,
    CHAINED: tl.constexpr,
):
    begin(CHAINED)
    vector = tl.program_id(0) * VECTORS + tl.arange(0, VECTORS)
    d = tl.arange(0, BLOCK_D)
    there = (vector < count)[:, None] & (d < D)[None, :]
    outer = (vector // inner).to(tl.int64)
    place = outer * x_outer + (vector % inner) * x_inner
    x = tl.load(x_ptr + place[:, None] + d[None, :], mask=there, other=0.0).to(tl.float32)
    vector = vector.to(tl.int64)
    if ADD:
        residual = tl.load(
            residual_ptr + vector[:, None] * residual_stride + d[None, :], mask=there, other=0.0
        ).to(tl.float32)
        # the norm reads the sum as it is stored, so that a later reader sees the same numbers
        rounded = (x + residual).to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + vector[:, None] * D + d[None, :], rounded, mask=there)
        x = rounded.to(tl.float32)
    weight = tl.load(weight_ptr + d, mask=d < D, other=0.0).to(tl.float32) + offset
    inverse = 1.0 / tl.sqrt(tl.sum(x * x, 1) / D + eps)
    result = x * inverse[:, None] * weight[None, :]
    tl.store(out_ptr + vector[:, None] * D + d[None, :], result.to(out_ptr.dtype.element_ty), mask=there)


def _launch_shape(width: int) -> tuple[int, int]:
    """(vectors a program, warps) for vectors of `width`: about 2,048 elements a program.

    Whatever their number: the order in which a vector is summed up must not depend on its company.
    """
    block = next_power_of_2(width)
    vectors = max(1, 2048 // block)
    return vectors, min(max(vectors * block // 512, 1), 16)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, *, weight_offset: float = 0.0) -> torch.Tensor:
    """x / rms(x) * (weight + weight_offset) over the last dimension of x [T, D] or [T, heads, D].

    x may be a slice of a wider tensor; its last dimension must be dense. Returns a new dense tensor.
    """
    if x.dim() == 2:
        x3 = x.unsqueeze(1)
    elif x.dim() == 3:
        x3 = x
    else:
        raise ValueError(f"rms_norm takes 2 or 3 dimensions, and x has {x.dim()}; reshape it first.")
    width = x.shape[-1]
    count = x3.shape[0] * x3.shape[1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if count:
        vectors, warps = _launch_shape(width)
        _rms_norm_kernel[(triton.cdiv(count, vectors),)](
            x,
            x,
            weight,
            out,
            out,
            count,
            x3.shape[1],
            x3.stride(0),
            x3.stride(1),
            0,
            eps,
            weight_offset,
            D=width,
            BLOCK_D=next_power_of_2(width),
            VECTORS=vectors,
            ADD=False,
            num_warps=warps,
            **chain.options(),
        )
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, *, weight_offset: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm of s, s) with s = x + residual rounded to x's dtype; x, residual [T, D], both results new."""
    count, width = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = torch.empty_like(out)
    if count:
        vectors, warps = _launch_shape(width)
        _rms_norm_kernel[(triton.cdiv(count, vectors),)](
            x,
            residual,
            weight,
            out,
            total,
            count,
            1,
            x.stride(0),
            0,
            residual.stride(0),
            eps,
            weight_offset,
            D=width,
            BLOCK_D=next_power_of_2(width),
            VECTORS=vectors,
            ADD=True,
            num_warps=warps,
            **chain.options(),
        )
    return out, total
