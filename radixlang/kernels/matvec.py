"""Matrix products of one token or a few, for layers so small that waiting is the whole cost.

A program holds whole rows of the weight in registers: it asks for them before it waits for the kernel in front, so
that a chain of such products reads weights without a pause. What stands around a product in a decoder can be part
of it: the RMSNorm of its input, bias, gated activation, the sum with the residual stream. Must not know models.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixlang.kernels import chain
from radixlang.kernels.chain import begin
from radixlang.kernels.tuning import MatvecTile, next_power_of_2

_ACTIVATIONS = {None: 0, "silu": 1, "gelu_tanh": 2}


@triton.jit(do_not_specialize=["tokens"])
def _matvec_kernel(
    x_ptr,
    w_ptr,
    bias_ptr,
    norm_ptr,
    residual_ptr,
    out_ptr,
    tokens,
    outer,
    x_stride,
    residual_stride,
    eps,
    K: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BIAS: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    CHAINED: tl.constexpr,
):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    stored = n < outer
    held = stored[:, None] & (k < K)[None, :]
    # weights, norms and biases do not change: they need not wait for anything
    rows = w_ptr + n.to(tl.int64)[:, None] * K + k[None, :]
    w = tl.load(rows, mask=held, other=0.0)
    w_up = w
    if GATED:
        w_up = tl.load(rows + tl.cast(outer, tl.int64) * K, mask=held, other=0.0)
    if NORM:
        norm = tl.load(norm_ptr + k, mask=k < K, other=0.0).to(tl.float32)
    if BIAS:
        bias = tl.load(bias_ptr + n, mask=stored, other=0.0).to(tl.float32)
        if GATED:
            bias_up = tl.load(bias_ptr + outer + n, mask=stored, other=0.0).to(tl.float32)
    begin(CHAINED)
    for t in tl.static_range(TOKENS):
        x = tl.load(x_ptr + t * x_stride + k, mask=(k < K) & (t < tokens), other=0.0).to(tl.float32)
        if NORM:
            # rounded as a norm of its own would hand it over
            x = x * (1.0 / tl.sqrt(tl.sum(x * x, 0) / K + eps)) * norm
            x = x.to(x_ptr.dtype.element_ty).to(tl.float32)
        y = tl.sum(w.to(tl.float32) * x[None, :], 1)
        if BIAS:
            y += bias
        if GATED:
            up = tl.sum(w_up.to(tl.float32) * x[None, :], 1)
            if BIAS:
                up += bias_up
            turn = y
            if GATED == 2:
                turn = 1.5957691216057308 * y * (1.0 + 0.044715 * y * y)
            y = y / (1.0 + tl.exp(-turn)) * up
        there = stored & (t < tokens)
        if RESIDUAL:
            y += tl.load(residual_ptr + t * residual_stride + n, mask=there, other=0.0).to(tl.float32)
        tl.store(out_ptr + t * residual_stride + n, y.to(out_ptr.dtype.element_ty), mask=there)


def matvec(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
    tile: MatvecTile,
) -> torch.Tensor:
    """x [T, K] (dense rows) times weight [N, K] (dense), T ≤ 8, K ≤ 16,384 → [T, N], float32 sums rounded once.

    norm [K]: x is first divided by its root mean square (+ `eps`), multiplied by `norm` and rounded. activation
    "silu" or "gelu_tanh": the first half of the outputs is a gate, and act(gate) * second half [T, N / 2] is
    returned. residual [T, N]: is added, in place, and returned.
    """
    tokens, inner = x.shape
    outer = weight.shape[0] // 2 if activation else weight.shape[0]
    out = residual
    if out is None:
        out = torch.empty((tokens, outer), dtype=x.dtype, device=x.device)
    _matvec_kernel[(triton.cdiv(outer, tile.block_n),)](
        x,
        weight,
        x if bias is None else bias,
        x if norm is None else norm,
        out,
        out,
        tokens,
        outer,
        x.stride(0),
        out.stride(0),
        eps,
        K=inner,
        TOKENS=next_power_of_2(tokens),
        BLOCK_N=tile.block_n,
        BLOCK_K=next_power_of_2(inner),
        BIAS=bias is not None,
        NORM=norm is not None,
        GATED=_ACTIVATIONS[activation],
        RESIDUAL=residual is not None,
        num_warps=tile.warps,
        **chain.options(),
    )
    return out
