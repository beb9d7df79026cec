"""Clients' regular expressions, grammars and choices as context-free rules.

What the rules cannot state is refused by name: nothing is left out. Must not know the library that takes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from re import _constants as op  # type: ignore[attr-defined]
from typing import Any

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.expression import tree_of
from radixlang.grammar.native.regex import Unsuitable, ranges_of
from radixlang.grammar.ranges import LAST, union
from radixlang.grammar.rust_regex import as_rust
from radixlang.grammar.xgr.rules import EMPTY, MAX_DEPTH, SURROGATES, Rules, Tree, without


def text_of(text: str, param: str) -> Tree:
    """A literal.

    Raises:
        GrammarError: it holds half of a surrogate pair.
    """
    if any(SURROGATES[0] <= ord(char) <= SURROGATES[1] for char in text):
        raise GrammarError(f"{param} holds half of a surrogate pair, which no text can", param=param)
    return ("text", text)


# ---- regular expressions


def of_regex(pattern: str) -> Rules:
    """The rules of an expression of Python's, which must match a whole text.

    Raises:
        GrammarError: it is none, or is more than a regular one.
    """
    as_rust(pattern)  # names what is more than regular
    try:
        tree = tree_of(pattern)
        return {"root": _sequence(list(tree), tree.state.flags, True, True)}
    except (re.error, OverflowError, Unsuitable) as error:
        raise GrammarError(f"regex cannot be held: {error}", param="regex") from None


def _sequence(items: list[Any], flags: int, first: bool, last: bool) -> Tree:
    """`first`, `last`: nothing stands before, behind the sequence."""
    parts: list[Tree] = []
    for index, (kind, argument) in enumerate(items):
        at_start = first and all(each[0] is op.AT for each in items[:index])
        at_end = last and all(each[0] is op.AT for each in items[index + 1 :])
        part = _item(kind, argument, flags, at_start, at_end)
        if part[0] == "text" and parts and parts[-1][0] == "text":
            parts[-1] = ("text", parts[-1][1] + part[1])
        elif part != EMPTY:
            parts.append(part)
    return parts[0] if len(parts) == 1 else ("cat", tuple(parts))


def _item(kind: Any, argument: Any, flags: int, first: bool, last: bool) -> Tree:
    if kind is op.BRANCH:
        return ("alt", tuple(_sequence(list(way), flags, first, last) for way in argument[1]))
    if kind is op.SUBPATTERN:
        _, added, removed, body = argument
        kept = flags & ~(re.ASCII | re.UNICODE) if added & (re.ASCII | re.UNICODE) else flags
        return _sequence(list(body), (kept | added) & ~removed, first, last)
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
        low, high, body = argument
        most = None if high is op.MAXREPEAT else high
        inner = _sequence(list(body), flags, False, False)
        return EMPTY if most == 0 or inner == EMPTY else ("rep", inner, low, most)
    if kind is op.AT:
        starts = argument in (op.AT_BEGINNING, op.AT_BEGINNING_STRING)
        ends = argument in (op.AT_END, op.AT_END_STRING)
        if flags & re.MULTILINE or not ((starts and first) or (ends and last)):
            raise Unsuitable("it looks for the end of something inside of the text")
        return EMPTY
    ranges = ranges_of(kind, argument, flags)
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return ("text", chr(ranges[0][0]))
    return ("set", ranges)


# ---- GBNF

_TOKEN = re.compile(
    r"""(?P<skip>\s+|\#[^\n]*) | (?P<head>[\w-]+)\s*::= | (?P<name>[\w-]+) | (?P<text>"(?:\\.|[^"\\\n])*")
    | (?P<class>\[(?:\\.|[^\]\\])*\]) | (?P<count>\{\s*\d+\s*(?:,\s*\d*\s*)?\}) | (?P<sign>[|()*+?.])""",
    re.VERBOSE | re.DOTALL,
)
_CHAR = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|(.)", re.DOTALL)
_SHORT = {"n": "\n", "r": "\r", "t": "\t"}


def of_gbnf(text: str) -> Rules:
    """The rules of a grammar in GBNF.

    Raises:
        GrammarError: it cannot be read; says where.
    """
    reader = _Gbnf(text)
    rules: Rules = {}
    while reader.kind == "head":
        name = reader.short(reader.value)
        if name in rules:
            raise reader.error(f"the rule {reader.value!r} stands there twice")
        reader.next()
        rules[name] = reader.alternatives(0)
    if reader.kind != "end" or not rules:
        raise reader.error("a rule `name ::= …` is expected")
    missing = next((name for name, short in {"root": "root", **reader.names}.items() if short not in rules), None)
    if missing is not None:
        raise GrammarError(f"ebnf cannot be compiled: the rule {missing!r} is missing", param="ebnf")
    return rules


class _Gbnf:
    """Reads one grammar; `kind` and `value` are of the token that comes next."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self.names: dict[str, str] = {}
        self.kind = self.value = ""
        self.next()

    def next(self) -> None:
        self.kind = "skip"
        while self.kind == "skip":
            match = _TOKEN.match(self._text, self._at)
            if match is None or match.lastgroup is None:
                self.kind, self.value = "end" if self._at >= len(self._text) else "unknown", ""
                return
            self.kind, self.value, self._at = match.lastgroup, match[match.lastgroup], match.end()

    def short(self, name: str) -> str:
        """What a rule is called here: some names mean something to the library."""
        return "root" if name == "root" else self.names.setdefault(name, f"g{len(self.names)}")

    def error(self, why: str) -> GrammarError:
        line = self._text.count("\n", 0, self._at) + 1
        return GrammarError(f"ebnf cannot be read as GBNF: in line {line}, {why}", param="ebnf")

    def alternatives(self, depth: int) -> Tree:
        ways = [self._sequence(depth)]
        while self.value == "|" and self.kind == "sign":
            self.next()
            ways.append(self._sequence(depth))
        return ways[0] if len(ways) == 1 else ("alt", tuple(ways))

    def _sequence(self, depth: int) -> Tree:
        parts: list[Tree] = []
        while self.kind in ("name", "text", "class", "count") or (self.kind == "sign" and self.value not in "|)"):
            if self.kind == "count" or self.value in ("*", "+", "?"):
                if not parts:
                    raise self.error(f"{self.value} repeats nothing")
                parts[-1] = ("rep", parts[-1], *self._bounds())
            else:
                parts.append(self._atom(depth))
            self.next()
        return parts[0] if len(parts) == 1 else ("cat", tuple(parts))

    def _bounds(self) -> tuple[int, int | None]:
        if self.kind != "count":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[self.value]
        low, comma, high = self.value.strip("{} ").partition(",")
        most = int(low) if not comma else int(high) if high.strip() else None
        if most is not None and most < int(low):
            raise self.error(f"the bounds of {self.value} are out of order")
        return int(low), most

    def _atom(self, depth: int) -> Tree:
        if self.kind == "name":
            return ("ref", self.short(self.value))
        if self.kind == "text":
            return text_of("".join(map(chr, self._characters(self.value[1:-1]))), "ebnf")
        if self.kind == "class":
            return self._class(self.value[1:-1])
        if self.value == ".":
            return ("set", without(()))
        if depth >= MAX_DEPTH:
            raise RecursionError
        self.next()
        inner = self.alternatives(depth + 1)
        if self.value != ")":
            raise self.error("a parenthesis is not closed")
        return inner

    def _characters(self, text: str) -> Iterator[int]:
        for match in _CHAR.finditer(text):
            digits = match[1] or match[2] or match[3]
            code = int(digits, 16) if digits else ord(_SHORT.get(match[4], match[4]) if match[4] else match[5])
            if code > LAST or ((match[4] or "").isalnum() and match[4] not in _SHORT):
                raise self.error(f"the escape {match[0]} is unknown")
            yield code

    def _class(self, text: str) -> Tree:
        negated = text.startswith("^")
        text = text[negated:]
        dashes = [m.start() for m in _CHAR.finditer(text) if m[0] == "-"]
        ranges: list[tuple[int, int]] = []
        at = 0
        starts = [m.start() for m in _CHAR.finditer(text)]
        codes = list(self._characters(text))
        while at < len(codes):
            low = high = codes[at]
            if at + 2 < len(codes) and starts[at + 1] in dashes:
                high, at = codes[at + 2], at + 2
                if high < low:
                    raise self.error(f"a range of [{text}] is out of order")
            ranges.append((low, high))
            at += 1
        inside = without(union(ranges)) if negated else without(without(union(ranges)))
        if not inside:
            raise self.error(f"[{text}] allows no character")
        return ("set", inside)
