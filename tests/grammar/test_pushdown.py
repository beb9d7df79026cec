"""Automata with a stack: masks against reading every token, what places share, depth, threads, tables."""

from __future__ import annotations

import json
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from radixlang.grammar.canonical import CanonicalState, Shared
from radixlang.grammar.errors import GrammarFailure
from radixlang.grammar.grammar import Mask
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.native import NativeEngine, NativeGrammar
from radixlang.grammar.native.pushdown import Place, Pushdown, Stack
from radixlang.grammar.native.schema import Builder
from radixlang.grammar.native.subsets import ACTION, UNKNOWN, Subsets
from radixlang.grammar.native.trie import TokenTrie, stack_walker, walk_stacks
from radixlang.grammar.residual import ResidualGrammar
from radixlang.grammar.tables import automaton_table
from radixlang.grammar.vocabulary import Vocabulary
from radixlang.messages import GrammarSpec
from tests.grammar.conftest import allowed, at_once, small_vocabulary
from tests.grammar.test_trie import reading

PIECES = [
    *(b'", "', b'"}, {"', b'"}', b"]}", b"}]}", b"[[", b'{"', b'": ', b'": [', b'": {"a": ', b"ab", b"a"),
    *(b"\xc3", b'\xa9"', b"\\n", b'\\"', b"1, ", b"true", b"], ["),
]
"""tokens that open and close, several levels at once"""
TOKENS = Vocabulary(
    [*(bytes([byte]) for byte in range(256)), *PIECES, b""], (256 + len(PIECES),), lambda text: list(text.encode())
)
ITEM = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}, "b": {"type": "array"}}}
SCHEMAS: list[Any] = [
    {},
    {"type": "object", "properties": {"x": {"type": "array", "items": ITEM, "minItems": 2}}, "required": ["x"]},
    {"$defs": {"t": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "string"}]}}},
     "$ref": "#/$defs/t"},
    {"anyOf": [{"type": "object", "properties": {"a": {**ITEM, "required": ["a"]}, "b": {"const": "a"}}},
               {"type": "object", "properties": {"a": {**ITEM, "required": ["b"]}, "b": {"const": "ab"}}}]},
]  # fmt: skip
NESTED = {
    "$defs": {"x": {"type": "object", "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/x"}}},
                    "additionalProperties": {"$ref": "#/$defs/x"}}}, "$ref": "#/$defs/x"
}  # fmt: skip


def compiled(schema: Any, vocabulary: Vocabulary = TOKENS) -> NativeGrammar:
    made = NativeEngine(vocabulary, GrammarLimits()).compile(GrammarSpec("json_schema", json.dumps(schema)))
    inner = made.inner if isinstance(made, ResidualGrammar) else made
    assert isinstance(inner, NativeGrammar)
    assert isinstance(inner.machine, Pushdown)
    return inner


def walks(grammar: NativeGrammar, seed: int, steps: int = 40, texts: int = 6) -> list[Place]:
    """Places of random texts, which rather go on than end."""
    rng, out = random.Random(seed), []
    for _ in range(texts):
        place = grammar.machine.start
        for _ in range(steps):
            out.append(place)
            tokens = sorted(allowed(grammar.machine.tokens(place)))
            if not tokens:
                break
            longer = [token for token in tokens if len(TOKENS.tokens[token]) > 1]
            place = grammar.machine.read(
                place, TOKENS.tokens[rng.choice(longer if longer and rng.random() < 0.6 else tokens)]
            )
            assert place is not None
    return out


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_masks_are_the_tokens_that_can_be_read(schema: Any) -> None:
    grammar = compiled(schema)
    depths, walked = set(), walks(grammar, 1)
    for place in walked:
        depths.add(len(place.stack.top(99)))
        readable = {
            i for i, data in enumerate(TOKENS.tokens) if data and grammar.machine.read(place, data) is not None
        }
        assert allowed(grammar.mask(place)) - set(TOKENS.eos_ids) == readable
        masks: list[Mask] = []
        used = set()
        for walk in (walk_stacks, stack_walker()):
            masks.append(np.zeros(TOKENS.words, np.int32))
            frames = place.stack.top(TOKENS.longest)
            machine = grammar.machine
            used.add(tuple(
                walk(trie, machine._subsets, place.state, frames, masks[-1]) for trie in machine._tries
            ))  # fmt: skip
        assert len(used) == 1
        assert allowed(masks[0]) == allowed(masks[1]) == readable
    assert max(depths) > 3


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_places_share_masks_only_where_these_are_equal(schema: Any) -> None:
    one = compiled(schema)
    places = [place for seed in range(4) for place in walks(one, seed)]
    random.Random(3).shuffle(places)
    for place in places:
        fresh = one.machine.tokens(place)
        assert np.array_equal(one.mask(place) & TOKENS.going_on, fresh)
    assert len(one._masks) < len(set(places))


