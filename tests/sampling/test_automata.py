"""Slots of automata, and rows that follow them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixlang.errors import EngineError
from radixlang.kernels.automaton_tables import ENDED
from radixlang.plan import AUTOMATON_MASKS, TOKEN_BYTES
from radixlang.platforms.cpu import CpuPlatform
from radixlang.sampling.automata import SPAN, Automata

TOKENS = [b"a", b"b", b"ab", b""]
A, B, AB, END = range(4)


def automaton(text: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The text, and nothing else, over the four tokens."""
    states = len(text) + 2
    following = np.full((states, 256), -1, np.int16)
    masks = []
    for at in range(len(text)):
        following[at, text[at]] = at + 1
        masks.append(sum(1 << i for i, token in enumerate(TOKENS[:3]) if text[at:].startswith(token)))
    masks += [1 << END, 1 << END]
    return following.ravel(), np.arange(states, dtype=np.int32), np.array(masks, np.int32)


@pytest.fixture
def automata() -> Automata:
    made = Automata(6, len(TOKENS), CpuPlatform(), slots=3)
    ends = np.cumsum([0, *map(len, TOKENS)]).astype(np.int32)
    made.load_tokens(np.frombuffer(bytearray().join(TOKENS), np.uint8), ends)
    return made


def place(automata: Automata, rows: list[int], automaton: list[tuple[int, int] | None]) -> None:
    for row, one in zip(rows, automaton, strict=True):
        automata.setup(row, one)
    automata.settle()


def step(automata: Automata, tokens: list[int], *numbers: int, drawn: torch.Tensor | None = None) -> list[bool]:
    """→ which rows have ended"""
    flags = torch.zeros(len(numbers), dtype=torch.int32)
    automata.advance(torch.tensor(tokens), rows(*numbers), flags, drawn)
    return [bool(flag & ENDED) for flag in flags.tolist()]


def rows(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def free(automata: Automata, *numbers: int) -> list[set[int]]:
    logits = torch.zeros((len(numbers), 4))
    automata.mask(logits, rows(*numbers))
    return [set(row.isfinite().nonzero()[:, 0].tolist()) for row in logits]


def test_rows_follow_their_automata(automata) -> None:
    automata.load(1, *automaton(b"aab"))
    automata.load(2, *automaton(b"ba"))
    place(automata, [1, 2, 5], [(1, 0), (2, 0), (1, 1)])
    everything = {A, B, AB, END}
    assert free(automata, 1, 2, 3, 5) == [{A}, {B}, everything, {A, AB}]
    assert step(automata, [A, B, B, AB], 1, 2, 3, 5) == [False, False, False, True]
    assert free(automata, 5, 3, 2, 1) == [{END}, everything, {A}, {A, AB}]
    assert step(automata, [END, A], 5, 2) == [True, True]
    assert free(automata, 5, 2) == [{END}, {END}]
    place(automata, [5, 2], [None, (2, 1)])
    assert free(automata, 5, 2) == [everything, {A}]


def test_rows_that_draw_nothing_stay(automata) -> None:
    automata.load(0, *automaton(b"ab"))
    place(automata, [1, 2], [(0, 0), (0, 0)])
    drawn = torch.tensor([-1, 0])
    assert step(automata, [A, A], 1, 2, drawn=drawn) == [False, False]
    assert automata.tables.state[1:3].tolist() == [0, 1]
    logits = torch.zeros((2, 4))
    automata.mask(logits, rows(1, 2), drawn)
    assert logits[0].isfinite().all()
    assert not logits[1].isfinite().all()


@pytest.mark.parametrize("token", [B, END, 77, -1])
def test_what_may_not_stand_ends_the_text(automata, token) -> None:
    """Nothing ever sets a row free by accident."""
    automata.load(0, *automaton(b"ab"))
    place(automata, [1], [(0, 0)])
    assert step(automata, [token], 1) == [True]
    assert free(automata, 1) == [{END}]


def test_a_slot_is_used_again(automata) -> None:
    automata.load(0, *automaton(b"aabbab"))
    automata.load(0, *automaton(b"b"))
    place(automata, [1], [(0, 0)])
    assert free(automata, 1) == [{B}]


def test_a_row_is_free_again(automata) -> None:
    """Also one that was set up twice before anything was put in place."""
    automata.load(0, *automaton(b"ab"))
    automata.setup(1, (0, 0))
    automata.setup(2, (0, 0))
    automata.setup(1, None)
    automata.settle()
    assert free(automata, 1, 2, 3) == [{A, B, AB, END}, {A, AB}, {A, B, AB, END}]
    automata.setup(3, None)
    automata.setup(2, None)
    automata.setup(1, (0, 1))
    automata.settle()
    assert free(automata, 1, 2) == [{B}, {A, B, AB, END}]


def test_room(automata) -> None:
    words = 1
    for slot, states, masks in ((3, 3, 1), (-1, 3, 1), (0, SPAN + 1, 1), (0, 3, AUTOMATON_MASKS + 1)):
        arrays = np.zeros(256 * states, np.int16), np.zeros(states, np.int32), np.zeros(masks * words, np.int32)
        with pytest.raises(EngineError, match="does not fit"):
            automata.load(slot, *arrays)
    for letters, ends in ((5 * TOKEN_BYTES, 5), (3, 4)):
        with pytest.raises(EngineError, match="has room for 4 of 64"):
            automata.load_tokens(np.zeros(letters, np.uint8), np.zeros(ends, np.int32))
