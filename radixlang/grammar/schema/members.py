"""What a conjunction already says of the members of its objects, as far as values are listed: it decides most
choices of discriminated unions (`if`, `oneOf` or `not` with a `const` each), which multiply otherwise.

Must not know how conjunctions are expanded (compile.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from radixlang.grammar.schema.keywords import listed
from radixlang.grammar.schema.terms import Alternative, Choice, Item, Obj, Shape, State

if TYPE_CHECKING:
    from radixlang.grammar.schema.compile import Compiler

FEW = 4  # values of a member that decide between alternatives
MANY = 64  # choices, or subschemas that say something of an object: more give too many alternatives in any case
TRIED = 10  # steps of compile.MAX_WORK for an alternative or a value that is tried


class Members(NamedTuple):
    """Of objects: the values that required members have left where those are few; the names that cannot be."""

    values: dict[str, list[Any]]
    absent: frozenset[str]


def narrow(compiler: Compiler, shape: Shape, choices: list[Choice]) -> tuple[Shape, list[Choice]]:
    """The shape without objects that cannot be, and the choices that it leaves open, without the alternatives that
    it contradicts; an empty shape where it contradicts all of a choice."""
    if "object" not in shape or max(len(choices), len(shape["object"].parts)) > MANY:
        return shape, choices
    members = _members(compiler, shape["object"])
    if members is None:
        return {kind: term for kind, term in shape.items() if kind != "object"}, choices
    if len(shape) > 1 or not (members.values or members.absent):
        return shape, choices
    left = []
    for choice in choices:
        compiler.spend(TRIED * len(choice.alternatives))
        if not any(_follows(compiler, members, each) for each in choice.alternatives):
            possible = [each for each in choice.alternatives if not _contradicts(compiler, members, each)]
            if not possible:
                return {}, []
            left.append(choice._replace(alternatives=possible))
    return shape, left


def _members(compiler: Compiler, term: Obj) -> Members | None:
    """What the term says; None where a required member has no value left."""
    names = dict.fromkeys(name for part in term.parts if not part.patterns for name in part.props)
    values: dict[str, list[Any]] = {}
    absent = set()
    for name, state in compiler.values(term, names | dict.fromkeys(term.required)).items():
        found = _values(compiler, state)
        if found == [] and name in term.required:
            return None
        if found == []:
            absent.add(name)
        elif found is not None and len(found) <= FEW and name in term.required:
            values[name] = found
    return Members(values, frozenset(absent))


def _values(compiler: Compiler, state: State) -> list[Any] | None:
    """The values that fulfil the state, None where they are not listed."""
    kept = compiler.listed
    known = len(state)
    while known and state[:known] not in kept:
        known -= 1
    values = kept[state[:known]] if known else None
    for index in range(known, len(state)):
        node, positive = state[index]
        if isinstance(node.schema, bool):
            values = values if node.schema == positive else []
        elif values is not None:
            values = [value for value in values if compiler.satisfies(node, value) == positive]
        elif positive and (found := listed(compiler.keywords(node))) is not None:
            values = [value for value in found if compiler.admits(state[: index + 1], value)]
        compiler.spend(TRIED * len(values or ()))
        kept[state[: index + 1]] = values
    return values


def _follows(compiler: Compiler, members: Members, alternative: Alternative) -> bool:
    """Whether all objects with these members fulfil the alternative."""
    for item in alternative:
        if not isinstance(item, dict):
            return False
        term = item.get("object")
        if term is None or term != Obj(term.parts, term.required):
            return False
        if any(part.patterns or part.rest for part in term.parts):
            return False
        if not members.values.keys() >= set(term.required):
            return False
        for part in term.parts:
            for name, state in part.props.items():
                left = [] if name in members.absent else members.values.get(name)
                if left is None or not all(compiler.admits(state, value) for value in left):
                    return False
    return True


def _contradicts(compiler: Compiler, members: Members, alternative: Alternative) -> bool:
    """Whether no object with these members fulfils the alternative, as far as is plain."""
    return any(_excludes(compiler, members, shape) for item in alternative for shape in _shapes(compiler, item))


def _shapes(compiler: Compiler, item: Item) -> list[Shape]:
    """Shapes that hold where an item does."""
    if isinstance(item, dict):
        return [item]
    node, positive = item
    if isinstance(node.schema, bool) or not positive:
        return []
    return [each for each in compiler.meaning(node).items if isinstance(each, dict)]


def _excludes(compiler: Compiler, members: Members, shape: Shape) -> bool:
    term = shape.get("object")
    if term is None or not members.absent.isdisjoint(term.required):
        return True
    for name, state in compiler.values(term, members.values).items():
        if not any(compiler.admits(state, value) for value in members.values[name]):
            return True
    return False
