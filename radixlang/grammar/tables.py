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
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from radixlang.grammar.canonical import CONTEXT, certain, head_of
from radixlang.grammar.filling import alone
from radixlang.grammar.grammar import Mask
from radixlang.grammar.native import NativeGrammar, NativeState
from radixlang.grammar.native.machines import Expression
from radixlang.grammar.native.pushdown import Pushdown
from radixlang.grammar.vocabulary import Vocabulary
from radixlang.plan import AUTOMATON_MASKS, AUTOMATON_STATES

MAX_WAYS = 16
"""ways to one place that are looked at"""
MAX_FOLLOWED = 20
"""tokens that are followed from one place"""
MAX_LOOKS = 1_000
"""ways altogether that are followed; one costs up to a tenth of a millisecond for each token"""


@dataclass(frozen=True, eq=False)
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
    stretch: int
    """tokens that may be forced at once, at most, as far as was looked"""
    places: dict[Any, int] | None = None
    """the state of each of the grammar's places, where these are not the same"""

    @property
    def nbytes(self) -> int:
        return self.next_byte.nbytes + self.mask_row.nbytes + self.masks.nbytes

    def without(self, tokens: Mask) -> AutomatonTable:
        """The same without the tokens of a mask [words], where anything else may follow."""
        rest = self.masks & ~tokens
        masks = np.where(rest.any(1, keepdims=True), rest, self.masks)
        return replace(self, masks=masks)

    def after(self, tokens: Iterable[bytes]) -> int:
        """The state behind the bytes of some tokens, as the device goes on by them."""
        state = 0
        for data in tokens:
            for byte in data:
                state = int(self.next_byte[state, byte])
            if not data or state < 0:
                return len(self.mask_row) - 1
        return state

    def state_of(self, state: NativeState) -> int:
        """Where a text stands that the host has followed so far."""
        place = state.place if self.places is None else self.places.get(state.place)
        return place if isinstance(place, int) else len(self.mask_row) - 1


def automaton_table(
    grammar: NativeGrammar, max_states: int = AUTOMATON_STATES, max_masks: int = AUTOMATON_MASKS
) -> AutomatonTable | None:
    """The table of a grammar; None if it needs more than `max_states` states or `max_masks` different masks."""
    machine, vocabulary = grammar.machine, grammar.vocabulary
    if isinstance(machine, Pushdown):
        flat = machine.flatten(max_states - 1)
        if flat is None:
            return None
        table = automaton_table(NativeGrammar(flat[0], vocabulary), max_states, max_masks)
        return None if table is None else replace(table, places=flat[1])
    if not isinstance(machine, Expression) or len(machine.dfa) >= max_states:
        return None
    ended = len(machine.dfa)
    next_byte = np.full((ended + 1, 256), -1, np.int16)
    next_byte[:ended] = machine.dfa.table
    narrowed, exact, stretch = _narrowed(grammar, machine)
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
            if row == max_masks:
                return None
            masks.append(mask)
        mask_row.append(row)
    return AutomatonTable(next_byte, np.array(mask_row, np.int32), np.stack(masks), exact, stretch)


def _narrowed(grammar: NativeGrammar, machine: Expression) -> tuple[dict[Any, int], bool, int]:
    """→ (the places where one token alone is canonical, and which; whether all ways to them were looked at; the
    most tokens that were certain at once)."""
    vocabulary = grammar.vocabulary
    if not any(map(machine.forced, range(len(machine.dfa)))):
        return {}, True, 0
    firsts: dict[Any, set[int | None]] = {}
    seen: dict[Any, set[tuple[int, ...]]] = {machine.start: {()}}
    todo: deque[tuple[Any, tuple[int, ...]]] = deque([(machine.start, ())])
    followed: dict[Any, list[int]] = {}
    exact, looks, stretch = True, 0, 0
    while todo:
        if looks == MAX_LOOKS:
            exact = False
            break
        looks += 1
        place, before = todo.popleft()
        forced = grammar.forced(place)
        state = NativeState(grammar, [place])
        head = head_of(list(before), vocabulary.tokens[forced[0]], vocabulary) if forced else b""
        sure = alone(certain(forced, head, state, vocabulary)) if forced else []
        stretch = max(stretch, len(sure))
        if forced:
            firsts.setdefault(place, set()).add(sure[0] if sure else None)
        tokens = sure[:1]
        if not sure:
            if place not in followed:
                ids = _allowed(grammar.mask(place) & ~vocabulary.eos_mask)
                if len(ids) > MAX_FOLLOWED:
                    exact = False
                    ids = ids[np.linspace(0, len(ids) - 1, MAX_FOLLOWED).astype(np.int64)]
                followed[place] = ids.tolist()
            tokens = followed[place]
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
    return narrowed, exact, stretch


def _allowed(mask: Mask) -> npt.NDArray[np.int64]:
    """The tokens whose bits are set."""
    words = np.flatnonzero(mask)
    bits = np.unpackbits(mask[words].view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    at, bit = np.nonzero(bits)
    return words[at] * 32 + bit


def _as_cut(way: tuple[int, ...], vocabulary: Vocabulary) -> bool:
    """Whether the tokenizer cuts a text from its beginning like this; of the middle of a text nobody can say."""
    try:
        text = b"".join(vocabulary.tokens[token] for token in way).decode()
    except UnicodeDecodeError:
        return True
    return len(way) == CONTEXT or vocabulary.encode(text) == list(way)
