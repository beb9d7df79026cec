"""Which values to validate, and against what, while a text with residual keywords grows.

A subschema obliges a value if it surely applies to it: through `properties`, `items`, `allOf`, `$ref` and such,
not through `anyOf` or `not`. Residual keywords below conditional ones are the business of the nearest obliging
subschema above. So each value is checked as early as its verdict is final, and the whole text at the latest.
Works on instance paths only; must not know tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from radixlang.grammar.schema import pattern
from radixlang.grammar.schema.assertions import number
from radixlang.grammar.schema.compile import Compiler
from radixlang.grammar.schema.document import Node, children, malformed
from radixlang.grammar.schema.terms import least, whole

Nodes = tuple[Node, ...]


class Obligations:
    """The obliging subschemas of a value and of its children."""

    def __init__(self, compiler: Compiler, residual: Iterable[Node]) -> None:
        self._compiler = compiler
        self._residual = set(residual)
        self._reaches: dict[Node, bool] = {}
        self._due: dict[Node, bool] = {}
        self._validators: dict[Node, Any] = {}
        self.root: Nodes = self._closed([compiler.document.root])
        self._whole = any(map(self._is_dynamic, self._residual)) or not all(
            self._has_validator(node) for node in self._residual
        )

    def _closed(self, nodes: list[Node]) -> Nodes:
        """The nodes and what applies in place with them."""
        out: dict[Node, None] = {}
        while nodes:
            node = nodes.pop(0)
            if node in out or not isinstance(node.schema, dict):
                continue
            out[node] = None
            keywords = self._compiler.keywords(node)
            if "$ref" in keywords:
                nodes.append(self._compiler.document.resolve(node))
            nodes.extend(node.child("allOf", i) for i in range(len(keywords.get("allOf", ()))))
        return tuple(out)

    def property(self, nodes: Nodes, name: str) -> Nodes:
        """What obliges the value of key `name` in an object that `nodes` oblige."""
        out = []
        for node in nodes:
            k = self._compiler.keywords(node)
            found = False
            if name in k.get("properties", ()):
                out.append(node.child("properties", name))
                found = True
            for source in k.get("patternProperties", ()):
                match = _matches(source, name)
                if match:
                    out.append(node.child("patternProperties", source))
                found = found or match is not False
            if not found and "additionalProperties" in k:
                out.append(node.child("additionalProperties"))
        return self._closed(out)

    def item(self, nodes: Nodes, index: int) -> Nodes:
        """What obliges item `index` of an array that `nodes` oblige."""
        out = []
        for node in nodes:
            k = self._compiler.keywords(node)
            key = "prefixItems" if "prefixItems" in k else "items" if isinstance(k.get("items"), list) else None
            rest = "additionalItems" if key == "items" else "items"
            if key and index < len(k[key]):
                out.append(node.child(key, index))
            elif rest in k:
                out.append(node.child(rest))
        return self._closed(out)

    def unique(self, nodes: Nodes) -> bool:
        """Whether an array must not repeat an item."""
        return any(self._compiler.keywords(node).get("uniqueItems") is True for node in nodes)

    def keys(self, nodes: Nodes) -> tuple[int, int | None]:
        """How many keys an object must and may have."""
        low, high = 0, None
        for node in nodes:
            k = self._compiler.keywords(node)
            low, high = max(low, int(k.get("minProperties", 0))), least(high, whole(k.get("maxProperties")))
        return low, high

    def keys_behind(self, nodes: Nodes, name: str) -> int | None:
        """How many keys may follow `name`, where one subschema says so; None where that is open."""
        if not any(self._compiler.keywords(node).get("additionalProperties") is False for node in nodes):
            return None
        listed = [list(self._compiler.keywords(node).get("properties", ())) for node in nodes]
        named = [names for names in listed if names]
        if len(named) != 1 or name not in named[0]:
            return None
        if any("patternProperties" in self._compiler.keywords(node) for node in nodes):
            return None
        return len(named[0]) - 1 - named[0].index(name)

    def integers(self, nodes: Nodes) -> tuple[int | None, int | None] | None:
        """The bounds of a number that must be an integer, where a keyword is left to check; None elsewhere."""
        if not any(_is_integer(self._compiler.keywords(node).get("type")) for node in nodes):
            return None
        if not any(node in self._residual for node in nodes):
            return None
        low: int | None = None
        high: int | None = None
        for node in nodes:
            term = number(node, self._compiler.keywords(node), True)
            if term is not None and term.low is not None:
                bound = math.floor(term.low) + 1 if term.low_open else math.ceil(term.low)
                low = bound if low is None else max(low, bound)
            if term is not None and term.high is not None:
                high = least(high, math.ceil(term.high) - 1 if term.high_open else math.floor(term.high))
        return low, high

    def due(self, nodes: Nodes) -> Nodes:
        """Those of `nodes` against which a value is to be validated when it ends."""
        if self._whole:
            return tuple(node for node in nodes if node is self._compiler.document.root)
        return tuple(node for node in nodes if self._is_due(node))

    def _is_dynamic(self, node: Node) -> bool:
        """Whether what the node refers to depends on where it is entered from: alone it may say something else."""
        refers = self._compiler.keywords(node).keys() & {"$dynamicRef", "$recursiveRef"}
        return bool(refers) and self._compiler.document.resolve_dynamic(node) is None

    def _has_validator(self, node: Node) -> bool:
        """Whether the node can be validated on its own; if one cannot, only whole texts are checked."""
        try:
            self._validators[node] = self._compiler.document.validator(node)
        except ValueError as error:
            root = self._compiler.document.root
            if node is root or not self._has_validator(root):
                raise malformed(error, root.schema, node.pointer) from None
            return False
        return True

    def valid(self, nodes: Nodes, value: Any) -> bool:
        """Whether a finished value is valid under all of `nodes`."""
        for node in nodes:
            if node not in self._validators:
                self._validators[node] = self._compiler.document.validator(node)
            if not self._validators[node].is_valid(value):
                return False
        return True

    def _is_due(self, node: Node) -> bool:
        found = self._due.get(node)
        if found is None:
            if node in self._residual:
                found = True
            else:
                sure = set(self._sure(node))
                found = any(self._reach(child) for child in self._below(node) if child not in sure)
            self._due[node] = found
        return found

    def _sure(self, node: Node) -> Iterable[Node]:
        """The children that `property`, `item` and `_closed` lead to."""
        k = self._compiler.keywords(node)
        for key in ("properties", "patternProperties"):
            for name in k.get(key, ()):
                if key == "properties" or _matches(name, "") is not None:
                    yield node.child(key, name)
        for key in ("additionalProperties", "items", "additionalItems"):
            if isinstance(k.get(key), dict):
                yield node.child(key)
        for key in ("allOf", "prefixItems", "items"):
            if isinstance(k.get(key), list):
                yield from (node.child(key, i) for i in range(len(k[key])))
        if "$ref" in k:
            yield self._compiler.document.resolve(node)

    def _below(self, node: Node) -> Iterable[Node]:
        k = self._compiler.keywords(node)
        if k.keys() & {"$dynamicRef", "$recursiveRef"}:
            target = self._compiler.document.resolve_dynamic(node)
            if target is not None:
                yield target
        if "$ref" in k:
            yield self._compiler.document.resolve(node)
        for child in children(node):
            relative = child.pointer[len(node.pointer) + 1 :].partition("/")[0]
            if relative in k:
                yield child

    def _reach(self, node: Node) -> bool:
        """Whether a residual keyword is found at or below the node."""
        if node in self._reaches:
            return self._reaches[node]
        seen, stack = {node}, [node]
        while stack:
            each = stack.pop()
            if each in self._residual or self._reaches.get(each):
                self._reaches[node] = True
                return True
            if isinstance(each.schema, dict):
                for child in self._below(each):
                    if child not in seen:
                        seen.add(child)
                        stack.append(child)
        self._reaches[node] = False
        return False


def _is_integer(types: Any) -> bool:
    """Whether a number of these types is an integer."""
    return types == "integer" or (isinstance(types, list) and "integer" in types and "number" not in types)


def _matches(source: str, name: str) -> bool | None:
    """Whether the pattern finds something in `name`; None where we cannot read it."""
    try:
        return pattern.universal(source) or pattern.Language(((source, True),)).matches(name)
    except pattern.UnsupportedPatternError:
        return None
