"""Which keys and items the subschemas that surely apply to a value evaluate: `unevaluatedProperties` and
`unevaluatedItems` speak of the others. Must not know what they say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixlang.grammar.schema import pattern
from radixlang.grammar.schema.document import Node

if TYPE_CHECKING:
    from radixlang.grammar.schema.compile import Compiler


def _in_place(compiler: Compiler, node: Node) -> list[Node] | None:
    """The subschemas that surely apply to the same value (`$ref`, `allOf`), None if some only may."""
    keywords = compiler.keywords(node)
    if any(
        key in keywords for key in ("anyOf", "oneOf", "if", "dependentSchemas", "$dynamicRef", "$recursiveRef")
    ):
        return None
    out = [node.child("allOf", i) for i in range(len(keywords.get("allOf", ())))]
    if "$ref" in keywords:
        out.append(compiler.document.resolve(node))
    return [each for each in out if isinstance(each.schema, dict)]


def evaluated_properties(compiler: Compiler, node: Node, seen: tuple[Node, ...] = ()) -> Any:
    """(names, patterns) that other keywords evaluate; True for all, None where that depends on the value."""
    if node in seen:
        return [], []
    keywords = compiler.keywords(node)
    if "additionalProperties" in keywords or (seen and "unevaluatedProperties" in keywords):
        return True
    names, patterns = list(keywords.get("properties", ())), list(keywords.get("patternProperties", ()))
    if not all(map(pattern.readable, patterns)):
        return None
    below = _in_place(compiler, node)
    for each in below or ():
        found = evaluated_properties(compiler, each, (*seen, node))
        if found is True:
            return True
        if found is None:
            return None
        names, patterns = names + found[0], patterns + found[1]
    return None if below is None else (names, patterns)


def evaluated_items(compiler: Compiler, node: Node, seen: tuple[Node, ...] = ()) -> int | None:
    """How many leading items other keywords evaluate; -1 for all, None where that depends on the value."""
    if node in seen:
        return 0
    k = compiler.keywords(node)
    if (seen and "unevaluatedItems" in k) or "additionalItems" in k or isinstance(k.get("items"), dict | bool):
        return -1
    if "contains" in k:
        return None
    most = len(k.get("prefixItems", k.get("items", ())))
    below = _in_place(compiler, node)
    for each in below or ():
        found = evaluated_items(compiler, each, (*seen, node))
        if found is None or found < 0:
            return found
        most = max(most, found)
    return None if below is None else most
