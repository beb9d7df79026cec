"""JSON schemas as automata over bytes with a stack.

Takes what `schema.normalise` has written down and states the texts that the llguidance backend allows for it with
fixed separators: one line, `, ` and `: ` between its parts, properties in the order of the schema, optional ones
left out at will, undeclared ones behind them. Strings, arrays and objects are called by the byte that begins them,
so that each is written down once, wherever it may stand, and may hold itself. What needs more than an automaton is
refused with its place in the normalised schema. Must not know tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from radixlang.grammar.native.regex import Automaton, Edges, Unsuitable, read_called, read_one
from radixlang.grammar.native.strings import (
    ESCAPED,
    MAX_WORK,
    NOT_PLAIN,
    Language,
    Strings,
    check_some,
    counted,
    language,
    most_of,
    terms_of,
    unwritable,
)
from radixlang.grammar.native.taken import MOST, STRING, Taken, bounds_of, is_any, kinds_of, scalar
from radixlang.grammar.ranges import Ranges, without
from radixlang.grammar.schema.automaton import Terms
from radixlang.grammar.schema.regex import (
    ANY,
    UnsupportedPatternError,
    parse,
    searched,
)

MAX_NODES = 1_500_000
"""of a schema, as far as its texts have come"""
MAX_COUNTED = 48_000
"""states of the strings whose characters are counted, altogether; texts make them as they come to them"""
MAX_PATTERN_STATES = 8_000
"""states of the automata of all patterns together, which are made beforehand; about a tenth of a second"""

_DIGITS: Ranges = ((0x30, 0x39),)
_POSITIVE: Ranges = ((0x31, 0x39),)
ANYTHING: dict[str, Any] = {"type": ["null", "boolean", "number", "string", "array", "object"]}


class Builder:
    """Builds an automaton backwards: every method gets the node that follows and returns the one that comes first.
    `at`: the JSON pointer of a schema."""

    def __init__(self, writable: npt.NDArray[np.bool_]) -> None:
        """`writable` [256]: the bytes that the model's tokens have."""
        self._writable = writable
        self._lost = unwritable(writable)
        self.automaton = Automaton(most=MAX_NODES)
        self.automaton.accept = self.automaton.node()
        self.automaton.returns = self.automaton.node()
        self.unbounded = False
        """numbers may have any number of digits, so that some are beyond a double"""
        self._counted = 0
        self._patterns: dict[Terms, Language] = {}
        self._open: list[str] = []
        """references that are being followed"""
        self._called: dict[tuple[int, str], int] = {}
        """nodes where arrays and objects begin, by the schema's identity"""
        self._strings: dict[str, int] = {}
        """nodes where strings begin, by the schema's text"""
        self._spellings: dict[Ranges, tuple[Ranges, Edges]] = {}

    def schema(self, schema: Any, follow: int) -> int:
        """The texts of a normalised JSON schema. Its arrays and objects are written down when a text first comes
        to them.

        Raises:
            Unsuitable: no automaton states it; names pointer and keyword.
        """
        try:
            taken = Taken(schema, self._writable)
            self.unbounded |= taken.unbounded
            self._count(taken.counted)
            for one, at in taken.patterns:
                self._string_at(one, at)
            for terms, at in taken.keys:
                self._language(terms, at)
            return self._value(taken, schema, follow)
        except RecursionError:
            raise Unsuitable("it is nested too deeply") from None

    # ---- texts

    def free(self, *targets: int) -> int:
        """A node that leads to others for nothing."""
        return self.automaton.node(free=targets)

    def text(self, text: str, follow: int) -> int:
        for byte in reversed(text.encode()):
            follow = self.automaton.node(((byte, byte, follow),))
        return follow

    def _digits(self, first: Ranges, follow: int) -> int:
        """One of some digits, then any."""
        loop = self.free(follow)
        self.automaton.free[loop] += (read_one(self.automaton, _DIGITS, loop),)
        return read_one(self.automaton, first, loop)

    def _repeated(self, low: int, high: int | None, before: Callable[[int], int], follow: int) -> int:
        """`before(node)` puts one more in front of a node."""
        if high is None:
            loop = self.free(follow)
            self.automaton.free[loop] += (before(loop),)
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
        if key not in self._called:
            self._called[key] = self._pending(write)
        return self._called[key]

    # ---- values

    def _value(self, taken: Taken, schema: Any, follow: int) -> int:
        if not taken.may_be(schema):
            return self.free()
        if is_any(schema):
            schema = ANYTHING
        if "$ref" in schema:
            if schema["$ref"] in self._open:
                raise Unsuitable(f"{schema['$ref']} refers to itself")
            self._open.append(schema["$ref"])
            first = self._value(taken, taken.named(schema["$ref"]), follow)
            self._open.pop()
            return first
        if "anyOf" in schema:
            return self.free(*[self._value(taken, one, follow) for one in schema["anyOf"]])
        if "enum" in schema or "const" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            return self.free(*[self._constant(value, follow) for value in values])
        return self.free(*[self._kinds[kind](self, taken, schema, follow) for kind in kinds_of(schema)])

    def _constant(self, value: Any, follow: int) -> int:
        """One value, called as all values that begin like it are."""
        if isinstance(value, str):
            if (key := json.dumps(value)) not in self._strings:
                self._strings[key] = self._spelling(value, self.automaton.returns)
            return self._call('"', self._strings[key], follow)
        if isinstance(value, list):
            one = self.text("]", self.automaton.returns)
            for index, item in enumerate(reversed(value)):
                one = self._constant(item, self.text(", ", one) if index else one)
            return self._call("[", one, follow)
        if isinstance(value, dict):
            one = self.text("}", self.automaton.returns)
            for index, (key, item) in enumerate(reversed(value.items())):
                behind = self._constant(item, self.text(", ", one) if index else one)
                one = self._key(key, self.text(": ", behind))
            return self._call("{", one, follow)
        return self.text(scalar(value, ""), follow)

    def _null(self, taken: Taken, schema: dict[str, Any], follow: int) -> int:
        return self.text("null", follow)

    def _boolean(self, taken: Taken, schema: dict[str, Any], follow: int) -> int:
        return self.free(self.text("true", follow), self.text("false", follow))

    # ---- strings

    def _string(self, taken: Taken, schema: dict[str, Any], follow: int) -> int:
        return self._call('"', self._string_at(schema, ""), follow)

    def _string_at(self, schema: dict[str, Any], at: str) -> int:
        """The node where the characters of a string begin."""
        key = json.dumps({name: schema[name] for name in sorted(STRING & schema.keys())})
        if key in self._strings:
            return self._strings[key]
        low, high = schema.get("minLength", 0), schema.get("maxLength")
        end = self.text('"', self.automaton.returns)
        repeated: tuple[Ranges, int, int | None] | None = (ANY, low, high)
        if "pattern" in schema or "allOf" in schema:
            repeated = _repeated_set(schema)
        if repeated is None:
            terms, most = terms_of(schema, at), most_of(schema)
            found = self._language(terms, at)
            check_some(found, most, at)
            if most is not None:
                self._count(counted(found, most, MAX_COUNTED))
            first = self._strings_of(found, most, end)
        else:
            ranges, low, high = repeated
            if "pattern" in schema:
                self._count(low if high is None else high)
            if not low and high is not None:
                first = self._strings_of(Language([[(0, ranges)]], [0], [True]), high, end)
            else:
                first = self._pending(
                    lambda: self._repeated(low, high, lambda node: self._character(ranges, node), end)
                )
        self._strings[key] = first
        return first

    def _language(self, terms: Terms, at: str) -> Language:
        found = language(terms, self._lost, at)
        self._patterns[terms] = found
        if sum([len(one.ends) for one in self._patterns.values()]) > MAX_PATTERN_STATES:
            raise Unsuitable(f"its patterns need more than {MAX_PATTERN_STATES:,} states")
        if sum([one.work for one in self._patterns.values()]) > 2 * MAX_WORK:
            raise Unsuitable("its patterns look around in too many places")
        return found

    def _count(self, states: int) -> None:
        self._counted += states
        if self._counted > MAX_COUNTED:
            raise Unsuitable(
                f"the lengths of its strings, beside patterns too, make more than {MAX_COUNTED:,} states"
            )

    def _strings_of(self, language: Language, most: int | None, end: int) -> int:
        return Strings(language, most, end, self._pending, self.free, self._character).node()

    def _pending(self, write: Callable[[], int]) -> int:
        """A node that is written down when a text first comes to it."""
        node = self.automaton.node()
        self.automaton.pending[node] = write
        return node

    def _character(self, ranges: Ranges, follow: int) -> int:
        """One of the characters, as a string spells it. What is longer than a byte is called, everywhere, so that
        what may stand side by side agrees on it."""
        bytes_, longer = self._spelt(ranges)
        node = self.automaton.node(tuple([(low, high, follow) for low, high in bytes_]))
        if longer:
            self.automaton.calls[node] = longer, follow
        if ranges == ANY:
            self.automaton.plain.add(node)
        return node

    def _spelt(self, ranges: Ranges) -> tuple[Ranges, Edges]:
        """The characters that are one byte, and for the others: first bytes, and the node that reads the rest."""
        found = self._spellings.get(ranges)
        if found is None:
            returns, longer = self.automaton.returns, []
            letters = [letter for code, letter in ESCAPED.items() if any(a <= code <= b for a, b in ranges)]
            if letters:
                rest = self.automaton.node(tuple([(ord(letter), ord(letter), returns) for letter in letters]))
                longer.append((0x5C, 0x5C, rest))
            plain, beyond = read_called(self.automaton, without(ranges, NOT_PLAIN))
            found = self._spellings[ranges] = plain, (*longer, *beyond)
        return found

    def _spelling(self, text: str, follow: int) -> int:
        """A text inside of a string, and the quote behind it."""
        follow = self.text('"', follow)
        for char in reversed(text):
            if char.isascii() and ord(char) not in ESCAPED:
                follow = self.automaton.node(((ord(char), ord(char), follow),))
            else:
                follow = self._character(((ord(char), ord(char)),), follow)
        return follow

    # ---- numbers; spelt as the library spells them

    def _integer(self, taken: Taken, schema: dict[str, Any], follow: int) -> int:
        low, high = bounds_of(schema, "")
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

    def _number(self, taken: Taken, schema: dict[str, Any], follow: int) -> int:
        low, high = bounds_of(schema, "")
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
            self.automaton.free[some] += (
                read_one(self.automaton, _DIGITS, some),
                read_one(self.automaton, _POSITIVE, follow),
            )
            ways.append(self.text(f"{low[0]}.", some))
        if high is not None and not high[1]:
            zeros = self.free(follow)
            zero = self.text("0", zeros)
            self.automaton.free[zeros] += (zero,)
            ways.append(self.text(str(high[0]), self.free(follow, self.text(".", zero))))
        return self.free(*ways)

    def _whole(self, low: int, high: int | None, follow: int) -> int:
        """The digits of the whole numbers from `low` ≥ 0 to `high`."""
        ways = []
        if high is None:
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

    def _array(self, taken: Taken, schema: dict[str, Any], follow: int) -> int:
        return self._call("[", self._later(schema, "array", lambda: self._items(taken, schema)), follow)

    def _items(self, taken: Taken, schema: dict[str, Any]) -> int:
        self._open = []
        prefix, items = schema.get("prefixItems", []), schema.get("items", True)
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        if not taken.may_be(items):
            high = _least(high, len(prefix))
        close = self.text("]", self.automaton.returns)

        def item(index: int, node: int) -> int:
            return self._value(taken, prefix[index] if index < len(prefix) else items, node)

        if high == 0:
            return close
        known = max(low, len(prefix) + 1) if high is None else high
        after = self.free(close)
        one = item(known - 1, after)
        if high is None:
            self.automaton.free[after] += (self.text(", ", one),)
        for index in reversed(range(known - 1)):
            more = self.text(", ", one)
            one = item(index, self.free(close, more) if index + 1 >= low else more)
        return one if low else self.free(close, one)

    def _object(self, taken: Taken, schema: dict[str, Any], follow: int) -> int:
        return self._call("{", self._later(schema, "object", lambda: self._entries(taken, schema)), follow)

    def _entries(self, taken: Taken, schema: dict[str, Any]) -> int:
        self._open = []
        properties, required = schema.get("properties", {}), set(schema.get("required", ()))
        close = self.text("}", self.automaton.returns)
        keys = self._others(taken, schema, close)
        """the next key, with all that follows"""
        ends = True
        """the object may end before it"""
        for name, one in reversed(properties.items()):
            behind = close if keys is None else self.text(", ", keys)
            if ends and keys is not None:
                behind = self.free(close, behind)
            entry = self._key(name, self.text(": ", self._value(taken, one, behind)))
            ends = ends and name not in required
            keys = entry if name in required or keys is None else self.free(entry, keys)
        if keys is None:
            return close
        return self.free(close, keys) if ends else keys

    def _key(self, name: str, follow: int) -> int:
        """A key, with its quotes."""
        return self.text('"', self._spelling(name, follow))

    def _others(self, taken: Taken, schema: dict[str, Any], close: int) -> int | None:
        """The keys that are not declared, with their values, up to the end; None where there are none. No key fits
        two patterns."""
        names, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        fitting, rest = taken.fitting.get(id(schema), ({}, ()))
        behind = self.free(close)
        ways = []
        for source, terms in fitting.items():
            if taken.may_be(schema["patternProperties"][source]):
                value = self.text(": ", self._value(taken, schema["patternProperties"][source], behind))
                ways.append(self._keys_of(terms, value))
        if taken.may_be(others):
            value = self.text(": ", self._value(taken, others, behind))
            if rest:
                ways.append(self._keys_of(rest, value))
            else:
                loop, declared = self.free(), self.automaton.node()
                self.automaton.free[loop] += (self._character(ANY, loop), self.text('"', value))
                self.automaton.kills[declared] = value
                ways += [loop, *[self._spelling(name, declared) for name in names]]
        if not ways:
            return None
        keys = self.text('"', self.free(*ways))
        self.automaton.free[behind] += (self.text(", ", keys),)
        return keys

    def _keys_of(self, terms: Terms, value: int) -> int:
        """The rest of a key that fulfils some terms, and its value; there may be no such key."""
        found = self._language(terms, "")
        return self.free() if found.none else self._strings_of(found, None, self.text('"', value))

    _kinds: ClassVar[dict[str, Callable[[Builder, Taken, dict[str, Any], int], int]]] = {
        "null": _null,
        "boolean": _boolean,
        "integer": _integer,
        "number": _number,
        "string": _string,
        "array": _array,
        "object": _object,
    }


def _least(one: int | None, other: int | None) -> int | None:
    """The smaller of two upper bounds."""
    return other if one is None else one if other is None else min(one, other)


def _repeated_set(schema: dict[str, Any]) -> tuple[Ranges, int, int | None] | None:
    """(characters, fewest, most) of the strings of a schema with a pattern, where that is all there is to say:
    they may be longer than what an automaton of the pattern counts to."""
    try:
        tree = searched(parse(schema["pattern"]).tree) if "allOf" not in schema else ()
    except UnsupportedPatternError:
        return None
    if tree[:1] != ("rep",) or tree[1][0] != "set":
        return None
    low, high = max(schema.get("minLength", 0), tree[2]), _least(schema.get("maxLength"), tree[3])
    within = low <= MOST["minLength"] and (high is None or low <= high <= MOST["maxLength"])
    return (tree[1][1], low, high) if within else None
