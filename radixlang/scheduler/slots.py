"""Which constraints lie in the device's slots for automata, and whose rows follow them there.

A request that has a place in a slot needs no masks: the device masks and steps its row, and says when the text has
ended. The host's `GrammarState` stands still meanwhile. Must not know rows, plans' layout or how tables are made.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from radixlang.grammar.tables import AutomatonTable
from radixlang.grammar.vocabulary import Vocabulary
from radixlang.plan import TOKEN_BYTES, Action, LoadAutomaton, LoadTokens
from radixlang.scheduler.request import Request


class AutomatonSlots:
    """`count` slots. A table stays where it is until another needs its slot and no row follows it."""

    def __init__(self, count: int, vocabulary: Callable[[], Vocabulary]) -> None:
        self._vocabulary = vocabulary
        self._free = list(range(count))
        self._slots: OrderedDict[AutomatonTable, int] = OrderedDict()
        """what lies where, the least recently used first"""
        self._users = [0] * count
        """requests whose rows follow each slot's automaton"""
        self._knows_tokens = False
        self._actions: list[Action] = []

    def enter(self, request: Request) -> bool:
        """Give a request that is about to get a row a place in a slot: where its `table` stands behind its tokens.
        False: there is none."""
        table = request.table
        assert table is not None
        slot = self._slots.get(table)
        if slot is None:
            slot = self._load(table)
            if slot is None:
                return False
        self._slots.move_to_end(table)
        self._users[slot] += 1
        tokens = self._vocabulary().tokens
        request.automaton = (slot, table.after(tokens[token] for token in request.output().tolist()))
        return True

    def leave(self, request: Request) -> None:
        """The request gives its row back."""
        if request.automaton is not None:
            self._users[request.automaton[0]] -= 1
            request.automaton = None

    def take_actions(self) -> tuple[Action, ...]:
        """What the device must load before the next step."""
        actions, self._actions = tuple(self._actions), []
        return actions

    def forget(self) -> None:
        """Nobody knows any more what the device has loaded. All requests have left."""
        self._free += self._slots.values()
        self._slots.clear()
        self._actions.clear()
        self._knows_tokens = False

    def _load(self, table: AutomatonTable) -> int | None:
        if not (self._knows_tokens or self._load_tokens()):
            return None
        if self._free:
            slot = self._free.pop()
        else:
            idle = next((one for one, slot in self._slots.items() if not self._users[slot]), None)
            if idle is None:
                return None
            slot = self._slots.pop(idle)
        self._slots[table] = slot
        flat = (table.next_byte.ravel(), table.mask_row, table.masks.ravel())
        self._actions.append(LoadAutomaton(slot, *flat))
        return slot

    def _load_tokens(self) -> bool:
        vocabulary = self._vocabulary()
        letters = np.frombuffer(bytearray().join(vocabulary.tokens), np.uint8)
        if len(letters) > TOKEN_BYTES * vocabulary.size:
            return False
        ends = np.zeros(vocabulary.size + 1, np.int32)
        np.cumsum(vocabulary.lengths, out=ends[1:])
        self._actions.append(LoadTokens(letters, ends))
        self._knows_tokens = True
        return True
