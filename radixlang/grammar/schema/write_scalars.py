"""Constants, null, booleans, numbers and strings as the grammar library states them exactly."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.schema import pattern
from radixlang.grammar.schema.fragments import Fault, Fragment, Writing, losses
from radixlang.grammar.schema.numbers import common_multiple, holds_multiple, rounded, spellings
from radixlang.grammar.schema.terms import Notes, Num, Plain, State, Str, join

MAX_PATTERNS = 8  # of one string; the library's test whether they exclude one another doubles with each
_UNWRITABLE = re.compile("[\ud800-\udfff]")  # half surrogate pairs have no UTF-8
_INTEGERS = 2**53  # integers up to here are exact in the library
_REALS = 1e16  # bounds up to here are
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_INFINITE = 1e308  # bounds from here on say nothing of a double


def write_values(values: list[Any], state: State) -> list[Fragment]:
    """Constants that `state` leaves.

    Raises:
        GrammarError: one cannot be generated as it is.
    """
    for value in values:
        if not _writable(value):
            named = [(node, key) for node, _ in state for key in ("const", "enum") if key in node.schema]
            node, key = named[0] if named else (state[0][0], None)
            raise GrammarError(
                f"the value {json.dumps(value)[:80]} cannot be generated: it holds a number that no double "
                "holds exactly, or half of a surrogate pair; write it as a string.",
                pointer=node.pointer,
                keyword=key,
            )
    return [Fragment({"enum": values})]


def _writable(value: Any) -> bool:
    """Whether the library writes a constant as what it is."""
    if isinstance(value, str):
        return _UNWRITABLE.search(value) is None
    if isinstance(value, bool) or value is None:
        return True
    if isinstance(value, int):
        return abs(value) < 2**63 and int(float(value)) == value  # what the library keeps
    if isinstance(value, float):
        return math.isfinite(value) and abs(value) < 1e300
    if isinstance(value, list):
        return all(map(_writable, value))
    return all(_writable(key) and _writable(item) for key, item in value.items())


def write_null(writing: Writing, term: Plain) -> list[Fragment]:
    """null."""
    return [Fragment({"type": "null"}, notes=term.notes)]


def write_boolean(writing: Writing, term: Plain) -> list[Fragment]:
    """true, false or both."""
    schema: dict[str, Any] = {"type": "boolean"} if len(term.values) == 2 else {"enum": list(term.values)}
    return [Fragment(schema, notes=term.notes)]


def write_number(writing: Writing, term: Num) -> list[Fragment]:
    """One alternative for each span between holes, and for each number of decimals that a bound or step has."""
    notes = term.notes
    spans = [(term.low, term.low_open, term.high, term.high_open)]
    for hole in sorted(term.holes):
        low, low_open, high, high_open = spans.pop()
        inside = (low is None or low <= hole) and (high is None or hole <= high)
        if not inside:
            spans.append((low, low_open, high, high_open))
            continue
        spans += [(low, low_open, hole, True), (hole, True, high, high_open)]
    schemas: list[dict[str, Any]] = [{"type": "integer" if term.integer else "number"}]
    if term.multiples:
        multiple = common_multiple(term.multiples)
        few = _few_multiples(term)
        if few is not None:
            return [Fragment({"enum": few}, notes=notes)] if few else []
        if multiple is None:
            notes = join(notes, losses(term.origins, "multipleOf"))
        else:
            steps = [multiple] if term.integer else spellings(multiple)
            schemas = [{**schemas[0], "multipleOf": step} for step in steps]
    spans = [span for span in spans if holds_multiple(span, term.multiples)]
    if not term.integer:
        spans = [each for span in spans for each in rounded(span)]
    return [f for span in spans for schema in schemas for f in _span(dict(schema), span, term, notes)]


MAX_LISTED = 256
LARGE_STEP = 1_000
"""multiples of so much are listed, if they are few"""


def _few_multiples(term: Num) -> list[int] | None:
    """The integers that are multiples of a large step, if bounds leave few: no grammar counts that far."""
    if not term.integer or term.low is None or term.high is None or any(each % 1 for each in term.multiples):
        return None
    step = math.lcm(*map(int, term.multiples))
    first, last = math.ceil(term.low / step), math.floor(term.high / step)
    if step < LARGE_STEP or last - first >= MAX_LISTED:
        return None
    low, high = [term.low] * term.low_open, [term.high] * term.high_open
    return [
        value for value in range(first * step, (last + 1) * step, step) if value not in (*term.holes, *low, *high)
    ]


def _span(schema: dict[str, Any], span: tuple, term: Num, notes: Notes) -> list[Fragment]:
    low, low_open, high, high_open = span
    if low is not None and high is not None and (low > high or (low == high and (low_open or high_open))):
        return []
    lost: Notes = ()
    if term.integer:
        if low is not None:
            low, low_open = (
                math.floor(low) + 1 if low_open or low != math.floor(low) else math.floor(low),
                False,
            )
        if high is not None:
            high, high_open = (
                math.ceil(high) - 1 if high_open or high != math.ceil(high) else math.ceil(high),
                False,
            )
        if low is not None and high is not None and low > high:
            return []
        if low is not None and abs(low) > _INTEGERS:
            low, lost = (None if low < 0 else _INTEGERS), losses(term.origins, *_LOWER)
        if high is not None and abs(high) > _INTEGERS:
            high, lost = (None if high > 0 else -_INTEGERS), join(lost, losses(term.origins, *_UPPER))
    else:
        if low is not None and abs(low) > _REALS:
            lost = () if low < -_INFINITE else losses(term.origins, *_LOWER)
            low, low_open = (None, False) if low < 0 else (_REALS, False)
        if high is not None and abs(high) > _REALS:
            lost = lost if high > _INFINITE else join(lost, losses(term.origins, *_UPPER))
            high, high_open = (None, False) if high > 0 else (-_REALS, False)
        if low is not None and high is not None:
            # The library lets the excluded whole number itself through in spans this short.
            if low_open and low == int(low) and high < low + 1:
                lost = join(lost, losses(term.origins, *_LOWER))
            if high_open and high == int(high) and low > high - 1:
                lost = join(lost, losses(term.origins, *_UPPER))
    if low is not None:
        schema["exclusiveMinimum" if low_open else "minimum"] = low
    if high is not None:
        schema["exclusiveMaximum" if high_open else "maximum"] = high
    return [Fragment(schema, notes=join(notes, lost))]


def write_string(writing: Writing, term: Str) -> list[Fragment]:
    """At most one alternative; without one `writing.fault` says why."""
    if writing.compiler.no_string(term):
        (node, keyword), *_ = losses(term.origins, "pattern", "format")
        bounded = term.low > 0 or term.high is not None
        what = f"{keyword} and length together" if bounded else "all patterns and formats together"
        writing.fault = Fault(
            node, keyword, f"no string fulfils {what if bounded or len(term.terms) > 1 else keyword}."
        )
        return []
    schema: dict[str, Any] = {"type": "string"}
    notes = term.notes
    if term.low:
        schema["minLength"] = term.low
    if term.high is not None:
        schema["maxLength"] = term.high
    sources = []
    most = MAX_PATTERNS if writing.patterns else 0
    if len(term.terms) > most:
        notes = join(notes, losses(term.origins, "pattern", "format"))
    for one in term.terms[:most]:
        try:
            sources.append(writing.compiler.pattern_of((one,)))
        except pattern.UnsupportedPatternError:
            notes = join(notes, losses(term.origins, "pattern", "format"))
    if term.not_in:
        try:
            sources.append(pattern.without(term.not_in))
        except pattern.UnsupportedPatternError:
            notes = join(notes, losses(term.origins, "enum", "const"))
    if len(sources) == 1:
        schema["pattern"] = sources[0]
    elif sources:
        schema["allOf"] = [{"type": "string", "pattern": source} for source in sources]
    return [Fragment(schema, notes=notes)]
