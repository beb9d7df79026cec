"""The logarithm of each row's summed exponentials, one program a row.

No row's bits depend on the number of rows, as those of torch's reductions do. Must not know requests.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 4096


@triton.jit
def _log_sum_exp_kernel(logits_ptr, out_ptr, stride, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    base = logits_ptr + row.to(tl.int64) * stride
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(base + i, mask=i < vocab, other=float("-inf")).to(tl.float32)
        now = tl.maximum(most, x)
        safe = tl.where(tl.abs(now) == float("inf"), 0.0, now)
        mass = mass * tl.exp(most - safe) + tl.exp(x - safe)
        most = now
    top = tl.max(most, 0)
    safe = tl.where(tl.abs(top) == float("inf"), 0.0, top)
    tl.store(out_ptr + row, safe + tl.log(tl.sum(mass * tl.exp(most - safe), 0)))


def log_sum_exp(logits: torch.Tensor) -> torch.Tensor:
    """log Σ exp of each row of [B, V] (any float, dense rows) → [B, 1] float32; NaN where a row holds NaN."""
    count, vocab = logits.shape
    out = torch.empty((count, 1), dtype=torch.float32, device=logits.device)
    if count:
        _log_sum_exp_kernel[(count,)](logits, out, logits.stride(0), vocab, BLOCK=BLOCK, num_warps=16)
    return out
