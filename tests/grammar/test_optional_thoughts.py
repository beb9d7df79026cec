"""A constraint behind thoughts that the model may leave out: its first token tells."""

from __future__ import annotations

import numpy as np
import pytest

from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.llg import LlguidanceEngine
from radixlang.grammar.thinking import ThinkingGrammar
from radixlang.messages import GrammarSpec


@pytest.fixture(scope="module")
def marks(vocabulary) -> tuple[int, int]:
    """Two special tokens as the marks around thoughts."""
    begin, end = (vocabulary.special[name] for name in ("<repo_name>", "<reponame>"))
    return begin, end


@pytest.fixture(scope="module")
def grammar(vocabulary, marks) -> ThinkingGrammar:
    inner = LlguidanceEngine(vocabulary, GrammarLimits()).compile(GrammarSpec("regex", "abc"))
    return ThinkingGrammar(inner, (marks[1],), 3, vocabulary, marks[0])


def allowed(state, vocabulary) -> set[int]:
    row = np.zeros(vocabulary.words, np.int32)
    state.fill(row)
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def test_without_thoughts(grammar, vocabulary, marks) -> None:
    state = grammar.start()
    assert state.forced() == []
    assert not state.can_end
    first = allowed(state, vocabulary)
    assert marks[0] in first
    assert vocabulary.encode("x")[0] not in first
    assert all(map(state.accept, vocabulary.encode("abc")))
    assert state.can_end
    assert marks[0] not in allowed(state, vocabulary)
    assert not state.accept(marks[0])


def test_with_thoughts(grammar, vocabulary, marks) -> None:
    state = grammar.start()
    assert state.accept(marks[0])
    free = allowed(state, vocabulary)
    assert vocabulary.encode("x")[0] in free
    assert not free & set(vocabulary.eos_ids)
    assert state.accept(vocabulary.encode("x")[0])
    assert state.accept(vocabulary.encode("y")[0])
    assert state.forced() == [marks[1]]  # the budget
    assert state.accept(marks[1])
    assert not state.accept(vocabulary.encode("x")[0])
    assert all(map(state.accept, vocabulary.encode("abc")))
    assert state.can_end


def test_rollback_to_the_choice(grammar, vocabulary, marks) -> None:
    state = grammar.start()
    before = allowed(state, vocabulary)
    state.accept(marks[0])
    state.accept(marks[1])
    state.accept(vocabulary.encode("abc")[0])
    state.rollback(3)
    assert allowed(state, vocabulary) == before
    state.accept(vocabulary.encode("abc")[0])
    copy = state.copy()
    state.rollback(1)
    assert allowed(state, vocabulary) == before
    assert marks[0] not in allowed(copy, vocabulary)
