"""Sets of strings built from patterns by conjunction and complement (subset construction, state elimination).

A `Language` can be matched, tested for emptiness, and written back as one pattern that needs neither look-arounds
nor a complement operator. Patterns are *searched*: `b` matches "abc". Knows nothing of schemas.
"""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

from radixlang.grammar.ranges import union
from radixlang.grammar.schema.regex import (
    ANY,
    LAST,
    IrregularPatternError,
    Ranges,
    Tree,
    UnsupportedPatternError,
    invert,
    lengths,
    looks,
    parse,
    searched,
    write,
    write_char,
    write_set,
    written_as_it_is,
)

__all__ = [
    "IrregularPatternError",
    "Language",
    "UnsupportedPatternError",
    "parse",
    "readable",
    "universal",
    "without",
]

_MAX_NFA = 3_000
_MAX_DFA = 64
_MAX_TEXT = 1_000
_MAX_LENGTH = 1_000  # of strings that are looked for


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

    def accepts(self, states: frozenset[int]) -> bool:
        if states not in self._accepting:
            guards = ("start", "end") if states == self.initial else ("end",)
            self._accepting[states] = self.final in self.nfa.closure(states, *guards)
        return self._accepting[states]


class Language(NamedTuple):
    """The strings that every pattern of `terms` with True is found in, and none with False."""

    terms: tuple[tuple[str, bool], ...]

    def matches(self, text: str) -> bool:
        """Whether `text` is in the language."""
        for part, sign in _searches(self.terms):
            states = part.initial
            for char in text:
                states = part.step(states, ord(char))
            if part.accepts(states) != sign:
                return False
        return True

    def empty(self, low: int = 0, high: int | None = None) -> bool:
        """Whether no string of `low` to `high` characters is in the language, as far as is cheap to say.

        Raises:
            UnsupportedPatternError: a pattern cannot be read, or they are too large to compare.
        """
        for source, wanted in self.terms:
            tree = parse(source).tree
            if wanted and not looks(tree):
                least, most = lengths(searched(tree))
                if (high is not None and least > high) or (most is not None and most < low):
                    return True
        automaton = _product(self.terms)
        live = _live(automaton)
        states = {0} & live
        for length in range(_MAX_LENGTH):  # those that strings of this length lead to
            if not states or (high is not None and length > high):
                return True
            if length >= low and any(automaton[state][0] for state in states):
                return False
            states = {target for state in states for target in automaton[state][1] if target in live}
        return False

    def source(self) -> str:
        """One pattern for the language.

        Raises:
            UnsupportedPatternError: it would be too large, or a pattern cannot be read.
        """
        if len(self.terms) == 1 and self.terms[0][1]:
            tree, plain = parse(self.terms[0][0])
            if plain and not looks(tree) and written_as_it_is(tree):
                return self.terms[0][0]
            if not looks(tree):
                return write(tree)
        return _eliminate(_product(self.terms))


@functools.lru_cache(maxsize=512)
def _searches(terms: tuple[tuple[str, bool], ...]) -> list[tuple[_Search, bool]]:
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


@functools.lru_cache(maxsize=256)
def _product(terms: tuple[tuple[str, bool], ...]) -> list[tuple[bool, dict[int, Ranges]]]:
    """The deterministic automaton of all terms: (accepting, target -> characters) a state; state 0 begins."""
    parts = _searches(terms)
    cuts = {0, LAST + 1}
    for part, _ in parts:
        for moves in part.nfa.moves:
            for ranges, _target in moves:
                for low, high in ranges:
                    cuts.update((low, high + 1))
    ordered = sorted(cuts)
    intervals = [(a, b - 1) for a, b in itertools.pairwise(ordered)]
    if len(intervals) > 400:
        raise UnsupportedPatternError("it has too many character ranges to compare")
    first = tuple(part.initial for part, _ in parts)
    index = {first: 0}
    queue = [first]
    out: list[tuple[bool, dict[int, Ranges]]] = []
    for states in queue:
        edges: dict[int, list[tuple[int, int]]] = {}
        for low, high in intervals:
            target = tuple(part.step(s, low) for (part, _), s in zip(parts, states, strict=True))
            if target not in index:
                if len(index) >= _MAX_DFA:
                    raise UnsupportedPatternError("it has too many states to compare")
                index[target] = len(index)
                queue.append(target)
            edges.setdefault(index[target], []).append((low, high))
        accepting = all(part.accepts(s) == sign for (part, sign), s in zip(parts, states, strict=True))
        out.append((accepting, {target: union(ranges) for target, ranges in edges.items()}))
    return out


