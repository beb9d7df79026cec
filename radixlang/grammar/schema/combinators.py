"""The keywords that combine subschemas of the same value: what must hold beside, and what one may choose from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from radixlang.grammar.schema.document import Node
from radixlang.grammar.schema.exclusion import failing, overlap
from radixlang.grammar.schema.terms import ANYTHING, Alternative, Choice, Item, Obj, Part, noted

if TYPE_CHECKING:
    from radixlang.grammar.schema.compile import Compiler

Keywords = dict[str, Any]


def _ref(compiler: Compiler, node: Node, k: Keywords) -> list[Item]:
    return [(compiler.document.resolve(node), True)]


def _dynamic_ref(compiler: Compiler, node: Node, k: Keywords) -> list[Item]:
    target = compiler.document.resolve_dynamic(node)
    key = "$dynamicRef" if "$dynamicRef" in k else "$recursiveRef"
    return [noted(ANYTHING, (node, key)) if target is None else (target, True)]


def _all_of(compiler: Compiler, node: Node, k: Keywords) -> list[Item]:
    return [(node.child("allOf", i), True) for i in range(len(k["allOf"]))]


def _any_of(compiler: Compiler, node: Node, k: Keywords) -> list[Choice]:
    return [Choice([((node.child("anyOf", i), True),) for i in range(len(k["anyOf"]))], (node, "anyOf"))]


def _one_of(compiler: Compiler, node: Node, k: Keywords) -> list[Choice]:
    options = [node.child("oneOf", i) for i in range(len(k["oneOf"]))]
    others: list[list[Item]] = [[] for _ in options]
    for i, left in enumerate(options):
        for j, right in enumerate(options[:i]):
            if kinds := overlap(compiler, left, right):
                others[i].append(failing(compiler, right, kinds))
                others[j].append(failing(compiler, left, kinds))
    alternatives: list[Alternative] = [((o, True), *rest) for o, rest in zip(options, others, strict=True)]
    return [Choice(alternatives, (node, "oneOf"))]


def _not(compiler: Compiler, node: Node, k: Keywords) -> list[Item]:
    return [(node.child("not"), False)]


def _if(compiler: Compiler, node: Node, k: Keywords) -> list[Choice]:
    test = node.child("if")
    yes: Alternative = ((test, True), (node.child("then"), True)) if "then" in k else ((test, True),)
    no: Alternative = ((test, False), (node.child("else"), True)) if "else" in k else ((test, False),)
    return [Choice([yes, no], (node, "if"))] if "then" in k or "else" in k else []


def _dependency(key: str, compiler: Compiler, node: Node, k: Keywords) -> list[Choice]:
    choices = []
    for name, value in k[key].items():
        absent = ANYTHING | {"object": Obj(parts=(Part({name: compiler.never}),))}
        if value == []:
            continue
        if isinstance(value, list):
            present: Alternative = ({"object": Obj(required=tuple(dict.fromkeys((name, *value))))},)
        else:
            present = ({"object": Obj(required=(name,))}, (node.child(key, name), True))
        choices.append(Choice([(absent,), present], (node, key)))
    return choices


COMBINATORS: dict[str, Callable[[Compiler, Node, Keywords], Sequence[Item | Choice]]] = {
    "$ref": _ref,
    "$dynamicRef": _dynamic_ref,
    "$recursiveRef": _dynamic_ref,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "then": lambda *_: [],  # they speak through `if`
    "else": lambda *_: [],
    "dependencies": partial(_dependency, "dependencies"),
    "dependentRequired": partial(_dependency, "dependentRequired"),
    "dependentSchemas": partial(_dependency, "dependentSchemas"),
}
"""what each says of a subschema's value"""
