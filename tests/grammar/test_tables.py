"""Tables against the states of the host."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from radixlang.grammar.canonical import CanonicalState
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.native import NativeEngine
from radixlang.grammar.tables import AutomatonTable, automaton_table
from radixlang.messages import GrammarSpec
from tests.grammar.conftest import allowed

CHOICES = ["positive", "positively", "negative", "not sure", "no", " no", "日本語", "日本"]


@pytest.fixture(scope="module")
def engine(vocabulary) -> NativeEngine:
    return NativeEngine(vocabulary, GrammarLimits())


def step(table: AutomatonTable, state: int, data: bytes) -> int:
    for byte in data:
        state = int(table.next_byte[state, byte])
        if state < 0:
            return len(table.mask_row) - 1
    return state if data else len(table.mask_row) - 1


SPECS = [
    (GrammarSpec("choice", json.dumps(CHOICES)), True),
    (GrammarSpec("choice", '["", "a"]'), True),
    (GrammarSpec("regex", r"(yes|no|maybe), [ab]\."), True),
    (GrammarSpec("regex", "[a-z]{1,8}"), True),
    (GrammarSpec("regex", r"\([0-9]{3}\) [0-9]{3}-[0-9]{4}"), False),
    (GrammarSpec("regex", r"((25[0-5]|2[0-4]\d|[01]?\d\d?)\.){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"), False),
    (GrammarSpec("regex", r'\{"name": "[a-z]{1,9}", "age": [0-9]{1,2}\}'), False),
]


@pytest.mark.parametrize(("spec", "exact"), SPECS)
def test_tables_say_what_states_say(engine, vocabulary, spec, exact) -> None:
    grammar = engine.compile(spec)
    table = automaton_table(grammar)
    assert table is not None
    assert table.exact == exact
    assert len({mask.tobytes() for mask in table.masks}) == len(table.masks)
    chance, row = random.Random(3), np.zeros(vocabulary.words, np.int32)
    narrowed = forced = 0
    for _ in range(25):
        host, device, text = CanonicalState(grammar.start(), vocabulary), 0, b""
        for _ in range(60):
            assert table.state_of(host._inner) == device
            host.fill(row)
            mine, theirs = allowed(table.masks[table.mask_row[device]]), allowed(row)
            assert mine & theirs
            if host.forced():
                forced += 1
                narrowed += mine == theirs
            if exact and vocabulary.encode(text.decode(errors="ignore")) == host._history:
                assert mine == theirs
            token = chance.choice(sorted(mine & theirs))
            assert host.accept(token)
            device = step(table, device, vocabulary.tokens[token])
            text += vocabulary.tokens[token]
            if token in vocabulary.eos_ids:
                assert device == len(table.mask_row) - 1 == table.state_of(host._inner)
                assert allowed(table.masks[table.mask_row[device]]) == set(vocabulary.eos_ids)
                break
    assert narrowed >= 0.95 * forced


def test_too_large_for_a_table(engine) -> None:
    assert automaton_table(engine.compile(GrammarSpec("regex", "[^\n]{1,200}"))) is None
    choices = [f"number {n}" for n in range(900)]
    grammar = engine.compile(GrammarSpec("choice", json.dumps(choices)))
    assert automaton_table(grammar) is None
    assert automaton_table(grammar, 2_000) is not None
    assert automaton_table(grammar, 2_000, 3) is None


def test_stretches(engine) -> None:
    """How many tokens may be forced at once."""
    for pattern, stretch in (
        ("[a-z]{1,8}", 0),
        ("(yes|no|maybe), [ab]", 1),
        ("(a|b)(cat sat on the mat)?[01]", 4),
    ):
        table = automaton_table(engine.compile(GrammarSpec("regex", pattern)))
        assert table is not None
        assert table.stretch >= stretch
        assert (table.stretch == 0) == (stretch == 0)


def test_end_tokens_may_be_left_out_where_anything_else_may_follow(engine, vocabulary) -> None:
    table = automaton_table(engine.compile(GrammarSpec("regex", "a{0,3}")))
    assert table is not None
    endless = table.without(vocabulary.eos_mask)
    ends = set(vocabulary.eos_ids)
    for state, row in enumerate(table.mask_row):
        every, rest = allowed(table.masks[row]), allowed(endless.masks[endless.mask_row[state]])
        assert rest == (every - ends or every)
    assert table.after([b"a", b"aa"]) == 3
    assert allowed(endless.masks[endless.mask_row[3]]) == ends
    assert table.after([b"aa", b"aa"]) == table.after([b"a", b""]) == len(table.mask_row) - 1
