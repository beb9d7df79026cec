"""Which JSON schemas our automata take, and which of their parts any text fulfils.

Most of a schema is written down as an automaton only when a text first comes to it; so all of it is looked at
beforehand, once, and what no automaton states is refused with its place in the normalised schema.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from radixlang.grammar.native.regex import Unsuitable
from radixlang.grammar.native.strings import ESCAPED, NOT_PLAIN, key_terms
from radixlang.grammar.schema.automaton import Terms
from radixlang.grammar.schema.document import escape

MOST = {"minLength": 2_000, "maxLength": 8_000, "minItems": 2_000, "maxItems": 2_000}
"""what is counted; each is a state, or several"""
MAX_WEIGHT = 200_000
"""nodes of one object or array, about, and of all constants"""
_ANY_NODES = 60
"""of any value where it stands"""
MAX_TURNS = 50
"""references in a row that are followed to tell whether a text can end"""

_USUAL = re.compile(r'[^\x00-\x1f\x7f"\\\ud800-\udfff]*')

STRING = frozenset({"minLength", "maxLength", "pattern", "allOf"})
_NUMBER = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_KEYWORDS: dict[str, frozenset[str]] = {
    "null": frozenset(),
    "boolean": frozenset(),
    "integer": _NUMBER,
    "number": _NUMBER,
    "string": STRING,
    "array": frozenset({"prefixItems", "items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties", "patternProperties"}),
}
Bound = tuple[int, bool] | None


class Taken:
    """A normalised schema all of which an automaton states."""

    unbounded: bool
    """numbers may have any number of digits, so that some are beyond a double"""
    patterns: list[tuple[dict[str, Any], str]]
    """strings with patterns, and where they are"""
    keys: list[tuple[Terms, str]]
    """what undeclared keys fulfil, where patterns tell, and where"""
    fitting: dict[int, tuple[dict[str, Terms], Terms]]
    """the same of each object schema with patterns, by its identity: see `key_terms`"""

    def __init__(self, schema: Any, writable: npt.NDArray[np.bool_]) -> None:
        """`writable` [256]: the bytes that the model's tokens have.

        Raises:
            Unsuitable: not all of it; names pointer and keyword.
        """
        self.root = schema
        self.unbounded = False
        self.patterns, self.keys, self.fitting = [], [], {}
        self._writable = writable
        self._impossible: set[str] = set()
        self._known: dict[int, bool] = {}
        self._weight = 0
        self._places: dict[int, int] = {}
        self._lengths: set[tuple[int, int | None]] = set()
        self._look()

    @property
    def counted(self) -> int:
        """Characters of all strings of different lengths that are counted; each is a state."""
        return sum(low if high is None else high for low, high in self._lengths)

    def named(self, reference: str) -> Any:
        return self.root["$defs"][reference.removeprefix("#/$defs/")]

    def may_be(self, schema: Any) -> bool:
        """Whether any text fulfils a part of the schema."""
        if not isinstance(schema, dict):
            return schema is not False
        if "$ref" in schema:
            return schema["$ref"] not in self._impossible
        found = self._known.get(id(schema))
        if found is None:
            found = self._known[id(schema)] = self._may_be_held(schema)
        return found

    def _may_be_held(self, schema: dict[str, Any]) -> bool:
        if "anyOf" in schema:
            return any(map(self.may_be, schema["anyOf"]))
        if "enum" in schema or "const" in schema or is_any(schema):
            return schema.get("enum", True) != []
        kinds = kinds_of(schema)
        if set(kinds) - {"array", "object"}:
            return True
        if "object" in kinds:
            properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
            if all(self.may_be(properties.get(name, others)) for name in schema.get("required", ())):
                return True
        prefix, low = schema.get("prefixItems", []), schema.get("minItems", 0)
        items = [schema.get("items", True)] * (low > len(prefix))
        return "array" in kinds and all(map(self.may_be, [*prefix[:low], *items]))

    def _look(self) -> None:
        todo, seen = [(self.root, "")], set()
        while todo:
            one, at = todo.pop()
            if is_any(one):
                self.unbounded = True
            elif one is False:
                pass
            elif "$ref" in one:
                if one["$ref"] not in seen:
                    seen.add(one["$ref"])
                    todo.append((self.named(one["$ref"]), one["$ref"].removeprefix("#")))
            elif "anyOf" in one:
                todo += [(other, f"{at}/anyOf/{index}") for index, other in enumerate(one["anyOf"])]
            elif "enum" in one or "const" in one:
                for value in one["enum"] if "enum" in one else [one["const"]]:
                    self._check_constant(value, at)
            else:
                before = self._weight
                todo += self._parts(one, at)
                # What is called is written down by itself, and seldom all of it.
                body, self._weight = self._weight - before, before
                if body > MAX_WEIGHT:
                    raise Unsuitable(f"it needs more than {MAX_WEIGHT:,} nodes at {at or 'its root'}")
            if self._weight > MAX_WEIGHT:
                raise Unsuitable(f"its constants need more than {MAX_WEIGHT:,} nodes")
        self._impossible = seen
        for _ in range(MAX_TURNS):
            possible = {name for name in self._impossible if self.may_be(self.named(name))}
            if not possible:
                return
            self._impossible, self._known = self._impossible - possible, {}
        raise Unsuitable("it has too many references to tell whether its texts end")

    def _parts(self, schema: dict[str, Any], at: str) -> list[tuple[Any, str]]:
        """The schemas in a schema with a type."""
        kinds, where = kinds_of(schema), at or "its root"
        for keyword in schema:
            if keyword not in ("type", "$defs") and not any(keyword in _KEYWORDS[kind] for kind in kinds):
                raise Unsuitable(f"no automaton states {keyword} at {where}")
        for keyword, most in MOST.items():
            if schema.get(keyword, 0) > most:
                raise Unsuitable(f"{keyword} counts to more than {most:,} at {where}")
        if "string" in kinds:
            if "pattern" in schema or "allOf" in schema:
                self.patterns.append((schema, at))
            else:
                self._lengths.add((schema.get("minLength", 0), schema.get("maxLength")))
        if "integer" in kinds or "number" in kinds:
            self.unbounded |= None in bounds_of(schema, at)
        parts: list[tuple[Any, str]] = []
        if "minLength" in schema:
            self._weight += schema.get("maxLength", schema["minLength"])
        if "object" in kinds:
            others = schema.get("additionalProperties", True)
            self._weight += 20 + self._nodes(others)
            parts.append((others, f"{at}/additionalProperties"))
            for name, one in schema.get("properties", {}).items():
                here = f"{at}/properties/{escape(name)}"
                self._check_characters(name, here)
                self._weight += 2 * len(name) + self._nodes(one)
                parts.append((one, here))
            if patterns := schema.get("patternProperties"):
                self.fitting[id(schema)] = fitting, rest = key_terms(schema)
                for source, one in patterns.items():
                    here = f"{at}/patternProperties/{escape(source)}"
                    self._weight += self._nodes(one)
                    parts.append((one, here))
                    if source in fitting:
                        self.keys.append((fitting[source], here))
                if schema.get("additionalProperties", True) is not False:
                    self.keys.append((rest, f"{at}/patternProperties"))
        if "array" in kinds:
            parts += [(one, f"{at}/prefixItems/{i}") for i, one in enumerate(schema.get("prefixItems", ()))]
            items = schema.get("items", True)
            counted = 1 + max(schema.get("maxItems", 0), schema.get("minItems", 0))
            self._weight += counted * self._nodes(items) + sum(map(self._nodes, schema.get("prefixItems", ())))
            parts.append((items, f"{at}/items"))
        return parts

    def _nodes(self, schema: Any) -> int:
        """About how many nodes a value needs at each place where it stands; most of strings, arrays and objects is
        called, and constants only so far as these are strings."""
        if is_any(schema) or schema is False:
            return _ANY_NODES
        if id(schema) not in self._places:
            self._places[id(schema)] = 0  # what refers to itself at once is refused later
            if "$ref" in schema:
                nodes = self._nodes(self.named(schema["$ref"]))
            elif "anyOf" in schema:
                nodes = sum(map(self._nodes, schema["anyOf"]))
            elif "enum" in schema or "const" in schema:
                values = schema["enum"] if "enum" in schema else [schema["const"]]
                nodes = sum(5 if isinstance(value, str) else 5 + len(json.dumps(value)) for value in values)
            else:
                digits = [len(str(abs(int(schema[name])))) for name in _NUMBER if name in schema]
                nodes = 30 + 4 * sum(count * count for count in digits)
            self._places[id(schema)] = nodes
        return self._places[id(schema)]

    def _check_constant(self, value: Any, at: str) -> None:
        if isinstance(value, str):
            self._check_characters(value, at)
        elif isinstance(value, list):
            for one in value:
                self._check_constant(one, at)
        elif isinstance(value, dict):
            for name, one in value.items():
                self._check_characters(name, at)
                self._check_constant(one, at)
        else:
            scalar(value, at)

    def _check_characters(self, text: str, at: str) -> None:
        self._weight += len(text)
        if _USUAL.fullmatch(text) is None:
            for code in map(ord, text):
                if code not in ESCAPED and any(low <= code <= high for low, high in NOT_PLAIN):
                    raise Unsuitable(f"a constant at {at or 'its root'} holds the character U+{code:04X}")
        if not text.isascii() and not self._writable[list(set(text.encode()))].all():
            raise Unsuitable(f"a constant at {at or 'its root'} holds characters that no token writes")


def is_any(schema: Any) -> bool:
    """Whether every value fulfils it."""
    return schema is True or (isinstance(schema, dict) and not schema.keys() - {"$defs"})


def kinds_of(schema: dict[str, Any]) -> list[str]:
    """The types that a schema names."""
    return schema["type"] if isinstance(schema["type"], list) else [schema["type"]]


def scalar(value: float | bool | None, at: str) -> str:
    """A number or word as it is written."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        if value.is_integer() and value:
            return str(int(value))
        if not 1e-4 <= abs(value) <= 1e15:
            raise Unsuitable(f"a constant at {at or 'its root'} has more than one usual spelling")
    return repr(value)


def bounds_of(schema: dict[str, Any], at: str) -> tuple[Bound, Bound]:
    """The least and the largest number (True: which is left out); None without a bound."""
    out: list[Bound] = []
    for keyword in ("minimum", "maximum"):
        exclusive = "exclusive" + keyword.capitalize()
        bound = schema.get(keyword, schema.get(exclusive))
        if bound is not None and bound != math.floor(bound):
            raise Unsuitable(f"{keyword} is no whole number at {at or 'its root'}")
        out.append(None if bound is None else (int(bound), exclusive in schema))
    return out[0], out[1]
