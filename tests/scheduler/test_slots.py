"""Slots of the device: what is loaded when, and what leaves for what."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from radixlang.grammar.tables import AutomatonTable
from radixlang.plan import TOKEN_BYTES, LoadAutomaton, LoadTokens
from radixlang.scheduler.slots import AutomatonSlots

TOKENS = [b"a", b"bb", b""]


def table() -> AutomatonTable:
    """a, then bb, then the end."""
    following = np.full((5, 256), -1, np.int16)
    following[0, ord("a")], following[1, ord("b")], following[2, ord("b")] = 1, 2, 3
    masks = np.array([[1], [2], [4]], np.int32)
    return AutomatonTable(following, np.array([0, 1, 1, 2, 2], np.int32), masks, True, 0)


def request(one: AutomatonTable, *output: int) -> Any:
    return SimpleNamespace(table=one, automaton=None, output=lambda: np.array(output, np.int32))


def slots_of(count: int, tokens: list[bytes] = TOKENS) -> AutomatonSlots:
    lengths = np.array([len(token) for token in tokens], np.int32)
    vocabulary = SimpleNamespace(tokens=tokens, lengths=lengths, size=len(tokens))
    return AutomatonSlots(count, lambda: vocabulary)  # type: ignore[arg-type,return-value]


def loaded(slots: AutomatonSlots) -> list[int]:
    """Slots that the device must load."""
    return [action.slot for action in slots.take_actions() if isinstance(action, LoadAutomaton)]


def test_the_least_recently_used_that_nobody_follows_leaves() -> None:
    slots, tables = slots_of(2), [table() for _ in range(3)]
    first, second, third = map(request, tables)
    assert slots.enter(first)
    tokens, automaton = slots.take_actions()
    assert isinstance(tokens, LoadTokens)
    assert isinstance(automaton, LoadAutomaton)
    assert (tokens.letters.tobytes(), tokens.ends.tolist()) == (b"abb", [0, 1, 3, 3])
    assert slots.enter(second)
    assert loaded(slots) == [second.automaton[0]] != [first.automaton[0]]
    assert not slots.enter(third), "both are followed"
    slots.leave(second)
    slots.leave(second)
    assert slots.enter(third)
    place = third.automaton
    assert loaded(slots) == [place[0]]
    slots.leave(third)
    slots.leave(first)
    again = request(tables[2])
    assert slots.enter(again)
    assert again.automaton == place
    assert loaded(slots) == [], "it lies there still"
    assert slots.enter(second)
    assert loaded(slots) == [1 - place[0]]


@pytest.mark.parametrize(("output", "state"), [((), 0), ((0,), 1), ((0, 1), 3), ((0, 1, 2), 4), ((0, 2), 4)])
def test_a_request_goes_on_behind_its_tokens(output: tuple[int, ...], state: int) -> None:
    slots = slots_of(1)
    one = request(table(), *output)
    assert slots.enter(one)
    assert one.automaton == (0, state)


def test_everything_is_loaded_anew_when_a_step_has_failed() -> None:
    slots, one = slots_of(1), request(table())
    slots.enter(one)
    slots.leave(one)
    slots.forget()
    assert slots.take_actions() == ()
    slots.enter(one)
    assert [type(action) for action in slots.take_actions()] == [LoadTokens, LoadAutomaton]


def test_tokens_that_are_too_long_for_the_device() -> None:
    slots = slots_of(1, [b"x" * 3 * TOKEN_BYTES, b"", b"y"])
    assert not slots.enter(request(table()))
    assert slots.take_actions() == ()
