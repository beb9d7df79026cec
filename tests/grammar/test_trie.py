"""The token tree and the walks over it, against looking at every token."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlang.grammar.native.dfa import build, choice_dfa
from radixlang.grammar.native.machines import Choices, Expression
from radixlang.grammar.native.regex import regex_automaton
from radixlang.grammar.native.trie import TokenTrie, TokenTries, walk_levels, walker
from tests.grammar.conftest import allowed, small_vocabulary

WORDS = st.lists(st.binary(max_size=4) | st.sampled_from([b"a", b"ab", b"abc", b"b", b"bb"]), max_size=40)
PATTERNS = ["a*b*", "(ab|b)*c?", "[^a]{1,3}", ".*", "abc|abd", "(?s).{0,70}", "\\w+ \\d"]


def reading(machine, vocabulary, place) -> set[int]:
    """Tokens that may follow, one by one."""
    return {i for i, word in enumerate(vocabulary.tokens) if word and machine.read(place, word) is not None}


@settings(max_examples=60, deadline=None)
@given(WORDS, st.sampled_from(PATTERNS))
def test_walks_find_every_token_that_can_be_read(words, pattern) -> None:
    vocabulary = small_vocabulary(*words)
    trie = TokenTrie(vocabulary, vocabulary.order)
    dfa = build(regex_automaton(pattern), 4_000)
    machine = Expression(dfa, TokenTries.of(vocabulary), vocabulary.words)
    for place in range(min(len(dfa), 80)):
        expected = reading(machine, vocabulary, place)
        assert allowed(machine.tokens(place)) == expected
        for walk in (walker(), walk_levels):
            row = np.zeros(vocabulary.words, np.int32)
            walk(trie, dfa.table, place, row)
            assert allowed(row) == expected


@settings(max_examples=100, deadline=None)
@given(WORDS, st.lists(st.text("abcé", max_size=6), min_size=1, max_size=12), st.data())
def test_choices_find_every_token_that_can_be_read(words, choices, data) -> None:
    vocabulary = small_vocabulary(*words)
    machine = Choices([choice.encode() for choice in choices], TokenTries.of(vocabulary), vocabulary.words)
    text = data.draw(st.sampled_from(choices)).encode()
    for length in range(len(text) + 1):
        place = machine.read(machine.start, text[:length])
        assert place is not None
        possible = {choice.encode() for choice in choices if choice.encode().startswith(text[:length])}
        expected = {
            i for i, w in enumerate(vocabulary.tokens) if w and any(c[length:].startswith(w) for c in possible)
        }
        assert allowed(machine.tokens(place)) == expected == reading(machine, vocabulary, place)
        assert machine.accepts(place) == (text[:length] in possible)
        assert machine.only_end(place) == (possible == {text[:length]})
        forced = machine.forced(place)
        rests = [choice[length:] for choice in possible]
        longest = max(n for n in range(20) if len({rest[:n] for rest in rests}) == 1 and n <= len(min(rests)))
        assert forced == rests[0][:longest]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("abcé", max_size=6), min_size=1, max_size=12))
def test_a_tree_of_choices_is_their_automaton(choices) -> None:
    texts = sorted({choice.encode() for choice in choices})
    dfa = choice_dfa(texts, 100)
    assert dfa is not None
    assert len(dfa) == len({text[:n] for text in texts for n in range(len(text) + 1)})
    tries = TokenTries.of(small_vocabulary("a"))
    one, other = Expression(dfa, tries, 1), Choices(texts, tries, 1)
    for text in [*texts, *(text[:-1] for text in texts), b"abcabcabc"]:
        here, there = one.read(one.start, text), other.read(other.start, text)
        assert (here is None) == (there is None)
        if here is not None:
            assert one.accepts(here) == other.accepts(there)
            assert one.forced(here) == other.forced(there)
    assert choice_dfa(texts, len(dfa)) is not None
    assert choice_dfa(texts, len(dfa) - 1) is None


def test_every_token_is_in_the_tree_once(vocabulary) -> None:
    trie = TokenTrie(vocabulary, vocabulary.order)
    assert sorted(trie.order.tolist()) == sorted(vocabulary.order.tolist())
    below = {0: b""}
    for node in range(len(trie)):
        for child in range(trie.children[node], trie.children[node + 1]):
            below[child] = below[node] + bytes([trie.byte[child]])
        for token in trie.order[trie.first[node] : trie.first[node + 1]]:
            assert vocabulary.tokens[token] == below[node]
    assert len(below) == len(trie)
    assert len(set(below.values())) == len(trie)


def test_a_vocabulary_without_text() -> None:
    vocabulary = small_vocabulary(b"", b"")
    trie = TokenTrie(vocabulary, vocabulary.order)
    assert len(trie) == 1
    dfa = build(regex_automaton("a"), 10)
    for walk in (walker(), walk_levels):
        row = np.zeros(1, np.int32)
        walk(trie, dfa.table, 0, row)
        assert not row.any()


@pytest.mark.parametrize("pattern", ["(a|b){0,200}", "[^\n]{1,90}x?", r"a{1,3}( a{1,3}){0,60}", r"\d{3}-\d{4}"])
def test_states_that_are_alike_share_their_short_tokens(vocabulary, pattern) -> None:
    dfa = build(regex_automaton(pattern), 4_000)
    tries = TokenTries.of(vocabulary)
    assert tries.short.longest < vocabulary.lengths[tries.long.order].min()
    machine = Expression(dfa, tries, vocabulary.words)
    assert len(set(machine._alike)) < len(dfa) or len(dfa) < 300
    for place in range(0, len(dfa), 1 + len(dfa) // 300):
        row = np.zeros(vocabulary.words, np.int32)
        for trie in tries:
            walker()(trie, dfa.table, place, row)
        assert (machine.tokens(place) == row).all()


def test_without_numba() -> None:
    program = (
        "import sys; sys.modules['numba'] = None; import importlib.util as u; f = u.find_spec;"
        "u.find_spec = lambda name, *a: None if name == 'numba' else f(name, *a);"
        "from radixlang.grammar.native import trie; assert trie.walker() is trie.walk_levels"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=os.getcwd())
