"""A regular expression of Python's in the spelling of the Rust library `regex`, which reads some signs otherwise.

What differs without being refused: `\\w` holds combining marks there and `\\s` lacks four control characters;
inside brackets `[`, `&&`, `--` and `~~` are operators; `\\Z` is `\\z`. What no automaton means, and what the
library takes for something else, is refused by name. Knows nothing but text.
"""

from __future__ import annotations

import re

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.expression import tree_of

_WORD, _SPACE = r"\p{L}\p{N}_", r"\s\x1c-\x1f"
_OUTSIDE = {"w": f"[{_WORD}]", "W": f"[^{_WORD}]", "s": f"[{_SPACE}]", "S": f"[^{_SPACE}]", "Z": r"\z"}
_INSIDE = _OUTSIDE | {"w": _WORD, "s": _SPACE}

_GROUPS = (
    ("(?>", "atomic groups"),
    ("(?P=", "back-references"),
    ("(?(", "conditions"),
)
_ESCAPES = dict.fromkeys("123456789", "back-references")
_LOOKS = (
    ("(?=", "look-ahead"),
    ("(?!", "look-ahead"),
    ("(?<=", "look-behind"),
    ("(?<!", "look-behind"),
    ("\\b", "word boundaries"),
    ("\\B", "word boundaries"),
)
"""what our automata take; named where there is nothing else to name"""
_LINES = re.compile(r"\(\?[a-zA-Z]*m[a-zA-Z]*(?:-[a-zA-Z]+)?[:)]")
_QUANTIFIER = re.compile(r"[*+?]|\{\d*,?\d*\}")
_NAMED = re.compile(r"\\(?:[pPxu]\{[^}]*\})")


def as_rust(pattern: str) -> str:
    """The same expression for the library.

    Raises:
        GrammarError: it uses what the library does not state (look-around, back-references, …), named in the
            sentence.
    """
    _refuse_irregular(pattern)
    out: list[str] = []
    at, inside = 0, False
    while at < len(pattern):
        char = pattern[at]
        if char == "\\" and at + 1 < len(pattern):
            follows = pattern[at + 1]
            out.append((_INSIDE if inside else _OUTSIDE).get(follows, char + follows))
            at += 2
            continue
        at += 1
        if not inside and char == "[":
            inside = True
            begin = 1 + pattern.startswith("^", at)
            out.append("[^"[:begin])
            at += begin - 1
            if pattern.startswith("]", at):  # the first sign of a class never closes it
                out.append(r"\]")
                at += 1
            continue
        if inside and char == "]":
            inside = False
        elif inside and (char in "[&~" or (char == "-" and pattern.startswith("-", at))):
            char = "\\" + char
        out.append(char)
    return "".join(out)


def _refuse_irregular(pattern: str) -> None:
    """Raises GrammarError where the expression is more than a regular one. The library would refuse most of it in
    words of its own, and read `a++` as `(a+)+`, which matches what a possessive repeat does not."""
    at, inside = 0, False
    looks: tuple[str, int] | None = None
    while at < len(pattern):
        if looks is None and not inside:
            name = next((name for sign, name in _LOOKS if pattern.startswith(sign, at)), None)
            name = "the flag m" if _LINES.match(pattern, at) else name
            looks = (name, at) if name else None
        if pattern[at] == "\\":
            named = _NAMED.match(pattern, at)
            if not inside:
                _refuse(_ESCAPES.get(pattern[at + 1 : at + 2]), at)
            at = named.end() if named else at + 2
            continue
        if inside:
            inside = pattern[at] != "]"
            at += 1
            continue
        if pattern[at] == "[":
            inside = True
            at += 1 + pattern.startswith("^", at + 1)
            at += pattern.startswith("]", at)
            continue
        _refuse(next((name for sign, name in _GROUPS if pattern.startswith(sign, at)), None), at)
        quantifier = _QUANTIFIER.match(pattern, at)
        if quantifier is None or (at > 0 and pattern[at - 1] == "(" and pattern[at] == "?"):
            at += 1
            continue
        at = quantifier.end()
        if pattern.startswith("+", at):
            _refuse("possessive repeats", at)
        at += pattern.startswith("?", at)
        _refuse("repeats of repeats" if _QUANTIFIER.match(pattern, at) else None, at)
    if looks is not None:
        try:
            tree_of(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise GrammarError(f"regex cannot be read: {error}", param="regex") from None
        _refuse(*looks)


def _refuse(name: str | None, at: int) -> None:
    if name:
        raise GrammarError(
            f"regex cannot be held: it uses {name} at position {at}, which llguidance does not state; "
            "write it without",
            param="regex",
        )
