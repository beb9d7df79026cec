"""Automata of the strings in which some patterns are found and others are not (subset construction), and one
pattern for each (state elimination). Knows nothing of schemas, or of what is asked of an automaton.
"""

from __future__ import annotations

from collections.abc import Iterator

from radixlang.grammar.kept import kept
from radixlang.grammar.ranges import LAST, Ranges, union
from radixlang.grammar.schema.regex import (
    ANY,
    Tree,
    UnsupportedPatternError,
    looks,
    parse,
    write_set,
)

_MAX_NFA = 3_000
_MAX_DFA = 64
_MAX_RANGES = 400  # of characters that the moves tell apart
MAX_TEXT = 1_000  # characters of a pattern that is made here
SHORT = 1 << 12  # characters of patterns of which many results are kept; those of formats have up to 4,000

Terms = tuple[tuple[str, bool], ...]


def size_of(terms: Terms) -> int:
    """Characters of all patterns."""
    return sum(len(source) for source, _ in terms)


class _Nfa:
    """Thompson's construction, with the two anchors as guarded empty moves."""

    def __init__(self) -> None:
        self.empty: list[list[tuple[int, str]]] = []
        self.moves: list[list[tuple[Ranges, int]]] = []

    def state(self) -> int:
        if len(self.empty) >= _MAX_NFA:
            raise UnsupportedPatternError("it is too large to compare")
        self.empty.append([])
        self.moves.append([])
        return len(self.empty) - 1

    def add(self, tree: Tree, start: int) -> int:
        """Put `tree` behind `start`; returns where it ends."""
        kind = tree[0]
        if kind == "cat":
            for part in tree[1]:
                start = self.add(part, start)
            return start
        end = self.state()
        if kind == "set":
            self.moves[start].append((tree[1], end))
        elif kind == "alt":
            for option in tree[1]:
                self.empty[self.add(option, start)].append((end, ""))
        elif kind in ("start", "end"):
            self.empty[start].append((end, kind))
        elif kind == "rep":
            _, inner, low, high = tree
            for _ in range(low):
                start = self.add(inner, start)
            if high is None:
                loop = self.state()
                self.empty[start].append((loop, ""))
                self.empty[self.add(inner, loop)].append((loop, ""))
                start = loop
            else:
                for _ in range(high - low):
                    self.empty[start].append((end, ""))
                    start = self.add(inner, start)
            self.empty[start].append((end, ""))
        else:
            raise UnsupportedPatternError("it cannot be compared")
        return end

    def closure(self, states: frozenset[int], *guards: str) -> frozenset[int]:
        seen, stack = set(states), list(states)
        while stack:
            for target, guard in self.empty[stack.pop()]:
                if target not in seen and (not guard or guard in guards):
                    seen.add(target)
                    stack.append(target)
        return frozenset(seen)


class _Search:
    """The strings in which one tree is found, as a deterministic automaton that is unfolded on demand."""

    def __init__(self, tree: Tree) -> None:
        self.nfa = nfa = _Nfa()
        first = nfa.state()
        nfa.moves[first].append((ANY, first))
        self.final = nfa.add(tree, first)
        nfa.moves[self.final].append((ANY, self.final))
        self.initial = nfa.closure(frozenset([first]), "start")
        self._accepting: dict[frozenset[int], bool] = {}

    def step(self, states: frozenset[int], code: int) -> frozenset[int]:
        moves = self.nfa.moves
        return self.nfa.closure(
            frozenset(t for s in states for ranges, t in moves[s] if any(a <= code <= b for a, b in ranges))
        )

    def row(self, states: frozenset[int]) -> list[tuple[int, frozenset[int]]]:
        """All steps at once: the codes from which on one leads to other states than before, and to which."""
        changes: dict[int, list[tuple[int, int]]] = {0: []}
        for state in states:
            for ranges, target in self.nfa.moves[state]:
                for low, high in ranges:
                    changes.setdefault(low, []).append((target, 1))
                    changes.setdefault(high + 1, []).append((target, -1))
        changes.pop(LAST + 1, None)
        active: dict[int, int] = {}
        closed: dict[frozenset[int], frozenset[int]] = {}
        out: list[tuple[int, frozenset[int]]] = []
        for code in sorted(changes):
            for target, count in changes[code]:
                active[target] = active.get(target, 0) + count
                if not active[target]:
                    del active[target]
            first = frozenset(active)
            if first not in closed:
                closed[first] = self.nfa.closure(first)
            if not out or closed[first] != out[-1][1]:
                out.append((code, closed[first]))
        return out

    def accepts(self, states: frozenset[int]) -> bool:
        if states not in self._accepting:
            guards = ("start", "end") if states == self.initial else ("end",)
            self._accepting[states] = self.final in self.nfa.closure(states, *guards)
        return self._accepting[states]


@kept(many=128, short=SHORT, few=4, size=size_of)
def searches(terms: Terms) -> list[tuple[_Search, bool]]:
    return [
        (_Search(tree), sign) for pattern, wanted in terms for tree, sign in _split(parse(pattern).tree, wanted)
    ]


