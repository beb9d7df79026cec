"""Hostile constraints: refused with a sentence or compiled within a budget, and no step of a text runs away."""

from __future__ import annotations

import json
import random
import time

import numpy as np
import pytest

from benchmarks.hostile_grammars import hostile
from radixlang.grammar.errors import GrammarError, GrammarFailure
from radixlang.grammar.manager import GrammarManager
from radixlang.messages import GrammarSpec

CASES = hostile()


@pytest.fixture(scope="module")
def manager(vocabulary):
    manager = GrammarManager(lambda: vocabulary, workers=1)
    manager.get(GrammarSpec("regex", r"\w+")).result()
    yield manager
    manager.close()


@pytest.mark.parametrize("name", CASES)
def test_is_refused_with_a_sentence_or_stays_within_its_budget(manager, vocabulary, name: str) -> None:
    kind, text = CASES[name]
    began = time.process_time()
    refused, grammar = "", None
    try:
        grammar = manager.get(GrammarSpec(kind, text)).result()
    except GrammarError as error:
        refused = str(error)
    assert time.process_time() - began < 8, "four times the budget: slow machines, and neighbours on the same core"
    if grammar is None:
        assert refused.endswith(".")
        assert len(refused) > 20
        assert "could not be compiled" not in refused, "an error nobody foresaw"
        return
    state, row, rng = grammar.start(), np.zeros(vocabulary.words, np.int32), random.Random(0)
    try:
        for _ in range(12):
            began = time.process_time()
            state.fill(row)
            assert time.process_time() - began < 0.5
            token = int(rng.choice(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))))
            if not state.accept(token):
                state.backtrack()
            if state.finished:
                break
    except GrammarFailure:
        pass  # ends that request with a sentence, and no other


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('root ::= root root | "a"', "a"),
        ('root ::= root root root | root root | "a"', "a"),
        ('root ::= "a" root "a" | "a" root | root "a" | "a"', "a"),
        ('root ::= root "+" root | root "*" root | "(" root ")" | [0-9]+', "1+2*3+"),
    ],
)
def test_what_can_be_read_in_ever_more_ways_ends_before_its_masks_are_slow(
    manager, vocabulary, grammar: str, text: str
) -> None:
    state, row = manager.get(GrammarSpec("ebnf", grammar)).result().start(), np.zeros(vocabulary.words, np.int32)
    tokens = [vocabulary.tokens.index(bytes([byte])) for byte in text.encode() * 1000]
    times = []

    def write() -> None:
        for token in tokens:
            began = time.process_time()
            state.fill(row)
            times.append(time.process_time() - began)
            assert state.accept(token)

    with pytest.raises(GrammarFailure, match="read in one way only"):
        write()
    assert len(times) > 150, "texts of some length can be held"
    assert sorted(times)[-len(times) // 10] < 0.2


def test_there_are_forty() -> None:
    assert len(CASES) >= 40


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "(?=(?:){4000000000})a"),
        ("json_schema", '{"type": "string", "pattern": "(?:){1000000000}a"}'),
        ("json_schema", '{"not": {"pattern": "(?:){1000000000}a"}}'),
    ],
)
def test_repeats_of_nothing_take_no_time(manager, kind: str, text: str) -> None:
    began = time.process_time()
    manager.get(GrammarSpec(kind, text)).result()
    assert time.process_time() - began < 4


def test_half_a_surrogate_pair_in_a_tag_is_named(manager) -> None:
    tag = {"type": "structural_tag", "format": {"type": "const_string", "value": "a\ud800"}}
    with pytest.raises(GrammarError, match="half of a surrogate pair"):
        manager.get(GrammarSpec("structural_tag", json.dumps(tag))).result()
