"""Automata of the strings in which some patterns are found and others are not (subset construction), and one
pattern for each (state elimination). Knows nothing of schemas, or of what is asked of an automaton.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from radixlang.grammar.kept import kept
from radixlang.grammar.ranges import Ranges
from radixlang.grammar.schema.nfa import Alphabet, Made, Moves, Part, Search, part_of, sets_of
from radixlang.grammar.schema.regex import ANY, Tree, UnsupportedPatternError, flat, looks, parse, write_set

_LOOKS = re.compile(r"\(\?<?[=!]|\\[bB]")
_MAX_DFA = 64
MAX_WORK = 1_000_000
"""microseconds, about, that one automaton may take where patterns look around"""
MAX_TEXT = 1_000  # characters of a pattern that is made here
SHORT = 1 << 12  # characters of patterns of which many results are kept; those of formats have up to 4,000

Terms = tuple[tuple[str, bool], ...]


def size_of(terms: Terms) -> int:
    """Characters of all patterns; a look-around counts for fifty, for it has an automaton of its own."""
    return sum([len(source) + 50 * len(_LOOKS.findall(source)) for source, _ in terms])


class Searches(NamedTuple):
    """The automata of some terms, over one alphabet."""

    alphabet: Alphabet
    parts: list[tuple[Part, bool]]
    """which of them are to find something, and which nothing"""

    def accept(self, text: str) -> bool:
        """Whether a text fulfils all terms."""
        kinds = [self.alphabet.kind(ord(char)) for char in text]
        for part, wanted in self.parts:
            state = part.initial
            for kind in kinds:
                state = part.step(state, kind)
            if part.accepts(state) != wanted:
                return False
        return True


class _Piece(NamedTuple):
    """What a pattern asks for, over any alphabet."""

    tree: Tree
    wanted: bool
    sets: tuple[Ranges, ...]
    moves: Moves | None
    """None: it looks around"""


def _piece(tree: Tree, wanted: bool) -> _Piece:
    return _Piece(tree, wanted, sets_of(tree), None if looks(tree) else Moves(tree))


@kept(many=48, short=SHORT, few=2)
def _pieces(pattern: str, wanted: bool) -> list[_Piece]:
    return [_piece(*each) for each in split(parse(pattern).tree, wanted)]


@kept(many=128, short=SHORT, few=4, size=size_of)
def searches(terms: Terms) -> Searches:
    """Raises:
    UnsupportedPatternError: a pattern is not taken.
    """
    return _together([piece for pattern, wanted in terms for piece in _pieces(pattern, wanted)])


def searches_of(trees: list[tuple[Tree, bool]]) -> Searches:
    """The same of patterns that have been read: trees that are to be found, and trees that are not.

    Raises:
        UnsupportedPatternError: one is not taken.
    """
    return _together([_piece(*each) for each in trees])


def _together(pieces: list[_Piece]) -> Searches:
    alphabet = Alphabet([ANY, *(ranges for piece in pieces for ranges in piece.sets)])
    return Searches(
        alphabet,
        [
            (part_of(tree, alphabet) if moves is None else Search(moves, alphabet), wanted)
            for tree, wanted, _, moves in pieces
        ],
    )


def split(tree: Tree, wanted: bool) -> list[tuple[Tree, bool]]:
    """Take leading look-aheads out: `^(?!x)y` is "y from the start, and not x from the start"."""
    parts = flat(tree)
    if not wanted or parts[:1] != (("start",),):
        return [(tree, wanted)]
    rest = list(parts[1:])
    while rest and rest[0] == ("start",):
        del rest[0]
    out: list[tuple[Tree, bool]] = []
    while rest and rest[0][0] == "look":
        _, inner, positive = rest.pop(0)
        out.append((("cat", (("start",), inner)), positive))
    return [*out, (("cat", (("start",), *rest)), True)]


class Product:
    """The deterministic automaton of all terms, unfolded as it is asked for. State 0 begins.

    Raises:
        UnsupportedPatternError: at any time, where it becomes too large.
    """

    def __init__(self, searches: Searches, most: int = _MAX_DFA, most_work: int = MAX_WORK) -> None:
        """`most`: states."""
        self._most, self._most_work = most, most_work
        self._alphabet, self._parts = searches
        self._states: list[tuple[Any, ...]] = [tuple([part.initial for part, _ in self._parts])]
        self._index: Made[tuple[Any, ...], int] = Made(self._number)
        self._index[self._states[0]] = 0
        self._edges: dict[int, dict[int, Ranges]] = {}
        self.work = 0
        """microseconds that it has taken, about"""

    def accepting(self, state: int) -> bool:
        return all(
            part.accepts(each) == wanted
            for (part, wanted), each in zip(self._parts, self._states[state], strict=True)
        )

    def edges(self, state: int) -> dict[int, Ranges]:
        """The states behind `state`, and the characters that lead there; those from which no end can be reached
        are left out where that is easily told."""
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
        spans: list[tuple[int, list[Any]]] = [(self._alphabet.all, [])]
        for (part, _), each in zip(self._parts, self._states[state], strict=True):
            row = part.row(each)
            self.work += part.weight(each) * len(row)
            if self.work > self._most_work:
                raise UnsupportedPatternError("it looks around in too many places")
            cut = []
            for span, targets in spans:
                first, *others = [(both, target) for kinds, target in row if (both := span & kinds)]
                cut += [(both, [*targets, target]) for both, target in others]
                targets.append(first[1])  # not copied, for there may be hundreds of parts
                cut.append((first[0], targets))
            spans = cut
            self.work += len(spans) // 2
        edges: dict[int, int] = {}
        for span, targets in spans:
            if (number := self._index[tuple(targets)]) >= 0:
                edges[number] = edges.get(number, 0) | span
        return {target: self._alphabet.ranges(kinds) for target, kinds in edges.items()}

    def _number(self, targets: tuple[Any, ...]) -> int:
        """Of a new state; -1 for one from which there is no end."""
        for (part, wanted), each in zip(self._parts, targets, strict=True):
            if part.fixed(each) is (not wanted):
                return -1
        if len(self._states) >= self._most:
            raise UnsupportedPatternError("it has too many states to compare")
        self._states.append(targets)
        return len(self._states) - 1


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