def _split(tree: Tree, wanted: bool) -> list[tuple[Tree, bool]]:
    """Take leading look-aheads out: `^(?!x)y` is "y from the start, and not x from the start"."""
    if not looks(tree):
        return [(tree, wanted)]
    parts = tree[1] if tree[0] == "cat" else ()
    if not wanted or not parts or parts[0] != ("start",):
        raise UnsupportedPatternError("it looks around")
    rest = list(parts[1:])
    out: list[tuple[Tree, bool]] = []
    while rest and rest[0][0] == "look":
        _, inner, positive = rest.pop(0)
        if looks(inner):
            raise UnsupportedPatternError("it looks around")
        out.append((("cat", (("start",), inner)), positive))
    if any(map(looks, rest)):
        raise UnsupportedPatternError("it looks around")
    return [*out, (("cat", (("start",), *rest)), True)]


class Product:
    """The deterministic automaton of all terms, unfolded as it is asked for. State 0 begins.

    Raises:
        UnsupportedPatternError: at any time, where it becomes too large.
    """

    def __init__(self, terms: Terms, most: int = _MAX_DFA) -> None:
        """`most`: states."""
        self._most = most
        self._parts = searches(terms)
        cuts = {0, LAST + 1}
        for part, _ in self._parts:
            for moves in part.nfa.moves:
                for ranges, _target in moves:
                    for low, high in ranges:
                        cuts.update((low, high + 1))
        if len(cuts) > _MAX_RANGES + 1:
            raise UnsupportedPatternError("it has too many character ranges to compare")
        self._states = [tuple(part.initial for part, _ in self._parts)]
        self._index = {self._states[0]: 0}
        self._edges: dict[int, dict[int, Ranges]] = {}
        self._rows: list[dict[frozenset[int], list[tuple[int, frozenset[int]]]]] = [{} for _ in self._parts]

    def accepting(self, state: int) -> bool:
        return all(
            part.accepts(each) == sign for (part, sign), each in zip(self._parts, self._states[state], strict=True)
        )

    def edges(self, state: int) -> dict[int, Ranges]:
        """The states behind `state`, and the characters that lead there."""
        found = self._edges.get(state)
        if found is None:
            found = self._edges[state] = self._unfold(state)
        return found

    def complete(self) -> bool:
        """Whether all of it is unfolded."""
        return len(self._edges) == len(self._states)

    def live(self) -> set[int]:
        """The states from which the end can be reached; unfolds all."""
        sources: dict[int, list[int]] = {}
        for state in self.states():
            for target in self.edges(state):
                sources.setdefault(target, []).append(state)
        stack = [state for state in self.states() if self.accepting(state)]
        live = set(stack)
        while stack:
            for source in sources.get(stack.pop(), []):
                if source not in live:
                    live.add(source)
                    stack.append(source)
        return live

    def states(self) -> Iterator[int]:
        """All of them, in the order in which they are found."""
        for state, _ in enumerate(self._states):
            self.edges(state)
            yield state

    def _unfold(self, state: int) -> dict[int, Ranges]:
        changes: dict[int, list[tuple[int, frozenset[int]]]] = {}
        for at, each in enumerate(self._states[state]):
            row = self._rows[at].get(each)
            if row is None:
                row = self._rows[at][each] = self._parts[at][0].row(each)
            for code, target in row:
                changes.setdefault(code, []).append((at, target))
        edges: dict[int, list[tuple[int, int]]] = {}
        codes = sorted(changes)
        now = list(self._states[state])
        for low, behind in zip(codes, [*codes[1:], LAST + 1], strict=True):
            for at, target in changes[low]:
                now[at] = target
            targets = tuple(now)
            number = self._index.get(targets)
            if number is None:
                if len(self._states) >= self._most:
                    raise UnsupportedPatternError("it has too many states to compare")
                number = self._index[targets] = len(self._states)
                self._states.append(targets)
            edges.setdefault(number, []).append((low, behind - 1))
        return {target: union(ranges) for target, ranges in edges.items()}


def eliminate(automaton: Product) -> str:
    """An automaton as one anchored pattern: states are taken out one by one, the least connected first."""
    live = automaton.live()
    if 0 not in live:
        return r"[^\s\S]"
    start, end = -1, -2
    edges: dict[int, dict[int, str]] = {state: {} for state in live} | {start: {0: ""}}
    for state in live:
        for target, ranges in automaton.edges(state).items():
            if target in live:
                edges[state][target] = write_set(ranges)
        if automaton.accepting(state):
            edges[state][end] = ""
    while len(edges) > 1:
        state = min((s for s in edges if s != start), key=lambda s: _weight(edges, s))
        out = edges.pop(state)
        loop = out.pop(state, None)
        middle = "" if loop is None else f"(?:{loop})*"
        for targets in edges.values():
            before = targets.pop(state, None)
            if before is None:
                continue
            for target, after in out.items():
                path = _group(before) + middle + _group(after)
                old = targets.get(target)
                targets[target] = path if old is None else f"{old}|{path}"
                if len(targets[target]) > MAX_TEXT:
                    raise UnsupportedPatternError("its complement or conjunction is too large")
    return f"^(?:{edges[start].get(end, '')})$"


def _weight(edges: dict[int, dict[int, str]], state: int) -> int:
    entering = [len(out[state]) for source, out in edges.items() if state in out and source != state]
    leaving = [len(text) for target, text in edges[state].items() if target != state]
    return sum(entering) * len(leaving) + sum(leaving) * len(entering)


def _group(text: str) -> str:
    return f"(?:{text})" if "|" in text else text
