"""How automata lie in device memory; free of Triton.

    state [table rows] int32    a row's state; below 0: the row has no automaton, and the kernels return at once
    next_byte [states, 256]     int16: the state each byte leads to, counted from the automaton's first state (one
                                automaton has at most `span` states, which begin at a multiple of it)
    mask_row [states] int32     the state's row of `masks` [rows, words] int32: bit i % 32 of word i // 32 allows i

The last state of every automaton is where its text has ended; a token without bytes (an end token), or one that
may not stand, leads there. It leads nowhere itself, like others that only the end may follow: which these are is
kept beside (`closed`), so that a step can tell the host.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

ENDED = 2
"""the bit of a draw's flags that says: nothing but the end may follow"""


class Tables(NamedTuple):
    """The automata of all slots, as above, and the bytes of the tokens."""

    state: torch.Tensor
    """[table rows] int32"""
    next_byte: torch.Tensor
    """[slots * span, 256] int16"""
    mask_row: torch.Tensor
    """[slots * span] int32"""
    masks: torch.Tensor
    """[mask rows, words] int32"""
    last: torch.Tensor
    """[slots * span] int32: the last state of the state's automaton, counted from its first"""
    closed: torch.Tensor
    """[slots * span] int8: 1 where no byte may follow"""
    letters: torch.Tensor
    """[total] uint8: the tokens' bytes, one token after the other"""
    ends: torch.Tensor
    """[vocab + 1] int32: token i has letters[ends[i] : ends[i + 1]]"""
    span: int
