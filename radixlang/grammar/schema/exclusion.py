"""Whether two subschemas exclude one another, as branches of `oneOf` mostly do: by what is plain of each where
that is enough, for there are many pairs, and else by their conjunction.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

from radixlang.grammar.schema.document import Node
from radixlang.grammar.schema.keywords import listed
from radixlang.grammar.schema.terms import ANYTHING, TYPES, Item, Num, Obj, Str, Term, canonical, type_of

if TYPE_CHECKING:
    from radixlang.grammar.schema.compile import Compiler


PAIR = 10  # steps of compile.MAX_WORK for two subschemas that are compared


class Traits(NamedTuple):
    """What is plain of a subschema: the types that it may have; its values, where they are listed; those of
    members that its objects must have, where they are listed; and the types of which it allows every value."""

    kinds: frozenset[str]
    values: frozenset[Hashable] | None
    members: dict[str, frozenset[Hashable]]
    free: frozenset[str] = frozenset()


def disjoint(compiler: Compiler, a: Node, b: Node) -> bool:
    """Whether no value fulfils both, as far as can be told."""
    return not overlap(compiler, a, b)


def failing(compiler: Compiler, node: Node, kinds: frozenset[str]) -> Item:
    """What else must hold of a value so that `node` fails, if all of other types than `kinds` do fail it."""
    if isinstance(node.schema, bool) or not kinds <= _traits(compiler, node).free:
        return node, False
    return {kind: ANYTHING[kind] for kind in TYPES if kind not in kinds}


def overlap(compiler: Compiler, a: Node, b: Node) -> frozenset[str]:
    """The types of values that may fulfil both."""
    if isinstance(a.schema, bool) or isinstance(b.schema, bool):
        return frozenset() if a.schema is False or b.schema is False else frozenset(TYPES)
    compiler.spend(PAIR)
    left, right = _traits(compiler, a), _traits(compiler, b)
    if a is b:
        return left.kinds
    if left.values is not None and right.values is not None and left.values.isdisjoint(right.values):
        return frozenset()
    kinds = left.kinds & right.kinds
    if any(left.members[key].isdisjoint(right.members[key]) for key in left.members.keys() & right.members.keys()):
        kinds -= {"object"}
    if not kinds or kinds <= left.free & right.free:
        return kinds
    found: set[str] = set()
    for shape in compiler.possible(((a, True), (b, True))):
        found.update(map(type_of, shape["values"]) if "values" in shape else shape)
    return kinds & found


def _traits(compiler: Compiler, node: Node) -> Traits:
    found = compiler.traits.get(node)
    if found is None:
        found = compiler.traits[node] = _find_traits(compiler, node)
    return found


def _find_traits(compiler: Compiler, node: Node) -> Traits:
    values = _listed(compiler, node)
    if values is not None:
        return Traits(frozenset(map(type_of, values)), frozenset(map(canonical, values)), {})
    kinds = free = frozenset(TYPES)
    members: dict[str, frozenset[Hashable]] = {}
    meaning = compiler.meaning(node)
    for item in meaning.items:
        if isinstance(item, dict):
            kinds &= item.keys()
            free &= {kind for kind, term in item.items() if _is_free(kind, term)}
            term = item.get("object", Obj())
            for key, state in compiler.values(term, term.required).items():
                named = _listed(compiler, state[0][0]) if len(state) == 1 and state[0][1] else None
                if named is not None:
                    members[key] = frozenset(map(canonical, named))
        else:
            free = frozenset()
    return Traits(kinds, None, members, frozenset() if meaning.choices else free)


def _is_free(kind: str, term: Term) -> bool:
    if isinstance(term, Num | Str):
        term = term._replace(origins=())
    return term == ANYTHING[kind]


def _listed(compiler: Compiler, node: Node) -> list[Any] | None:
    """The values that a subschema allows, None where it does not list them."""
    # Not by its meaning, which may hold the comparison that asks.
    values = None if isinstance(node.schema, bool) else listed(compiler.keywords(node))
    return None if values is None else [value for value in values if compiler.satisfies(node, value)]
