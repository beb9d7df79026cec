"""Deterministic states made when they are met, with masks that are kept.

A state is a set of nodes of the nondeterministic automaton, held as the bits of an integer. Its row of the table
(the state each byte leads to) is made when a token's bytes first pass through it, its mask when a text first stops
in it. When there are too many states all are forgotten and made anew: texts hold sets, not numbers.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from radixlang.grammar.grammar import Mask
from radixlang.grammar.native.regex import Automaton
from radixlang.grammar.native.trie import TokenTrie, spread
from radixlang.grammar.vocabulary import Vocabulary

DEAD = -1
MAX_MASK_BYTES = 64 << 20
_ROOM = 64


class LazyAutomaton:
    """One automaton over one vocabulary, shared by all texts and threads."""

    def __init__(self, automaton: Automaton, trie: TokenTrie, vocabulary: Vocabulary, max_states: int) -> None:
        self._trie = trie
        self._vocabulary = vocabulary
        self._max_states = max_states
        self._lock = threading.RLock()
        self._ending = _ending(automaton)
        self._edges = automaton.edges
        self._closures = _Closures(automaton, self._ending)
        self._reading = sum(1 << node for node, edges in enumerate(automaton.edges) if edges)
        self.start = self._closures.of(automaton.start, at_start=True) & (self._reading | self._ending)
        self._forget()

    def _forget(self) -> None:
        self._numbers: dict[int, int] = {}
        self._sets: list[int] = []
        self._table: npt.NDArray[np.int32] = np.full((_ROOM, 256), DEAD, np.int32)
        self._made: list[bool] = []
        self._masks: dict[int, Mask] = {}
        self._forced: dict[int, bytes] = {}
        self._steps: dict[tuple[int, int], int] = {}

    @property
    def nbytes(self) -> int:
        """What it may grow to is bounded; this is about what it holds."""
        return self._table.nbytes + len(self._masks) * 4 * self._vocabulary.words + 200 * len(self._edges)

    def accepts(self, state: int) -> bool:
        """The text may end here."""
        return bool(state & self._ending)

    def only_end(self, state: int) -> bool:
        """No byte may follow."""
        return not state & self._reading

    def step(self, state: int, token: int) -> int:
        """The state after a token; 0, the empty set, where it may not stand."""
        known = self._steps.get((state, token))
        if known is not None:
            return known
        data = self._vocabulary.tokens[token] if 0 <= token < self._vocabulary.size else b""
        after = self.read(state, data) if data else 0
        if len(self._steps) > 100_000:
            self._steps.clear()
        self._steps[state, token] = after
        return after

    def read(self, state: int, data: bytes) -> int:
        """The state after some bytes; 0 where they may not stand."""
        with self._lock:
            at = self._number(state)
            for byte in data:
                at = int(self._row(at)[byte])
                if at == DEAD:
                    return 0
            return self._sets[at]

    def forced(self, state: int) -> bytes:
        """The bytes that must follow, up to the first choice."""
        known = self._forced.get(state)
        if known is not None:
            return known
        out = bytearray()
        with self._lock:
            at = self._number(state)
            seen = set()
            while not self._sets[at] & self._ending and at not in seen:
                seen.add(at)
                ways = np.flatnonzero(self._row(at) != DEAD)
                if len(ways) != 1:
                    break
                out.append(int(ways[0]))
                at = int(self._row(at)[ways[0]])
            self._forced[state] = bytes(out)
        return bytes(out)

    def mask(self, state: int) -> Mask:
        """The tokens that may follow; not to be written to."""
        known = self._masks.get(state)
        if known is not None:
            return known
        with self._lock:
            if (
                len(self._sets) > self._max_states
                or len(self._masks) * 4 * self._vocabulary.words > MAX_MASK_BYTES
            ):
                self._forget()
            mask = self._vocabulary.mask_of(self._walk(self._number(state)))
            if self.accepts(state):
                mask |= self._vocabulary.eos_mask
            self._masks[state] = mask
        return mask

    def _walk(self, at: int) -> npt.NDArray[np.int32]:
        """Ids of the tokens all of whose bytes can be read from a state."""
        trie, found = self._trie, []
        nodes = np.arange(trie.roots)
        came = np.full(len(nodes), at, np.int32)
        for depth, level in enumerate(trie.levels):
            for state in np.unique(came).tolist():
                self._row(state)
            now = self._table[came, level.byte[nodes]]
            live = now != DEAD
            nodes, now = nodes[live], now[live]
            if not len(nodes):
                break
            ends = level.tokens[nodes]
            some = ends[:, 0] < ends[:, 1]
            if some.any():
                found.append(trie.order[spread(ends[some, 0], ends[some, 1])[0]])
            if depth + 1 == len(trie.levels):
                break
            nodes, of = spread(level.children[nodes], level.children[nodes + 1])
            came = now[of]
        return np.concatenate(found) if found else np.zeros(0, np.int32)

    # ---- states ----

    def _number(self, state: int) -> int:
        number = self._numbers.get(state)
        if number is None:
            number = self._numbers[state] = len(self._sets)
            self._sets.append(state)
            self._made.append(False)
            if number == len(self._table):
                self._table = np.concatenate([self._table, np.full_like(self._table, DEAD)])
        return number

    def _row(self, number: int) -> npt.NDArray[np.int32]:
        """[256] the numbers of the states that each byte leads to."""
        if not self._made[number]:
            state = self._sets[number]
            targets = [0] * 256
            while state:
                node = (state & -state).bit_length() - 1
                state &= state - 1
                for low, high, target in self._edges[node]:
                    closure = self._closures.of(target)
                    for byte in range(low, high + 1):
                        targets[byte] |= closure
            keep = self._reading | self._ending
            row = [self._number(target & keep) if target & keep else DEAD for target in targets]
            self._table[number] = row
            self._made[number] = True
        return self._table[number]


def _ending(automaton: Automaton) -> int:
    """Nodes from which the end is reached for nothing, as bits."""
    back: dict[int, list[int]] = {}
    for node, targets in enumerate(automaton.free):
        for target in targets:
            back.setdefault(target, []).append(node)
    found, stack = 0, [automaton.accept]
    while stack:
        node = stack.pop()
        if not found >> node & 1:
            found |= 1 << node
            stack += [other for other in back.get(node, ()) if other not in automaton.first]
    return found


class _Closures:
    """Which nodes a node reaches for nothing."""

    def __init__(self, automaton: Automaton, ending: int) -> None:
        self._automaton = automaton
        self._alive = _alive(automaton, ending)
        self._known: dict[int, int] = {}

    def of(self, node: int, at_start: bool = False) -> int:
        """Itself and all others, as bits; only those from which the text can be finished."""
        known = None if at_start else self._known.get(node)
        if known is not None:
            return known
        automaton, found, stack = self._automaton, 0, [node]
        while stack:
            one = stack.pop()
            if found >> one & 1:
                continue
            found |= 1 << one
            if one in automaton.last or (one in automaton.first and not at_start):
                continue
            stack += automaton.free[one]
        found &= self._alive
        if not at_start:
            self._known[node] = found
        return found


def _alive(automaton: Automaton, ending: int) -> int:
    """Nodes from which the end can be reached, as bits."""
    back: dict[int, list[int]] = {}
    for node, targets in enumerate(automaton.free):
        for target in targets if node not in automaton.last else ():
            back.setdefault(target, []).append(node)
    for node, edges in enumerate(automaton.edges):
        for _, _, target in edges:
            back.setdefault(target, []).append(node)
    found, stack = 0, [node for node in range(len(automaton.edges)) if ending >> node & 1]
    while stack:
        node = stack.pop()
        if not found >> node & 1:
            found |= 1 << node
            stack += back.get(node, ())
    return found
