"""Regular expressions as nondeterministic automata over bytes.

Python's own parser reads the expression (its syntax and its Unicode classes hold); the tree becomes an automaton
whose edges read byte ranges of UTF-8. It reads what `re.fullmatch` matches, except that `$` is the very end of the
text, as in ECMAScript. Must not know tokens.
"""

from __future__ import annotations

import re
import sys
from _sre import ascii_tolower, unicode_tolower  # type: ignore[import-not-found]
from array import array
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from re import _constants as op  # type: ignore[attr-defined]
from re._casefix import _EXTRA_CASES  # type: ignore[import-not-found]
from typing import Any

from radixlang.grammar.expression import tree_of
from radixlang.grammar.ranges import Ranges, union, without

MAX_NODES = 6_000


class Unsuitable(Exception):
    """No small automaton states the expression, or it is none in Python's syntax; another engine may take it."""


Edges = tuple[tuple[int, int, int], ...]


@dataclass
class Automaton:
    """Nodes are numbered. `edges[n]` reads a byte in [low, high] and goes to a node, `free[n]` goes there for
    nothing; `first` may be passed at the start of the text only, `last` at its end only.
    """

    edges: list[Edges] = field(default_factory=list)
    free: list[tuple[int, ...]] = field(default_factory=list)
    first: set[int] = field(default_factory=set)
    last: set[int] = field(default_factory=set)
    start: int = 0
    accept: int = 0
    most: int = MAX_NODES
    """nodes that it may have"""
    calls: dict[int, tuple[Edges, int]] = field(default_factory=dict)
    """(ways, behind): a way (low, high, node) reads a byte and goes to the node; to the one behind when `returns`
    is reached there"""
    returns: int = -1
    """where what was called ends"""
    kills: dict[int, int] = field(default_factory=dict)
    """nodes that are no places: what reaches one does not stand at the other one, which it names"""
    plain: set[int] = field(default_factory=set)
    """nodes that read any character which JSON strings hold as it is; all of these lead where the first does"""

    pending: dict[int, Callable[[], int]] = field(default_factory=dict)
    """nodes that are yet to lead anywhere, and what writes down where, which is a node"""

    def node(self, edges: Edges = (), free: tuple[int, ...] = ()) -> int:
        if len(self.edges) >= self.most:
            raise Unsuitable(f"it needs more than {self.most} nodes")
        self.edges.append(edges)
        self.free.append(free)
        return len(self.edges) - 1


def read_expression(pattern: str) -> Any:
    """Python's tree of a regular expression.

    Raises:
        Unsuitable: it is none in Python's syntax.
    """
    try:
        return tree_of(pattern)
    except (re.error, OverflowError) as error:
        raise Unsuitable(f"{error}") from None
    except RecursionError:
        raise Unsuitable("it is nested too deeply") from None


def regex_automaton(pattern: str) -> Automaton:
    """The automaton of a regular expression.

    Raises:
        Unsuitable: no expression in Python's syntax, back-references and the like, or large counts.
        LooksAround: look-around, word boundaries, or ends of lines.
    """
    tree = read_expression(pattern)
    automaton = Automaton()
    automaton.accept = automaton.node()
    try:
        if _looks_around(tree, tree.state.flags):
            raise LooksAround
        automaton.start = _Builder(automaton).sequence(tree, automaton.accept, tree.state.flags)
    except RecursionError:
        raise Unsuitable("it is nested too deeply") from None
    return automaton


class LooksAround(Exception):
    """An expression looks at more than the ends of the text: see `looking.py`."""


def _looks_around(items: Any, flags: int) -> bool:
    for kind, argument in items:
        if kind in (op.ASSERT, op.ASSERT_NOT):
            return True
        if kind is op.AT:
            lines = flags & re.MULTILINE and argument in (op.AT_BEGINNING, op.AT_END)
            if lines or argument in (op.AT_BOUNDARY, op.AT_NON_BOUNDARY):
                return True
        elif kind is op.BRANCH:
            if any(_looks_around(way, flags) for way in argument[1]):
                return True
        elif kind is op.SUBPATTERN:
            if _looks_around(argument[3], flags_inside(flags, argument[1], argument[2])):
                return True
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT) and _looks_around(argument[2], flags):
            return True
    return False


