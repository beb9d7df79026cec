"""Regular expressions that look around, as automata over characters first (`schema.nfa.Looking`), then over bytes.

A character of several bytes is called, so that the classes of Unicode are written down once however many states
read them. Must not know tokens.
"""

from __future__ import annotations

import re
from re import _constants as op  # type: ignore[attr-defined]
from typing import Any

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.native.regex import (
    Automaton,
    Edges,
    Unsuitable,
    flags_inside,
    ranges_of,
    read_called,
    read_expression,
)
from radixlang.grammar.ranges import Ranges
from radixlang.grammar.schema.automaton import Product, searches_of, split
from radixlang.grammar.schema.regex import Tree, UnsupportedPatternError, boundary, flat

MAX_STATES = 2_000
"""of an expression, a character at a time"""
MAX_NODES = 100_000
_NEW_LINE: Tree = ("set", ((10, 10),))


def looking_automaton(pattern: str) -> Automaton:
    """The automaton of a regular expression with look-arounds, word boundaries, or ends of lines.

    Raises:
        GrammarError: it is too large, or looks around within what it looks for; no other engine takes it either.
        Unsuitable: it is none in Python's syntax, or uses back-references and the like.
    """
    parsed = read_expression(pattern)
    try:
        tree = ("cat", (("start",), *flat(_sequence(parsed, parsed.state.flags)), ("end",)))
    except RecursionError:
        raise Unsuitable("it is nested too deeply") from None
    try:
        product = Product(searches_of(split(tree, True)), MAX_STATES)
        return _written(product, product.live())
    except (UnsupportedPatternError, Unsuitable, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise GrammarError(
            f"regex cannot be held: beside what it looks around for, {reason}; write it without, "
            "or with smaller repeats",
            param="regex",
        ) from None


def _sequence(items: Any, flags: int) -> Tree:
    return ("cat", tuple([_item(kind, argument, flags) for kind, argument in items]))


def _item(kind: Any, argument: Any, flags: int) -> Tree:
    if kind is op.BRANCH:
        return ("alt", tuple([_sequence(way, flags) for way in argument[1]]))
    if kind is op.SUBPATTERN:
        _, added, removed, body = argument
        return _sequence(body, flags_inside(flags, added, removed))
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
        low, high, repeated = argument
        return ("rep", _sequence(repeated, flags), low, None if high is op.MAXREPEAT else high)
    if kind in (op.ASSERT, op.ASSERT_NOT):
        direction, body = argument
        return ("look" if direction > 0 else "behind", _sequence(body, flags), kind is op.ASSERT)
    if kind is op.AT:
        return _anchor(argument, flags)
    return ("set", ranges_of(kind, argument, flags))


def _anchor(kind: Any, flags: int) -> Tree:
    start, end = ("start",), ("end",)
    if flags & re.MULTILINE and kind is op.AT_BEGINNING:
        return ("behind", ("alt", (start, _NEW_LINE)), True)
    if flags & re.MULTILINE and kind is op.AT_END:
        return ("look", ("alt", (end, _NEW_LINE)), True)
    if kind in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
        return start
    if kind in (op.AT_END, op.AT_END_STRING):
        return end
    return boundary(ranges_of(op.CATEGORY, op.CATEGORY_WORD, flags), kind is op.AT_BOUNDARY)


def _written(product: Product, live: set[int]) -> Automaton:
    automaton = Automaton(most=MAX_NODES)
    automaton.accept, automaton.returns = automaton.node(), automaton.node()
    read: dict[Ranges, tuple[Ranges, Edges]] = {}
    nodes = {state: automaton.node() for state in sorted(live)}
    for state, node in nodes.items():
        ways = [automaton.accept] if product.accepting(state) else []
        for target, ranges in product.edges(state).items():
            if target not in live:
                continue
            if ranges not in read:
                read[ranges] = read_called(automaton, ranges)
            bytes_, longer = read[ranges]
            way = automaton.node(tuple([(low, high, nodes[target]) for low, high in bytes_]))
            if longer:
                automaton.calls[way] = longer, nodes[target]
            ways.append(way)
        automaton.free[node] = tuple(ways)
    automaton.start = nodes[0] if 0 in nodes else automaton.node()
    return automaton
