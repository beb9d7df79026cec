"""Draws the next token from logits without sorting, and the edits of logits before that.

One program samples one row. Each filter (top-k, top-p) is a threshold on the logits, found by narrowing a
bracket of values: every pass tries three pivots and then snaps the bracket to logits that occur, so it ends at
the exact threshold, and equal logits are kept or dropped together. The draw walks the kept mass up to a uniform
number that depends on (seed, position) alone, so a row draws the same token in any batch. Must not know requests.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

SAMPLE_BLOCK = 2048
EDIT_BLOCK = 1024


@triton.jit
def _logits(base, start, vocab, BLOCK: tl.constexpr):
    """(indices, logits) of a block in float32; NaN counts as never, +inf as the largest number."""
    i = start + tl.arange(0, BLOCK)
    x = tl.load(base + i, mask=i < vocab, other=float("-inf")).to(tl.float32)
    return i, tl.minimum(tl.where(x == x, x, float("-inf")), 3.0e38)


@triton.jit
def _largest(base, vocab, BLOCK: tl.constexpr):
    """(largest logit, its first index, smallest logit above -inf); (-inf, 0, +inf) if no logit is above."""
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    least = tl.full([BLOCK], float("inf"), tl.float32)
    index = tl.arange(0, BLOCK)
    for start in range(0, vocab, BLOCK):
        i, x = _logits(base, start, vocab, BLOCK)
        index = tl.where(x > most, i, index)
        most = tl.maximum(most, x)
        least = tl.minimum(least, tl.where(x == float("-inf"), float("inf"), x))
    top = tl.max(most, 0)
    return top, tl.min(tl.where(most == top, index, vocab), 0), tl.min(least, 0)


@triton.jit
def _mass(base, vocab, low, top, inverse, BLOCK: tl.constexpr):
    """Sum of exp((x - top) * inverse) over logits x ≥ low."""
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab, BLOCK):
        _i, x = _logits(base, start, vocab, BLOCK)
        total += tl.where(x >= low, tl.exp((x - top) * inverse), 0.0)
    return tl.sum(total, 0)


@triton.jit
def _threshold(base, vocab, low, top, inverse, need, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """Largest logit t for which the logits ≥ t number (or weigh) at least `need`; `low` if none does.

    `low` and `top` are logits that occur. Invariant: `low` is kept, everything above `high` reaches too little.
    """
    high = top
    while low < high:
        p1 = tl.minimum(low * 0.75 + high * 0.25, high)
        p2 = tl.minimum(low * 0.5 + high * 0.5, high)
        p3 = tl.minimum(low * 0.25 + high * 0.75, high)
        # neighbouring floats have no middle
        p1 = tl.where(p1 > low, p1, high)
        p2 = tl.where(p2 >= p1, p2, p1)
        p3 = tl.where(p3 >= p2, p3, p2)
        reach1 = tl.zeros([BLOCK], tl.float32)
        reach2 = tl.zeros([BLOCK], tl.float32)
        reach3 = tl.zeros([BLOCK], tl.float32)
        up1 = tl.full([BLOCK], float("inf"), tl.float32)
        up2 = tl.full([BLOCK], float("inf"), tl.float32)
        up3 = tl.full([BLOCK], float("inf"), tl.float32)
        down1 = tl.full([BLOCK], float("-inf"), tl.float32)
        down2 = tl.full([BLOCK], float("-inf"), tl.float32)
        down3 = tl.full([BLOCK], float("-inf"), tl.float32)
        for start in range(0, vocab, BLOCK):
            _i, x = _logits(base, start, vocab, BLOCK)
            if BY_MASS:
                weight = tl.exp((x - top) * inverse)
            else:
                weight = tl.full([BLOCK], 1.0, tl.float32)
            over1 = x >= p1
            over2 = x >= p2
            over3 = x >= p3
            reach1 += tl.where(over1, weight, 0.0)
            reach2 += tl.where(over2, weight, 0.0)
            reach3 += tl.where(over3, weight, 0.0)
            up1 = tl.minimum(up1, tl.where(over1, x, float("inf")))
            up2 = tl.minimum(up2, tl.where(over2, x, float("inf")))
            up3 = tl.minimum(up3, tl.where(over3, x, float("inf")))
            down1 = tl.maximum(down1, tl.where(over1, float("-inf"), x))
            down2 = tl.maximum(down2, tl.where(over2, float("-inf"), x))
            down3 = tl.maximum(down3, tl.where(over3, float("-inf"), x))
        enough1 = tl.sum(reach1, 0) >= need
        enough2 = tl.sum(reach2, 0) >= need
        enough3 = tl.sum(reach3, 0) >= need
        lowest = tl.where(enough1, tl.min(up1, 0), low)
        lowest = tl.where(enough2, tl.min(up2, 0), lowest)
        lowest = tl.where(enough3, tl.min(up3, 0), lowest)
        highest = tl.where(enough3, high, tl.max(down3, 0))
        highest = tl.where(enough2, highest, tl.max(down2, 0))
        highest = tl.where(enough1, highest, tl.max(down1, 0))
        low = lowest
        high = highest
    return low


@triton.jit
def _sample_kernel(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seed_ptr,
    position_ptr,
    out_ptr,
    stride,
    vocab,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    base = logits_ptr + row.to(tl.int64) * stride
    top, first, low = _largest(base, vocab, BLOCK)
    temperature = tl.load(temperature_ptr + row)
    if (temperature < 1e-6) | (top == float("-inf")):
        tl.store(out_ptr + row, first.to(tl.int64))
        return
    inverse = 1.0 / temperature
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    if (top_k > 0) & (top_k < vocab):
        low = _threshold(base, vocab, low, top, inverse, top_k.to(tl.float32), False, BLOCK)
    mass = _mass(base, vocab, low, top, inverse, BLOCK)
    if top_p < 1.0:
        low = _threshold(base, vocab, low, top, inverse, top_p * mass, True, BLOCK)
    if min_p > 0.0:
        low = tl.maximum(low, tl.minimum(top + temperature * tl.log(min_p), top))
    if (top_p < 1.0) | (min_p > 0.0):
        mass = _mass(base, vocab, low, top, inverse, BLOCK)

    position = tl.load(position_ptr + row).to(tl.int32)
    zero = position * 0
    bits, _b, _c, _d = tl.philox(tl.load(seed_ptr + row), position, zero, zero, zero)
    target = (bits >> 8).to(tl.float32) * (1.0 / 16777216.0) * mass

    passed = 0.0
    found = vocab
    last = first
    start = 0
    while (start < vocab) & (found == vocab):
        i, x = _logits(base, start, vocab, BLOCK)
        weight = tl.where(x >= low, tl.exp((x - top) * inverse), 0.0)
        kept = weight > 0.0
        here = tl.sum(weight, 0)
        if passed + here > target:
            hit = kept & (passed + tl.cumsum(weight, 0) > target)
            found = tl.min(tl.where(hit, i, vocab), 0)
        # rounding may leave the target beyond the last kept token: then that one is drawn
        last = tl.maximum(last, tl.max(tl.where(kept, i, 0), 0))
        passed += here
        start += BLOCK
    tl.store(out_ptr + row, tl.where(found < vocab, found, last).to(tl.int64))


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """One token a row from logits [B, V] (any float, dense rows) → [B] int64.

    temperature, top_p, min_p [B] float32, top_k [B] int32, seeds [B] int64, positions [B] (the place of the
    drawn token in its row). Temperature below 1e-6 is greedy; top_k ≤ 0 or ≥ V, top_p ≥ 1, min_p ≤ 0 are off.
    Filters apply in this order: top-k, top-p of the remaining mass, min-p relative to the most likely token.
    A row without any logit above -inf gives token 0.
    """
    rows, vocab = logits.shape
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        _sample_kernel[(rows,)](
            logits,
            temperature,
            top_k,
            top_p,
            min_p,
            seeds,
            positions,
            out,
            logits.stride(0),
            vocab,
            BLOCK=SAMPLE_BLOCK,
            num_warps=8,
        )
    return out


@triton.jit
def _argmax_kernel(logits_ptr, out_ptr, stride, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    _top, first, _low = _largest(logits_ptr + row.to(tl.int64) * stride, vocab, BLOCK)
    tl.store(out_ptr + row, first.to(tl.int64))


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """First index of the largest logit of each row of [B, V] → [B] int64; NaN never wins."""
    rows, vocab = logits.shape
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        _argmax_kernel[(rows,)](logits, out, logits.stride(0), vocab, BLOCK=SAMPLE_BLOCK, num_warps=8)
    return out


@triton.jit
def _penalties_kernel(
    logits_ptr,
    counts_ptr,
    prompt_ptr,
    frequency_ptr,
    presence_ptr,
    repetition_ptr,
    stride,
    vocab,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < vocab
    x = tl.load(logits_ptr + row * stride + i, mask=there, other=0.0).to(tl.float32)
    count = tl.load(counts_ptr + row * vocab + i, mask=there, other=0)
    in_prompt = tl.load(prompt_ptr + row * vocab + i, mask=there, other=0) != 0
    repetition = tl.load(repetition_ptr + row)
    x = tl.where(in_prompt | (count > 0), tl.where(x > 0.0, x / repetition, x * repetition), x)
    x -= tl.load(frequency_ptr + row) * count.to(tl.float32)
    x -= tl.where(count > 0, tl.load(presence_ptr + row), 0.0)
    tl.store(logits_ptr + row * stride + i, x.to(logits_ptr.dtype.element_ty), mask=there)


def apply_penalties(
    logits: torch.Tensor,
    output_counts: torch.Tensor,
    prompt_counts: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
    repetition: torch.Tensor,
) -> None:
    """Penalise tokens that occurred, in place on logits [B, V].

    output_counts and prompt_counts [B, V] int32, dense; frequency, presence, repetition [B] float32 (0, 0 and 1
    are off). Repetition divides positive and multiplies negative logits of tokens in prompt or output; then
    output tokens lose frequency * count + presence.
    """
    rows, vocab = logits.shape
    if rows:
        _penalties_kernel[(triton.cdiv(vocab, EDIT_BLOCK), rows)](
            logits,
            output_counts,
            prompt_counts,
            frequency,
            presence,
            repetition,
            logits.stride(0),
            vocab,
            BLOCK=EDIT_BLOCK,
            num_warps=4,
        )


@triton.jit
def _bitmask_kernel(logits_ptr, mask_ptr, stride, mask_stride, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < vocab
    word = tl.load(mask_ptr + row * mask_stride + i // 32, mask=there, other=-1)
    forbidden = there & (((word >> (i % 32)) & 1) == 0)
    never = tl.full([BLOCK], float("-inf"), tl.float32)
    tl.store(logits_ptr + row * stride + i, never.to(logits_ptr.dtype.element_ty), mask=forbidden)


def apply_bitmask(logits: torch.Tensor, mask: torch.Tensor) -> None:
    """Set logits [B, V] to -inf, in place, where bit i % 32 of mask[b, i // 32] is 0; mask int32 [B, ≥ V / 32]."""
    rows, vocab = logits.shape
    if rows:
        _bitmask_kernel[(triton.cdiv(vocab, EDIT_BLOCK), rows)](
            logits, mask, logits.stride(0), mask.stride(0), vocab, BLOCK=EDIT_BLOCK, num_warps=4
        )
