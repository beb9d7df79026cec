"""A normalised JSON schema as context-free rules for xgrammar.

The library's own converter ignores keywords that it does not know together (a pattern and a length, bounds and
`multipleOf`), takes patterns to be anchored, and lets a key be spelt `\\u0061` and so escape the schema of `a`.
Here only bounds of numbers are left to it. What no rule states is stated wider, and named in `Stated.lost`;
strings of bounded length and keys beside declared ones are stated narrower: nothing in them is escaped.

Reads schemas as `schema/emit.py` writes them; must not know the library itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from radixlang.grammar.ranges import Ranges, invert
from radixlang.grammar.schema import regex as ecma
from radixlang.grammar.schema.pattern import Language, UnsupportedPatternError, without
from radixlang.grammar.xgr.rules import EMPTY, Rules, Tree

_PIECE = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|[\w-]+')
"""of the library's rules: a literal, a class or a name"""
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_KINDS = ("null", "boolean", "number", "string", "array", "object")
_SHORT = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_RAW = invert(((0, 0x1F), (ord('"'), ord('"')), (ord("\\"), ord("\\")), (0xD800, 0xDFFF)))
"""what a JSON string may hold as it is"""
NEVER: Tree = ("set", ())
CHARS: Tree = ("ref", "chars")
"""any text of a string"""
MAX_ESCAPED = 8
"""largest count of characters that may be escapes; beyond, all are written as they are, for a mask among so many
alternatives takes 50 ms and more"""
MAX_MULTIPLE = 1_024
"""the largest `multipleOf` that the library does not ignore"""


class Stated(NamedTuple):
    """`lost`: the keywords that the rules do not state."""

    rules: Rules
    lost: tuple[str, ...]


def state_schema(schema: Any, any_whitespace: bool, number: Callable[[Any], dict[str, str]]) -> Stated:
    """`schema`: as `normalise` gives it. `number` gives the library's rules of a schema of numbers."""
    writer = _Writer(any_whitespace, number)
    definitions = schema.get("$defs", {}) if isinstance(schema, dict) else {}
    writer.names = {f"#/$defs/{name}": f"def{index}" for index, name in enumerate(definitions)}
    writer.rules["root"] = writer.value(schema)
    for name, inner in definitions.items():
        writer.rules[writer.names[f"#/$defs/{name}"]] = writer.value(inner)
    return Stated(writer.rules, tuple(writer.lost))


