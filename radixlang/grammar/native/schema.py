"""JSON schemas as automata over bytes with a stack.

Takes what `schema.normalise` has written down and states the texts that the llguidance backend allows for it with
fixed separators: one line, `, ` and `: ` between its parts, properties in the order of the schema, optional ones
left out at will, undeclared ones behind them. Strings, arrays and objects are called by the byte that begins them,
so that each is written down once, wherever it may stand, and may hold itself. What needs more than an automaton is
refused with its place in the normalised schema. Must not know tokens.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, ClassVar

from radixlang.grammar.native.regex import Automaton, Unsuitable, read_one
from radixlang.grammar.ranges import Ranges, without
from radixlang.grammar.schema.document import escape
from radixlang.grammar.schema.regex import (
    ANY,
    Tree,
    UnsupportedPatternError,
    has_anchor,
    lengths,
    parse,
    searched,
)

MAX_NODES = 30_000
MAX_PATTERN_STATES = 600
"""states of one string's pattern, which are made beforehand"""

ESCAPED = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 0x22: '"', 0x5C: "\\"}
"""code points that stand in a text as a backslash and a letter, and in no other way"""
_NOT_PLAIN: Ranges = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF))
"""code points that no string may hold as they are"""
_ASCII: Ranges = ((0, 0x7F),)
_DIGITS: Ranges = ((0x30, 0x39),)
_POSITIVE: Ranges = ((0x31, 0x39),)
_STRING, _NUMBER = frozenset({"minLength", "maxLength", "pattern", "allOf"}), frozenset({"minimum", "maximum"})
_OPEN = frozenset({"exclusiveMinimum", "exclusiveMaximum"})
_ARRAY = frozenset({"prefixItems", "items", "minItems", "maxItems"})
_OBJECT = frozenset({"properties", "required", "additionalProperties"})
_KEYWORDS: dict[str, frozenset[str]] = {
    "null": frozenset(),
    "boolean": frozenset(),
    "integer": _NUMBER | _OPEN,
    "number": _NUMBER | _OPEN,
    "string": _STRING,
    "array": _ARRAY,
    "object": _OBJECT,
}


