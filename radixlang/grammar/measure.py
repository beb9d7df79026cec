"""How long the texts of a grammar are at least: what is forced by it may be that long.

The library computes forced text without a bound, some microseconds a byte, so it must know beforehand where a
stretch may be long. `Sizes.least` is the shortest text. `Sizes.stretch` is the most that stands in a row without a
choice, if every part has its shortest text; optional parts and alternatives are looked at as well. A free string,
a number or one of several values is a choice, so that a large record with short keys has no long stretch. What
cannot be read counts as nothing. Reads Lark, Python's regular expressions, and schemas as `schema/emit.py` writes
them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from re import _constants as op  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from radixlang.grammar.expression import tree_of
from radixlang.grammar.kept import kept

NEVER = 1 << 62
PASSES = 4
"""over a recursive grammar: each takes what refers to itself to be as long as the pass before found it"""
MAX_ROUNDS = 20
"""over parts of which it is not known whether they end: each finds another one at least, mostly all of them"""
_SEPARATOR = 2
_PROPERTY = re.compile(r"\\[pP](?:\{[^}]*\}|[A-Za-z])")
"""what Python's parser does not know"""

_RULE = re.compile(r"^[ \t]*[?!]?([A-Za-z_][\w-]*)(?:\[[^\]\n]*\])?(?:\.\d+)?[ \t]*:", re.MULTILINE)
_TOKEN = re.compile(
    r"""//[^\n]* | "(?:\\.|[^"\\])*"i? | /(?:\\.|[^/\\\n])+/[a-z]* | <[^>\n]*> | %[a-z]+ | [A-Za-z_][\w-]*
    | \{\s*(?:\d+\s*(?:,\s*\d*\s*)?|,\s*\d+\s*)\} | ~\s*\d+(?:\s*\.\.\s*\d+)? | \s+ | .""",
    re.VERBOSE | re.DOTALL,
)


class Sizes(NamedTuple):
    """Bytes. `repeat` is the largest number a repeat names; `recursive`: parts contain themselves, many may
    be left to finish at once; `optional`: of one expression, the most parts in a row that may each be left out;
    `endless`: no text of finite length fulfils the grammar.
    """

    least: int
    stretch: int
    repeat: int = 0
    recursive: bool = False
    optional: int = 0
    endless: bool = False


class _Part(NamedTuple):
    """Bytes of a part's shortest text, and how many may be forced from its beginning on and up to its end. A part
    that is `open` holds a choice; in others both are the whole text, and a stretch goes through it.
    """

    least: int = 0
    head: int = 0
    tail: int = 0
    open: bool = False


def _solid(size: int) -> _Part:
    """Text without a choice."""
    return _Part(size, size, size)


