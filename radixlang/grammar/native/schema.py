"""JSON schemas that are small regular languages, as automata over bytes.

Takes what `schema.normalise` has written down and states the texts that the llguidance backend allows for it with
fixed separators: one line, `, ` and `: ` between its parts, properties in the order of the schema, optional ones
left out at will. What nests without end, leaves keys open or needs more than an automaton is refused with its
place in the normalised schema. Must not know tokens.
"""

from __future__ import annotations

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

MAX_STATES = 1_000
"""states of one schema's automaton, 15 ms to make; what is larger costs the library less, first masks included"""
MAX_NODES = 1_200
"""nodes before it is made deterministic: a character of a string needs ten"""

ESCAPED = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 0x22: '"', 0x5C: "\\"}
"""code points that stand in a text as a backslash and a letter, and in no other way"""
_NOT_PLAIN: Ranges = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF))
"""code points that no string may hold as they are"""
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
        self.unbounded = False
        """numbers may have any number of digits, so that some are beyond a double"""
        self._root: Any = True
        self._open: list[str] = []
        """references that are being followed"""

    def schema(self, schema: Any, follow: int) -> int:
        """The texts of a normalised JSON schema.

        Raises:
            Unsuitable: it is not regular or not small; names pointer and keyword.
        """
        self._root = schema
        try:
            return self._value(schema, follow, "")
        except RecursionError:
            raise Unsuitable("it is nested too deeply") from None

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

    # ---- values

    def _value(self, schema: Any, follow: int, at: str) -> int:
        if schema is False:
            return self.free()
        if not isinstance(schema, dict) or not schema.keys() - {"$defs"}:
            raise Unsuitable(f"any value may stand at {at or 'its root'}")
        if "$ref" in schema:
            return self._reference(schema["$ref"], follow)
        if "anyOf" in schema:
            return self.free(
                *[self._value(one, follow, f"{at}/anyOf/{index}") for index, one in enumerate(schema["anyOf"])]
            )
        if "enum" in schema or "const" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            return self.free(*[self.text(_written(value, at), follow) for value in values])
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

    def _null(self, schema: dict[str, Any], follow: int, at: str) -> int:
        return self.text("null", follow)

    def _boolean(self, schema: dict[str, Any], follow: int, at: str) -> int:
        return self.free(self.text("true", follow), self.text("false", follow))

    # ---- strings

    def _string(self, schema: dict[str, Any], follow: int, at: str) -> int:
        low, high = schema.get("minLength", 0), schema.get("maxLength")
        end = self.text('"', follow)
        if "allOf" in schema:
            raise Unsuitable(f"several patterns hold at {at or 'its root'}")
        if "pattern" not in schema:
            return self.text('"', self._repeated(low, high, lambda node: self._character(ANY, node), end))
        try:
            return self.text('"', self._pattern(_tree(schema["pattern"], low, high), end))
        except UnsupportedPatternError as error:
            raise Unsuitable(f"the pattern at {at or 'its root'} is not taken: {error}") from None

    def _character(self, ranges: Ranges, follow: int) -> int:
        """One of the characters, as a string spells it."""
        plain = without(ranges, _NOT_PLAIN)
        node = read_one(self.automaton, plain, follow) if plain else self.automaton.node()
        letters = [letter for code, letter in ESCAPED.items() if any(a <= code <= b for a, b in ranges)]
        if letters:
            escaped = self.automaton.node()
            self.automaton.edges[escaped] = [(ord(letter), ord(letter), follow) for letter in letters]
            self.automaton.edges[node].append((0x5C, 0x5C, escaped))
        return node

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
        prefix, items = schema.get("prefixItems", []), schema.get("items", {})
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        if items is False:
            high = _least(high, len(prefix))
        close = self.text("]", follow)

        def item(index: int, node: int) -> int:
            if index < len(prefix):
                return self._value(prefix[index], node, f"{at}/prefixItems/{index}")
            return self._value(items, node, f"{at}/items")

        if high == 0:
            return self.text("[", close)
        known = max(low, len(prefix) + 1) if high is None else high
        after = self.free(close)
        one = item(known - 1, after)
        if high is None:
            self.automaton.free[after].append(self.text(", ", one))
        for index in reversed(range(known - 1)):
            more = self.text(", ", one)
            one = item(index, self.free(close, more) if index + 1 >= low else more)
        return self.text("[", one if low else self.free(close, one))

    def _object(self, schema: dict[str, Any], follow: int, at: str) -> int:
        if schema.get("additionalProperties", True) is not False:
            raise Unsuitable(f"undeclared keys may stand at {at or 'its root'} (additionalProperties)")
        properties, required = schema.get("properties", {}), set(schema.get("required", ()))
        # What may follow when something stands before it, and when nothing does.
        behind = begun = self.text("}", follow)
        for name, one in reversed(properties.items()):
            here = f"{at}/properties/{escape(name)}"
            entry = self.text(f"{_written(name, here)}: ", self._value(one, behind, here))
            comma = self.text(", ", entry)
            behind = comma if name in required else self.free(behind, comma)
            begun = entry if name in required else self.free(entry, begun)
        return self.text("{", begun)

    _kinds: ClassVar[dict[str, Callable[[Builder, dict[str, Any], int, str], int]]] = {
        "null": _null,
        "boolean": _boolean,
        "integer": _integer,
        "number": _number,
        "string": _string,
        "array": _array,
        "object": _object,
    }


def _written(value: Any, at: str) -> str:
    """A constant as it is written."""
    if isinstance(value, str):
        out = []
        for char in value:
            code = ord(char)
            if code not in ESCAPED and any(a <= code <= b for a, b in _NOT_PLAIN):
                raise Unsuitable(f"a constant at {at or 'its root'} holds the character U+{code:04X}")
            out.append("\\" + ESCAPED[code] if code in ESCAPED else char)
        return f'"{"".join(out)}"'
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if value.is_integer() and value:
            return str(int(value))
        if not 1e-4 <= abs(value) <= 1e15:
            raise Unsuitable(f"a constant at {at or 'its root'} has more than one usual spelling")
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(_written(one, at) for one in value)}]"
    return "{" + ", ".join(f"{_written(key, at)}: {_written(one, at)}" for key, one in value.items()) + "}"


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
