"""The ways in which each keyword of a subschema can fail.

A failure is a list of alternatives, each a conjunction of shapes and subschemas. What no shape says exactly is
said wider, with a note. Must not know how alternatives are combined (compile.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from radixlang.grammar.schema import formats, pattern
from radixlang.grammar.schema.document import Node
from radixlang.grammar.schema.exclusion import disjoint
from radixlang.grammar.schema.terms import (
    ANYTHING,
    TYPES,
    Alternative,
    Arr,
    Contains,
    Num,
    Obj,
    Other,
    Part,
    Plain,
    Str,
    noted,
    type_of,
    whole,
)

if TYPE_CHECKING:
    from radixlang.grammar.schema.compile import Compiler

MAX_HOLES = 64  # numbers excluded one by one


def failures(compiler: Compiler, node: Node, key: str, k: dict[str, Any]) -> list[Alternative]:
    """The ways in which keyword `key` of `node` (whose keywords are `k`) fails."""
    if key in ("$dynamicRef", "$recursiveRef"):
        target = compiler.document.resolve_dynamic(node)
        return [(noted(ANYTHING, (node, key)),)] if target is None else [((target, False),)]
    if key in ("allOf", "anyOf", "oneOf"):
        options = [node.child(key, i) for i in range(len(k[key]))]
        if key == "allOf":
            return [((o, False),) for o in options]
        none: Alternative = tuple((o, False) for o in options)
        if key == "anyOf":
            return [none]
        pairs = [(a, b) for i, a in enumerate(options) for b in options[:i] if not disjoint(compiler, a, b)]
        return [none, *(((a, True), (b, True)) for a, b in pairs)]
    if key == "$ref":
        return [((compiler.document.resolve(node), False),)]
    if key == "not":
        return [((node.child("not"), True),)]
    if key == "if":
        test = node.child("if")
        out: list[Alternative] = []
        if "then" in k:
            out.append(((test, True), (node.child("then"), False)))
        if "else" in k:
            out.append(((test, False), (node.child("else"), False)))
        return out
    found = _FAILURES.get(key)
    return [] if found is None else found(compiler, node, key, k)


def _fail_type(compiler: Compiler, node: Node, key: str, k: dict[str, Any]) -> list[Alternative]:
    types = [k["type"]] if isinstance(k["type"], str) else k["type"]
    shape = {t: ANYTHING[t] for t in TYPES if t not in types and not (t == "number" and "integer" in types)}
    out: list[Alternative] = [(shape,)] if shape else []
    if "integer" in types and "number" not in types:
        out.append(({"number": Num(notes=((node, "type"),))},))
    return out


def _fail_values(compiler: Compiler, node: Node, key: str, k: dict[str, Any]) -> list[Alternative]:
    values = k[key] if key == "enum" else [k[key]]
    shape = dict(ANYTHING)
    for kind in TYPES:
        same = [v for v in values if type_of(v) == kind]
        if not same:
            continue
        if kind in ("null", "boolean"):
            left = tuple(v for v in ANYTHING[kind].values if v not in same)
            shape[kind] = Plain(left)
            if not left:
                del shape[kind]
        elif kind == "number" and len(same) <= MAX_HOLES:
            shape[kind] = Num(holes=tuple(sorted(set(same))), origins=(node,))
        elif kind == "string":
            shape[kind] = Str(not_in=frozenset(same), origins=(node,))
        elif kind == "array" and not any(same):
            shape[kind] = Arr(low=1)
        elif kind == "object" and not any(same):
            shape[kind] = Obj(low=1, size=((node, key),))
        else:
            shape[kind] = shape[kind]._replace(notes=((node, key),))
    return [(shape,)]


def _fail_number(compiler: Compiler, node: Node, key: str, k: dict[str, Any]) -> list[Alternative]:
    value = k[key]
    if isinstance(value, bool):  # draft 4: said with minimum or maximum
        return []
    if key == "multipleOf":
        return [({"number": Num(notes=((node, key),))},)]
    strict = key.startswith("exclusive") or k.get(f"exclusive{key[0].upper()}{key[1:]}") is True
    if key in ("minimum", "exclusiveMinimum"):
        return [({"number": Num(high=value, high_open=not strict, origins=(node,))},)]
    return [({"number": Num(low=value, low_open=not strict, origins=(node,))},)]


def _fail_string(compiler: Compiler, node: Node, key: str, k: dict[str, Any]) -> list[Alternative]:
    value = k[key]
    if key == "minLength":
        return [({"string": Str(high=int(value) - 1)},)] if value >= 1 else []
    if key == "maxLength":
        return [({"string": Str(low=int(value) + 1)},)]
    if key == "pattern":
        if pattern.universal(value):
            return []
        if compiler.readable(value):
            return [({"string": Str(terms=((value, False),), origins=(node,))},)]
        return [({"string": Str(notes=((node, key),))},)]
    found = formats.lookup(value, node.draft)
    if found is None:
        return []
    # What we state of a format is not the last word on which strings fail it.
    return [({"string": Str(notes=((node, key),))},)]


def _fail_array(compiler: Compiler, node: Node, key: str, k: dict[str, Any]) -> list[Alternative]:
    if key == "minItems":
        return [({"array": Arr(high=int(k[key]) - 1)},)] if k[key] >= 1 else []
    if key == "maxItems":
        return [({"array": Arr(low=int(k[key]) + 1)},)]
    if key == "uniqueItems":
        return [({"array": Arr(low=2, notes=((node, key),))},)] if k[key] is True else []
    if key == "contains":
        state = compiler.state(node.child(key))
        least, most = int(k.get("minContains", 1)), whole(k.get("maxContains"))
        out: list[Alternative] = []
        if least > 0:
            out.append(({"array": Arr(contains=(Contains(state, 0, least - 1, (node, key)),))},))
        if most is not None:
            out.append(({"array": Arr(contains=(Contains(state, most + 1, None, (node, key)),))},))
        return out
    if key in ("unevaluatedItems",):
        return [({"array": Arr(notes=((node, key),))},)]
    if key == "prefixItems" or (key == "items" and isinstance(k[key], list)):
        return [
            ({"array": Arr(((),) * i + (compiler.state(node.child(key, i), False),), low=i + 1)},)
            for i in range(len(k[key]))
        ]
    if key == "additionalItems" and not isinstance(k.get("items"), list):
        return []
    first = len(k.get("prefixItems", ()) if key == "items" else k["items"])
    wrong = compiler.state(node.child(key), False)
    if wrong == compiler.never:
        return []
    if wrong == ():
        return [({"array": Arr(low=first + 1)},)]
    if first:
        return [({"array": Arr(low=first + 1, notes=((node, key),))},)]
    return [({"array": Arr(contains=(Contains(wrong, 1, None, (node, key)),))},)]


def _fail_object(compiler: Compiler, node: Node, key: str, k: dict[str, Any]) -> list[Alternative]:
    if key == "required":
        return [({"object": Obj(parts=(Part({name: compiler.never}),))},) for name in k[key]]
    if key == "properties":
        fails = {name: compiler.state(node.child(key, name), False) for name in k[key]}
        return [
            ({"object": Obj(parts=(Part({name: state}),), required=(name,))},)
            for name, state in fails.items() if state != compiler.never
        ]  # fmt: skip
    if key == "minProperties":
        return [({"object": Obj(high=int(k[key]) - 1, size=((node, key),))},)] if k[key] >= 1 else []
    if key == "maxProperties":
        return [({"object": Obj(low=int(k[key]) + 1, size=((node, key),))},)]
    if key in ("dependencies", "dependentRequired", "dependentSchemas"):
        out: list[Alternative] = []
        for name, value in k[key].items():
            if isinstance(value, list):
                out += [({"object": Obj(parts=(Part({v: compiler.never}),), required=(name,))},) for v in value]
            else:
                out.append(({"object": Obj(required=(name,))}, (node.child(key, name), False)))
        return out
    if key == "patternProperties":
        wrong_states = [compiler.state(node.child(key, source), False) for source in k[key]]
        if all(state == compiler.never for state in wrong_states):
            return []
    elif (wrong := compiler.state(node.child(key), False)) == compiler.never:
        return []
    elif key == "additionalProperties":
        named, matched = frozenset(k.get("properties", ())), frozenset(k.get("patternProperties", ()))
        return [({"object": Obj(others=(Other(named, matched, wrong, (node, key)),))},)]
    return [({"object": Obj(low=1, size=((node, key),), notes=((node, key),))},)]


_FAILURES: dict[str, Callable[..., list[Alternative]]] = (
    {"type": _fail_type, "enum": _fail_values, "const": _fail_values}
    | dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
                    _fail_number)
    | dict.fromkeys(("minLength", "maxLength", "pattern", "format"), _fail_string)
    | dict.fromkeys(("minItems", "maxItems", "uniqueItems", "contains", "items", "prefixItems", "additionalItems",
                     "unevaluatedItems"), _fail_array)
    | dict.fromkeys(("required", "properties", "patternProperties", "additionalProperties", "propertyNames",
                     "minProperties", "maxProperties", "dependencies", "dependentRequired", "dependentSchemas",
                     "unevaluatedProperties"), _fail_object)
)  # fmt: skip
