"""Changes to the logits of a row before its draw: penalties of tokens that occurred, forbidden ends, a bias.

No kernel of its own: the pass that looks for a row's largest logit makes the changes on its way, in float32, and
leaves the changed logits in a buffer of the row, where the draw reads them. Rows without changes have no buffer:
its address, in a column of the table, is 0, and that is all the kernels look at. Must not know requests.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from radixlang.kernels import edit_words

_TIMES = tl.constexpr(edit_words.TIMES)
_END = tl.constexpr(edit_words.END)
_PROMPT = tl.constexpr(edit_words.PROMPT)


class Edits(NamedTuple):
    """Columns of the table. The first three hold device addresses (int64), one array of V entries a row."""

    values: torch.Tensor
    """of float32: the changed logits; 0 for a row whose logits stay as they are"""
    words: torch.Tensor
    """of int16, see `edit_words`"""
    bias: torch.Tensor
    """of float32: what is added; 0 for none"""
    frequency: torch.Tensor
    presence: torch.Tensor
    repetition: torch.Tensor
    """float32, 0, 0 and 1 where they are off"""
    least: torch.Tensor
    """int32: tokens that must be drawn before an end may be"""


@triton.jit
def floats_at(address):
    """The float32 array at an int64 address."""
    return tl.multiple_of(address.to(tl.pointer_type(tl.float32)), 16)


@triton.jit
def words_at(address):
    """The int16 array at an int64 address."""
    return tl.multiple_of(address.to(tl.pointer_type(tl.int16)), 16)


@triton.jit
def edit(
    base,
    begin_at,
    end,
    at,
    drawn,
    values,
    words_ptr,
    bias_ptr,
    frequency_ptr,
    presence_ptr,
    repetition_ptr,
    least_ptr,
    BLOCK: tl.constexpr,
):
    """Put the logits of tokens `begin_at` … end - 1, which are at `base`, changed to `values`; of table row `at`.

    First every generated token loses frequency * times + presence; then repetition divides the logit of a token in
    prompt or answer if that is positive and multiplies it otherwise; then the bias is added. Ends are forbidden
    while `drawn`, the tokens drawn before, are too few. All threads of the program may read `values` afterwards.
    """
    words = tl.load(words_ptr + at)
    bias = tl.load(bias_ptr + at)
    frequency = tl.load(frequency_ptr + at)
    presence = tl.load(presence_ptr + at)
    repetition = tl.load(repetition_ptr + at)
    early = drawn < tl.load(least_ptr + at)
    for start in range(begin_at, end, BLOCK):
        i = start + tl.arange(0, BLOCK)
        there = i < end
        x = tl.load(base + i, mask=there, other=0.0).to(tl.float32)
        word = tl.load(words_at(words) + i, mask=there, other=0).to(tl.int32)
        times = (word & _TIMES).to(tl.float32)
        x -= frequency * times
        x -= tl.where(times > 0.0, presence, 0.0)
        repeated = tl.where(x > 0.0, x / repetition, x * repetition)
        x = tl.where((word & (_TIMES | _PROMPT)) != 0, repeated, x)
        if bias != 0:
            x += tl.load(floats_at(bias) + i, mask=there, other=0.0)
        x = tl.where(early & ((word & _END) != 0), float("-inf"), x)
        tl.store(floats_at(values) + i, x, mask=there)
    tl.debug_barrier()


@triton.jit
def count(words, token):
    """The token has been generated once more."""
    place = words_at(words) + token
    word = tl.load(place).to(tl.int32)
    tl.store(place, tl.where((word & _TIMES) < _TIMES, word + 1, word).to(tl.int16))
