"""Gated activations of a fused projection: act(gate) * up in one pass. Must not know models."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixlang.kernels import chain
from radixlang.kernels.chain import begin

BLOCK = 1024


@triton.jit
def _gated_kernel(x_ptr, out_ptr, x_stride, width, BLOCK: tl.constexpr, GELU: tl.constexpr, CHAINED: tl.constexpr):
    begin(CHAINED)
    # one dimension of programs: the others end at 65,535
    blocks = tl.cdiv(width, BLOCK)
    token = (tl.program_id(0) // blocks).to(tl.int64)
    i = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    there = i < width
    gate = tl.load(x_ptr + token * x_stride + i, mask=there, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + token * x_stride + width + i, mask=there, other=0.0).to(tl.float32)
    if GELU:
        # 0.5 x (1 + tanh(z)) = x * sigmoid(2 z), z = sqrt(2 / pi) (x + 0.044715 x^3)
        gate_factor = 1.5957691216057308 * gate * (1.0 + 0.044715 * gate * gate)
    else:
        gate_factor = gate
    act = gate / (1.0 + tl.exp(-gate_factor))
    tl.store(out_ptr + token * width + i, (act * up).to(out_ptr.dtype.element_ty), mask=there)


def _gated(gate_up: torch.Tensor, gelu: bool) -> torch.Tensor:
    tokens, double = gate_up.shape
    width = double // 2
    out = torch.empty((tokens, width), dtype=gate_up.dtype, device=gate_up.device)
    if tokens:
        grid = (triton.cdiv(width, BLOCK) * tokens,)
        _gated_kernel[grid](
            gate_up, out, gate_up.stride(0), width, BLOCK=BLOCK, GELU=gelu, num_warps=4, **chain.options()
        )
    return out


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up for gate_up [T, 2 I], gate first → [T, I]."""
    return _gated(gate_up, False)


def gelu_tanh_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up in the tanh approximation for gate_up [T, 2 I], gate first → [T, I]."""
    return _gated(gate_up, True)