class _Measure:
    """Sizes of named parts that may refer to one another; no depth of references is too much."""

    def __init__(self, parts: dict[str, Callable[[], _Part]]) -> None:
        self._parts = parts
        self._known: dict[str, _Part] = {}
        self._asked: list[str] = []
        self._users: dict[str, set[str]] = {}
        self._order: list[str] = []
        self._stale: set[str] = set()
        """parts that refer to one which has changed since they were looked at"""
        self.stretch = 0
        self.repeat = 0
        self.recursive = False
        self.optional = 0

    def run(self, root: Callable[[], _Part]) -> Sizes:
        self._parts[""] = root
        self._find_order()
        for _ in range(PASSES - 1):
            if not self._stale:
                break
            for name in self._order:
                if name in self._stale:
                    self._look(name)
        return Sizes(self._known[""].least, self.stretch, self.repeat, self.recursive, self.optional)

    def _look(self, name: str) -> None:
        self._stale.discard(name)
        part = self._parts[name]()
        if part != self._known.get(name):
            self._known[name] = part
            self._stale |= self._users.get(name, set())

    def ends(self) -> bool:
        """Whether some text of the root is finite, as far as is cheap to say; to be asked after `run`.

        A part ends once all that one of its ways needs is known to end; what is left at the end never does.
        """
        left = self._order
        self._known = dict.fromkeys(left, _solid(NEVER))
        for _ in range(MAX_ROUNDS):
            before = len(left)
            for name in left:
                if self._parts[name]().least < NEVER:
                    self._known[name] = _Part()
            left = [name for name in left if self._known[name].least]
            if "" not in left:
                return True
            if len(left) == before:
                return False
        return True

    def note(self, part: _Part) -> _Part:
        """Texts may hold this part."""
        if part.least < NEVER and (part.head > self.stretch or part.tail > self.stretch):
            self.stretch = max(part.head, part.tail)
        return part

    def include(self, expression: Sizes) -> int:
        """Texts may hold a match of the expression; bytes of its shortest one."""
        self.stretch = max(self.stretch, expression.stretch)
        self.repeat = max(self.repeat, expression.repeat)
        self.optional = max(self.optional, expression.optional)
        return expression.least

    def join(self, *parts: _Part) -> _Part:
        """One after the other."""
        least = head = tail = 0
        is_open = False
        for least_of, head_of, tail_of, opens in parts:
            least += least_of
            tail += head_of
            if not is_open:
                head = tail
            if opens:
                if least < NEVER and tail > self.stretch:
                    self.stretch = min(tail, NEVER)
                tail, is_open = tail_of, True
        return self.note(_Part(min(least, NEVER), min(head, NEVER), min(tail, NEVER), is_open))

    def behind(self, size: int, part: _Part) -> _Part:
        """Behind text of `size` bytes without a choice."""
        least, head = min(size + part.least, NEVER), min(size + part.head, NEVER)
        return self.note(_Part(least, head, part.tail if part.open else head, part.open))

    def repeat_part(self, part: _Part, count: int) -> _Part:
        """The same part so often."""
        if part.open and count:
            twice = self.join(part, part) if count > 1 else part
            return twice._replace(least=min(part.least * count, NEVER))
        return self.note(_solid(min(part.least * count, NEVER)))

    def either(self, ways: list[_Part]) -> _Part:
        """One of them. The shortest that is no choice by itself, if there is one, stands for all."""
        ways = [self.note(way) for way in ways if way.least < NEVER]
        if not ways:
            return _solid(NEVER)
        least = min(way.least for way in ways)
        solid = [way.least for way in ways if not way.open]
        if solid:
            return _solid(min(solid))._replace(least=least)
        return _Part(least, min(way.head for way in ways), max(way.tail for way in ways), True)

    def refer(self, name: str) -> _Part:
        """A part, as far as it is known; nothing at first, for all of them."""
        self._asked.append(name)
        return self._known.get(name, _Part())

    def _find_order(self) -> None:
        """Looks at the parts that the root needs, each behind those that it refers to, its own users aside."""
        seen = {""}
        stack = [("", self._needs(""))]
        while stack:
            name, needs = stack[-1]
            follows = next(needs, None)
            if follows in seen:
                self.recursive |= follows not in self._known
            elif follows is None:
                if name not in self._known:
                    self._look(name)
                self._order.append(name)
                stack.pop()
            else:
                seen.add(follows)
                stack.append((follows, self._needs(follows)))

    def _needs(self, name: str) -> Iterator[str]:
        """The parts that one refers to. Without any, it is known by that; with some, its sizes are none yet."""
        self._asked, stretch = [], self.stretch
        part = self._parts[name]()
        needs = [each for each in dict.fromkeys(self._asked) if each in self._parts]
        for each in needs:
            self._users.setdefault(each, set()).add(name)
        if needs:
            self.stretch = stretch
        else:
            self._known[name] = part
        return iter(needs)


# ---- regular expressions


@kept(many=1024, short=1 << 12, few=8)
def measure_regex(pattern: str) -> Sizes:
    """Of one expression: where it leaves a choice is not looked at."""
    measure = _Measure({})
    pattern = _PROPERTY.sub(r"\\w", pattern)
    counts = [int(count[:18]) for count in re.findall(r"\{(\d+)", pattern) + re.findall(r",(\d+)\}", pattern)]
    measure.repeat = max([0, *counts])
    least = 0
    try:
        tree = tree_of(pattern)
        _optional(tree, measure)
        least = _tree(tree, measure)
    except (re.error, OverflowError):  # the library may read it, so that all it may hold counts
        measure.optional = max(measure.optional, len(re.findall(r"[?*|{]", pattern)))
    return Sizes(least, measure.stretch, measure.repeat, optional=measure.optional)