class _Writer:
    """Writes one schema."""

    def __init__(self, any_whitespace: bool, number: Callable[[Any], dict[str, str]]) -> None:
        self.names: dict[str, str] = {}
        self.lost: dict[str, None] = {}
        self._number_rules = number
        self._numbers: dict[str, Tree] = {}
        self._keys: dict[str, Tree] = {}
        space: Tree = ("rep", ("set", ((9, 10), (13, 13), (32, 32))), 0, None) if any_whitespace else EMPTY
        self.rules: Rules = {
            "space": space,
            "char": _characters(ecma.ANY),
            "chars": ("rep", ("ref", "char"), 0, None),
            "string": _quoted(CHARS),
        }
        free: Tree = ("ref", "space") if any_whitespace else EMPTY
        self._open: Callable[[str], Tree] = lambda sign: ("cat", (("text", sign), free))
        self._close: Callable[[str], Tree] = lambda sign: ("cat", (free, ("text", sign)))
        self._comma: Tree = ("cat", (free, ("text", ","), free)) if any_whitespace else ("text", ", ")
        self._colon: Tree = ("cat", (free, ("text", ":"), free)) if any_whitespace else ("text", ": ")

    def value(self, schema: Any) -> Tree:
        """Any schema."""
        if schema is False:
            return NEVER
        if not isinstance(schema, dict) or not schema.keys() - {"$defs"}:
            return self._any()
        if "$ref" in schema:
            return ("ref", self.names[schema["$ref"]])
        if "anyOf" in schema:
            return ("alt", tuple(self.value(each) for each in schema["anyOf"] if each is not False))
        if "enum" in schema or "const" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            return ("alt", tuple(map(_literal, values)))
        kinds = schema["type"]
        if isinstance(kinds, list):
            return ("alt", tuple(self._typed({"type": kind}) for kind in kinds))
        return self._typed(schema)

    def _typed(self, schema: dict[str, Any]) -> Tree:
        kind = schema["type"]
        if kind == "null":
            return ("text", "null")
        if kind == "boolean":
            return ("alt", (("text", "true"), ("text", "false")))
        writers = {"string": self._string, "array": self._array, "object": self._object}
        return writers.get(kind, self._number)(schema)

    def _any(self) -> Tree:
        if "any" not in self.rules:
            self.rules["any"] = EMPTY  # refers to itself
            self.rules["any"] = ("alt", tuple(self._typed({"type": kind}) for kind in _KINDS))
        return ("ref", "any")

    def _rule(self, tree: Tree) -> Tree:
        name = f"r{len(self.rules)}"
        self.rules[name] = tree
        return ("ref", name)

    # ---- numbers

    def _number(self, schema: dict[str, Any]) -> Tree:
        stated = {key: schema[key] for key in ("type", *_BOUNDS) if key in schema}
        multiple = schema.get("multipleOf", 1)
        if schema["type"] == "integer" and multiple == int(multiple) <= MAX_MULTIPLE and len(stated) == 1:
            stated |= {"multipleOf": int(multiple)} if multiple != 1 else {}
        elif "multipleOf" in schema and (schema["type"] == "number" or multiple != 1):
            self.lost["multipleOf"] = None
        key = json.dumps(stated)
        if key not in self._numbers:
            made = self._number_rules(stated)
            new = {name: f"n{len(self._numbers)}x{index}" for index, name in enumerate(made)}
            for name, text in made.items():
                names = {new[piece] for piece in _PIECE.findall(text) if piece in new}
                text = _PIECE.sub(lambda match: new.get(match[0], match[0]), text)
                self.rules[new[name]] = ("made", text, tuple(sorted(names)))
            self._numbers[key] = ("ref", new["root"])
        return self._numbers[key]

    # ---- strings

    def _string(self, schema: dict[str, Any]) -> Tree:
        sources = [each["pattern"] for each in schema.get("allOf", ())]
        sources += [schema["pattern"]] if "pattern" in schema else []
        low, high = schema.get("minLength", 0), schema.get("maxLength")
        if sources:
            count = [f"^[\\s\\S]{{{low},{'' if high is None else high}}}$"] if low or high is not None else []
            try:
                return _quoted(_text([(source, True) for source in (*sources, *count)]))
            except UnsupportedPatternError:
                self.lost["pattern"] = None
        if not low and high is None:
            return ("ref", "string")
        return _quoted(_repeated(("set", ecma.ANY), low, high))

    # ---- arrays

    def _array(self, schema: dict[str, Any]) -> Tree:
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        first, rest = schema.get("prefixItems", []), schema.get("items", True)
        if False in first:
            first, rest = first[: first.index(False)], False
        most = len(first) if rest is False else high
        first = first if most is None else first[:most]
        more = None if most is None else most - len(first)
        tree = EMPTY
        if more != 0:
            item = self.value(rest)
            tree = self._several(item, max(low - len(first), 0), more, behind=bool(first))
        for index in reversed(range(len(first))):
            here: Tree = ("cat", (*([self._comma] if index else []), self.value(first[index]), tree))
            tree = self._rule(here if index < low else ("rep", here, 0, 1))
        return self._rule(("cat", (self._open("["), tree, self._close("]"))))

    def _several(self, item: Tree, low: int, high: int | None, behind: bool) -> Tree:
        """So many items with commas between them, and before them if they stand `behind` others."""
        following: Tree = ("cat", (self._comma, item))
        if behind:
            return ("rep", following, low, high)
        others: Tree = ("rep", following, max(low - 1, 0), None if high is None else high - 1)
        list_: Tree = ("cat", (item, others if high != 1 else EMPTY))
        return list_ if low else ("rep", list_, 0, 1)

    # ---- objects

    def _object(self, schema: dict[str, Any]) -> Tree:
        declared: dict[str, Any] = schema.get("properties", {})
        required = set(schema.get("required", ()))
        named = [(name, each) for name, each in declared.items() if each is not False]
        low, high = schema.get("minProperties", 0), schema.get("maxProperties")
        if (low or high is not None) and any(name not in required for name, _ in named):
            self.lost["minProperties" if low else "maxProperties"] = None
            low, high = 0, None
        least, most = max(low - len(required), 0), None if high is None else max(high - len(required), 0)
        others = self._others(schema, declared) if most != 0 else None
        first = after = EMPTY
        if others is not None:
            first, after = (self._several(others, least, most, behind) for behind in (False, True))
        for name, each in reversed(named):
            member = self._rule(("cat", (_literal(name), self._colon, self.value(each))))
            start: Tree = ("cat", (member, after))
            follow: Tree = ("cat", (self._comma, member, after))
            if name not in required:
                start, follow = ("alt", (start, first)), ("alt", (follow, after))
            first, after = self._rule(start), self._rule(follow)
        return self._rule(("cat", (self._open("{"), first, self._close("}"))))

    def _others(self, schema: dict[str, Any], declared: dict[str, Any]) -> Tree | None:
        """A member whose key is not declared; None if there may be none."""
        patterns, rest = schema.get("patternProperties", {}), schema.get("additionalProperties", True)
        ways: list[Tree] = []
        try:
            names = [(without(frozenset(declared)), True)] if declared else []
            for source, each in patterns.items():
                if each is not False:
                    ways.append(self._member([(source, True), *names], each))
            if rest is not False:
                ways.append(self._member([*((source, False) for source in patterns), *names], rest))
        except UnsupportedPatternError:
            self.lost["patternProperties" if patterns else "additionalProperties"] = None
            ways = [self._member([], True)]
        return self._rule(("alt", tuple(ways))) if ways else None

    def _member(self, terms: list[tuple[str, bool]], value: Any) -> Tree:
        """Its key is one of those that all terms allow. Objects often exclude the same keys."""
        written = repr(terms)
        if written not in self._keys:
            self._keys[written] = self._rule(_quoted(_text(terms, escapes=False)))
        return ("cat", (self._keys[written], self._colon, self.value(value)))