class _Builder:
    """Builds backwards: every method gets the node that follows and returns the one that comes first."""

    def __init__(self, automaton: Automaton) -> None:
        self._automaton = automaton

    def sequence(self, items: Any, follow: int, flags: int) -> int:
        for kind, argument in reversed(list(items)):
            follow = self._item(kind, argument, follow, flags)
        return follow

    def _free(self, *targets: int) -> int:
        return self._automaton.node(free=targets)

    def _item(self, kind: Any, argument: Any, follow: int, flags: int) -> int:
        if kind is op.BRANCH:
            return self._free(*[self.sequence(way, follow, flags) for way in argument[1]])
        if kind is op.SUBPATTERN:
            _, added, removed, body = argument
            return self.sequence(body, follow, flags_inside(flags, added, removed))
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            low, high, repeated = argument
            return self._repeat(low, high, repeated, follow, flags)
        if kind is op.AT:
            node = self._free(follow)
            start = argument in (op.AT_BEGINNING, op.AT_BEGINNING_STRING)
            (self._automaton.first if start else self._automaton.last).add(node)
            return node
        return read_one(self._automaton, ranges_of(kind, argument, flags), follow)

    def _repeat(self, low: int, high: Any, body: Any, follow: int, flags: int) -> int:
        if high is op.MAXREPEAT:
            loop = self._free(follow)
            self._automaton.free[loop] += (self.sequence(body, loop, flags),)
            follow = loop
        else:
            end = follow
            for _ in range(high - low):
                follow = self._free(end, self.sequence(body, follow, flags))
        for _ in range(low):
            before, follow = follow, self.sequence(body, follow, flags)
            if follow == before:  # nothing is repeated
                break
        return follow


def flags_inside(flags: int, added: int, removed: int) -> int:
    """The flags that hold in a group which adds some and takes some back."""
    kept = flags & ~(re.ASCII | re.UNICODE) if added & (re.ASCII | re.UNICODE) else flags
    return (kept | added) & ~removed


def read_one(automaton: Automaton, ranges: Ranges, follow: int) -> int:
    """A node that reads one of some characters, at least one and no surrogates, then goes on."""
    nodes: list[int] = []
    for edges in _byte_tree(ranges):
        ways = [(low, high, follow if target < 0 else nodes[target]) for low, high, target in edges]
        nodes.append(automaton.node(tuple(ways)))
    return nodes[-1]


def read_called(automaton: Automaton, ranges: Ranges) -> tuple[Ranges, Edges]:
    """Those of the characters that are one byte, and for the others how they begin: each edge leads to a node that
    reads the rest and returns, so that it is written down once for all places where it is called."""
    beyond = without(ranges, (*ASCII, SURROGATES))
    longer = automaton.edges[read_one(automaton, beyond, automaton.returns)] if beyond else ()
    return without(ranges, ((0x80, _LAST),)), longer


# ---- characters ----

ASCII: Ranges = ((0, 0x7F),)

_LAST = sys.maxunicode
SURROGATES = (0xD800, 0xDFFF)


def ranges_of(kind: Any, argument: Any, flags: int) -> Ranges:
    """The characters that one item matches."""
    if kind is op.ANY:
        return _all() if flags & re.DOTALL else without(_all(), ((10, 10),))
    members = argument if kind is op.IN else [(op.LITERAL if kind is op.NOT_LITERAL else kind, argument)]
    negate = kind is op.NOT_LITERAL or (kind is op.IN and argument[0][0] is op.NEGATE)
    return _set(tuple((k, a) for k, a in members if k is not op.NEGATE), negate, flags)


