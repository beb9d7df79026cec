"""Small automata as dense arrays, for a device that masks and steps by itself. numpy only; must not know devices.

The arrays hold what `NativeState` would say at every place, and what `CanonicalState` would narrow it to. The
latter looks at the tokens before the place, which a table cannot: a place is narrowed to one token where that
is the canonical one behind every way there that was looked at. Ways that the tokenizer itself would not go do
not count: their texts are not canonical any more. All others are looked at where they are few (`exact`);
otherwise some of each place's are, and what is not the same behind all of them is left open. Either way every
text that a table allows matches; where it is not exact, a text may in rare cases be cut unlike the tokenizer's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from radixlang.grammar.canonical import CONTEXT, certain
from radixlang.grammar.grammar import Mask
from radixlang.grammar.native import NativeGrammar, NativeState
from radixlang.grammar.native.machines import Expression
from radixlang.grammar.vocabulary import Vocabulary

MAX_STATES = 512
MAX_WAYS = 16
"""ways to one place that are looked at"""
MAX_FOLLOWED = 64
"""tokens that are followed from one place"""
MAX_LOOKS = 1_500
"""ways altogether; one costs up to a tenth of a millisecond"""


@dataclass(frozen=True)
class AutomatonTable:
    """n states, the last of which is where the text has ended; the text begins in state 0."""

    next_byte: npt.NDArray[np.int16]
    """[n, 256] the state that each byte leads to; -1 where it may not stand"""
    mask_row: npt.NDArray[np.int32]
    """[n] row of `masks`"""
    masks: npt.NDArray[np.int32]
    """[m, words] each once"""
    exact: bool
    """texts that are cut as the tokenizer cuts them are narrowed wherever the host would"""

    @property
    def nbytes(self) -> int:
        return self.next_byte.nbytes + self.mask_row.nbytes + self.masks.nbytes

    def state_of(self, state: NativeState) -> int:
        """Where a text stands that the host has followed so far."""
        place = state.place
        return place if isinstance(place, int) else len(self.mask_row) - 1


def automaton_table(grammar: NativeGrammar, max_states: int = MAX_STATES) -> AutomatonTable | None:
    """The table of a grammar; None if it needs more than `max_states` states."""
    machine, vocabulary = grammar.machine, grammar.vocabulary
    if not isinstance(machine, Expression) or len(machine.dfa) >= max_states:
        return None
    ended = len(machine.dfa)
    next_byte = np.full((ended + 1, 256), -1, np.int16)
    next_byte[:ended] = machine.dfa.table
    narrowed, exact = _narrowed(grammar)
    known: dict[bytes, int] = {}
    masks: list[Mask] = []
    mask_row = []
    for place in [*range(ended), None]:
        if place is None:
            mask = vocabulary.eos_mask
        elif place in narrowed:
            mask = vocabulary.mask_of([narrowed[place]])
        else:
            mask = grammar.mask(place)
        row = known.setdefault(mask.tobytes(), len(masks))
        if row == len(masks):
            masks.append(mask)
        mask_row.append(row)
    return AutomatonTable(next_byte, np.array(mask_row, np.int32), np.stack(masks), exact)


def _narrowed(grammar: NativeGrammar) -> tuple[dict[Any, int], bool]:
    """→ (the places where one token alone is canonical, and which; whether all ways to them were looked at)."""
    vocabulary, machine = grammar.vocabulary, grammar.machine
    firsts: dict[Any, set[int | None]] = {}
    seen: dict[Any, set[tuple[int, ...]]] = {machine.start: {()}}
    todo: deque[tuple[Any, tuple[int, ...]]] = deque([(machine.start, ())])
    exact, looks = True, 0
    while todo:
        if looks == MAX_LOOKS:
            exact = False
            break
        looks += 1
        place, before = todo.popleft()
        forced = grammar.forced(place)
        sure = certain(forced, list(before), NativeState(grammar, [place]), vocabulary) if forced else []
        if forced:
            firsts.setdefault(place, set()).add(sure[0] if sure else None)
        tokens = sure[:1]
        if not sure:
            bits = np.unpackbits(grammar.mask(place).view(np.uint8), bitorder="little")
            bits[list(vocabulary.eos_ids)] = 0
            ids = np.flatnonzero(bits)
            if len(ids) > MAX_FOLLOWED:
                exact = False
                ids = ids[np.linspace(0, len(ids) - 1, MAX_FOLLOWED).astype(np.int64)]
            tokens = ids.tolist()
        for token in tokens:
            after = machine.read(place, vocabulary.tokens[token])
            way = (*before, token)[-CONTEXT:]
            ways = seen.setdefault(after, set())
            if way in ways or not _as_cut(way, vocabulary):
                continue
            if len(ways) >= MAX_WAYS:
                exact = False
                continue
            ways.add(way)
            todo.append((after, way))
    narrowed: dict[Any, int] = {}
    for place, found in firsts.items():
        first, *others = found
        if first is not None and not others:
            narrowed[place] = first
        elif others:
            exact = False
    return narrowed, exact or not any(map(machine.forced, seen))


def _as_cut(way: tuple[int, ...], vocabulary: Vocabulary) -> bool:
    """Whether the tokenizer cuts a text from its beginning like this; of the middle of a text nobody can say."""
    try:
        text = b"".join(vocabulary.tokens[token] for token in way).decode()
    except UnicodeDecodeError:
        return True
    return len(way) == CONTEXT or vocabulary.encode(text) == list(way)
