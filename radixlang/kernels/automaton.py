"""Constraints that live on the device: small automata whose masks and steps need no host.

The arrays are told in `automaton_tables.py`. A row without an automaton costs a look at its state. Must not know
where automata come from, nor who owns their places.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixlang.kernels import chain
from radixlang.kernels.automaton_tables import ENDED, Tables
from radixlang.kernels.chain import begin

BLOCK = 4096


@triton.jit(do_not_specialize=["rows_ptr", "drawn_ptr", "words"])
def _mask_kernel(
    logits_ptr,
    rows_ptr,
    drawn_ptr,
    state_ptr,
    mask_row_ptr,
    masks_ptr,
    stride,
    mask_stride,
    vocab,
    words,
    BLOCK: tl.constexpr,
    DRAWN: tl.constexpr,
    CHAINED: tl.constexpr,
):
    begin(CHAINED)
    b = tl.program_id(1)
    if DRAWN:
        if tl.load(drawn_ptr + b) < 0:
            return
    state = tl.load(state_ptr + tl.load(rows_ptr + b))
    if state < 0:
        return
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < vocab
    at = masks_ptr + tl.load(mask_row_ptr + state).to(tl.int64) * mask_stride + i // 32
    word = tl.load(at, mask=there & (i // 32 < words), other=0)
    forbidden = there & (((word >> (i % 32)) & 1) == 0)
    never = tl.full([BLOCK], float("-inf"), tl.float32).to(logits_ptr.dtype.element_ty)
    tl.store(logits_ptr + b.to(tl.int64) * stride + i, never, mask=forbidden)


@triton.jit(do_not_specialize=["tokens_ptr", "rows_ptr", "flags_ptr", "drawn_ptr", "vocab"])
def _advance_kernel(
    tokens_ptr,
    rows_ptr,
    flags_ptr,
    drawn_ptr,
    state_ptr,
    next_ptr,
    last_ptr,
    closed_ptr,
    letters_ptr,
    ends_ptr,
    vocab,
    SPAN: tl.constexpr,
    ENDED: tl.constexpr,
    DRAWN: tl.constexpr,
    CHAINED: tl.constexpr,
):
    begin(CHAINED)
    b = tl.program_id(0)
    if DRAWN:
        if tl.load(drawn_ptr + b) < 0:
            return
    place = state_ptr + tl.load(rows_ptr + b)
    state = tl.load(place)
    if state < 0:
        return
    first = state // SPAN * SPAN
    last = tl.load(last_ptr + state)
    token = tl.load(tokens_ptr + b).to(tl.int32)
    known = (token >= 0) & (token < vocab)
    at = tl.load(ends_ptr + token, mask=known, other=0)
    end = tl.load(ends_ptr + token + 1, mask=known, other=0)
    here = state - first
    if at >= end:
        here = last
    while at < end:
        byte = tl.load(letters_ptr + at).to(tl.int32)
        here = tl.load(next_ptr + (first + here).to(tl.int64) * 256 + byte).to(tl.int32)
        at += 1
        if here < 0:
            here = last
            at = end
    tl.store(place, first + here)
    if tl.load(closed_ptr + first + here) != 0:
        tl.store(flags_ptr + b, tl.load(flags_ptr + b) | ENDED)


def mask_logits(
    logits: torch.Tensor, rows: torch.Tensor, tables: Tables, drawn: torch.Tensor | None = None
) -> None:
    """Set the tokens that may not follow to -inf, in place in logits [B, V] (any float, dense rows).

    Row b is row rows[b] (int32) of the table of requests. With `drawn` [B], nothing is read or written for rows
    where it is negative. Tokens past the masks' end are forbidden.
    """
    count, vocab = logits.shape
    if count:
        _mask_kernel[(triton.cdiv(vocab, BLOCK), count)](
            logits,
            rows,
            rows if drawn is None else drawn,
            tables.state,
            tables.mask_row,
            tables.masks,
            logits.stride(0),
            tables.masks.stride(0),
            vocab,
            tables.masks.shape[1],
            BLOCK=BLOCK,
            DRAWN=drawn is not None,
            num_warps=8,
            **chain.options(),
        )


def advance(
    tokens: torch.Tensor,
    rows: torch.Tensor,
    flags: torch.Tensor,
    tables: Tables,
    drawn: torch.Tensor | None = None,
) -> None:
    """Move the states of distinct table rows rows[b] (int32) on by tokens[b] (int64); `drawn` as above.

    `ENDED` is set in flags[b] (int32) where nothing but the end may follow.
    """
    if tokens.shape[0]:
        _advance_kernel[(tokens.shape[0],)](
            tokens,
            rows,
            flags,
            rows if drawn is None else drawn,
            tables.state,
            tables.next_byte,
            tables.last,
            tables.closed,
            tables.letters,
            tables.ends,
            tables.ends.shape[0] - 1,
            SPAN=tables.span,
            ENDED=ENDED,
            DRAWN=drawn is not None,
            num_warps=1,
            **chain.options(),
        )
