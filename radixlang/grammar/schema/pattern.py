"""Sets of strings: those in which some patterns are found and others are not.

A `Language` can be matched, tested for emptiness, and written back as one pattern that needs neither look-arounds
nor a complement operator. Patterns are *searched*: `b` matches "abc". Knows nothing of schemas.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from radixlang.grammar.kept import kept
from radixlang.grammar.ranges import invert, union
from radixlang.grammar.schema.automaton import MAX_TEXT, SHORT, Product, Terms, eliminate, searches, size_of
from radixlang.grammar.schema.regex import (
    IrregularPatternError,
    UnsupportedPatternError,
    has_anchor,
    lengths,
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
    "followed",
    "parse",
    "readable",
    "universal",
    "without",
]

_MAX_LENGTH = 1_000  # of strings that are looked for


class Language(NamedTuple):
    """The strings that every pattern of `terms` with True is found in, and none with False."""

    terms: Terms

    def matches(self, text: str) -> bool:
        """Whether `text` is in the language."""
        return searches(self.terms).accept(text)

    def empty(self, low: int = 0, high: int | None = None) -> bool:
        """Whether no string of `low` to `high` characters is in the language, as far as is cheap to say.

        Raises:
            UnsupportedPatternError: a pattern cannot be read, or they are too large to compare.
        """
        for source, wanted in self.terms:
            read = parse(source)
            if wanted and not read.looks:
                least, most = lengths(searched(read.tree))
                if (high is not None and least > high) or (most is not None and most < low):
                    return True
        return _has_none(self.terms, low, high)

    def source(self) -> str:
        """One pattern for the language.

        Raises:
            UnsupportedPatternError: it would be too large, or a pattern cannot be read.
        """
        written = _source(self.terms)
        if isinstance(written, UnsupportedPatternError):
            raise UnsupportedPatternError(*written.args)
        return written

    def looking(self) -> str:
        """One pattern for the language that may look around, so that it is as large as the patterns are.

        Raises:
            UnsupportedPatternError: a pattern cannot be read, or looks around in a way that is not followed.
        """
        searches(self.terms)
        if len(self.terms) == 1 and self.terms[0][1]:
            return self.terms[0][0]
        return "^" + "".join([rf"(?{'=' if wanted else '!'}[\s\S]*(?:{source}))" for source, wanted in self.terms])


@kept(many=512, short=SHORT, few=8, size=size_of)
def _has_none(terms: Terms, low: int, high: int | None) -> bool:
    """`Language.empty` by looking for one: no more of the automaton is unfolded than that takes."""
    automaton = Product(searches(terms))
    states = {0}
    live: set[int] | None = None
    for length in range(_MAX_LENGTH):  # those that strings of this length lead to
        if length >= low and any(automaton.accepting(state) for state in states):
            return False
        if length == high:
            return True
        states = {target for state in states for target in automaton.edges(state)}
        if live is None and automaton.complete():
            live = automaton.live()
        if live is not None and not (states := states & live):
            return True
    return False


@kept(many=512, short=SHORT, few=8, size=size_of)
def _source(terms: Terms) -> str | UnsupportedPatternError:
    """`Language.source`, or why there is none: that may have taken long to see, and is kept too."""
    try:
        if len(terms) == 1 and terms[0][1]:
            tree, plain, around = parse(terms[0][0])
            if not around and not has_anchor(searched(tree)):  # libraries take anchors at the ends alone
                return terms[0][0] if plain and written_as_it_is(tree) else write(tree)
        return eliminate(Product(searches(terms)))
    except UnsupportedPatternError as error:
        return UnsupportedPatternError(*error.args)  # without the frames that it came through


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


def followed(source: str) -> bool:
    """Whether an automaton can follow a pattern, one that looks around too; it may be large."""
    try:
        return bool(Language(((source, True),)).looking())
    except UnsupportedPatternError:
        return False


def looking(source: str) -> bool:
    """Whether a pattern looks ahead or behind.

    Raises:
        UnsupportedPatternError: the pattern cannot be read.
    """
    return parse(source).looks


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
        options.append(_beginning_otherwise("".join(sorted(heads))))
        options.extend(write_char(ord(c)) + rest(tails) for c, tails in sorted(heads.items()))
        return f"(?:{'|'.join(options)})"

    if sum(map(len, words)) > MAX_TEXT or max(map(len, words), default=0) > 200:
        raise UnsupportedPatternError("the excluded strings are too long")
    return f"^{rest(sorted(words))}$"


@lru_cache(512)
def _beginning_otherwise(characters: str) -> str:
    """A pattern for texts that begin with another character than these."""
    return write_set(invert(union([(ord(c), ord(c)) for c in characters]))) + r"[\s\S]*"
