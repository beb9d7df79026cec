"""Regular expressions and choices as automata over bytes.

Python's own parser reads the expression (its syntax and its Unicode classes hold); the tree becomes a
nondeterministic automaton whose edges read byte ranges of UTF-8. An expression matches the whole text. Must not
know tokens.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as sre  # type: ignore[attr-defined]
from typing import Any

from radixlang.grammar.errors import GrammarError

MAX_NODES = 8_000
MAX_COUNT = 64
"""counted classes beyond this make automata that a context-free engine's counters beat"""

Ranges = tuple[tuple[int, int], ...]
"""code points, inclusive, ascending and apart"""


class Unsuitable(Exception):
    """The expression is right, but no small automaton states it."""


@dataclass
class Automaton:
    """Nodes are numbered. `edges[n]` reads a byte in [low, high] and goes to a node, `free[n]` goes there for
    nothing; `first` may be passed at the start of the text only, `last` at its end only.
    """

    edges: list[list[tuple[int, int, int]]] = field(default_factory=list)
    free: list[list[int]] = field(default_factory=list)
    first: set[int] = field(default_factory=set)
    last: set[int] = field(default_factory=set)
    start: int = 0
    accept: int = 0

    def node(self) -> int:
        if len(self.edges) >= MAX_NODES:
            raise Unsuitable(f"it needs more than {MAX_NODES} nodes")
        self.edges.append([])
        self.free.append([])
        return len(self.edges) - 1


def regex_automaton(pattern: str) -> Automaton:
    """The automaton of a regular expression.

    Raises:
        GrammarError: no valid expression.
        Unsuitable: look-around, back-references and the like, or large repeat counts.
    """
    try:
        tree = sre.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise GrammarError(f"regex {_short(pattern)} is not a valid expression: {error}", param="regex") from None
    automaton = Automaton()
    automaton.accept = automaton.node()
    try:
        automaton.start = _Builder(automaton).sequence(tree, automaton.accept, tree.state.flags)
    except RecursionError:
        raise Unsuitable("it is nested too deeply") from None
    return automaton


def choice_automaton(choices: Sequence[str]) -> Automaton:
    """The automaton of a list of texts: a tree of their bytes."""
    automaton = Automaton()
    automaton.accept = automaton.node()
    automaton.start = automaton.node()
    children: dict[tuple[int, int], int] = {}
    for choice in choices:
        at = automaton.start
        for byte in choice.encode("utf-8"):
            follow = children.get((at, byte))
            if follow is None:
                follow = children[at, byte] = automaton.node()
                automaton.edges[at].append((byte, byte, follow))
            at = follow
        if automaton.accept not in automaton.free[at]:
            automaton.free[at].append(automaton.accept)
    return automaton


def _short(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 80 else pattern[:77] + "...")


class _Builder:
    """Builds backwards: every method gets the node that follows and returns the one that comes first."""

    def __init__(self, automaton: Automaton) -> None:
        self._automaton = automaton
        self._shared: dict[tuple[tuple[tuple[int, ...], ...], int], int] = {}

    def sequence(self, items: Any, follow: int, flags: int) -> int:
        for kind, argument in reversed(list(items)):
            follow = self._item(kind, argument, follow, flags)
        return follow

    def _free(self, *targets: int) -> int:
        node = self._automaton.node()
        self._automaton.free[node].extend(targets)
        return node

    def _item(self, kind: Any, argument: Any, follow: int, flags: int) -> int:
        if kind is op.BRANCH:
            return self._free(*[self.sequence(way, follow, flags) for way in argument[1]])
        if kind is op.SUBPATTERN:
            _, added, removed, body = argument
            return self.sequence(body, follow, (flags | added) & ~removed)
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            return self._repeat(*argument, follow, flags)
        if kind is op.AT:
            return self._anchor(argument, follow, flags)
        return self._characters(_ranges(kind, argument, flags), follow)

    def _repeat(self, low: int, high: Any, body: Any, follow: int, flags: int) -> int:
        wide = any(kind is not op.LITERAL for kind, _ in body)
        if wide and (low > MAX_COUNT or (high is not op.MAXREPEAT and high > MAX_COUNT)):
            raise Unsuitable(f"it repeats a class more than {MAX_COUNT} times")
        if high is op.MAXREPEAT:
            loop = self._free(follow)
            self._automaton.free[loop].append(self.sequence(body, loop, flags))
            follow = loop
        else:
            end = follow
            for _ in range(high - low):
                follow = self._free(end, self.sequence(body, follow, flags))
        for _ in range(low):
            follow = self.sequence(body, follow, flags)
        return follow

    def _anchor(self, kind: Any, follow: int, flags: int) -> int:
        if flags & re.MULTILINE and kind in (op.AT_BEGINNING, op.AT_END):
            raise Unsuitable("it looks for the ends of lines")
        node = self._free(follow)
        if kind in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
            self._automaton.first.add(node)
        elif kind in (op.AT_END, op.AT_END_STRING):
            self._automaton.last.add(node)
        else:
            raise Unsuitable("it looks for word boundaries")
        return node

    def _characters(self, ranges: Ranges, follow: int) -> int:
        sequences = tuple(part for low, high in ranges for part in _utf8(low, high))
        return self._bytes(sequences, follow)

    def _bytes(self, sequences: tuple[tuple[int, ...], ...], follow: int) -> int:
        """A node that reads any of the sequences of byte ranges (low, high, low, high, …), then goes on."""
        known = self._shared.get((sequences, follow))
        if known is not None:
            return known
        node = self._automaton.node()
        heads: dict[tuple[int, int], list[tuple[int, ...]]] = {}
        for sequence in sequences:
            heads.setdefault(sequence[:2], []).append(sequence[2:])
        for (low, high), tails in heads.items():
            target = self._bytes(tuple(tails), follow) if tails[0] else follow
            self._automaton.edges[node].append((low, high, target))
        self._shared[sequences, follow] = node
        return node