def test_equal_stacks_are_one_object_while_they_are_used() -> None:
    empty = Stack()
    one = empty.push(3).push(4)
    assert one is empty.push(3).push(4)
    assert one is not empty.push(4).push(3)
    assert one.top(9) == [3, 4]
    assert one.top(1) == [4]
    assert empty.top(9) == []
    del one
    assert not empty._open.known


def test_any_depth() -> None:
    grammar = compiled({})
    state = grammar.start()
    for text in (b"[[[" * 40_000, b'{"a": ' * 20_000):
        state = grammar.start()
        assert all(map(state.accept, text))
        row = np.zeros(TOKENS.words, np.int32)
        state.fill(row)
        assert set(b'"[{1tfn') <= allowed(row)
    closing = compiled({}).start()
    assert all(map(closing.accept, b"[" * 3_000 + b"]" * 3_000))
    assert closing.can_end
    assert closing.finished


def test_threads_share_an_automaton() -> None:
    """It grows while others read it."""
    properties = {
        f"key{i}": {"type": "object", "properties": {f"k{j}": ITEM for j in range(4)}} for i in range(30)
    }
    schema = {"type": "object", "properties": properties, "additionalProperties": {"type": "array", "items": ITEM}}
    shared, alone = compiled(schema), compiled(schema)

    def masks(seed: int) -> list[set[int]]:
        return [allowed(shared.mask(place)) for place in walks(shared, seed, texts=3)]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(masks, range(16)))
    assert found == [[allowed(alone.mask(place)) for place in walks(alone, seed, texts=3)] for seed in range(16)]


def test_what_nests_within_bounds_is_written_out_for_a_device() -> None:
    schema = {
        **ITEM,
        "properties": {"a": ITEM["properties"]["a"], "c": {"enum": [["x"], {}]}},
        "additionalProperties": False,
    }
    grammar = compiled(schema)
    table = automaton_table(grammar)
    assert table is not None
    for text in (b'{"a": "ab', b'{"c": ["x', b'{"a": "\xc3\xa9", "c": {}', b'{"c": {}}'):
        state = grammar.start()
        assert all(map(state.accept, text))
        row = np.zeros(TOKENS.words, np.int32)
        state.fill(row)
        assert allowed(table.masks[table.mask_row[table.state_of(state)]]) >= allowed(row)
        assert table.state_of(state) == table.after([text])
    assert automaton_table(compiled({})) is None


def test_known_masks_are_ready() -> None:
    grammar, shared = compiled({"type": "object", "properties": {"ab": ITEM}, "required": ["ab"]}), Shared()
    row, ready = np.zeros(TOKENS.words, np.int32), 0
    for turn in range(2):
        state = CanonicalState(grammar.start(), TOKENS, shared)
        for token in b'{"ab": {"a": "x", "b": [1, "y"]}}':
            known = state.ready()
            if known is not None:
                state.copy().fill(row)
                assert np.array_equal(row, known)
                ready += turn
            state.fill(row)
            assert state.accept(token)
        assert state.ready() is None or turn
    assert ready > 25


@pytest.mark.parametrize("most", [1, 11, 12, 13, 30])
def test_tokens_inside_of_counted_strings(most) -> None:
    """The longest token has twelve plain characters: fewer are left long before the end."""
    vocabulary = small_vocabulary(*("a" * size for size in range(1, 13)), '"', "é", 'aa"', "\\n", "\\")
    machine = compiled({"type": "string", "maxLength": most}, vocabulary).machine
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

            at_once(run, 4)
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
    machine = compiled(NESTED).machine
    assert isinstance(machine, Pushdown)
    place = machine.read(machine.start, b'{"a": [{"b": {"a": [')
    assert place is not None
    frames, trie, subsets = place.stack.top(99), TokenTrie(TOKENS, TOKENS.order), machine._subsets
    expected = np.zeros(TOKENS.words, np.int32)
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
    row = np.zeros(TOKENS.words, np.int32)
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
