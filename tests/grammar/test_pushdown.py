"""Automata with a stack: masks against looking at every token, stacks, threads, and what fails."""

from __future__ import annotations

import json
import random
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from radixlang.grammar.errors import GrammarFailure
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.native import NativeEngine, NativeGrammar
from radixlang.grammar.native.pushdown import Place, Pushdown, Stack
from radixlang.grammar.native.schema import Builder
from radixlang.grammar.native.subsets import ACTION, UNKNOWN, Subsets
from radixlang.grammar.native.trie import TokenTrie, stack_walker, walk_stacks
from radixlang.grammar.residual import ResidualGrammar
from radixlang.messages import GrammarSpec
from tests.grammar.conftest import allowed, small_vocabulary
from tests.grammar.test_trie import reading

PIECES = [
    '"}',
    '"}}',
    "]]",
    "]}]",
    '"], "',
    '": {"',
    '": [{"',
    '{"a": [',
    "}, {",
    "[[[",
    "}}, {",
    "1]",
    "true}",
    "[]",
]
PIECES += ['{"a": {"a": ', '", "b": "', 'é"', "日本", '\\"}', "\\n", "null, ", "1}, [", '"x": [[', "]], [1"]
VOCABULARY = small_vocabulary(*(bytes([byte]) for byte in range(256)), *PIECES, b'\xa9"', b'\x9c\xac": {')
ENGINE = NativeEngine(VOCABULARY, GrammarLimits())
ANY_OF: list[Any] = [
    {},
    {"$defs": {"x": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/x"}}, {"type": "string"}]}},
     "$ref": "#/$defs/x"},
    {"$defs": {"x": {"type": "object", "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/x"}}},
                     "additionalProperties": {"$ref": "#/$defs/x"}}}, "$ref": "#/$defs/x"},
    {"type": "array", "items": {"anyOf": [
        {"type": "array", "items": {"type": "string", "maxLength": size}, "maxItems": size} for size in range(1, 5)
    ]}},
    {"anyOf": [{"type": "object", "properties": {"a": {"type": "array", "items": {"enum": [kind, "x"]}}, "b": {}},
                "required": ["a"], "additionalProperties": kind == 1} for kind in range(4)]},
]  # fmt: skip


def machine_of(schema: Any, engine: NativeEngine = ENGINE) -> Pushdown:
    grammar = engine.compile(GrammarSpec("json_schema", json.dumps(schema)))
    inner = grammar.inner if isinstance(grammar, ResidualGrammar) else grammar
    assert isinstance(inner, NativeGrammar)
    assert isinstance(inner.machine, Pushdown)
    return inner.machine


def walks(machine: Pushdown, chance: random.Random, steps: int) -> list[Place]:
    """The places of a random text."""
    place, places = machine.start, [machine.start]
    for _ in range(steps):
        tokens = sorted(allowed(machine.tokens(place)))
        if not tokens:
            break
        usual = [token for token in tokens if VOCABULARY.tokens[token][:1] in b'"{[}]:, 1a']
        after = machine.read(place, VOCABULARY.tokens[chance.choice(usual or tokens)])
        assert after is not None
        place = after
        places.append(place)
    return places


@pytest.mark.parametrize("schema", ANY_OF, ids=json.dumps)
def test_masks_are_those_of_every_token_and_fit_their_keys(schema) -> None:
    """Of one grammar, whose masks are kept by `key`, at places with many stacks."""
    chance = random.Random(3)
    grammar = NativeGrammar(machine_of(schema), VOCABULARY)
    machine, trie = grammar.machine, TokenTrie(VOCABULARY, VOCABULARY.order)
    assert isinstance(machine, Pushdown)
    stacks: dict[int, set[Any]] = {}
    for _ in range(12):
        for place in walks(machine, chance, 30):
            stacks.setdefault(place.state, set()).add(place.stack)
            expected = reading(machine, VOCABULARY, place)
            assert allowed(grammar.mask(place)) - {len(VOCABULARY.tokens) - 1} == expected
            used = set()
            for walk in (stack_walker(), walk_stacks):
                row = np.zeros(VOCABULARY.words, np.int32)
                used.add(walk(trie, machine._subsets, place.state, place.stack.top(trie.longest), row))
                assert allowed(row) == expected
            assert len(used) == 1
    assert schema or max(map(len, stacks.values())) > 2


@pytest.mark.parametrize("most", [1, 11, 12, 13, 30])
def test_tokens_inside_of_counted_strings(most) -> None:
    """The longest token has twelve plain characters: fewer are left long before the end."""
    vocabulary = small_vocabulary(*("a" * size for size in range(1, 13)), '"', "é", 'aa"', "\\n", "\\")
    machine = machine_of({"type": "string", "maxLength": most}, NativeEngine(vocabulary, GrammarLimits()))
    place = machine.read(machine.start, b'"')
    for _ in range(most + 1):
        assert place is not None
        assert allowed(machine.tokens(place)) == reading(machine, vocabulary, place)
        place = machine.read(place, b"a")
    assert place is None


