"""Slots of automata, and rows that follow them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixlang.errors import EngineError
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
    return Automata(6, TOKENS, CpuPlatform(), slots=3, mask_rows=8)


def rows(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def free(automata: Automata, *numbers: int) -> list[set[int]]:
    logits = torch.zeros((len(numbers), 4))
    automata.mask(logits, rows(*numbers))
    return [set(row.isfinite().nonzero()[:, 0].tolist()) for row in logits]


def test_rows_follow_their_automata(automata) -> None:
    automata.load(1, *automaton(b"aab"))
    automata.load(2, *automaton(b"ba"))
    automata.place([1, 2, 5], [(1, 0), (2, 0), (1, 1)])
    everything = {A, B, AB, END}
    assert free(automata, 1, 2, 3, 5) == [{A}, {B}, everything, {A, AB}]
    automata.advance(torch.tensor([A, B, B, AB]), rows(1, 2, 3, 5))
    assert free(automata, 5, 3, 2, 1) == [{END}, everything, {A}, {A, AB}]
    automata.advance(torch.tensor([END, A]), rows(5, 2))
    assert free(automata, 5, 2) == [{END}, {END}]
    automata.place([5, 2], [None, (2, 1)])
    assert free(automata, 5, 2) == [everything, {A}]


def test_rows_that_draw_nothing_stay(automata) -> None:
    automata.load(0, *automaton(b"ab"))
    automata.place([1, 2], [(0, 0), (0, 0)])
    drawn = torch.tensor([-1, 0])
    automata.advance(torch.tensor([A, A]), rows(1, 2), drawn)
    assert automata.tables.state[1:3].tolist() == [0, 1]
    logits = torch.zeros((2, 4))
    automata.mask(logits, rows(1, 2), drawn)
    assert logits[0].isfinite().all()
    assert not logits[1].isfinite().all()


@pytest.mark.parametrize("token", [B, END, 77, -1])
def test_what_may_not_stand_ends_the_text(automata, token) -> None:
    """Nothing ever sets a row free by accident."""
    automata.load(0, *automaton(b"ab"))
    automata.place([1], [(0, 0)])
    automata.advance(torch.tensor([token]), rows(1))
    assert free(automata, 1) == [{END}]


def test_a_slot_is_used_again(automata) -> None:
    automata.load(0, *automaton(b"aabbab"))
    automata.load(0, *automaton(b"b"))
    automata.place([1], [(0, 0)])
    assert free(automata, 1) == [{B}]


def test_room(automata) -> None:
    assert automata.fits(SPAN, 8)
    assert not automata.fits(SPAN + 1, 1)
    assert not automata.fits(3, 9)
    for slot, text in ((3, b"a"), (-1, b"a"), (0, b"ab" * 10)):
        with pytest.raises(EngineError, match="does not fit"):
            automata.load(slot, *automaton(text))
