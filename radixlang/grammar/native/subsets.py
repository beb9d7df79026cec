"""A deterministic automaton over bytes with a stack, made from a nondeterministic one while texts go along it.

States are sets of nodes, as in `dfa.py`; a state's row of the table is made when a text first comes to it, so
that a large constraint costs what its texts use of it. A call reads a byte, puts a frame on the stack (where the
text goes on behind what is called) and goes to what is called; a return takes the frame from the stack. Where
several things may be called at once and go on in different places, a state has a *slot* for each such place,
with the nodes of those that go on there.
Nodes from which the text cannot be finished are left out, so every state can go on or may end. Must not know
tokens.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import combinations

import numpy as np
import numpy.typing as npt

from radixlang.grammar.errors import GrammarFailure
from radixlang.grammar.native.dfa import DEAD
from radixlang.grammar.native.regex import Automaton, Edges, Unsuitable

UNKNOWN = -2
"""a row, or a place to return to, that has not been made yet"""
MAX_STATES = 65_536
"""states of one automaton, a kilobyte each"""
MAX_SLOTS = 8_192
MAX_EXPLORED_SLOTS = 4
WORK_OF_STATE = 8
"""looks at nodes that a state costs however few it has"""
ACTION = UNKNOWN - 1
"""of action 0"""

_TOO_COMPLEX = (
    "The constraint became too complex while its text was generated; "
    "use smaller repeats, shorter patterns or fewer alternatives."
)
Slots = tuple[tuple[int, ...], ...]
"""for each slot its nodes, sorted"""
_Behind = tuple[tuple[int, tuple[int, ...]], ...]
"""for some slots of the state that calls, sorted: the nodes where these go on"""
_Move = tuple[int, int, int]
"""(slot, target, behind): an edge or, where `behind` is not DEAD, a call"""


class Subsets:
    """Numbered states; the text begins in state 0. Rows change from UNKNOWN to what they are once and never again,
    so that who holds an old `table` misses rows and nothing else."""

    table: npt.NDArray[np.int32]
    """[n, 256] the state that each byte leads to; DEAD, UNKNOWN, or ACTION - a: action a"""
    actions: npt.NDArray[np.int32]
    """[a, 2] (frame, state): put the frame on the stack; (DEAD, slots): go back to where the frame on top says"""
    returns: npt.NDArray[np.int32]
    """[r, 3] (frame, slots, state): where to go on when what stands in these slots has returned. A hash table, r a
    power of two and half of it empty: found at `hashed(frame, slots)` or behind it; UNKNOWN where it is empty"""

    def __init__(self, automaton: Automaton, writable: npt.NDArray[np.bool_] | None = None) -> None:
        """`writable` [256]: the bytes that there are; texts with others are left out.

        Raises:
            Unsuitable: no text can be finished.
        """
        self._automaton = automaton
        self._unwritable = None if writable is None or writable.all() else ~writable
        self._written = [0, *np.cumsum(np.ones(256) if writable is None else writable).astype(int).tolist()]
        self._alive: set[int] = set()
        self._looked = 0
        """nodes that `_look` has seen"""
        self._closures: dict[int, frozenset[int]] = {}
        self._lock = threading.RLock()
        self.table = np.full((32, 256), UNKNOWN, np.int32)
        self.cells = memoryview(self.table.reshape(-1).data)
        """`table`, in one row"""
        self.actions = np.zeros((16, 2), np.int32)
        self.returns = np.full((32, 3), UNKNOWN, np.int32)
        self.accepts: list[bool] = []
        """the text may end in a state"""
        self._only: list[int] = []
        self._ways: list[tuple[int, ...]] = []
        """what stands in their rows, but DEAD"""
        self._sets: list[Slots] = []
        self._numbers: dict[Slots, int] = {}
        self._acted: dict[tuple[int, int], int] = {}
        self._frames: dict[tuple[int, tuple[_Behind, ...]], int] = {}
        self._behind: list[tuple[int, tuple[_Behind, ...]]] = []
        """of frames: how many slots the state has that calls; for each slot of what is called, where it goes on"""
        self._returning: dict[tuple[int, ...], int] = {}
        """numbers of sets of slots"""
        self._returned: dict[tuple[int, int], int] = {}
        """what `returns` holds"""
        self._look()
        if not self._closure(automaton.start):
            raise Unsuitable("no text of the model's tokens fulfils it")
        self._state([self._closure(automaton.start)])

    def __len__(self) -> int:
        return len(self._sets)

    @property
    def nbytes(self) -> int:
        """The automaton it is made from included."""
        return self.table.nbytes + 200 * len(self._sets) + 300 * len(self._automaton.edges)

    def expand(self, state: int) -> None:
        """Make a state's row.

        Raises:
            GrammarFailure: there are too many states.
        """
        try:
            self._expand(state)
        except Unsuitable:  # beyond what has been looked at beforehand
            raise GrammarFailure(_TOO_COMPLEX) from None

    def _expand(self, state: int) -> None:
        with self._lock:
            if self.table[state, 0] != UNKNOWN:
                return
            ways = self._find_ways(self._sets[state])
            row = np.full(256, DEAD, np.int32)
            for low, high, value in ways:
                row[low:high] = value
            if self._unwritable is not None:
                row[self._unwritable] = DEAD
                ways = [way for way in ways if self._written[way[0]] < self._written[way[1]]]
            self._ways[state] = tuple({value for *_, value in ways})
            self._only[state] = DEAD
            if len(ways) < 2:
                bytes_ = np.flatnonzero(row != DEAD)
                self._only[state] = int(bytes_[0]) if len(bytes_) == 1 else DEAD if len(bytes_) else UNKNOWN
            self.table[state] = row

    def only(self, state: int) -> int:
        """The only byte that may follow; DEAD if there are more, UNKNOWN if none."""
        self.expand(state)
        return self._only[state]

    def back(self, frame: int, slots: int) -> int:
        """The state behind a frame when what stands in some slots (the number of their set) has returned."""
        state = self._returned.get((frame, slots))
        if state is None:
            with self._lock:
                which = list(self._returning)[slots]
                width, behind = self._behind[frame]
                after: list[set[int]] = [set() for _ in range(width)]
                for slot in which:
                    for below, nodes in behind[slot]:
                        after[below].update(nodes)
                state = self._state(after)
                self._returned[frame, slots] = state
                self._keep(frame, slots, state)
        return state

    def _keep(self, frame: int, slots: int, state: int) -> None:
        if 2 * len(self._returned) > len(self.returns):
            self.returns = np.full((4 * len(self.returns), 3), UNKNOWN, np.int32)
            for (one, some), there in self._returned.items():
                self._keep(one, some, there)
            return
        at = hashed(frame, slots) & (len(self.returns) - 1)
        while self.returns[at, 0] != UNKNOWN and (self.returns[at, 0], self.returns[at, 1]) != (frame, slots):
            at = (at + 1) & (len(self.returns) - 1)
        self.returns[at] = frame, slots, state

    def after_plain(self, state: int) -> int:
        """The state that every plain character leads to, DEAD if none may stand there, UNKNOWN where they do not
        all lead to the same or that is not easily told."""
        slots = self._sets[state]
        if len(slots) > 1:
            return UNKNOWN
        automaton = self._automaton
        reading = [
            node
            for node in slots[0]
            if any(_reads_plain(*edge) for edge in automaton.edges[node])
            or any(_reads_plain(*way) for way in automaton.calls.get(node, _NO_CALLS)[0])
        ]
        if not reading:
            return DEAD
        if len(reading) > 1 or reading[0] not in automaton.plain:
            return UNKNOWN
        with self._lock:
            return self._state([self._closure(automaton.edges[reading[0]][0][2])])

    def explore_outside(self, most: int) -> None:
        """Make the states of several nodes outside of all that is called: who writes texts beside such must know
        that none goes on like another's call. (States of one node do not.)

        Raises:
            Unsuitable: that takes more than `most` looks at nodes, or some cannot be made.
        """
        automaton = self._automaton
        seen, stack, states = set[int](), [automaton.start], [0]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            after = [target for _, _, target in automaton.edges[node]]
            after += [automaton.calls[node][1]] if node in automaton.calls else []
            stack += [*automaton.free[node], *after]
            states += [self._state([found]) for found in map(self._closure, after) if len(found) > 1]
        done, work = set[int](), 0
        while states:
            state = states.pop()
            looks = sum(map(len, self._sets[state]))
            if state in done or looks < 2:
                continue
            done.add(state)
            work += WORK_OF_STATE + looks
            if work > most:
                raise Unsuitable("its states take too long to make")
            self._expand(state)
            for value in self._ways[state]:
                if value >= 0:
                    states.append(value)
                    continue
                frame, _ = self.actions[ACTION - value].tolist()
                if frame != DEAD:
                    slots = range(len(self._behind[frame][1]))
                    if len(slots) > MAX_EXPLORED_SLOTS:
                        raise Unsuitable("it goes on in too many ways behind one character")
                    for size in slots:  # whatever of it returns
                        for which in combinations(slots, size + 1):
                            number = self._returning.setdefault(which, len(self._returning))
                            states.append(self.back(frame, number))

    # ---- construction

    def _find_ways(self, slots: Slots) -> list[tuple[int, int, int]]:
        """What the bytes of each span [low, high) lead to."""
        spans: dict[tuple[int, int], list[_Move]] = {}
        automaton = self._automaton
        for slot, nodes in enumerate(slots):
            for node in nodes:
                for low, high, target in automaton.edges[node]:
                    spans.setdefault((low, high + 1), []).append((slot, target, DEAD))
                if node in automaton.calls:
                    ways, behind = automaton.calls[node]
                    if behind in self._alive:
                        for low, high, rule in ways:
                            if rule in self._alive:
                                spans.setdefault((low, high + 1), []).append((slot, rule, behind))
        if len(spans) == 1:
            [((low, high), moves)] = spans.items()
            return [(low, high, value)] if (value := self._target(moves, len(slots))) != DEAD else []
        cuts = sorted({cut for span in spans for cut in span})
        place = {cut: i for i, cut in enumerate(cuts)}
        over: list[list[tuple[int, int]]] = [[] for _ in cuts]
        for span in spans:
            for i in range(place[span[0]], place[span[1]]):
                over[i].append(span)
        known: dict[tuple[tuple[int, int], ...], int] = {(): DEAD}
        found = []
        for i, some in enumerate(map(tuple, over)):
            if some not in known:
                known[some] = self._target([move for span in some for move in spans[span]], len(slots))
            if known[some] != DEAD:
                found.append((cuts[i], cuts[i + 1], known[some]))
        return found

    def _target(self, moves: list[_Move], width: int) -> int:
        """What one byte leads to."""
        after: list[set[int]] = [set() for _ in range(width)]
        called: dict[int, dict[int, set[int]]] = {}
        for slot, target, behind in moves:
            if behind == DEAD:
                after[slot] |= self._closure(target)
            else:
                called.setdefault(target, {}).setdefault(slot, set()).update(self._closure(behind))
        kills = self._automaton.kills
        for nodes in after:
            if killers := [node for node in nodes if node in kills]:
                nodes.difference_update(killers, [kills[node] for node in killers])
        if any(self._automaton.returns in nodes for nodes in after):
            if called or any(nodes - {self._automaton.returns} for nodes in after):
                raise Unsuitable("what it calls may end and go on at once")
            which = tuple(i for i, nodes in enumerate(after) if nodes)
            return self._action(DEAD, self._returning.setdefault(which, len(self._returning)))
        if not called:
            return self._state(after) if any(after) else DEAD
        if any(after):
            raise Unsuitable("it may call something and go on by itself at once")
        slots: dict[_Behind, set[int]] = {}
        for rule, behinds in called.items():
            where = tuple([(slot, tuple(sorted(behinds[slot]))) for slot in sorted(behinds)])
            slots.setdefault(where, set()).update(self._closure(rule))
        if len(slots) > MAX_SLOTS:
            raise Unsuitable(f"more than {MAX_SLOTS} of its parts may stand in one place and go on differently")
        order = sorted(slots)
        return self._action(self._frame((width, tuple(order))), self._state([slots[behind] for behind in order]))

    def _state(self, slots: Iterable[Iterable[int]]) -> int:
        key = _sorted(slots)
        number = self._numbers.get(key)
        if number is None:
            number = len(self._sets)
            if number == MAX_STATES:
                raise GrammarFailure(_TOO_COMPLEX)
            if number == len(self.table):
                self.table = _larger(self.table, UNKNOWN)
                self.cells = memoryview(self.table.reshape(-1).data)
            self._sets.append(key)
            self.accepts.append(self._automaton.accept in key[0])
            self._only.append(DEAD)
            self._ways.append(())
            self._numbers[key] = number
        return number

    def _action(self, first: int, second: int) -> int:
        number = self._acted.setdefault((first, second), len(self._acted))
        if number == len(self.actions):
            self.actions = _larger(self.actions, 0)
        self.actions[number] = first, second
        return ACTION - number

    def _frame(self, behind: tuple[int, tuple[_Behind, ...]]) -> int:
        number = self._frames.get(behind)
        if number is None:
            number = self._frames[behind] = len(self._behind)
            self._behind.append(behind)
        return number

    def _closure(self, node: int) -> frozenset[int]:
        """The nodes that matter of those it leads to for nothing, itself included."""
        found = self._closures.get(node)
        if found is None:
            seen, stack, more = {node}, [node], set[int]()
            while stack:
                one = stack.pop()
                if one in self._automaton.pending:
                    self._automaton.free[one] = (self._automaton.pending[one](),)
                    del self._automaton.pending[one]  # not before: it may fail, and again
                    self._look()
                if one != node and (known := self._closures.get(one)) is not None:
                    more |= known
                    continue
                for other in self._automaton.free[one]:
                    if other not in seen:
                        seen.add(other)
                        stack.append(other)
            found = self._closures[node] = frozenset(more.union(filter(self._matters, seen)))
        return found

    def _look(self) -> None:
        """Find out which of the new nodes are alive: the text, or what was called, can be finished from them. New
        ones lead to new ones, and to old ones that are known; what is not written down yet can be finished, or it
        would not have been called. What kills counts as alive."""
        automaton, count, first = self._automaton, self._written, self._looked
        self._looked = len(automaton.edges)
        alive, stack = self._alive, [automaton.accept, automaton.returns] if not first else []
        back: list[list[int]] = [[] for _ in range(first, self._looked)]
        for node in range(first, self._looked):
            targets = list(automaton.free[node])
            targets += [target for low, high, target in automaton.edges[node] if count[low] < count[high + 1]]
            if node in automaton.calls:
                ways, behind = automaton.calls[node]
                targets += [behind] * any(count[low] < count[high + 1] for low, high, _ in ways)
            if node in automaton.kills or node in automaton.pending:
                stack.append(node)
            for target in targets:
                if target >= first:
                    back[target - first].append(node)
                elif target in alive:
                    stack.append(node)
        while stack:
            node = stack.pop()
            if node not in alive:
                alive.add(node)
                if node >= first:
                    stack += back[node - first]

    def _matters(self, node: int) -> bool:
        automaton = self._automaton
        return node in self._alive and (
            bool(automaton.edges[node])
            or node in automaton.calls
            or node in (automaton.accept, automaton.returns)
            or node in automaton.kills
        )


_NO_CALLS: tuple[Edges, int] = ((), DEAD)


def hashed(frame: int, slots: int) -> int:
    """Where `Subsets.returns` holds a pair, first of all."""
    return frame * 40503 + slots * 9973


def _sorted(slots: Iterable[Iterable[int]]) -> Slots:
    return tuple(tuple(sorted(nodes)) for nodes in slots)


def _larger(array: npt.NDArray[np.int32], fill: int) -> npt.NDArray[np.int32]:
    """A copy with twice the rows."""
    out = np.full((2 * len(array), *array.shape[1:]), fill, np.int32)
    out[: len(array)] = array
    return out


def _reads_plain(low: int, high: int, _target: int) -> bool:
    """Whether an edge reads a byte that a plain character begins with: others are quotes and backslashes alone."""
    return (low, high) not in ((0x22, 0x22), (0x5C, 0x5C))
