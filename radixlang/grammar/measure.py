"""How long the texts of a grammar are at least: what is forced by it may be that long.

The library computes forced text without a bound, some microseconds a byte, so it must know beforehand where a
stretch may be long. `Sizes.least` is the shortest text, `Sizes.stretch` the longest of the shortest texts of all
parts, optional ones and alternatives included. Where a part cannot be read it counts as nothing. Reads Lark,
Python's regular expressions, and schemas as `schema/emit.py` writes them.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as sre  # type: ignore[attr-defined]
from typing import Any, NamedTuple

NEVER = 1 << 62
PASSES = 4
"""over a recursive grammar: each takes what refers to itself to be as long as the pass before found it"""
_SEPARATOR = 2

_RULE = re.compile(r"^[ \t]*[?!]?([A-Za-z_][\w-]*)(?:\[[^\]\n]*\])?(?:\.\d+)?[ \t]*:", re.MULTILINE)
_TOKEN = re.compile(
    r"""//[^\n]* | "(?:\\.|[^"\\])*"i? | /(?:\\.|[^/\\\n])+/[a-z]* | <[^>\n]*> | %[a-z]+ | [A-Za-z_][\w-]*
    | \{\s*\d+\s*(?:,\s*\d*\s*)?\} | ~\s*\d+(?:\s*\.\.\s*\d+)? | \s+ | .""",
    re.VERBOSE | re.DOTALL,
)


class Sizes(NamedTuple):
    """Bytes. `repeat` is the largest number a repeat names; `recursive`: parts contain themselves, many may
    be left to finish at once.
    """

    least: int
    stretch: int
    repeat: int = 0
    recursive: bool = False


class _Measure:
    """Sizes of named parts that may refer to one another; no depth of references is too much."""

    def __init__(self, parts: dict[str, Callable[[], int]]) -> None:
        self._parts = parts
        self._known: dict[str, int] = {}
        self._asked: list[str] = []
        self.stretch = 0
        self.repeat = 0
        self.recursive = False

    def run(self, root: Callable[[], int]) -> Sizes:
        self._parts[""] = root
        order = self._ordered()
        for _ in range(PASSES):
            before = dict(self._known)
            for name in order:
                self._known[name] = self._parts[name]()
            if self._known == before:
                break
        return Sizes(self._known[""], self.stretch, self.repeat, self.recursive)

    def note(self, size: int) -> int:
        """A part can be that short."""
        if size < NEVER:
            self.stretch = max(self.stretch, size)
        return min(size, NEVER)

    def refer(self, name: str) -> int:
        """The size of a part, as far as it is known; 0 at first, for all of them."""
        self._asked.append(name)
        return self._known.get(name, 0)

    def _ordered(self) -> list[str]:
        """The parts that the root needs, each behind those that it refers to where it is not one of theirs."""
        order: list[str] = []
        seen = {""}
        done: set[str] = set()
        stack = [("", self._needs(""))]
        while stack:
            name, needs = stack[-1]
            follows = next(needs, None)
            if follows in seen:
                self.recursive |= follows not in done
            elif follows is None:
                order.append(name)
                done.add(name)
                stack.pop()
            else:
                seen.add(follows)
                stack.append((follows, self._needs(follows)))
        return order

    def _needs(self, name: str) -> Iterator[str]:
        self._asked = []
        self._parts[name]()
        return iter([each for each in dict.fromkeys(self._asked) if each in self._parts])


# ---- regular expressions


def measure_regex(pattern: str) -> Sizes:
    """Of one expression."""
    measure = _Measure({})
    return measure.run(lambda: _regex(pattern, measure))


def _regex(pattern: str, measure: _Measure) -> int:
    counts = [int(count[:18]) for count in re.findall(r"\{(\d+)", pattern) + re.findall(r",(\d+)\}", pattern)]
    measure.repeat = max([measure.repeat, *counts])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = sre.parse(pattern)
        return _tree(tree, measure)
    except (re.error, OverflowError):
        return 0


def _tree(tree: Any, measure: _Measure) -> int:
    size = 0
    for kind, argument in tree:
        if kind is op.BRANCH:
            size += min(_tree(way, measure) for way in argument[1])
        elif kind in (op.SUBPATTERN, op.ATOMIC_GROUP):
            size += _tree(argument[-1] if kind is op.SUBPATTERN else argument, measure)
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            size += argument[0] * _tree(argument[2], measure)
        elif kind in (op.LITERAL, op.NOT_LITERAL, op.IN, op.ANY):
            size += 1
    return measure.note(size)


# ---- schemas


def measure_schema(schema: Any) -> Sizes:
    """Of a schema that `schema/emit.py` wrote."""
    definitions = schema.get("$defs", {}) if isinstance(schema, dict) else {}
    parts: dict[str, Callable[[], int]] = {}
    measure = _Measure(parts)
    for name, inner in definitions.items():
        parts[f"#/$defs/{name}"] = partial(_schema, inner, measure)
    return measure.run(lambda: _schema(schema, measure))


def _schema(schema: Any, measure: _Measure) -> int:
    if not isinstance(schema, dict):
        return 1 if schema is not False else NEVER
    if "$ref" in schema:
        return measure.refer(schema["$ref"])
    if "anyOf" in schema:
        return min([_schema(each, measure) for each in schema["anyOf"]], default=NEVER)
    values = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else None
    if values is not None:
        return min([measure.note(len(json.dumps(value, ensure_ascii=False).encode())) for value in values])
    kinds = schema.get("type")
    if kinds == "string":
        size = schema.get("minLength", 0)
        if "pattern" in schema:
            size = max(size, _regex(schema["pattern"], measure))
        return measure.note(size + 2)
    if kinds == "array":
        first = [_schema(each, measure) for each in schema.get("prefixItems", ())]
        rest = _schema(schema.get("items", True), measure)
        low = schema.get("minItems", 0)
        size = sum(first[:low]) + (rest * (low - len(first)) if low > len(first) else 0)
        return measure.note(size + _SEPARATOR * low)
    if kinds == "object":
        sizes = {name: _schema(each, measure) for name, each in schema.get("properties", {}).items()}
        for each in schema.get("patternProperties", {}).values():
            _schema(each, measure)
        rest = _schema(schema.get("additionalProperties", True), measure)
        required = schema.get("required", ())
        size = sum(len(name.encode()) + 2 * _SEPARATOR + 2 + sizes.get(name, rest) for name in required)
        size += max(schema.get("minProperties", 0) - len(required), 0) * (2 + 2 * _SEPARATOR + rest)
        return measure.note(size + 2)
    return 1


# ---- Lark


def measure_lark(text: str) -> Sizes:
    """Of a grammar in the library's dialect of Lark."""
    found = list(_RULE.finditer(text))
    parts: dict[str, Callable[[], int]] = {}
    measure = _Measure(parts)
    for match, after in zip(found, [*found[1:], None], strict=True):
        body = text[match.end() : after.start() if after else len(text)]
        parts[match[1]] = _Body(body, measure).read
    return measure.run(lambda: measure.refer("start"))


