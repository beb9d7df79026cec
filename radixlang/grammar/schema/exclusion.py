"""Whether two subschemas exclude one another, as branches of `oneOf` mostly do: by what is plain of each where
that is enough, for there are many pairs, and else by their conjunction.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

from radixlang.grammar.schema.document import Node
from radixlang.grammar.schema.keywords import listed
from radixlang.grammar.schema.terms import TYPES, Obj, canonical, type_of

if TYPE_CHECKING:
    from radixlang.grammar.schema.compile import Compiler


PAIR = 10  # steps of compile.MAX_WORK for two subschemas that are compared


class Traits(NamedTuple):
    """What is plain of a subschema: the types that it may have; its values, where they are listed; and those of
    members that its objects must have, where they are listed."""

    kinds: frozenset[str]
    values: frozenset[Hashable] | None
    members: dict[str, frozenset[Hashable]]


def disjoint(compiler: Compiler, a: Node, b: Node) -> bool:
    """Whether no value fulfils both, as far as can be told."""
    if isinstance(a.schema, bool) or isinstance(b.schema, bool):
        return a.schema is False or b.schema is False
    if a is b:
        return False
    compiler.spend(PAIR)
    left, right = _traits(compiler, a), _traits(compiler, b)
    if left.values is not None and right.values is not None:
        return left.values.isdisjoint(right.values)
    kinds = left.kinds & right.kinds
    shared = left.members.keys() & right.members.keys() if kinds == {"object"} else ()
    if not kinds or any(left.members[key].isdisjoint(right.members[key]) for key in shared):
        return True
    return compiler.is_empty(((a, True), (b, True)))


def _traits(compiler: Compiler, node: Node) -> Traits:
    found = compiler.traits.get(node)
    if found is None:
        found = compiler.traits[node] = _find_traits(compiler, node)
    return found


def _find_traits(compiler: Compiler, node: Node) -> Traits:
    values = _listed(compiler, node)
    if values is not None:
        return Traits(frozenset(map(type_of, values)), frozenset(map(canonical, values)), {})
    kinds = frozenset(TYPES)
    members: dict[str, frozenset[Hashable]] = {}
    for item in compiler.meaning(node).items:
        if isinstance(item, dict):
            kinds &= item.keys()
            term = item.get("object", Obj())
            for key, state in compiler.values(term, term.required).items():
                named = _listed(compiler, state[0][0]) if len(state) == 1 and state[0][1] else None
                if named is not None:
                    members[key] = frozenset(map(canonical, named))
    return Traits(kinds, None, members)


def _listed(compiler: Compiler, node: Node) -> list[Any] | None:
    """The values that a subschema allows, None where it does not list them."""
    # Not by its meaning, which may hold the comparison that asks.
    values = None if isinstance(node.schema, bool) else listed(compiler.keywords(node))
    return None if values is None else [value for value in values if compiler.satisfies(node, value)]
