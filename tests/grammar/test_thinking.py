"""Thoughts in front of a constrained answer."""

from __future__ import annotations

import numpy as np
import pytest

from radixlang.grammar.canonical import CanonicalState
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.native import NativeEngine
from radixlang.grammar.thinking import AnyGrammar, ThinkingGrammar, ThinkingState
from radixlang.grammar.vocabulary import Vocabulary
from radixlang.messages import GrammarSpec
from tests.grammar.conftest import allowed, small_vocabulary

VOCABULARY: Vocabulary = small_vocabulary("a", "b", "<", "/t", ">")
A, B, LOW, T, HIGH, END = range(6)


def begin(end: tuple[int, ...] = (LOW, T, HIGH), budget: int | None = None, inner=None) -> ThinkingState:
    inner = inner or NativeEngine(VOCABULARY, GrammarLimits()).compile(GrammarSpec("regex", "ab|b"))
    return ThinkingGrammar(inner, end, budget, VOCABULARY).start()


def mask(state) -> set[int]:
    row = np.zeros(VOCABULARY.words, np.int32)
    state.fill(row)
    return allowed(row)


def test_the_constraint_begins_behind_the_thoughts() -> None:
    state = begin()
    assert mask(state) == {A, B, LOW, T, HIGH}
    for token in (B, B, LOW, LOW, T, A, LOW, T):
        assert state.accept(token)
        assert not state.can_end
        assert not state.accept(END)
    assert state.accept(HIGH)
    assert mask(state) == {A, B}
    assert not state.accept(LOW)
    assert state.accept(A)
    assert state.accept(B)
    assert state.finished
    assert mask(state) == {END}
    assert state.accept(END)


def test_rollback_over_the_seam() -> None:
    state = begin(end=(HIGH,))
    for token in (A, HIGH, A, B, END):
        assert state.accept(token)
    other = state.copy()
    state.rollback(4)
    assert mask(state) == {A, B, LOW, T, HIGH}
    assert state.accept(HIGH)
    assert mask(state) == {A, B}
    assert other.finished
    other.rollback(1)
    assert mask(other) == {END}


@pytest.mark.parametrize(("written", "rest"), [((), 3), ((LOW,), 2), ((LOW, T), 1), ((LOW, LOW), 2), ((T,), 3)])
def test_a_budget_forces_the_end(written, rest) -> None:
    state = begin(budget=4)
    for token in (A, A, A, A, *written)[-4:]:
        assert state.forced() == []
        assert state.accept(token)
    end = [LOW, T, HIGH][3 - rest :]
    assert state.forced() == end
    for token in end:
        assert mask(state) == {token}
        assert state.accept(token)
    assert mask(state) == {A, B}


def test_an_answer_without_constraint() -> None:
    state = begin(end=(HIGH,), budget=1, inner=AnyGrammar(VOCABULARY))
    assert state.accept(A)
    assert state.forced() == [HIGH]
    assert state.accept(HIGH)
    assert mask(state) == set(range(6))
    assert state.forced() == []
    assert state.accept(END)
    assert state.finished
    state.rollback(1)
    assert not state.finished


def test_forced_tokens_behind_the_thoughts_are_canonical() -> None:
    class Canonical:
        nbytes = 0

        def start(self) -> CanonicalState:
            inner = NativeEngine(VOCABULARY, GrammarLimits()).compile(GrammarSpec("regex", "ab"))
            return CanonicalState(inner.start(), VOCABULARY)

    state = begin(end=(HIGH,), inner=Canonical())
    assert state.accept(HIGH)
    assert state.forced() == [A, B]
