"""What the keywords of one subschema say of a value of each JSON type, those that combine subschemas aside.

A keyword that no shape states is left out and noted in the term. Must not know how shapes are combined
(compile.py) or written down (emit.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.limits import too_long
from radixlang.grammar.schema import formats, pattern
from radixlang.grammar.schema.document import Node
from radixlang.grammar.schema.evaluated import evaluated_items, evaluated_properties
from radixlang.grammar.schema.terms import (
    BOOLEAN,
    NULL,
    TYPES,
    Arr,
    Contains,
    Note,
    Num,
    Obj,
    Part,
    Shape,
    State,
    Str,
    join,
    no_number,
    whole,
)

if TYPE_CHECKING:
    from radixlang.grammar.schema.compile import Compiler


def shape_of(compiler: Compiler, node: Node, keywords: dict[str, Any]) -> Shape:
    """What a subschema of these keywords says of each type that it allows."""
    types = keywords.get("type", TYPES)
    shape: Shape = {}
    for kind in [types] if isinstance(types, str) else types:
        name = "number" if kind == "integer" else kind
        if name == "number":
            if "number" in shape and kind == "integer":
                continue
            term: Any = number(node, keywords, kind == "integer")
        elif name == "string":
            term = _string(compiler, node, keywords)
        elif name == "array":
            term = _array(compiler, node, keywords)
        elif name == "object":
            term = _object(compiler, node, keywords)
        else:
            term = NULL if name == "null" else BOOLEAN
        if term is not None:
            shape[name] = term
    return shape


def number(node: Node, k: dict[str, Any], integer: bool) -> Num | None:
    """What the keywords of a subschema say of a number, None where none may stand."""
    low, high = k.get("minimum"), k.get("maximum")
    low_open = high_open = False
    below, above = k.get("exclusiveMinimum"), k.get("exclusiveMaximum")
    if isinstance(below, bool):
        low_open = below and low is not None
    elif below is not None and (low is None or below >= low):
        low, low_open = below, True
    if isinstance(above, bool):
        high_open = above and high is not None
    elif above is not None and (high is None or above <= high):
        high, high_open = above, True
    multiples = (k["multipleOf"],) if "multipleOf" in k else ()
    term = Num(low, low_open, high, high_open, integer, multiples, origins=(node,))
    return None if no_number(term) else term


def _string(compiler: Compiler, node: Node, k: dict[str, Any]) -> Str | None:
    low, high = int(k.get("minLength", 0)), whole(k.get("maxLength"))
    terms: tuple[tuple[str, bool], ...] = ()
    notes: tuple[Note, ...] = ()
    if "pattern" in k:
        if reason := too_long(k["pattern"]):
            raise GrammarError(f"the pattern is too large: {reason}.", pointer=node.pointer, keyword="pattern")
        if compiler.readable(k["pattern"]):
            terms = () if pattern.universal(k["pattern"]) else ((k["pattern"], True),)
        else:
            notes = ((node, "pattern"),)
            _refuse_irregular(node, k["pattern"])
    if "format" in k:
        found = formats.lookup(k["format"], node.draft)
        if found is None:
            compiler.warnings[f"#{node.pointer}/format: {k['format']!r} is an annotation here."] = None
        else:
            terms = join(terms, found.terms)
            if found.max_length is not None:
                high = found.max_length if high is None else min(high, found.max_length)
            if not found.exact:
                notes = (*notes, (node, "format"))
    return None if high is not None and low > high else Str(low, high, terms, origins=(node,), notes=notes)


def _refuse_irregular(node: Node, source: str) -> None:
    try:
        reason = pattern.irregular(source)
    except pattern.UnsupportedPatternError:
        return
    if reason:
        raise GrammarError(
            f"the pattern {reason}, which no automaton can; write it without.",
            pointer=node.pointer,
            keyword="pattern",
        )


def _array(compiler: Compiler, node: Node, k: dict[str, Any]) -> Arr | None:
    low, high = int(k.get("minItems", 0)), whole(k.get("maxItems"))
    prefix: tuple[State, ...] = ()
    rest: State = ()
    key = "prefixItems" if "prefixItems" in k else "items" if isinstance(k.get("items"), list) else None
    if key:
        prefix = tuple(compiler.state(node.child(key, i)) for i in range(len(k[key])))
        key = "items" if key == "prefixItems" else "additionalItems"
    else:
        key = "items"
    if key in k:
        rest = compiler.state(node.child(key))
    if rest == compiler.never:
        high = len(prefix) if high is None else min(high, len(prefix))
        rest = ()
    contains: tuple[Contains, ...] = ()
    if "contains" in k:
        least, most = int(k.get("minContains", 1)), whole(k.get("maxContains"))
        contains = (Contains(compiler.state(node.child("contains")), least, most, (node, "contains")),)
    unique = (node, "uniqueItems") if k.get("uniqueItems") is True else None
    notes: tuple[Note, ...] = ()
    if "unevaluatedItems" in k:
        found = evaluated_items(compiler, node)
        if found is None:
            notes = ((node, "unevaluatedItems"),)
        elif found >= 0:
            extra = compiler.state(node.child("unevaluatedItems"))
            first = tuple(prefix[i] if i < len(prefix) else () for i in range(max(found, len(prefix))))
            if extra == compiler.never:
                high = found if high is None else min(high, found)
            else:
                prefix, rest = first, join(rest, extra)
    return None if high is not None and low > high else Arr(prefix, rest, low, high, contains, unique, notes)


def _object(compiler: Compiler, node: Node, k: dict[str, Any]) -> Obj | None:
    notes: list[Note] = []
    parts: tuple[Part, ...] = ()
    if "properties" in k or "patternProperties" in k or "additionalProperties" in k:
        props = {name: compiler.state(node.child("properties", name)) for name in k.get("properties", ())}
        patterns: list[tuple[str, State]] = []
        rest: State = ()
        if "additionalProperties" in k:
            rest = compiler.state(node.child("additionalProperties"))
        for source in k.get("patternProperties", ()):
            each = compiler.state(node.child("patternProperties", source))
            if not compiler.readable(source):
                notes.append((node, "patternProperties"))
                rest = ()
            elif pattern.universal(source):
                parts = (*parts, Part({}, (), each))
                rest = ()
            else:
                patterns.append((source, each))
        parts = (Part(props, tuple(patterns), rest, node), *parts)
    low, high = int(k.get("minProperties", 0)), whole(k.get("maxProperties"))
    size = tuple((node, key) for key in ("minProperties", "maxProperties") if key in k)
    required = k.get("required", ())
    names: State = compiler.state(node.child("propertyNames")) if "propertyNames" in k else ()
    if "unevaluatedProperties" in k:
        found = evaluated_properties(compiler, node)
        if found is None:
            notes.append((node, "unevaluatedProperties"))
        elif found is not True:
            extra = compiler.state(node.child("unevaluatedProperties"))
            parts = (*parts, Part(dict.fromkeys(found[0], ()), tuple((p, ()) for p in found[1]), extra, node))
    if high is not None and max(low, len(set(required))) > high:
        return None
    return Obj(parts, tuple(dict.fromkeys(required)), low, high, names, size, tuple(notes))