def _optional(tree: Any, measure: _Measure) -> tuple[bool, int]:
    """(whether the empty text matches, how many optional parts stand before the first that is not)."""
    empty, lead, run = True, 0, 0
    for kind, argument in tree:
        may, count = False, 0
        if kind is op.BRANCH:
            ways = [_optional(way, measure) for way in argument[1]]
            may, count = (
                any(way[0] for way in ways),
                round(math.hypot(*[way[1] for way in ways])),
            )  # as time adds up
        elif kind in (op.SUBPATTERN, op.ATOMIC_GROUP):
            may, count = _optional(argument[-1] if kind is op.SUBPATTERN else argument, measure)
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            may, count = _optional(argument[2], measure)
            if argument[0] == 0:
                may, count = True, count + 1
        elif kind is op.AT:
            may = True
        if empty:
            lead += count
        run += count
        measure.optional = max(measure.optional, run)
        empty, run = empty and may, run if may else 0
    return empty, lead


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
    return measure.note(_solid(min(size, NEVER))).least


# ---- schemas

_EXCLUSIVE = {"exclusiveMinimum", "exclusiveMaximum"}
_ANY = _Part(1, 0, len("alse"), True)
"""any value, or one of several types"""


def measure_schema(schema: Any) -> Sizes:
    """Of a schema that `schema/emit.py` wrote."""
    return _measured(schema)[0]


def _measured(schema: Any) -> tuple[Sizes, _Part]:
    """The same, and the whole as a part of something else."""
    definitions = schema.get("$defs", {}) if isinstance(schema, dict) else {}
    parts: dict[str, Callable[[], _Part]] = {}
    measure = _Measure(parts)
    for name, inner in definitions.items():
        parts[f"#/$defs/{name}"] = partial(_schema, inner, measure)
    return measure.run(lambda: _schema(schema, measure)), measure.refer("")


def _schema(schema: Any, measure: _Measure) -> _Part:
    if not isinstance(schema, dict):
        return _ANY if schema is not False else _solid(NEVER)
    if "$ref" in schema:
        return measure.refer(schema["$ref"])
    if "anyOf" in schema:
        return measure.either([_schema(each, measure) for each in schema["anyOf"]])
    values = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else None
    if values is not None:
        texts = {json.dumps(value, ensure_ascii=False).encode() for value in values}
        sizes = [measure.note(_solid(len(text))).least for text in texts]
        return _solid(sizes[0]) if len(sizes) == 1 else _Part(min(sizes), min(sizes), max(sizes), True)
    kinds = schema.get("type")
    if kinds == "string":
        return _string(schema, measure)
    if kinds == "array":
        return _array(schema, measure)
    if kinds == "object":
        return _object(schema, measure)
    if kinds == "boolean":
        return measure.note(_Part(len("true"), 0, len("alse"), True))
    if kinds in ("integer", "number"):
        return _number(schema, measure)
    return _solid(len("null")) if kinds == "null" else _ANY


def _number(schema: dict[str, Any], measure: _Measure) -> _Part:
    low, high = (schema.get(key, schema.get(f"exclusiveM{key[1:]}")) for key in ("minimum", "maximum"))
    digits = max([len(str(bound)) for bound in (low, high) if bound is not None], default=0)
    few = low is not None and high is not None and high - low <= len(schema.keys() & _EXCLUSIVE)
    if few or "multipleOf" in schema:
        return measure.note(_solid(max(digits, 1)))
    return measure.note(_Part(1, digits, digits, True))


def _string(schema: dict[str, Any], measure: _Measure) -> _Part:
    size = schema.get("minLength", 0)
    if "pattern" in schema:
        size = max(size, measure.include(measure_regex(schema["pattern"])))
    if schema.keys() & {"pattern", "allOf"} or schema.get("maxLength") == 0:
        return measure.note(_solid(min(size + 2, NEVER)))
    return _Part(size + 2, 1, 1, True)


