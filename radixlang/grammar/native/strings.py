"""Strings that fulfil several patterns, or patterns and a length, as nodes of an automaton.

The patterns together are one automaton over characters (`schema.automaton.Product`); a node is one of its states,
and how many characters have been read where their number is limited. Nodes are written down when a text comes to
them. A node is left out where too few characters are left to get to an end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from radixlang.grammar.kept import kept
from radixlang.grammar.native.regex import Unsuitable
from radixlang.grammar.ranges import LAST, Ranges, union, without
from radixlang.grammar.schema.automaton import SHORT, Product, Terms, searches, size_of
from radixlang.grammar.schema.pattern import Language as Texts
from radixlang.grammar.schema.regex import ANY, UnsupportedPatternError, write_char

ESCAPED = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 0x22: '"', 0x5C: "\\"}
"""code points that stand in a text as a backslash and a letter, and in no other way"""
NOT_PLAIN: Ranges = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF))
"""code points that no string may hold as they are"""
_NEVER = without(NOT_PLAIN, tuple((code, code) for code in sorted(ESCAPED)))
"""code points that no string holds"""
MAX_STATES = 1_500
MAX_WORK = 75_000
"""microseconds, about, for what looks around in one of them, and twice that in a schema"""
MAX_LEAST = 100
"""characters of a `minLength` beside a pattern"""


class Language(NamedTuple):
    """The strings, as an automaton over characters; state 0 begins."""

    edges: list[list[tuple[int, Ranges]]]
    """of each state: where characters lead, to states that can end"""
    least: list[int | None]
    """of each state: characters to the nearest end; None: it has none"""
    ends: list[bool]
    work: int = 0
    """microseconds that it took to make, about"""

    @property
    def none(self) -> bool:
        """Whether there are no strings."""
        return self.least[0] is None


ALL = Language([[(0, ANY)]], [0], [True])


def terms_of(schema: dict[str, Any], at: str) -> Terms:
    """The patterns of a normalised string schema, its `minLength` among them.

    Raises:
        Unsuitable: it counts too far.
    """
    sources = [one["pattern"] for one in (schema, *schema.get("allOf", ())) if "pattern" in one]
    low = max(one.get("minLength", 0) for one in (schema, *schema.get("allOf", ())))
    if low > MAX_LEAST:
        raise Unsuitable(f"a minLength of more than {MAX_LEAST} stands beside a pattern at {at or 'its root'}")
    return tuple((source, True) for source in [*sources, *([rf"^[\s\S]{{{low},}}$"] if low else [])])


def key_terms(schema: dict[str, Any]) -> tuple[dict[str, Terms], Terms]:
    """What a key fulfils that is not declared: for each pattern that allows any value (no key fits two of them),
    and where it fits none.

    Raises:
        Unsuitable: the patterns are not taken.
    """
    patterns, names = schema.get("patternProperties", {}), schema.get("properties", {})
    never = tuple((source, False) for source, one in patterns.items() if one is False)
    fitting = {s: but(((s, True), *never), names) for s, one in patterns.items() if one is not False}
    return fitting, but(tuple((source, False) for source in patterns), names)


def but(terms: Terms, names: Iterable[str]) -> Terms:
    """The same without some strings, so that what is left of a text can always be finished.

    Raises:
        Unsuitable: the patterns are not taken.
    """
    try:
        found = Texts(terms)
        left = ["".join([write_char(ord(char)) for char in name]) for name in names if found.matches(name)]
    except UnsupportedPatternError as error:
        raise Unsuitable(f"a pattern of keys is not taken: {error}") from None
    return (*terms, (f"^(?:{'|'.join(left)})$", False)) if left else terms


@kept(many=64, short=SHORT, few=4, size=size_of)
def language_of(terms: Terms, lost: Ranges) -> Language | UnsupportedPatternError:
    """The strings in which all patterns are found, without `lost` characters; what is wrong, if something is."""
    try:
        product = Product(searches(terms), MAX_STATES, MAX_WORK)
        for _ in product.states():
            pass
    except UnsupportedPatternError as error:
        return error
    ways = [list(product.edges(state).items()) for state in product.states()]
    return _held(ways, [product.accepting(state) for state in product.states()], union([*_NEVER, *lost]))._replace(
        work=product.work
    )


def _held(ways: list[list[tuple[int, Ranges]]], ends: list[bool], never: Ranges) -> Language:
    """The strings without some characters."""
    left = {ranges: without(ranges, never) for ranges in {ranges for of in ways for _, ranges in of}}
    held = [[(target, left[ranges]) for target, ranges in of if left[ranges]] for of in ways]
    before: dict[int, list[int]] = {}
    for state, of in enumerate(held):
        for target, _ in of:
            before.setdefault(target, []).append(state)
    least: list[int | None] = [0 if end else None for end in ends]
    row = [state for state, end in enumerate(ends) if end]
    while row:
        further = []
        for state in row:
            for source in before.get(state, ()):
                if least[source] is None:
                    least[source] = (least[state] or 0) + 1
                    further.append(source)
        row = further
    return Language([[way for way in of if least[way[0]] is not None] for of in held], least, ends)


def unwritable(writable: npt.NDArray[np.bool_]) -> Ranges:
    """The characters that need bytes which there are not (`writable` [256]), as strings spell them; all beyond
    ASCII where a byte is missing that goes on with a character."""
    spelt = {code: [0x5C, ord(ESCAPED[code])] if code in ESCAPED else [code] for code in range(0x80)}
    lost = [(code, code) for code, bytes_ in spelt.items() if not writable[bytes_].all()]
    if not writable[0x80:0xC0].all():
        return (*lost, (0x80, LAST))
    for first, last, bits, least in ((0xC2, 0xDF, 6, 0x80), (0xE0, 0xEF, 12, 0x800), (0xF0, 0xF4, 18, 0x10000)):
        for byte in range(first, last + 1):
            if not writable[byte]:
                low = (byte & (0x1F >> (bits // 6 - 1))) << bits
                lost.append((max(low, least), min(low + (1 << bits) - 1, LAST)))
    return tuple(lost)


def most_of(schema: dict[str, Any]) -> int | None:
    """The `maxLength` of a normalised string schema."""
    limits = [one["maxLength"] for one in (schema, *schema.get("allOf", ())) if "maxLength" in one]
    return min(limits, default=None)


def language(terms: Terms, lost: Ranges, at: str) -> Language:
    """The strings that fulfil some terms, without `lost` characters.

    Raises:
        Unsuitable: the patterns are not taken.
    """
    if not terms:
        return ALL
    found = language_of(terms, lost)
    if isinstance(found, UnsupportedPatternError):
        raise Unsuitable(f"the pattern at {at or 'its root'} is not taken: {found}")
    return found


def check_some(language: Language, most: int | None, at: str) -> None:
    """Raises Unsuitable where there is no string of at most so many characters."""
    least = language.least[0]
    if least is None or (most is not None and least > most):
        raise Unsuitable(f"no string fulfils the pattern at {at or 'its root'}")


def counted(language: Language, most: int, limit: int) -> int:
    """How many nodes the strings of at most so many characters have; some number beyond the limit for more."""
    here, nodes = {0}, 0
    for left in range(most, -1, -1):
        nodes += len(here)
        if nodes > limit:
            break
        targets = {target for state in here for target, _ in language.edges[state]}
        here = {one for one in targets if (least := language.least[one]) is not None and least < left}
    return nodes


class Strings:
    """Writes a language down: `node(…)` is where a string begins, `end` what follows its last character."""

    def __init__(
        self,
        language: Language,
        most: int | None,
        end: int,
        later: Callable[[Callable[[], int]], int],
        free: Callable[..., int],
        character: Callable[[Ranges, int], int],
    ) -> None:
        """`later` makes a node that is written down when a text comes to it, `free` one that leads to others,
        `character` one that reads one of some characters."""
        self._language, self._most, self._end = language, most, end
        self._later, self._free, self._character = later, free, character
        self._nodes: dict[tuple[int, int], int] = {}

    def node(self, state: int = 0, read: int = 0) -> int:
        key = (state, 0 if self._most is None else read)
        if key not in self._nodes:
            self._nodes[key] = self._later(lambda: self._write(*key))
        return self._nodes[key]

    def _write(self, state: int, read: int) -> int:
        language, most = self._language, self._most
        ways = [self._end] if language.ends[state] else []
        for target, ranges in language.edges[state]:
            least = language.least[target]
            if least is not None and (most is None or read + 1 + least <= most):
                ways.append(self._character(ranges, self.node(target, read + 1)))
        return self._free(*ways)
