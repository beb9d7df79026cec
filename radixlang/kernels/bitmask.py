"""Grammar masks: tokens that may not follow get a logit of minus infinity, on the rows that have a mask.

Exact in any float type, so it is done in place, and before all other changes: none of them brings a token back.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 4096


@triton.jit(do_not_specialize=["index_ptr", "words"])
def _bitmask_kernel(logits_ptr, index_ptr, mask_ptr, stride, mask_stride, vocab, words, BLOCK: tl.constexpr):
    g = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(index_ptr + g).to(tl.int64)
    there = (i < vocab) & (row >= 0)
    at = mask_ptr + g.to(tl.int64) * mask_stride + i // 32
    word = tl.load(at, mask=there & (i // 32 < words), other=0)
    forbidden = there & (((word >> (i % 32)) & 1) == 0)
    never = tl.full([BLOCK], float("-inf"), tl.float32).to(logits_ptr.dtype.element_ty)
    tl.store(logits_ptr + row * stride + i, never, mask=forbidden)


def apply_bitmask(logits: torch.Tensor, index: torch.Tensor, mask: torch.Tensor) -> None:
    """Set the tokens a grammar forbids to -inf, in place on rows `index` [G] (any integers) of logits [B, V].
    Masks with a negative index are passed over.

    Token i is allowed if bit i % 32 of mask[g, i // 32] is set; mask int32 [G, words] with dense rows. Tokens past
    its end are forbidden.
    """
    vocab = logits.shape[1]
    if index.shape[0]:
        _bitmask_kernel[(triton.cdiv(vocab, BLOCK), index.shape[0])](
            logits,
            index,
            mask,
            logits.stride(0),
            mask.stride(0),
            vocab,
            mask.shape[1],
            BLOCK=BLOCK,
            num_warps=8,
        )
