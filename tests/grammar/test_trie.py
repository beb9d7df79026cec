"""The token tree and the walks over it, against looking at every token."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlang.grammar.native.dfa import build
from radixlang.grammar.native.machines import Choices, Expression
from radixlang.grammar.native.regex import regex_automaton
from radixlang.grammar.native.trie import TokenTrie, walk_levels, walker
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
    trie = TokenTrie(vocabulary)
    dfa = build(regex_automaton(pattern), 4_000)
    machine = Expression(dfa, trie)
    for place in range(min(len(dfa), 80)):
        expected = reading(machine, vocabulary, place)
        for walk in (walker(), walk_levels):
            row = np.zeros(vocabulary.words, np.int32)
            walk(trie, dfa.table, place, row)
            assert allowed(row) == expected


@settings(max_examples=100, deadline=None)
@given(WORDS, st.lists(st.text("abcé", max_size=6), min_size=1, max_size=12), st.data())
def test_choices_find_every_token_that_can_be_read(words, choices, data) -> None:
    vocabulary = small_vocabulary(*words)
    machine = Choices([choice.encode() for choice in choices], TokenTrie(vocabulary))
    text = data.draw(st.sampled_from(choices)).encode()
    for length in range(len(text) + 1):
        place = machine.read(machine.start, text[:length])
        assert place is not None
        possible = {choice.encode() for choice in choices if choice.encode().startswith(text[:length])}
        row = np.zeros(vocabulary.words, np.int32)
        machine.tokens(place, row)
        expected = {i for i, w in enumerate(vocabulary.tokens) if w and any(c[length:].startswith(w) for c in possible)}
        assert allowed(row) == expected == reading(machine, vocabulary, place)
        assert machine.accepts(place) == (text[:length] in possible)
        assert machine.only_end(place) == (possible == {text[:length]})
        forced = machine.forced(place)
        rests = [choice[length:] for choice in possible]
        assert forced == os.path.commonprefix(rests)
        ways = {way[0]: way[2] for way in machine.ways(place)}
        assert ways == {rest[0]: machine.read(place, rest[:1]) for rest in rests if rest}


def test_every_token_is_in_the_tree_once(vocabulary) -> None:
    trie = TokenTrie(vocabulary)
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
    trie = TokenTrie(small_vocabulary(b"", b""))
    assert len(trie) == 1
    dfa = build(regex_automaton("a"), 10)
    for walk in (walker(), walk_levels):
        row = np.zeros(1, np.int32)
        walk(trie, dfa.table, 0, row)
        assert not row.any()


@pytest.mark.parametrize("pattern", ["(a|b){0,200}", "[^\n]{1,90}x?", r"a{1,3}( a{1,3}){0,60}", r"\d{3}-\d{4}"])
def test_states_that_are_alike_have_equal_masks(vocabulary, pattern) -> None:
    dfa = build(regex_automaton(pattern), 4_000)
    machine = Expression(dfa, TokenTrie(vocabulary))
    groups: dict[object, list[int]] = {}
    for place in range(len(dfa)):
        groups.setdefault(machine.alike(place), []).append(place)
    for group in groups.values():
        rows = []
        for place in {group[0], group[len(group) // 2], group[-1]}:
            rows.append(np.zeros(vocabulary.words, np.int32))
            machine.tokens(place, rows[-1])
        assert all((row == rows[0]).all() for row in rows)
    assert len(groups) < len(dfa) or len(dfa) < 300


def test_without_numba() -> None:
    program = (
        "import sys; sys.modules['numba'] = None; import importlib.util as u; f = u.find_spec;"
        "u.find_spec = lambda name, *a: None if name == 'numba' else f(name, *a);"
        "from radixlang.grammar.native import trie; assert trie.walker() is trie.walk_levels"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=os.getcwd())