# ---- characters ----

_LAST = sys.maxunicode
_SURROGATES = (0xD800, 0xDFFF)


def _ranges(kind: Any, argument: Any, flags: int) -> Ranges:
    """The characters that one item matches."""
    if kind is op.ANY:
        return _all() if flags & re.DOTALL else _without(_all(), ((10, 10),))
    negate = kind is op.NOT_LITERAL
    if kind is op.IN:
        negate = bool(argument) and argument[0][0] is op.NEGATE
        members = [_member(k, a, flags) for k, a in argument if k is not op.NEGATE]
        found = _union([part for member in members for part in member])
    else:
        found = _member(op.LITERAL if negate else kind, argument, flags)
    if flags & re.IGNORECASE:
        found = _any_case(found)
    return _without(_all(), found if negate else _without(_all(), found))


def _member(kind: Any, argument: Any, flags: int) -> Ranges:
    if kind is op.LITERAL:
        return ((argument, argument),)
    if kind is op.RANGE:
        return (argument,)
    if kind is op.CATEGORY:
        name = str(kind and argument).lower()
        letter = {"digit": "d", "space": "s", "word": "w"}[name.rsplit("_", 1)[1]]
        found = _class(letter, bool(flags & re.ASCII))
        return _without(_all(), found) if "not" in name else found
    name = str(kind).lower().replace("_", " ")
    raise Unsuitable(f"it uses {name}")


@lru_cache
def _class(letter: str, ascii_only: bool) -> Ranges:
    characters = "".join(map(chr, range(128 if ascii_only else _LAST + 1)))
    return tuple((m.start(), m.end() - 1) for m in re.finditer(rf"\{letter}+", characters))


@lru_cache
def _all() -> Ranges:
    return ((0, _SURROGATES[0] - 1), (_SURROGATES[1] + 1, _LAST))


def _union(ranges: Sequence[tuple[int, int]]) -> Ranges:
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return tuple(out)


def _without(ranges: Ranges, others: Ranges) -> Ranges:
    out, j = [], 0
    for low, high in ranges:
        while j and others[j - 1][1] >= low:
            j -= 1
        while j < len(others) and others[j][0] <= high:
            if others[j][0] > low:
                out.append((low, others[j][0] - 1))
            low = max(low, others[j][1] + 1)
            j += 1
        if low <= high:
            out.append((low, high))
    return tuple(out)


@lru_cache
def _cased() -> tuple[tuple[int, ...], ...]:
    """Groups of characters that are one another's cases."""
    groups: dict[str, set[int]] = {}
    for point in range(_LAST + 1):
        character = chr(point)
        forms = {f for f in (character.lower(), character.upper(), character) if len(f) == 1}
        if len(forms) > 1:
            groups.setdefault(min(forms | {character.lower()[:1]}), set()).update(map(ord, forms))
    return tuple(tuple(sorted(group)) for group in groups.values())


def _any_case(ranges: Ranges) -> Ranges:
    starts = [low for low, _ in ranges]

    def inside(point: int) -> bool:
        i = bisect_right(starts, point) - 1
        return i >= 0 and point <= ranges[i][1]

    more = [(form, form) for group in _cased() if any(map(inside, group)) for form in group]
    return _union([*ranges, *more])


@lru_cache(4096)
def _utf8(low: int, high: int) -> tuple[tuple[int, ...], ...]:
    """Sequences of byte ranges that together are the UTF-8 forms of the code points low … high."""
    for bound in (0x7F, 0x7FF, 0xFFFF):
        if low <= bound < high:
            return _utf8(low, bound) + _utf8(bound + 1, high)
    if high <= 0x7F:
        return ((low, high),)
    # Cut where all but the last bytes would differ in more than their last byte.
    for shift in (6, 12, 18):
        block = (1 << shift) - 1
        if low >> shift != high >> shift:
            if low & block:
                return _utf8(low, low | block) + _utf8((low | block) + 1, high)
            if high & block != block:
                return _utf8(low, (high & ~block) - 1) + _utf8(high & ~block, high)
    first, last = chr(low).encode(), chr(high).encode()
    return (tuple(byte for pair in zip(first, last, strict=True) for byte in pair),)