def _array(schema: dict[str, Any], measure: _Measure) -> _Part:
    first = [_schema(each, measure) for each in schema.get("prefixItems", ())]
    rest = _schema(schema.get("items", True), measure)
    low = schema.get("minItems", 0)
    for each in (*first, rest):
        measure.note(each)
    separator = _solid(_SEPARATOR)
    parts = [part for each in first[:low] for part in (each, separator)]
    if low > len(first):
        parts.append(measure.repeat_part(measure.join(rest, separator), low - len(first)))
    return measure.join(*parts)


def _object(schema: dict[str, Any], measure: _Measure) -> _Part:
    declared = schema.get("properties", {})
    required = set(schema.get("required", ()))
    rest = _schema(schema.get("additionalProperties", True), measure)
    for each in schema.get("patternProperties", {}).values():
        fitting = _schema(each, measure)
        measure.note(fitting)
        rest = fitting if fitting.least < rest.least else rest
    parts = [_solid(1)]
    for name in [*declared, *(required - declared.keys())]:
        key = len(name.encode()) + 2 * _SEPARATOR + 2
        member = measure.behind(key, _schema(declared[name], measure) if name in declared else rest)
        if name in required:
            parts.append(member)
    more = max(schema.get("minProperties", 0) - len(required), 0)
    parts.append(measure.repeat_part(measure.behind(2 + 2 * _SEPARATOR, rest), more))
    return measure.join(*parts, _solid(1))


# ---- Lark


def measure_lark(text: str) -> Sizes:
    """Of a grammar in the library's dialect of Lark."""
    found = list(_RULE.finditer(text))
    parts: dict[str, Callable[[], _Part]] = {}
    measure = _Measure(parts)
    for match, after in zip(found, [*found[1:], None], strict=True):
        body = text[match.end() : after.start() if after else len(text)]
        parts[match[1]] = _Body(body, measure).read
    sizes = measure.run(lambda: measure.refer("start"))
    return sizes._replace(endless=sizes.recursive and not measure.ends())


class _Body:
    """Reads the right side of one rule."""

    def __init__(self, text: str, measure: _Measure) -> None:
        self._text, self._at, self._measure = text, 0, measure

    def read(self) -> _Part:
        """The whole."""
        self._at = 0
        return self.alternatives()

    def alternatives(self, close: str = "") -> _Part:
        """What stands up to the closing sign, or the end."""
        measure = self._measure
        ways: list[_Part] = []
        parts = [_Part()]
        while self._at < len(self._text):
            match = _TOKEN.match(self._text, self._at)
            assert match is not None  # `.` takes anything
            token, self._at = match[0], match.end()
            if token.isspace() or token.startswith("//"):
                continue
            if token == close:
                break
            if token == "|":
                ways.append(measure.join(*parts))
                parts = [_Part()]
            elif token in ("?", "*"):
                parts[-1] = _Part()
            elif token[0] in "{~" and len(token) > 1:
                numbers = [int(number[:18]) for number in re.findall(r"\d+", token)]
                measure.repeat = max(measure.repeat, *numbers)
                least = 0 if token[1:].lstrip()[0] == "," else numbers[0]
                parts[-1] = measure.repeat_part(parts[-1], least)
            elif token != "+":
                parts.append(measure.note(self._item(token)))
        return measure.either([*ways, measure.join(*parts)])

    def _item(self, token: str) -> _Part:
        if token == "(":
            return self.alternatives(")")
        if token == "[":
            self.alternatives("]")
            return _Part()
        if token[0] == '"':
            return _solid(max(len(token.encode()) - 2, 0))
        if token[0] == "/" and len(token) > 1:
            pattern = token[1 : token.rindex("/")].replace("\\/", "/")
            return _solid(self._measure.include(measure_regex(pattern)))
        if token == "%json":
            return self._json()
        return self._measure.refer(token) if token[0].isalpha() or token[0] == "_" else _Part()

    def _json(self) -> _Part:
        start = len(self._text) - len(self._text[self._at :].lstrip())
        try:
            schema, self._at = json.JSONDecoder().raw_decode(self._text, start)
        except ValueError:
            return _Part()
        sizes, whole = _measured(schema)
        self._measure.stretch = max(self._measure.stretch, sizes.stretch)
        self._measure.recursive |= sizes.recursive
        return whole