class Builder:
    """Builds an automaton backwards: every method gets the node that follows and returns the one that comes first.
    `at`: the JSON pointer of a schema."""

    def __init__(self) -> None:
        self.automaton = Automaton(most=MAX_NODES)
        self.automaton.accept = self.automaton.node()
        self.automaton.returns = self.automaton.node()
        self.unbounded = False
        """numbers may have any number of digits, so that some are beyond a double"""
        self.patterns: list[int] = []
        """nodes where strings with patterns begin"""
        self._root: Any = True
        self._open: list[str] = []
        """references that are being followed"""
        self._called: dict[tuple[int, str], int] = {}
        """nodes where arrays and objects begin, by the schema's identity"""
        self._strings: dict[str, int] = {}
        """nodes where strings begin, by the schema's text"""
        self._spellings: dict[Ranges, tuple[Ranges, tuple[tuple[int, int, int], ...]]] = {}
        self._todo: list[Callable[[], None]] = []
        """what is called and not written down yet"""
        self._kept: list[Any] = []
        """schemas whose identity is used"""

    def schema(self, schema: Any, follow: int) -> int:
        """The texts of a normalised JSON schema.

        Raises:
            Unsuitable: it is not regular or not small; names pointer and keyword.
        """
        self._root = schema
        self._kept.append(schema)
        try:
            first = self._value(schema, follow, "")
            while self._todo:
                self._todo.pop()()
        except RecursionError:
            raise Unsuitable("it is nested too deeply") from None
        return first

    # ---- texts

    def free(self, *targets: int) -> int:
        """A node that leads to others for nothing."""
        node = self.automaton.node()
        self.automaton.free[node].extend(targets)
        return node

    def text(self, text: str, follow: int) -> int:
        for byte in reversed(text.encode()):
            node = self.automaton.node()
            self.automaton.edges[node].append((byte, byte, follow))
            follow = node
        return follow

    def _digits(self, first: Ranges, follow: int) -> int:
        """One of some digits, then any."""
        loop = self.free(follow)
        self.automaton.free[loop].append(read_one(self.automaton, _DIGITS, loop))
        return read_one(self.automaton, first, loop)

    def _repeated(self, low: int, high: int | None, before: Callable[[int], int], follow: int) -> int:
        """`before(node)` puts one more in front of a node."""
        if high is None:
            loop = self.free(follow)
            self.automaton.free[loop].append(before(loop))
            follow = loop
        else:
            end = follow
            for _ in range(high - low):
                follow = self.free(end, before(follow))
        for _ in range(low):
            last, follow = follow, before(follow)
            if follow == last:  # nothing is repeated
                break
        return follow

    def _call(self, byte: str, rule: int, follow: int) -> int:
        """Read a byte and what is written down at `rule`."""
        node = self.automaton.node()
        self.automaton.calls[node] = ((ord(byte), ord(byte), rule),), follow
        return node

    def _later(self, schema: Any, kind: str, write: Callable[[], int]) -> int:
        """The node where a schema's arrays or objects begin behind their first byte; `write` gives the node of
        their texts."""
        key = (id(schema), kind)
        rule = self._called.get(key)
        if rule is None:
            rule = self._called[key] = self.automaton.node()

            def written() -> None:
                self.automaton.free[rule].append(write())

            self._todo.append(written)
        return rule

    # ---- values

    def _value(self, schema: Any, follow: int, at: str) -> int:
        if schema is False:
            return self.free()
        if not isinstance(schema, dict) or not schema.keys() - {"$defs"}:
            schema = ANYTHING
        if "$ref" in schema:
            return self._reference(schema["$ref"], follow)
        if "anyOf" in schema:
            return self.free(
                *[self._value(one, follow, f"{at}/anyOf/{index}") for index, one in enumerate(schema["anyOf"])]
            )
        if "enum" in schema or "const" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            return self.free(*[self._constant(value, follow, at) for value in values])
        kinds: list[str] = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        for keyword in schema:
            if keyword not in ("type", "$defs") and not any(keyword in _KEYWORDS[kind] for kind in kinds):
                raise Unsuitable(f"no automaton states {keyword} at {at or 'its root'}")
        return self.free(*[self._kinds[kind](self, schema, follow, at) for kind in kinds])

    def _reference(self, name: str, follow: int) -> int:
        if name in self._open:
            raise Unsuitable(f"{name} refers to itself")
        self._open.append(name)
        first = self._value(self._root["$defs"][name.removeprefix("#/$defs/")], follow, name.removeprefix("#"))
        self._open.pop()
        return first

    def _constant(self, value: Any, follow: int, at: str) -> int:
        """One value, called as all values that begin like it are."""
        if isinstance(value, str):
            _check_characters(value, at)
            if (key := json.dumps(value)) not in self._strings:
                self._strings[key] = self._spelling(value, self.automaton.returns)
            return self._call('"', self._strings[key], follow)
        if isinstance(value, list):
            one = self.text("]", self.automaton.returns)
            for index, item in enumerate(reversed(value)):
                one = self._constant(item, self.text(", ", one) if index else one, at)
            return self._call("[", one, follow)
        if isinstance(value, dict):
            one = self.text("}", self.automaton.returns)
            for index, (key, item) in enumerate(reversed(value.items())):
                behind = self._constant(item, self.text(", ", one) if index else one, at)
                one = self._key(key, self.text(": ", behind), at)
            return self._call("{", one, follow)
        return self.text(_written(value, at), follow)

    def _null(self, schema: dict[str, Any], follow: int, at: str) -> int:
        return self.text("null", follow)

    def _boolean(self, schema: dict[str, Any], follow: int, at: str) -> int:
        return self.free(self.text("true", follow), self.text("false", follow))

    # ---- strings

    def _string(self, schema: dict[str, Any], follow: int, at: str) -> int:
        key = json.dumps({name: schema[name] for name in sorted(_STRING & schema.keys())})
        if key not in self._strings:
            self._strings[key] = self._characters(schema, self.text('"', self.automaton.returns), at)
        return self._call('"', self._strings[key], follow)

    def _characters(self, schema: dict[str, Any], end: int, at: str) -> int:
        low, high = schema.get("minLength", 0), schema.get("maxLength")
        if "allOf" in schema:
            raise Unsuitable(f"several patterns hold at {at or 'its root'}")
        if "pattern" not in schema:
            return self._repeated(low, high, lambda node: self._character(ANY, node), end)
        try:
            self.patterns.append(self._pattern(_tree(schema["pattern"], low, high), end))
            return self.patterns[-1]
        except UnsupportedPatternError as error:
            raise Unsuitable(f"the pattern at {at or 'its root'} is not taken: {error}") from None

    def _character(self, ranges: Ranges, follow: int) -> int:
        """One of the characters, as a string spells it. What is longer than a byte is called, everywhere, so that
        what may stand side by side agrees on it."""
        node = self.automaton.node()
        bytes_, longer = self._spelt(ranges)
        self.automaton.edges[node] = [(low, high, follow) for low, high in bytes_]
        if longer:
            self.automaton.calls[node] = longer, follow
        if ranges == ANY:
            self.automaton.plain.add(node)
        return node

    def _spelt(self, ranges: Ranges) -> tuple[Ranges, tuple[tuple[int, int, int], ...]]:
        """The characters that are one byte, and for the others: first bytes, and the node that reads the rest."""
        found = self._spellings.get(ranges)
        if found is None:
            returns, longer = self.automaton.returns, []
            letters = [letter for code, letter in ESCAPED.items() if any(a <= code <= b for a, b in ranges)]
            if letters:
                rest = self.automaton.node()
                self.automaton.edges[rest] = [(ord(letter), ord(letter), returns) for letter in letters]
                longer.append((0x5C, 0x5C, rest))
            plain = without(ranges, _NOT_PLAIN)
            if beyond := without(plain, _ASCII):
                longer += self.automaton.edges[read_one(self.automaton, beyond, returns)]
            found = self._spellings[ranges] = without(plain, without(ANY, _ASCII)), tuple(longer)
        return found

    def _spelling(self, text: str, follow: int) -> int:
        """A text inside of a string, and the quote behind it."""
        follow = self.text('"', follow)
        for char in reversed(text):
            if char.isascii() and ord(char) not in ESCAPED:
                node = self.automaton.node()
                self.automaton.edges[node].append((ord(char), ord(char), follow))
            else:
                node = self._character(((ord(char), ord(char)),), follow)
            follow = node
        return follow

    def _pattern(self, tree: Tree, follow: int) -> int:
        kind = tree[0]
        if kind == "set":
            return self._character(tree[1], follow)
        if kind == "cat":
            for part in reversed(tree[1]):
                follow = self._pattern(part, follow)
            return follow
        if kind == "alt":
            return self.free(*[self._pattern(way, follow) for way in tree[1]])
        if kind == "rep":
            return self._repeated(tree[2], tree[3], lambda node: self._pattern(tree[1], node), follow)
        raise UnsupportedPatternError("it uses properties of characters")

    # ---- numbers; spelt as the library spells them

    def _integer(self, schema: dict[str, Any], follow: int, at: str) -> int:
        low, high = _bounds(schema, at)
        least = None if low is None else low[0] + low[1]
        most = None if high is None else high[0] - high[1]
        ways = []
        if least is None or least < 0:
            # `-0` is an integer where neither bound or where both are there, and zero lies between them
            zero = (least is None) == (most is None) and (most is None or most >= 0)
            first = max(0 if zero else 1, 0 if most is None else -most)
            ways.append(self.text("-", self._whole(first, None if least is None else -least, follow)))
        if most is None or most >= 0:
            ways.append(self._whole(max(least or 0, 0), most, follow))
        return self.free(*ways)

    def _number(self, schema: dict[str, Any], follow: int, at: str) -> int:
        low, high = _bounds(schema, at)
        ways = []
        if low is None and high is None:
            digits = self._digits(_DIGITS, follow)
            signed = self.free(digits, self.text("+", digits), self.text("-", digits))
            power = self.free(follow, self.text("e", signed), self.text("E", signed))
            whole = self._whole(0, None, self.free(power, self.text(".", self._digits(_DIGITS, power))))
            return self.free(whole, self.text("-", whole))
        if low is not None and high is not None and low[0] == high[0]:
            return self.text(str(low[0]), follow) if not (low[1] or high[1]) else self.free()
        if low is None or low[0] < 0:
            first = (0, True) if high is None or high[0] >= 0 else (-high[0], high[1])
            last = None if low is None else (-low[0], low[1])
            ways.append(self.text("-", self._decimal(first, last, follow)))
        if high is None or high > (0, True) or high == (0, False):
            first = low if low is not None and low[0] >= 0 else (0, False)
            ways.append(self._decimal(first, high, follow))
        return self.free(*ways)

    def _decimal(self, low: tuple[int, bool], high: tuple[int, bool] | None, follow: int) -> int:
        """Digits from a whole number to another (True: which is left out), and any behind a point."""
        point = self.free(follow, self.text(".", self._digits(_DIGITS, follow)))
        if high is not None and low[0] == high[0]:
            return self.text(str(low[0]), follow)
        ways = [self._whole(low[0] + low[1], None if high is None else high[0] - 1, point)]
        if low[1]:
            some = self.free()
            self.automaton.free[some] += [
                read_one(self.automaton, _DIGITS, some),
                read_one(self.automaton, _POSITIVE, follow),
            ]
            ways.append(self.text(f"{low[0]}.", some))
        if high is not None and not high[1]:
            zeros = self.free(follow)
            zero = self.text("0", zeros)
            self.automaton.free[zeros].append(zero)
            ways.append(self.text(str(high[0]), self.free(follow, self.text(".", zero))))
        return self.free(*ways)

    def _whole(self, low: int, high: int | None, follow: int) -> int:
        """The digits of the whole numbers from `low` ≥ 0 to `high`."""
        ways = []
        if high is None:
            self.unbounded = True
            size = len(str(low))
            more = self._digits(_DIGITS, follow)
            for _ in range(size - 1):
                more = read_one(self.automaton, _DIGITS, more)
            ways.append(read_one(self.automaton, _POSITIVE, more))
            high = 10**size - 1
        while low <= high:
            most = min(high, 10 ** len(str(low)) - 1)
            ways.append(self._between(str(low), str(most), follow))
            low = most + 1
        return self.free(*ways)

    def _between(self, low: str, high: str, follow: int) -> int:
        """The digits from `low` to `high`, which are as many."""
        if not low:
            return follow
        if set(low) == {"0"} and set(high) == {"9"}:
            for _ in low:
                follow = read_one(self.automaton, _DIGITS, follow)
            return follow
        first, last = low[0], high[0]
        if first == last:
            return self.text(first, self._between(low[1:], high[1:], follow))
        nines, zeros = "9" * (len(low) - 1), "0" * (len(low) - 1)
        ways = [
            self.text(first, self._between(low[1:], nines, follow)),
            self.text(last, self._between(zeros, high[1:], follow)),
        ]
        if ord(first) + 1 < ord(last):
            inside = ((ord(first) + 1, ord(last) - 1),)
            ways.append(read_one(self.automaton, inside, self._between(zeros, nines, follow)))
        return self.free(*ways)

    # ---- arrays and objects

    def _array(self, schema: dict[str, Any], follow: int, at: str) -> int:
        return self._call("[", self._later(schema, "array", lambda: self._items(schema, at)), follow)

    def _items(self, schema: dict[str, Any], at: str) -> int:
        prefix, items = schema.get("prefixItems", []), schema.get("items", {})
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        if items is False:
            high = _least(high, len(prefix))
        close = self.text("]", self.automaton.returns)

        def item(index: int, node: int) -> int:
            if index < len(prefix):
                return self._value(prefix[index], node, f"{at}/prefixItems/{index}")
            return self._value(items, node, f"{at}/items")

        if high == 0:
            return close
        known = max(low, len(prefix) + 1) if high is None else high
        after = self.free(close)
        one = item(known - 1, after)
        if high is None:
            self.automaton.free[after].append(self.text(", ", one))
        for index in reversed(range(known - 1)):
            more = self.text(", ", one)
            one = item(index, self.free(close, more) if index + 1 >= low else more)
        return one if low else self.free(close, one)

    def _object(self, schema: dict[str, Any], follow: int, at: str) -> int:
        return self._call("{", self._later(schema, "object", lambda: self._entries(schema, at)), follow)

    def _entries(self, schema: dict[str, Any], at: str) -> int:
        properties, required = schema.get("properties", {}), set(schema.get("required", ()))
        close = self.text("}", self.automaton.returns)
        keys = self._others(schema.get("additionalProperties", True), list(properties), close, at)
        """the next key, with all that follows"""
        ends = True
        """the object may end before it"""
        for name, one in reversed(properties.items()):
            behind = close if keys is None else self.text(", ", keys)
            if ends and keys is not None:
                behind = self.free(close, behind)
            here = f"{at}/properties/{escape(name)}"
            entry = self._key(name, self.text(": ", self._value(one, behind, here)), here)
            ends = ends and name not in required
            keys = entry if name in required or keys is None else self.free(entry, keys)
        if keys is None:
            return close
        return self.free(close, keys) if ends else keys

    def _key(self, name: str, follow: int, at: str) -> int:
        """A key, with its quotes."""
        _check_characters(name, at)
        return self.text('"', self._spelling(name, follow))

    def _others(self, schema: Any, names: list[str], close: int, at: str) -> int | None:
        """The keys that are not declared, with their values, up to the end; None where there are none. `names`:
        what is declared."""
        if schema is False:
            return None
        behind = self.free(close)
        value = self.text(": ", self._value(schema, behind, f"{at}/additionalProperties"))
        loop = self.free()
        self.automaton.free[loop] += [self._character(ANY, loop), self.text('"', value)]
        declared = self.automaton.node()
        self.automaton.kills[declared] = value
        keys = self.automaton.node()
        inside = self.free(loop, *[self._spelling(name, declared) for name in names])
        self.automaton.edges[keys].append((0x22, 0x22, inside))
        self.automaton.free[behind].append(self.text(", ", keys))
        return keys

    _kinds: ClassVar[dict[str, Callable[[Builder, dict[str, Any], int, str], int]]] = {
        "null": _null,
        "boolean": _boolean,
        "integer": _integer,
        "number": _number,
        "string": _string,
        "array": _array,
        "object": _object,
    }