class _Body:
    """Reads the right side of one rule."""

    def __init__(self, text: str, measure: _Measure) -> None:
        self._text, self._at, self._measure = text, 0, measure

    def read(self) -> int:
        """The least of the whole."""
        self._at = 0
        return self.alternatives()

    def alternatives(self, close: str = "") -> int:
        """The least of what stands up to the closing sign, or the end."""
        size, least = 0, NEVER
        last = 0
        while self._at < len(self._text):
            match = _TOKEN.match(self._text, self._at)
            assert match is not None  # `.` takes anything
            token, self._at = match[0], match.end()
            if token.isspace() or token.startswith("//"):
                continue
            if token == close:
                break
            if token == "|":
                least, size, last = min(least, self._measure.note(size + last)), 0, 0
            elif token in ("?", "*"):
                last = 0
            elif token[0] in "{~" and len(token) > 1:
                numbers = [int(number[:18]) for number in re.findall(r"\d+", token)]
                self._measure.repeat = max(self._measure.repeat, *numbers)
                last = self._measure.note(last * numbers[0])
            elif token != "+":
                size, last = self._measure.note(size + last), self._item(token)
        return min(least, self._measure.note(size + last))

    def _item(self, token: str) -> int:
        if token == "(":
            return self.alternatives(")")
        if token == "[":
            self.alternatives("]")
            return 0
        if token[0] == '"':
            return self._measure.note(max(len(token.encode()) - 2, 0))
        if token[0] == "/" and len(token) > 1:
            return _regex(token[1 : token.rindex("/")].replace("\\/", "/"), self._measure)
        if token == "%json":
            return self._json()
        return self._measure.refer(token) if token[0].isalpha() or token[0] == "_" else 0

    def _json(self) -> int:
        start = len(self._text) - len(self._text[self._at :].lstrip())
        try:
            schema, self._at = json.JSONDecoder().raw_decode(self._text, start)
        except ValueError:
            return 0
        sizes = measure_schema(schema)
        self._measure.note(sizes.stretch)
        return sizes.least
