"""Masks of many states at once are those of each state alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from radixlang.grammar import filling
from radixlang.grammar.canonical import CanonicalState
from radixlang.grammar.filling import alone, together
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.llg import CROWDED, LANES, LlguidanceEngine, LlguidanceState, MatcherJob
from radixlang.grammar.native import NativeEngine
from radixlang.messages import GrammarSpec
from tests.grammar.conftest import bits

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 30}, "size": {"enum": ["big", "small"]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}


class Step:
    """A job that writes down its turn."""

    def __init__(self, name: str, done: list[str]) -> None:
        self.name, self.done = name, done

    def run(self) -> None:
        self.done.append(self.name)

    @classmethod
    def run_all(cls, jobs: Sequence[Any]) -> None:
        jobs[0].done.append(" ".join(job.name for job in jobs))


def steps(name: str, count: int, done: list[str], breaks: bool = False) -> Any:
    for at in range(count):
        yield Step(f"{name}{at}", done)
    if breaks:
        raise ValueError(name)
    return name


def test_jobs_of_one_round_are_done_together(monkeypatch) -> None:
    monkeypatch.setattr(filling, "THREADS", 2)
    done: list[str] = []
    failed = together(
        [
            steps("a", 1, done),
            steps("b", 2, done),
            steps("c", 0, done),
            steps("d", 1, done, True),
            steps("e", 3, done),
        ]
    )
    assert done == ["a0 b0 d0 e0", "b1", "e1", "e2"]
    assert {at: str(error) for at, error in failed.items()} == {3: "d"}


class Breaking(Step):
    """A library that panics at one job, whatever stands beside it."""

    def run(self) -> None:
        if "!" in self.name:
            raise BaseException(self.name)
        super().run()

    @classmethod
    def run_all(cls, jobs: Sequence[Any]) -> None:
        for job in jobs:
            job.run()


@pytest.mark.parametrize("count", [2, 5])
def test_a_job_that_fails_fails_its_filling_alone(count: int, monkeypatch) -> None:
    monkeypatch.setattr(filling, "THREADS", 2)
    done: list[str] = []

    def twice(name: str) -> Any:
        yield Breaking(name, done)
        yield Breaking(name + "'", done)

    failed = together([twice(name) for name in ("a", "b!", "c", "d", "e")[:count]])
    assert {at: str(error) for at, error in failed.items()} == {1: "b!"}
    assert {name for name in done if "'" in name} == {f"{name}'" for name in "acde"[: count - 1]}


def test_alone_returns_what_the_filling_returns() -> None:
    done: list[str] = []
    assert alone(steps("a", 2, done)) == "a"
    assert done == ["a0", "a1"]
    with pytest.raises(ValueError, match="b"):
        alone(steps("b", 1, done, True))


def test_many_states_get_the_masks_that_each_gets_alone(vocabulary, monkeypatch) -> None:
    monkeypatch.setattr(filling, "THREADS", 2)
    engine, native = LlguidanceEngine(vocabulary, GrammarLimits()), NativeEngine(vocabulary, GrammarLimits())
    schema = engine.compile(GrammarSpec("json_schema", json.dumps(SCHEMA)))
    regex = native.compile(GrammarSpec("regex", "(ab|[c-f]{3,9}) items?"))
    rng = np.random.default_rng(3)
    states = [CanonicalState(grammar.start(), vocabulary) for grammar in [schema, regex] * 12]
    seen = []
    for _ in range(12):
        rows = np.zeros((len(states), vocabulary.words), np.int32)
        expected = np.zeros_like(rows)
        for state, row in zip([state.copy() for state in states], expected, strict=True):
            state.fill(row)
        assert not together([state.filling(row) for state, row in zip(states, rows, strict=True)])
        assert np.array_equal(rows, expected)
        for state, row in zip(states, rows, strict=True):
            seen.append(int(rng.choice(np.flatnonzero(bits(row)))))
            assert state.accept(seen[-1])
    assert len(set(seen)) > 20


def test_a_grammar_of_many_texts_has_several_matchers_and_states_move_to_theirs(vocabulary, monkeypatch) -> None:
    moved = threading.Event()
    monkeypatch.setattr("radixlang.grammar.llg.THREADS", 3)
    monkeypatch.setattr("radixlang.grammar.llg.later", lambda work: (work(), moved.set()))
    grammar = LlguidanceEngine(vocabulary, GrammarLimits()).lark("start: /[a-d]{2,40}/", "ebnf")
    small = grammar.nbytes
    states = [grammar.start() for _ in range(CROWDED)]
    assert moved.is_set()
    assert len(grammar.matchers) == 3 * LANES
    assert grammar.nbytes == 3 * LANES * small
    texts = ["ab", "cd", "ba", "dd"]
    alike = []
    for state, text in zip(states, texts, strict=True):
        for token in vocabulary.encode(text):
            assert state.accept(token)
        alike.append(state.copy())
    lanes = [lanes_of(state, vocabulary) for state in states]
    assert len(set(lanes)) == len(states)
    for state, other in zip(states, alike, strict=True):
        row, expected = (np.zeros(vocabulary.words, np.int32) for _ in range(2))
        state.fill(row)
        other._number = other._lane  # stays where it is
        other.fill(expected)
        assert np.array_equal(row, expected)
        state.rollback(1)
        other.rollback(1)
        state.fill(row)
        other.fill(expected)
        assert np.array_equal(row, expected)


def lanes_of(state: LlguidanceState, vocabulary: Any) -> int:
    job = next(state.filling(np.zeros(vocabulary.words, np.int32)))
    assert isinstance(job, MatcherJob)
    return job.lane
