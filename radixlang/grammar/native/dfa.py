"""A deterministic automaton over bytes with numbered states, made from a nondeterministic one by subsets.

Each state is a set of nodes, held as the bits of an integer. Nodes from which the text cannot be finished are left
out, so every state can go on or may end. Must not know tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radixlang.grammar.native.regex import Automaton, Edges, Unsuitable

DEAD = -1
MAX_WORK = 120_000
"""edges looked at in one construction, about a tenth of a second"""


@dataclass(frozen=True)
class Dfa:
    """n states; the text begins in state 0. No states: it matches nothing."""

    table: npt.NDArray[np.int32]
    """[n, 256] the state that each byte leads to, DEAD for none"""
    accepts: npt.NDArray[np.bool_]
    """[n] the text may end here"""
    bounds: npt.NDArray[np.int64]
    """bytes at which anything changes: those from one to the next lead from any state to the same place"""

    def __len__(self) -> int:
        return len(self.accepts)


def build(automaton: Automaton, max_states: int, writable: npt.NDArray[np.bool_] | None = None) -> Dfa:
    """`writable` [256]: the bytes that there are; texts with others are left out.

    Raises:
        Unsuitable: it needs more than `max_states` states, or too much work.
    """
    edges = automaton.edges
    if writable is not None:
        edges = [tuple([edge for edge in some if writable[edge[0] : edge[1] + 1].any()]) for some in edges]
    if sum(map(bool, edges)) > 2 * max_states:
        raise Unsuitable(f"it needs about {sum(map(bool, edges))} states, more than {max_states}")
    ending = _ending(automaton)
    alive = _alive(automaton, edges, ending)
    reading = sum(1 << node for node, some in enumerate(edges) if some)
    closures = _Closures(automaton, alive & (reading | ending))
    start = closures.of(automaton.start, at_start=True)
    if not start & ending and _matches_nothing_read(automaton):
        start |= 1 << automaton.accept
    numbers, sets = ({start: 0}, [start]) if start else ({}, [])
    rows: list[list[tuple[int, int, int]]] = []
    bounds, work = {0, 256}, 0
    while len(rows) < len(sets):
        targets: dict[tuple[int, int], int] = {}
        state = sets[len(rows)]
        while state:
            node = (state & -state).bit_length() - 1
            state &= state - 1
            work += 1 + len(edges[node])
            for low, high, target in edges[node]:
                if closure := closures.of(target):
                    targets[low, high] = targets.get((low, high), 0) | closure
        row = []
        for low, high, target in _apart(targets):
            if target not in numbers:
                numbers[target] = len(sets)
                sets.append(target)
            row.append((low, high, numbers[target]))
            bounds.update((low, high))
        rows.append(row)
        if len(sets) > max_states:
            raise Unsuitable(f"it needs more than {max_states} states")
        if work > MAX_WORK:
            raise Unsuitable("its states take too long to make")
    table = np.full((len(sets), 256), DEAD, np.int32)
    for number, row in enumerate(rows):
        for low, high, target in row:
            table[number, low:high] = target
    if writable is not None:
        table[:, ~writable] = DEAD
        bounds.update(np.flatnonzero(writable[1:] != writable[:-1]) + 1)
    accepts = np.array([bool(one & ending) for one in sets], np.bool_)
    return Dfa(table, accepts, np.array(sorted(bounds)[:-1], np.int64))


def choice_dfa(choices: list[bytes], max_states: int) -> Dfa | None:
    """The tree of some texts, sorted and each once; None if it has more than `max_states` states."""
    rows: list[list[int]] = [[]]
    path, accepts, before = [0], set(), b""
    for text in choices:
        pairs = enumerate(zip(before, text, strict=False))
        shared = next((i for i, (one, other) in pairs if one != other), min(len(before), len(text)))
        if len(rows) + len(text) - shared > max_states:
            return None
        del path[shared + 1 :]
        for byte in text[shared:]:
            rows[path[-1]] += [byte, len(rows)]
            path.append(len(rows))
            rows.append([])
        accepts.add(path[-1])
        before = text
    table = np.full((len(rows), 256), DEAD, np.int32)
    for state, row in enumerate(rows):
        table[state, row[::2]] = row[1::2]
    cuts = {cut for text in choices for byte in set(text) for cut in (byte, byte + 1)} | {0}
    return Dfa(
        table,
        np.array([state in accepts for state in range(len(rows))], np.bool_),
        np.array(sorted(cuts), np.int64),
    )


def _apart(targets: dict[tuple[int, int], int]) -> list[tuple[int, int, int]]:
    """Byte ranges [low, high] that may overlap, as ranges [low, high) that do not, with all their nodes."""
    if len(targets) == 1:
        [((low, high), target)] = targets.items()
        return [(low, high + 1, target)]
    cuts = sorted({cut for low, high in targets for cut in (low, high + 1)})
    place = {cut: i for i, cut in enumerate(cuts)}
    sums = [0] * len(cuts)
    for (low, high), target in targets.items():
        for i in range(place[low], place[high + 1]):
            sums[i] |= target
    return [(cuts[i], cuts[i + 1], total) for i, total in enumerate(sums) if total]


def _ending(automaton: Automaton) -> int:
    """Nodes from which the end is reached for nothing, behind the start, as bits."""
    back: dict[int, list[int]] = {}
    for node, targets in enumerate(automaton.free):
        if node not in automaton.first:
            for target in targets:
                back.setdefault(target, []).append(node)
    return _closed(1 << automaton.accept, back)


def _matches_nothing_read(automaton: Automaton) -> bool:
    """Whether the empty text matches: there all anchors hold."""
    back: dict[int, list[int]] = {}
    for node, targets in enumerate(automaton.free):
        for target in targets:
            back.setdefault(target, []).append(node)
    return bool(_closed(1 << automaton.accept, back) >> automaton.start & 1)


def _alive(automaton: Automaton, edges: list[Edges], ending: int) -> int:
    """Nodes from which the end can be reached by reading, as bits."""
    back: dict[int, list[int]] = {}
    for node, targets in enumerate(automaton.free):
        if node not in automaton.last and node not in automaton.first:
            for target in targets:
                back.setdefault(target, []).append(node)
    for node, some in enumerate(edges):
        for _, _, target in some:
            back.setdefault(target, []).append(node)
    return _closed(ending, back)


def _closed(seeds: int, back: dict[int, list[int]]) -> int:
    found = 0
    stack = [node for node in range(seeds.bit_length()) if seeds >> node & 1]
    while stack:
        node = stack.pop()
        if not found >> node & 1:
            found |= 1 << node
            stack += back.get(node, ())
    return found


class _Closures:
    """Which nodes a node reaches for nothing, those of `keep`."""

    def __init__(self, automaton: Automaton, keep: int) -> None:
        self._automaton = automaton
        self._keep = {node for node in range(keep.bit_length()) if keep >> node & 1}
        self._known: dict[int, int] = {}
        self._work = 0

    def of(self, node: int, at_start: bool = False) -> int:
        """Itself and all others, as bits."""
        known = None if at_start else self._known.get(node)
        if known is not None:
            return known
        automaton, seen, stack = self._automaton, {node}, [node]
        while stack:
            one = stack.pop()
            if one in automaton.last or (one in automaton.first and not at_start):
                continue
            for other in automaton.free[one]:
                if other not in seen:
                    seen.add(other)
                    stack.append(other)
            self._work += len(automaton.free[one])
            if self._work > MAX_WORK:
                raise Unsuitable("its states take too long to make")
        found = sum(1 << one for one in seen & self._keep)
        if not at_start:
            self._known[node] = found
        return found