def _literal(value: Any) -> Tree:
    """Exactly this value; half a surrogate pair cannot be written."""
    text = json.dumps(value, ensure_ascii=False)
    return NEVER if any(0xD800 <= ord(char) <= 0xDFFF for char in text) else ("text", text)


def _quoted(text: Tree) -> Tree:
    return ("cat", (("text", '"'), text, ("text", '"')))


# ---- patterns


def _text(terms: list[tuple[str, bool]], escapes: bool = True) -> Tree:
    """The strings that every pattern with True is found in and none with False, in their JSON spelling; without
    `escapes`, those that need none.

    Raises:
        UnsupportedPatternError: no rule states them, or none that is small.
    """
    if not terms:
        return CHARS
    tree = _anchored(ecma.parse(terms[0][0]).tree) if len(terms) == 1 and terms[0][1] else None
    if tree is None:  # as one automaton; a second term keeps a single pattern from being returned as it is
        source = Language((*terms, ("", True))).source()
        tree = _anchored(ecma.parse(source).tree)
    if tree is None:
        raise UnsupportedPatternError("it looks for ends inside of the text")
    return _spelt(tree, escapes)


def _anchored(tree: ecma.Tree) -> ecma.Tree | None:
    """The tree with what may stand before and behind it; None where it has anchors elsewhere than at its ends."""
    whole = ecma.searched(tree)
    return None if ecma.has_anchor(whole) else whole


def _spelt(tree: ecma.Tree, escapes: bool = True) -> Tree:
    """A tree of characters as one of their JSON spellings."""
    kind = tree[0]
    if kind == "set":
        return ("ref", "char") if tree[1] == ecma.ANY and escapes else _characters(tree[1], escapes)
    if kind in ("cat", "alt"):
        return (kind, tuple(_spelt(each, escapes) for each in tree[1]))
    if kind == "rep":
        _, inner, low, high = tree
        return _repeated(inner, low, high, escapes)
    raise UnsupportedPatternError("it cannot be compared")


def _repeated(tree: ecma.Tree, low: int, high: int | None, escapes: bool = True) -> Tree:
    if tree == ("set", ecma.ANY) and (low, high) == (0, None) and escapes:
        return CHARS  # one rule, for which the library prepares masks once
    few = max(low, high or 0) <= MAX_ESCAPED
    return ("rep", _spelt(tree, escapes and few), low, high) if high != 0 else EMPTY


def _characters(ranges: Ranges, escapes: bool = True) -> Tree:
    """One of these characters: as it is, by a letter behind a backslash, or by its number where nothing else is
    left. Without `escapes`, only as they are, if any can be."""
    raw = [(max(a, low), min(b, high)) for a, b in ranges for low, high in _RAW if max(a, low) <= min(b, high)]
    codes = [code for low, high in ranges for code in range(low, min(high, 0x7F) + 1)]
    short = "".join(_SHORT[chr(code)] for code in codes if chr(code) in _SHORT)
    ways: list[Tree] = [("set", tuple(raw))] if raw else []
    if short and (escapes or not raw):
        letters = tuple((ord(letter), ord(letter)) for letter in sorted(short))
        ways.append(("cat", (("text", "\\"), ("set", letters))))
    if not ways:
        ways = [("text", f"\\u{code:04x}") for code in codes]
    return NEVER if not ways else ways[0] if len(ways) == 1 else ("alt", tuple(ways))