ANYTHING: dict[str, Any] = {"type": ["null", "boolean", "number", "string", "array", "object"]}


def _check_characters(text: str, at: str) -> None:
    for code in map(ord, text):
        if code not in ESCAPED and any(a <= code <= b for a, b in _NOT_PLAIN):
            raise Unsuitable(f"a constant at {at or 'its root'} holds the character U+{code:04X}")


def _written(value: float | bool | None, at: str) -> str:
    """A number or word as it is written."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        if value.is_integer() and value:
            return str(int(value))
        if not 1e-4 <= abs(value) <= 1e15:
            raise Unsuitable(f"a constant at {at or 'its root'} has more than one usual spelling")
    return repr(value)


def _bounds(schema: dict[str, Any], at: str) -> tuple[tuple[int, bool] | None, tuple[int, bool] | None]:
    """The least and the largest number (True: which is left out); None without a bound."""
    out: list[tuple[int, bool] | None] = []
    for keyword in ("minimum", "maximum"):
        exclusive = "exclusive" + keyword.capitalize()
        bound = schema.get(keyword, schema.get(exclusive))
        if bound is not None and bound != math.floor(bound):
            raise Unsuitable(f"{keyword} is no whole number at {at or 'its root'}")
        out.append(None if bound is None else (int(bound), exclusive in schema))
    return out[0], out[1]


def _least(one: int | None, other: int | None) -> int | None:
    """The smaller of two upper bounds."""
    return other if one is None else one if other is None else min(one, other)


def _tree(pattern: str, low: int, high: int | None) -> Tree:
    """The tree, without anchors, of the strings of `low` to `high` characters in which a pattern is found.

    Raises:
        UnsupportedPatternError: the pattern and the lengths would have to be put together, or it cannot be read.
    """
    tree = searched(parse(pattern).tree)
    if tree[0] == "rep" and tree[1][0] == "set":
        least, most = max(low, tree[2]), _least(high, tree[3])
        return ("rep", tree[1], least, most) if most is None or least <= most else ("alt", ())
    shortest, longest = lengths(tree)
    if low > shortest or (high is not None and (longest is None or longest > high)):
        raise UnsupportedPatternError("it stands beside a length")
    if has_anchor(tree):
        raise UnsupportedPatternError("it looks for ends inside of the text")
    return tree