@lru_cache(1024)
def _set(members: tuple[tuple[Any, Any], ...], negate: bool, flags: int) -> Ranges:
    written = union([part for kind, argument in members for part in _written(kind, argument)])
    classes = [_category(str(argument), flags) for kind, argument in members if kind is op.CATEGORY]
    if flags & re.IGNORECASE:
        found = _any_case(written, union([part for one in classes for part in one]), bool(flags & re.ASCII))
    else:
        found = union([*written, *(part for one in classes for part in one)])
    return without(_all(), found if negate else without(_all(), found))


def _written(kind: Any, argument: Any) -> Ranges:
    """Characters that stand in the expression themselves."""
    if kind is op.LITERAL:
        return ((argument, argument),)
    if kind is op.RANGE:
        return (argument,)
    if kind is op.CATEGORY:
        return ()
    raise Unsuitable(f"it uses {str(kind).lower().replace('_', ' ')}")


def _category(name: str, flags: int) -> Ranges:
    letter = {"DIGIT": "d", "SPACE": "s", "WORD": "w"}[name.rsplit("_", 1)[1]]
    found = _class(letter, bool(flags & re.ASCII))
    return without(((0, _LAST),), found) if "_NOT_" in name else found


@lru_cache
def _class(letter: str, ascii_only: bool) -> Ranges:
    flags = re.ASCII if ascii_only else re.UNICODE
    points = range(128 if ascii_only else _LAST + 1)
    characters = array("I", points).tobytes().decode(f"utf-32-{sys.byteorder[0]}e", "surrogatepass")
    return tuple((m.start(), m.end() - 1) for m in re.finditer(rf"\{letter}+", characters, flags))


@lru_cache
def _all() -> Ranges:
    return ((0, SURROGATES[0] - 1), (SURROGATES[1] + 1, _LAST))


@lru_cache
def _lower(ascii_only: bool) -> dict[int, int]:
    """Characters that have another lower case, and which. None lie beyond the first two planes."""
    lower = ascii_tolower if ascii_only else unicode_tolower
    return {point: small for point in range(0x20000) if (small := lower(point)) != point}


def _any_case(written: Ranges, classes: Ranges, ascii_only: bool) -> Ranges:
    """What Python compares without case: a character's lower case with those of the set and their relatives."""
    lower = _lower(ascii_only)
    relatives = {} if ascii_only else _EXTRA_CASES
    small = _holder(written)
    wanted = {lower[point] for point in lower if small(point)}
    wanted.update(
        more for point, others in relatives.items() if point in wanted or small(point) for more in others
    )
    compared = union([*written, *classes, *((point, point) for point in wanted)])
    inside = _holder(compared)
    changed = union([(point, point) for point in lower])
    added = [(point, point) for point, form in lower.items() if inside(form)]
    return union([*without(compared, changed), *added])


def _holder(ranges: Ranges) -> Any:
    """Whether a character is in the ranges."""
    starts = [low for low, _ in ranges]

    def holds(point: int) -> bool:
        i = bisect_right(starts, point) - 1
        return i >= 0 and point <= ranges[i][1]

    return holds


@lru_cache(256)
def _byte_tree(ranges: Ranges) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """Nodes that together read one of the characters as UTF-8: edges (low, high, node), -1 for "read". Targets
    come before the nodes that lead to them; the last node is where to begin. Equal nodes are one.
    """
    nodes: dict[tuple[tuple[int, int, int], ...], int] = {}

    def place(sequences: list[tuple[int, ...]]) -> int:
        heads: dict[tuple[int, int], list[tuple[int, ...]]] = {}
        for low, high, *tail in sequences:
            heads.setdefault((low, high), []).append(tuple(tail))
        edges: list[tuple[int, int, int]] = []
        for (low, high), tails in heads.items():
            target = place(tails) if tails[0] else -1
            if edges and edges[-1][1] + 1 == low and edges[-1][2] == target:
                edges[-1] = (edges[-1][0], high, target)
            else:
                edges.append((low, high, target))
        return nodes.setdefault(tuple(edges), len(nodes))

    place([part for low, high in ranges for part in _utf8(low, high)])
    return tuple(nodes)


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
