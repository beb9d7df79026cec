"""Tokens that are nothing but characters which JSON strings and most texts hold as they are.

Where an automaton takes any such character over and over, as inside of a string, its mask is a set made beforehand
and what a walk over the few other tokens adds. Must not know schemas or expressions: the automaton's table tells.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from radixlang.grammar.grammar import Mask
from radixlang.grammar.native.dfa import DEAD
from radixlang.grammar.native.trie import TokenTrie
from radixlang.grammar.vocabulary import Vocabulary

MOST = 48
"""characters of a token that counts as plain"""
_PLAIN = re.compile(r'[^\x00-\x1f\x7f"\\]+')
_CONTINUED = (0x80, 0xBF)
_FORMS: list[tuple[tuple[int, int], ...]] = [
    ((0x20, 0x21),),
    ((0x23, 0x5B),),
    ((0x5D, 0x7E),),
    ((0xC2, 0xDF), _CONTINUED),
    ((0xE0, 0xE0), (0xA0, 0xBF), _CONTINUED),
    ((0xE1, 0xEC), _CONTINUED, _CONTINUED),
    ((0xED, 0xED), (0x80, 0x9F), _CONTINUED),
    ((0xEE, 0xEF), _CONTINUED, _CONTINUED),
    ((0xF0, 0xF0), (0x90, 0xBF), _CONTINUED, _CONTINUED),
    ((0xF1, 0xF3), _CONTINUED, _CONTINUED, _CONTINUED),
    ((0xF4, 0xF4), (0x80, 0x8F), _CONTINUED, _CONTINUED),
]
"""the ranges of bytes that plain characters are written with in UTF-8"""
_FIRST = [byte for (low, high), *_ in _FORMS for byte in range(low, high + 1)]

States = npt.NDArray[np.int32]


class PlainTokens:
    """The plain tokens of a vocabulary, by their number of characters, and all others."""

    masks: npt.NDArray[np.int32]
    """[n + 1, words] row k: those of up to k characters; n is what the longest has"""
    others: TokenTrie

    def __init__(self, vocabulary: Vocabulary) -> None:
        counts = np.zeros(vocabulary.size, np.int64)
        for index in vocabulary.order.tolist():
            counts[index] = _characters(vocabulary.tokens[index])
        most = int(counts.max(initial=0))
        ids = [np.flatnonzero((counts > 0) & (counts <= count)) for count in range(most + 1)]
        self.masks = np.stack([vocabulary.mask_of(some) for some in ids])
        self.others = TokenTrie(vocabulary, vocabulary.order[counts[vocabulary.order] == 0])
        self._written = {byte for index in np.flatnonzero(counts).tolist() for byte in vocabulary.tokens[index]}

    def allowed(self, table: States) -> list[Mask | None]:
        """For each state of an automaton (`table` [n, 256]) the plain tokens that may stand there; None where it
        takes some characters unlike others, so that every token has to be tried."""
        size, most = len(table), len(self.masks) - 1
        table = np.concatenate([table, np.full((1, 256), DEAD, np.int32)])  # so that DEAD leads to itself
        after = self._after_any(table)
        none = (table[:, _FIRST] == DEAD).all(1)
        at, run, going = np.arange(size), np.zeros(size, np.int64), np.ones(size, np.bool_)
        for _ in range(most):
            going &= after[at] != DEAD
            if not going.any():
                break
            run += going
            at = np.where(going, after[at], at)
        known = (run > 0) & ((run == most) | none[at])
        counts = np.where(known, run, DEAD).tolist()
        return [None if count == DEAD else self.masks[count] for count in counts]

    def _after_any(self, table: States) -> States:
        """[n] where each state is led by every plain character alike; DEAD where there is no such state."""
        led: dict[tuple[int, int], States] = {}
        ends = []
        for form in _FORMS:
            end = np.arange(len(table), dtype=np.int32)
            for low, high in form:
                columns = [byte for byte in range(low, high + 1) if byte in self._written]
                if not columns:  # no token has such characters
                    break
                if (low, high) not in led:
                    ways = table[:, columns]
                    led[low, high] = np.where((ways == ways[:, :1]).all(1), ways[:, 0], DEAD)
                end = led[low, high][end]
            else:
                ends.append(end)
        if not ends:
            return np.full(len(table), DEAD, np.int32)
        return np.where(np.all([end == ends[0] for end in ends], axis=0), ends[0], DEAD)


def _characters(token: bytes) -> int:
    """How many characters a plain token has; 0 for any other."""
    try:
        text = token.decode()
    except UnicodeDecodeError:
        return 0
    return len(text) if len(text) <= MOST and _PLAIN.fullmatch(text) else 0