def test_equal_stacks_are_one_object_in_all_threads() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(30):
            bottom, found = Stack(), set[int]()
            kept: list[Stack] = []
            start = threading.Barrier(4)

            def run(bottom: Stack = bottom, start: threading.Barrier = start, kept: list[Stack] = kept) -> None:
                start.wait()
                stack = bottom
                for frame in range(40):
                    stack = stack.push(frame)
                    kept.append(stack)

            threads = [threading.Thread(target=run) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            found.update(map(id, kept))
            assert len(found) == 40
    finally:
        sys.setswitchinterval(interval)


def test_stacks_that_are_not_in_use_are_forgotten_however_deep() -> None:
    bottom = Stack()
    stack = bottom
    for frame in range(100_000):
        stack = stack.push(frame & 3)
    assert stack.top(3) == [1, 2, 3]
    assert len(bottom._open.known) == 100_000
    stack = bottom
    assert not bottom._open.known


@pytest.mark.parametrize("which", ["table", "actions"])
def test_walks_while_others_enlarge_the_arrays(which) -> None:
    """What one array says may point beyond another that was taken before it grew: no place in memory."""
    pytest.importorskip("numba")
    machine = machine_of(ANY_OF[2])
    place = machine.read(machine.start, b'{"a": [{"b": {"a": [')
    assert place is not None
    frames, trie, subsets = place.stack.top(99), TokenTrie(VOCABULARY, VOCABULARY.order), machine._subsets
    expected = np.zeros(VOCABULARY.words, np.int32)
    used = stack_walker()(trie, subsets, place.state, frames, expected)
    assert used > 1
    size = place.state + 1 if which == "table" else len(subsets)
    assert subsets.returns[:, 2].max() >= size or which == "actions"
    table = subsets.table[:size].copy()
    frame, target = subsets.actions[np.maximum(ACTION - table, 0)].transpose(2, 0, 1)
    table[(table >= size) | ((table <= ACTION) & (frame != -1) & (target >= size))] = UNKNOWN
    actions = subsets.actions[: 0 if which == "actions" else None].copy()
    old = SimpleNamespace(table=table, actions=actions, returns=subsets.returns)

    def renew(*_: int) -> None:
        old.table, old.actions = subsets.table, subsets.actions

    old.expand = old.back = renew
    row = np.zeros(VOCABULARY.words, np.int32)
    assert stack_walker()(trie, old, place.state, frames, row) == used
    assert np.array_equal(row, expected)


def test_what_cannot_be_written_down_fails_each_time() -> None:
    builder = Builder(np.ones(256, np.bool_))
    automaton = builder.automaton
    automaton.start = builder.schema({"type": "array", "items": {"type": "null"}}, automaton.accept)
    subsets = Subsets(automaton)
    automaton.most = len(automaton.edges)
    for _ in range(2):
        with pytest.raises(GrammarFailure, match="became too complex"):
            subsets.expand(0)
    automaton.most = 1_000
    assert not subsets.accepts[0]
    assert subsets.only(0) == ord("[")


def test_threads_share_states_that_are_made_meanwhile() -> None:
    chance, spec = random.Random(1), ANY_OF[4]
    alone = NativeGrammar(machine_of(spec), VOCABULARY)
    texts: list[list[int]] = []
    for _ in range(12):
        place, text = alone.machine.start, list[int]()
        for _ in range(25):
            tokens = sorted(allowed(alone.mask(place)) - {len(VOCABULARY.tokens) - 1})
            if not tokens:
                break
            text.append(chance.choice([t for t in tokens if VOCABULARY.tokens[t][:1] in b'"{[}]:,1'] or tokens))
            place = alone.machine.read(place, VOCABULARY.tokens[text[-1]])
        texts.append(text)
    for _ in range(3):
        ENGINE._json.cache_clear()
        shared, failures = NativeGrammar(machine_of(spec), VOCABULARY), list[Any]()

        def run(first: int, shared: NativeGrammar = shared, failures: list[Any] = failures) -> None:
            for index in range(len(texts)):
                place, other = shared.machine.start, alone.machine.start
                for token in texts[(first + index) % len(texts)]:
                    if not np.array_equal(shared.mask(place), alone.mask(other)):
                        failures.append((first, index))
                    data = VOCABULARY.tokens[token]
                    place, other = shared.machine.read(place, data), alone.machine.read(other, data)

        threads = [threading.Thread(target=run, args=(3 * index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
