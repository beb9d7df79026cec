"""Arrays as the grammar library states them exactly: the first items one by one, then the rest."""

from __future__ import annotations

import math
from typing import Any

from radixlang.grammar.schema.fragments import Child, Fault, Fragment, Places, Writing
from radixlang.grammar.schema.terms import Arr, Contains, Notes, Num, Plain, State, canonical, join, least

MAX_POSITIONS = 8  # places where a `contains` item may be


def write_array(writing: Writing, term: Arr) -> list[Fragment]:
    """One alternative, or one for each place of an item that `contains` asks for where there are few."""
    low, high, notes = term.low, term.high, term.notes
    prefix, items = list(term.prefix), term.items
    wanted: list[Contains] = []  # beyond what is stated of every item and of their number
    for each in term.contains:
        if not each.state or _hold(writing, [*prefix, items], each.state):  # every item counts
            low, high = max(low, each.low), least(high, each.high)
            continue
        none = writing.compiler.negated(each.state)
        if each.high is not None and each.high < each.low:
            return []
        if each.high == 0 and none is not None:
            prefix, items = [join(state, none) for state in prefix], join(items, none)
        elif each.low == 1 and each.high is None:
            low = max(low, 1)
            wanted.append(each)
        elif each.low or each.high is not None:
            low, notes = max(low, each.low), join(notes, (each.note,))
            wanted.append(each)
    if items == writing.compiler.never:
        high, items = len(prefix) if high is None else min(high, len(prefix)), ()
    if term.unique:
        most = _distinct(writing, items)
        if most is not None:
            high = least(high, len(prefix) + most)
            if low > high:
                sentence = "fewer different items are possible than minItems asks for."
                writing.fault = Fault(*term.unique, sentence)
    if term.unique and (high is None or high > 1):
        notes = join(notes, (term.unique,))
    if high is not None and low > high:
        return []
    single = [each for each in wanted if each.low == 1 and each.high is None]
    places = tuple(_places(each, prefix, items, high) for each in wanted if each.low)
    if len(single) == 1 and high is not None and high <= MAX_POSITIONS:
        out = []
        for index in range(high):
            first = [*prefix, *[items] * (index + 1 - len(prefix))]
            first[index] = join(first[index], single[0].state)
            out.append(_items(first, items, max(low, index + 1), high, notes)._replace(places=places))
        return out
    notes = join(notes, tuple(each.note for each in single))
    return [_items(prefix, items, low, high, notes)._replace(places=places)]


def _hold(writing: Writing, states: list[State], wanted: State) -> bool:
    """Whether what fulfils one of the states surely fulfils `wanted`."""
    fails = writing.compiler.negated(wanted)
    return fails is not None and all(writing.compiler.is_empty(join(state, fails)) for state in states)


def _distinct(writing: Writing, state: State) -> int | None:
    """How many values the state has at most, None where they are not counted."""
    if not state:
        return None
    values: set[Any] = set()
    integers = 0
    for shape in writing.compiler.expand(state):
        if "values" in shape:
            values.update(map(canonical, shape["values"]))
            continue
        for kind, term in shape.items():
            if isinstance(term, Plain):
                values.update(map(canonical, term.values))
            elif isinstance(term, Num) and term.integer and term.low is not None and term.high is not None:
                integers += math.floor(term.high) - math.ceil(term.low) + 1
            elif kind == "string" and term.high == 0:
                values.add(canonical(""))
            else:
                return None
    return len(values) + integers


def _items(prefix: list[State], items: State, low: int, high: int | None, notes: Notes) -> Fragment:
    schema: dict[str, Any] = {"type": "array"}
    prefix = prefix if high is None else prefix[:high]
    if prefix:
        schema["prefixItems"] = [Child(state) for state in prefix]
    tail = high is None or high > len(prefix)
    if items and tail:
        schema["items"] = Child(items)
    elif not tail and prefix:
        schema["items"] = False
    if low:
        schema["minItems"] = low
    if high is not None:
        schema["maxItems"] = high
    needs = tuple(prefix[:low]) + ((items,) if low > len(prefix) else ())
    return Fragment(schema, needs, tuple(prefix) + ((items,) if tail else ()), notes)


def _places(contains: Contains, prefix: list[State], items: State, high: int | None) -> Places:
    """Where the items may be that `contains` asks for, in an array of at most `high` items."""
    states = [(join(state, contains.state), 1) for state in prefix[:high]]
    more = contains.low if high is None else high - len(prefix)
    if more > 0:
        states.append((join(items, contains.state), more))
    return Places(contains.low, tuple(states), contains.note)