def _eliminate(automaton: list[tuple[bool, dict[int, Ranges]]]) -> str:
    """An automaton as one anchored pattern: states are taken out one by one, the least connected first."""
    live = _live(automaton)
    if 0 not in live:
        return r"[^\s\S]"
    start, end = -1, -2
    edges: dict[int, dict[int, str]] = {state: {} for state in live} | {start: {0: ""}}
    for state in live:
        for target, ranges in automaton[state][1].items():
            if target in live:
                edges[state][target] = write_set(ranges)
        if automaton[state][0]:
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
                if len(targets[target]) > _MAX_TEXT:
                    raise UnsupportedPatternError("its complement or conjunction is too large")
    return f"^(?:{edges[start].get(end, '')})$"


def _weight(edges: dict[int, dict[int, str]], state: int) -> int:
    entering = [len(out[state]) for source, out in edges.items() if state in out and source != state]
    leaving = [len(text) for target, text in edges[state].items() if target != state]
    return sum(entering) * len(leaving) + sum(leaving) * len(entering)


def _group(text: str) -> str:
    return f"(?:{text})" if "|" in text else text


def _live(automaton: list[tuple[bool, dict[int, Ranges]]]) -> set[int]:
    """The states from which the end can be reached."""
    sources: dict[int, list[int]] = {}
    for state, (_, edges) in enumerate(automaton):
        for target in edges:
            sources.setdefault(target, []).append(state)
    stack = [state for state, (accepting, _) in enumerate(automaton) if accepting]
    live = set(stack)
    while stack:
        for source in sources.get(stack.pop(), []):
            if source not in live:
                live.add(source)
                stack.append(source)
    return live


def readable(source: str) -> bool:
    """Whether a pattern can be stated."""
    try:
        if irregular(source):
            return False
        if not Language(((source, True),)).source():
            return source == ""
    except UnsupportedPatternError:
        return False
    return True


def irregular(source: str) -> str | None:
    """What in a pattern is beyond every automaton, None where nothing is.

    Raises:
        UnsupportedPatternError: the pattern cannot be read.
    """
    try:
        parse(source)
    except IrregularPatternError as error:
        return str(error)
    return None


def universal(pattern: str) -> bool:
    """Whether the pattern is found in every string, as far as is cheap to say."""
    return pattern in ("", "^", "$", ".*", "^.*", ".*$", r"[\s\S]*", r"^[\s\S]*$", r"^[\s\S]*", "(.*)")


def without(words: frozenset[str]) -> str:
    """An anchored pattern for all strings but the given ones."""

    def rest(words: list[str]) -> str:
        heads: dict[str, list[str]] = {}
        for word in words:
            if word:
                heads.setdefault(word[0], []).append(word[1:])
        options = [] if "" in words else [""]
        points = union([(ord(c), ord(c)) for c in heads])
        options.append(write_set(invert(points)) + r"[\s\S]*")
        options.extend(write_char(ord(c)) + rest(tails) for c, tails in sorted(heads.items()))
        return f"(?:{'|'.join(options)})"

    if sum(map(len, words)) > _MAX_TEXT or max(map(len, words), default=0) > 200:
        raise UnsupportedPatternError("the excluded strings are too long")
    return f"^{rest(sorted(words))}$"
