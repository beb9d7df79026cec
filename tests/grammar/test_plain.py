"""Masks of a set and a walk over few tokens against walks over all tokens."""

from __future__ import annotations

import numpy as np
import pytest

from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.native.dfa import build
from radixlang.grammar.native.machines import Expression
from radixlang.grammar.native.plain import MOST, PlainTokens
from radixlang.grammar.native.regex import regex_automaton
from radixlang.grammar.native.trie import TokenTries
from tests.grammar.conftest import allowed, small_vocabulary

STRING = r'"[^"\\\x00-\x1f\x7f]'
PATTERNS = [
    STRING + '*"',
    STRING + '{0,9}"',
    STRING + '{3,70}"',
    r"(?s:.*)",
    r"[^\n]{1,30}x",
    r'[a-z]*"',
    r"[^a]*b",
]
SMALL = small_vocabulary(
    "a", "b", "ab", '"', 'a"', "é", "日", b"\xe6", b"\x97\xa5", "\n", "x" * MOST, "x" * (MOST + 1), "aé"
)


def machines(pattern, vocabulary) -> tuple[Expression, Expression]:
    tries = TokenTries.of(vocabulary)
    dfa = build(regex_automaton(pattern), GrammarLimits().max_states, tries.writable())
    return (
        Expression(dfa, tries, vocabulary.words, PlainTokens(vocabulary)),
        Expression(dfa, tries, vocabulary.words),
    )


@pytest.mark.parametrize("pattern", PATTERNS)
def test_masks_are_the_same(pattern) -> None:
    fast, slow = machines(pattern, SMALL)
    for place in range(len(fast.dfa)):
        assert np.array_equal(fast.tokens(place), slow.tokens(place)), place


@pytest.mark.parametrize("pattern", PATTERNS[:3])
def test_masks_of_a_real_vocabulary(pattern, vocabulary) -> None:
    fast, slow = machines(pattern, vocabulary)
    states = range(0, len(fast.dfa), 1 + len(fast.dfa) // 40)
    assert all(np.array_equal(fast.tokens(place), slow.tokens(place)) for place in states)
    inside = fast.read(0, b'"')
    assert inside is not None
    assert fast._allowed[inside] is not None  # else nothing is tested


def test_tokens_are_sorted_by_their_characters() -> None:
    plain = PlainTokens(SMALL)
    assert len(plain.masks) == MOST + 1
    assert allowed(plain.masks[0]) == set()
    assert allowed(plain.masks[1]) == {SMALL.tokens.index(one.encode()) for one in ("a", "b", "é", "日")}
    assert sorted(SMALL.tokens[index] for index in plain.others.order) == sorted(
        [b'"', b'a"', b"\xe6", b"\x97\xa5", b"\n", b"x" * (MOST + 1)]
    )
