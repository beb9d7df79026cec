"""What nests, as a `Machine`: a place is a state of `Subsets` and the stack of what is open there.

Few tokens reach beyond what is open where they begin, so a mask depends on the state and on as many frames from
the top of the stack as some token returns through: mostly none, seldom more than one. Places where these are equal
share it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Iterator
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from radixlang.grammar.grammar import Mask
from radixlang.grammar.native.dfa import DEAD, Dfa
from radixlang.grammar.native.machines import Expression
from radixlang.grammar.native.plain import PlainTokens
from radixlang.grammar.native.subsets import ACTION, UNKNOWN, Subsets
from radixlang.grammar.native.trie import TokenTrie, TokenTries, stack_walker

MAX_FORCED = 4_096
"""bytes that are looked ahead"""
MAX_OPEN = 16
"""frames on the stack of a place that a flat automaton can have"""


class Stack:
    """What is open around a place; equal ones are one object while it is in use."""

    __slots__ = ("__weakref__", "_open", "below", "frame")

    def __init__(self, frame: int = DEAD, below: Stack | None = None) -> None:
        """By itself the empty one."""
        self.frame = frame
        self.below = below
        self._open: _Open = _Open() if below is None else below._open

    def push(self, frame: int) -> Stack:
        """With a frame on top."""
        key = id(self), frame  # nothing else gets this id as long as the one above is in use
        above = self._open.known.get(key)
        if above is None:
            with self._open.lock:
                above = self._open.known.get(key)
                if above is None:
                    above = self._open.known[key] = Stack(frame, self)
        return above

    def top(self, most: int) -> list[int]:
        """Up to so many of its frames, the last the topmost."""
        frames: list[int] = []
        stack = self
        while stack.below is not None and len(frames) < most:
            frames.append(stack.frame)
            stack = stack.below
        return frames[::-1]


class _Open:
    """All stacks above an empty one, each once."""

    def __init__(self) -> None:
        self.known: WeakValueDictionary[tuple[int, int], Stack] = WeakValueDictionary()
        self.lock = threading.Lock()


class Place(NamedTuple):
    """Where a text stands."""

    state: int
    stack: Stack


class Pushdown:
    """A constraint over one vocabulary (see `machines.Machine`). Its states are made as texts go along it."""

    def __init__(self, subsets: Subsets, tries: TokenTries, words: int, plain: PlainTokens) -> None:
        self.start = Place(0, Stack())
        self._subsets = subsets
        self._tries = tries
        self._words = words
        self._plain = plain
        self._runs: dict[int, int] = {}
        """by state: how many plain characters may follow, as far as tokens reach; DEAD: depends on which"""
        self._after_plain: dict[int, int] = {}
        self._deeper: set[Hashable] = set()
        """keys that do not tell what a mask depends on"""
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        return self._subsets.nbytes

    def read(self, place: Place, data: bytes) -> Place | None:
        state, stack = place
        subsets = self._subsets
        cells = subsets.cells
        for byte in data:
            after = cells[state << 8 | byte]
            if after < DEAD:
                if after == UNKNOWN:
                    subsets.expand(state)
                    cells = subsets.cells
                    after = cells[state << 8 | byte]
                if after <= ACTION:
                    frame, after = subsets.actions[ACTION - after].tolist()
                    if frame == DEAD:
                        assert stack.below is not None
                        after, stack = subsets.back(stack.frame, after), stack.below
                        cells = subsets.cells
                    else:
                        stack = stack.push(frame)
            if after == DEAD:
                return None
            state = after
        return Place(state, stack)

    def accepts(self, place: Place) -> bool:
        return self._subsets.accepts[place.state]

    def only_end(self, place: Place) -> bool:
        return self._subsets.only(place.state) == UNKNOWN

    def forced(self, place: Place) -> bytes:
        out = bytearray()
        now: Place | None = place
        while now is not None and len(out) < MAX_FORCED and not self.accepts(now):
            byte = self._subsets.only(now.state)
            if byte < 0:
                break
            out.append(byte)
            now = self.read(now, bytes((byte,)))
        return bytes(out)

    def key(self, place: Place) -> Hashable:
        """What its mask depends on, as far as is known."""
        key: Hashable = place.state
        if key in self._deeper:
            stack = place.stack
            while key in self._deeper:
                key = (key, stack.frame)
                stack = stack.below or stack
        return key

    def tokens(self, place: Place) -> Mask:
        with self._lock:
            tries: tuple[TokenTrie, ...]
            run = self._plain_run(place.state)
            if run:
                mask, tries = self._plain.masks[run].copy(), (self._plain.others,)
            else:
                mask, tries = np.zeros(self._words, np.int32), self._tries
            used = max(
                stack_walker()(trie, self._subsets, place.state, place.stack.top(trie.longest), mask)
                for trie in tries
            )
            key: Hashable = place.state
            stack = place.stack
            for _ in range(used):
                self._deeper.add(key)
                key = (key, stack.frame)
                stack = stack.below or stack
            return mask

    def _plain_run(self, state: int) -> int:
        """What `_runs` says of a state; 0 where that depends on the characters."""
        way: list[int] = []
        runs, most = self._runs, len(self._plain.masks) - 1
        at = state
        while at not in runs and len(way) < most:
            after = self._after_plain.get(at)
            if after is None:
                after = self._after_plain[at] = self._subsets.after_plain(at)
            if after == UNKNOWN:
                runs.update(dict.fromkeys([*way, at], DEAD))
            elif after == DEAD:
                runs[at] = 0
            elif after == at:
                runs[at] = most
            else:
                way.append(at)
                at = after
        if at not in runs:  # those behind the first one are not followed far enough yet
            runs[state] = most
            return most
        count = runs[at]
        for one in reversed(way):
            count = runs[one] = DEAD if count == DEAD else min(most, count + 1)
        return max(count, 0)

    def forget(self) -> None:
        """Nothing is kept but states."""

    def _ways(self, place: Place) -> Iterator[tuple[np.ndarray, Place]]:
        """For each place that a byte leads to: which bytes do, [256]."""
        subsets = self._subsets
        subsets.expand(place.state)
        row = subsets.table[place.state]
        for value in set(row.tolist()) - {DEAD}:
            same = row == value
            after = self.read(place, bytes((int(same.argmax()),)))
            assert after is not None
            yield same, after

    def flatten(self, max_states: int) -> tuple[Expression, dict[Place, int]] | None:
        """The same without a stack, and which of its states each place is; None if it has more than `max_states`
        places."""
        numbers: dict[Place, int] = {self.start: 0}
        todo: deque[Place] = deque([self.start])
        rows: list[np.ndarray] = []
        while todo:
            row = np.full(256, DEAD, np.int32)
            for same, after in self._ways(todo.popleft()):
                if after not in numbers:
                    if len(numbers) == max_states or len(after.stack.top(MAX_OPEN + 1)) > MAX_OPEN:
                        return None
                    numbers[after] = len(numbers)
                    todo.append(after)
                row[same] = numbers[after]
            rows.append(row)
        table = np.stack(rows)
        changes = (table[:, 1:] != table[:, :-1]).any(0)
        bounds = np.concatenate([[0], np.flatnonzero(changes) + 1]).astype(np.int64)
        accepts = np.array([self.accepts(place) for place in numbers], np.bool_)
        return Expression(Dfa(table, accepts, bounds), self._tries, self._words, self._plain), numbers
