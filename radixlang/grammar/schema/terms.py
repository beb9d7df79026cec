"""What a schema says of a value, split by JSON type: one conjunctive term a type, and their intersections.

A `Shape` maps each type that is still possible to its term; a missing type is impossible. Where a term is an
over-approximation of the schema, its `notes` name the keywords that it does not state. Knows nothing of drafts or
of how terms are written down.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any, NamedTuple

from radixlang.grammar.schema.document import Node

Literal = tuple[Node, bool]  # the subschema, and whether it must hold (True) or must fail (False)
State = tuple[Literal, ...]  # what one value must fulfil, all of it; () is anything
Note = tuple[Node, str]
Notes = tuple[Note, ...]

TYPES = ("null", "boolean", "number", "string", "array", "object")


class Plain(NamedTuple):
    """null and booleans: the values left."""

    values: tuple[Any, ...]
    notes: Notes = ()


class Num(NamedTuple):
    """Numbers between `low` and `high` (open: exclusive), multiples of all `multiples`, none of `holes`.

    `origins`: the subschemas that say so.
    """

    low: float | None = None
    low_open: bool = False
    high: float | None = None
    high_open: bool = False
    integer: bool = False
    multiples: tuple[float, ...] = ()
    holes: tuple[float, ...] = ()
    origins: tuple[Node, ...] = ()
    notes: Notes = ()


class Str(NamedTuple):
    """Strings of `low` to `high` code points in which patterns are found (True) or not (False)."""

    low: int = 0
    high: int | None = None
    terms: tuple[tuple[str, bool], ...] = ()
    not_in: frozenset[str] = frozenset()
    origins: tuple[Node, ...] = ()
    notes: Notes = ()


class Contains(NamedTuple):
    """Between `low` and `high` items fulfil `state`; `note` is where the schema says so."""

    state: State
    low: int
    high: int | None
    note: Note


class Arr(NamedTuple):
    """Arrays: the first items one by one, then the rest."""

    prefix: tuple[State, ...] = ()
    items: State = ()
    low: int = 0
    high: int | None = None
    contains: tuple[Contains, ...] = ()
    unique: Note | None = None
    notes: Notes = ()


class Part(NamedTuple):
    """One `properties`/`patternProperties`/`additionalProperties` group (of `origin`): a state a key."""

    props: dict[str, State]
    patterns: tuple[tuple[str, State], ...] = ()
    rest: State = ()
    origin: Node | None = None


class Other(NamedTuple):
    """Some key that is none of `names` and that no pattern matches has a value that fulfils `state`; `note` is
    where the schema says so."""

    names: frozenset[str]
    patterns: frozenset[str]
    state: State
    note: Note


class Obj(NamedTuple):
    """Objects: every part holds, and `others`; `names` hold for each key; `size` is where the number of keys is
    bounded."""

    parts: tuple[Part, ...] = ()
    required: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    names: State = ()
    size: Notes = ()
    notes: Notes = ()
    others: tuple[Other, ...] = ()


Term = Plain | Num | Str | Arr | Obj
Shape = dict[str, Any]  # type -> Term
Item = Literal | Shape
Alternative = tuple[Item, ...]  # all of them


class Choice(NamedTuple):
    """One of the alternatives holds; `note` says which keyword is lost if the choice is given up."""

    alternatives: list[Alternative]
    note: Note


NULL, BOOLEAN = Plain((None,)), Plain((False, True))
ANYTHING: Shape = {
    "null": NULL,
    "boolean": BOOLEAN,
    "number": Num(),
    "string": Str(),
    "array": Arr(),
    "object": Obj(),
}


def join(a: tuple, b: tuple) -> tuple:
    """`a`, then what only `b` has."""
    if not b or a is b:
        return a
    return a + tuple(x for x in b if x not in a) if a else b


def least(a: Any, b: Any) -> Any:
    """The smaller of two upper bounds; None is no bound."""
    return b if a is None else a if b is None else min(a, b)


def noted(shape: Shape, note: Note) -> Shape:
    """The shape with `note` on every term."""
    return {kind: term._replace(notes=join(term.notes, (note,))) for kind, term in shape.items()}


def whole(value: Any) -> int | None:
    """A bound that may be absent; drafts allow 2.0 for 2."""
    return None if value is None else int(value)


def meet(a: Shape, b: Shape) -> Shape:
    """The values of both shapes; types on which they contradict each other at first sight are left out."""
    if a is ANYTHING:
        return b
    if b is ANYTHING:
        return a
    out = {}
    for kind, term in a.items():
        if kind in b:
            both = _MEET[kind](term, b[kind])
            if both is not None:
                out[kind] = both
    return out


def _plain(a: Plain, b: Plain) -> Plain | None:
    values = tuple(v for v in a.values if v in b.values)
    return Plain(values, join(a.notes, b.notes)) if values else None


def _number(a: Num, b: Num) -> Num | None:
    low, low_open = a.low, a.low_open
    if low is None or (b.low is not None and (b.low > low or (b.low == low and b.low_open))):
        low, low_open = b.low, b.low_open
    high, high_open = a.high, a.high_open
    if high is None or (b.high is not None and (b.high < high or (b.high == high and b.high_open))):
        high, high_open = b.high, b.high_open
    both = Num(
        low, low_open, high, high_open, a.integer or b.integer, join(a.multiples, b.multiples),
        join(a.holes, b.holes), join(a.origins, b.origins), join(a.notes, b.notes),
    )  # fmt: skip
    return None if no_number(both) else both


def no_number(a: Num) -> bool:
    """Whether the bounds leave no number."""
    if a.low is None or a.high is None:
        return False
    if a.low > a.high or (a.low == a.high and (a.low_open or a.high_open)):
        return True
    if not a.integer:
        return False
    low = a.low if a.low == a.low // 1 else a.low // 1 + 1
    return low + (a.low_open and low == a.low) > (a.high // 1) - (a.high_open and a.high == a.high // 1)


def _string(a: Str, b: Str) -> Str | None:
    low, high = max(a.low, b.low), least(a.high, b.high)
    if high is not None and low > high:
        return None
    return Str(
        low, high, join(a.terms, b.terms), a.not_in | b.not_in, join(a.origins, b.origins), join(a.notes, b.notes)
    )


def _array(a: Arr, b: Arr) -> Arr | None:
    low, high = max(a.low, b.low), least(a.high, b.high)
    if high is not None and low > high:
        return None
    size = max(len(a.prefix), len(b.prefix))
    left = a.prefix + (a.items,) * (size - len(a.prefix))
    right = b.prefix + (b.items,) * (size - len(b.prefix))
    prefix = tuple(join(x, y) for x, y in zip(left, right, strict=True))
    return Arr(
        prefix, join(a.items, b.items), low, high, join(a.contains, b.contains), a.unique or b.unique,
        join(a.notes, b.notes),
    )  # fmt: skip


def _object(a: Obj, b: Obj) -> Obj | None:
    low, high = max(a.low, b.low), least(a.high, b.high)
    if high is not None and low > high:
        return None
    return Obj(
        join(a.parts, b.parts), join(a.required, b.required), low, high, join(a.names, b.names),
        join(a.size, b.size), join(a.notes, b.notes), join(a.others, b.others),
    )  # fmt: skip


_MEET: dict[str, Any] = {
    "null": _plain,
    "boolean": _plain,
    "number": _number,
    "string": _string,
    "array": _array,
    "object": _object,
}


def type_of(value: Any) -> str:
    """The JSON type of a Python value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def canonical(value: Any) -> Hashable:
    """A key that is equal for equal JSON values: 1 and 1.0 are, 1 and true are not; the order of keys is moot."""
    if isinstance(value, list | dict):
        return json.dumps(_plain_numbers(value), sort_keys=True), None
    return type_of(value), value


def _plain_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain_numbers(item) for key, item in value.items()}
    return value
