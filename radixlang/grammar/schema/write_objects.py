"""Objects as the grammar library states them exactly: patterns of keys are disjoint, and properties are counted
only where all named ones are required.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.schema import pattern
from radixlang.grammar.schema.automaton import Terms
from radixlang.grammar.schema.compile import CHARACTER, Compiler
from radixlang.grammar.schema.fragments import Child, Fragment, Writing
from radixlang.grammar.schema.terms import Notes, Obj, Other, Part, State, Str, join

MAX_COMBINATIONS = 64  # ways to choose which optional properties are there
MAX_OPTIONAL_PAIRS = 8_000_000  # of optional properties, over all objects: 100 ns of the library's each
PAIR = 2_000  # steps of compile.MAX_WORK for two patterns of keys that are compared


def write_object(writing: Writing, term: Obj) -> list[Fragment]:
    """One alternative, or one for each way to have the keys that must be there without being named."""
    return [each for one in _choose(writing.compiler, term) for each in _write(writing, one)]


def _choose(compiler: Compiler, term: Obj) -> list[Obj]:
    """The object without `others`: one for each declared key that is what they ask for, if no other key can be."""
    terms = [term._replace(others=())]
    for other in term.others:
        names = _candidates(compiler, term, other)
        if names is None or len(terms) * len(names) > MAX_COMBINATIONS:
            size, notes = join(term.size, (other.note,)), join(term.notes, (other.note,))
            terms = [one._replace(low=max(one.low, 1), size=size, notes=notes) for one in terms]
        else:
            terms = [each for one in terms for each in _with_one_of(compiler, one, names, other.state)]
    return terms


def _candidates(compiler: Compiler, term: Obj, other: Other) -> list[str] | None:
    """The keys that may be the one that `other` asks for, None where they are not all declared."""
    if not all(map(pattern.readable, other.patterns)):
        return None
    for part in term.parts:
        possible = {source for source, state in part.patterns if state != compiler.never}
        if part.rest == compiler.never and possible <= other.patterns:
            names = [name for name in part.props if name not in other.names]
            compiler.spend(CHARACTER * sum(map(len, names)) * len(other.patterns))
            taken = [pattern.Language(((source, True),)) for source in other.patterns]
            return [name for name in names if not any(each.matches(name) for each in taken)]
    return None


def _with_one_of(compiler: Compiler, term: Obj, names: list[str], state: State) -> list[Obj]:
    """The object with one of the keys at least, whose value fulfils `state`."""
    out = []
    for name, value in compiler.values(term, names).items():
        both = join(value, state)
        if both == value and name in term.required:
            return [term]
        if not compiler.is_empty(both):
            parts, required = join(term.parts, (Part({name: state}),)), join(term.required, (name,))
            out.append(term._replace(parts=parts, required=required))
    return out


def _write(writing: Writing, term: Obj) -> list[Fragment]:
    """One alternative, or one for each choice of optional properties where their number is bounded."""
    compiler, notes = writing.compiler, term.notes
    names = dict.fromkeys(itertools.chain(*(part.props for part in term.parts), term.required))
    states = compiler.values(term, names)
    rest: State = ()
    for part in term.parts:
        rest = join(rest, part.rest)
    keys = _keys(writing, term, rest)
    patterns, rest, notes = keys.regions, keys.rest, join(notes, keys.notes)
    states |= compiler.values(term, [name for name in keys.names if name not in states])
    required = tuple(term.required)
    if any(states[name] == compiler.never for name in required):
        return []
    is_open = rest != compiler.never or any(state != compiler.never for state in patterns.values())
    low, high = max(term.low - len(required), 0), None if term.high is None else term.high - len(required)
    if not low and high is None:
        return [_properties(writing, states, patterns, rest, required, 0, None, notes)]
    named = frozenset(required)
    optional = [n for n in states if n not in named and not compiler.is_empty(states[n])]
    if high is not None and not is_open and high >= len(optional):
        high = None
    if high is not None and high < low:
        return []
    if not low and high is None:
        return [_properties(writing, states, patterns, rest, required, 0, None, notes)]
    if not is_open and low > len(optional):
        return []
    never = compiler.never
    if not is_open and high is None and math.comb(len(optional), low) <= MAX_COMBINATIONS:
        return [
            _properties(writing, states, patterns, rest, (*required, *chosen), 0, None, notes)
            for chosen in itertools.combinations(optional, low)
        ]
    out = []
    if is_open and low == 1 and high is None and len(optional) <= MAX_COMBINATIONS:
        for name in optional:
            out.append(_properties(writing, states, patterns, rest, (*required, name), 0, None, notes))
        bare = {name: state if name in named else never for name, state in states.items()}
        out.append(_properties(writing, bare, patterns, rest, required, len(required) + 1, None, notes))
        return out
    most = len(optional) if high is None else min(high, len(optional))
    if sum(math.comb(len(optional), n) for n in range(most + 1)) <= MAX_COMBINATIONS:
        for count in range(most, -1, -1):
            if not is_open and count < low:
                continue
            for chosen in itertools.combinations(optional, count):
                kept = (*required, *chosen)
                bare = {name: state if name in kept else never for name, state in states.items()}
                more = max(low - count, 0)
                top = None if high is None else len(required) + high
                # A repeated undeclared key counts twice in the text and once in the value.
                lost = join(notes, term.size) if more > 1 else notes
                if not is_open:
                    out.append(_properties(writing, bare, patterns, rest, kept, 0, None, notes))
                elif top == len(kept):
                    out.append(_properties(writing, bare, {}, never, kept, 0, None, notes))
                else:
                    out.append(
                        _properties(
                            writing, bare, patterns, rest, kept, len(kept) + more if more else 0, top, lost
                        )
                    )
        return out
    return [_properties(writing, states, patterns, rest, required, 0, None, join(notes, term.size))]


def _properties(
    writing: Writing, states: dict[str, State], patterns: dict[str, State], rest: State, required: tuple[str, ...],
    low: int, high: int | None, notes: Notes,
) -> Fragment:  # fmt: skip
    schema: dict[str, Any] = {"type": "object"}
    writing.optional_pairs += (len(states) - len(required)) ** 2
    if writing.optional_pairs > MAX_OPTIONAL_PAIRS:
        most = math.isqrt(MAX_OPTIONAL_PAIRS)
        raise GrammarError(f"an object has more than {most:,} optional properties, or many have hundreds.", "")
    if states:
        schema["properties"] = {name: Child(state) for name, state in states.items()}
    if patterns:
        schema["patternProperties"] = {source: Child(state) for source, state in patterns.items()}
    if rest:
        schema["additionalProperties"] = False if rest == writing.compiler.never else Child(rest)
    if required:
        schema["required"] = list(required)
    if low:
        schema["minProperties"] = low
    if high is not None:
        schema["maxProperties"] = high
    needs = tuple(states[name] for name in required)
    children = (*states.values(), *patterns.values(), rest)
    if low > len(required) and not any(not writing.compiler.is_empty(s) for s in (rest, *patterns.values())):
        needs = (*needs, writing.compiler.never)
    return Fragment(schema, needs, children, notes)


def _keys(writing: Writing, term: Obj, rest: State) -> _Keys:
    """How the keys that no `properties` declare split by pattern; `rest` is for those that none matches."""
    compiler, never = writing.compiler, writing.compiler.never
    sources = tuple(dict.fromkeys(source for part in term.parts for source, _ in part.patterns))
    allowed: Terms = ()
    notes: Notes = ()
    if term.names:
        shapes = compiler.expand(term.names)
        if all("values" in shape or "string" not in shape for shape in shapes):
            names = [v for shape in shapes for v in shape.get("values", ()) if isinstance(v, str)]
            return _Keys({}, never, tuple(names))
        strings = [shape["string"] for shape in shapes if "string" in shape]
        allowed, exact = _language(strings[0]) if len(strings) == 1 else ((), False)
        if not exact or len(strings) < len(shapes) or strings[0].notes:
            notes = tuple((node, next(iter(node.schema))) for node, _ in term.names)
    regions: dict[str, State] = {}
    try:
        if not writing.patterns and (sources or allowed):
            raise pattern.UnsupportedPatternError("patterns are left to the check")
        for signs in _regions(compiler, sources, allowed):
            state: State = ()
            for part in term.parts:
                found = [each for source, each in part.patterns if (source, True) in signs]
                for each in found or [part.rest]:
                    state = join(state, each)
            regions[compiler.pattern_of(signs)] = state
    except pattern.UnsupportedPatternError:
        origins = tuple(part.origin for part in term.parts if part.patterns and part.origin)
        lost = tuple((node, "patternProperties") for node in origins)
        return _Keys({}, (), (), join(notes, lost) or tuple((node, "propertyNames") for node, _ in term.names))
    return _Keys(regions, never if allowed else rest, (), notes)


class _Keys(NamedTuple):
    """`regions`: pattern -> state, disjoint; `rest`: the state of other keys; `names`: keys to declare."""

    regions: dict[str, State]
    rest: State
    names: tuple[str, ...] = ()
    notes: Notes = ()


def _regions(compiler: Compiler, sources: tuple[str, ...], allowed: Terms) -> list[Terms]:
    """The non-empty ways in which a key among the allowed ones matches some patterns and not the others."""
    if not sources:
        return [allowed] if allowed else []
    if len(sources) == 1 and not allowed:
        return [((sources[0], True),)] if _possible(sources[0]) else []
    pairs = itertools.combinations(sources, 2)
    compiler.spend(PAIR * len(sources) ** 2 // 2)
    if not allowed and all(compiler.has_none(((a, True), (b, True))) for a, b in pairs):
        return [((source, True),) for source in sources if _possible(source)]
    if len(sources) > 4:
        raise pattern.UnsupportedPatternError("too many overlapping patterns")
    out = []
    for signs in itertools.product((True, False), repeat=len(sources)):
        region = (*allowed, *zip(sources, signs, strict=True))
        if (any(signs) or allowed) and not compiler.has_none(region):
            out.append(region)
    return out


def _possible(source: str) -> bool:
    """Whether any key fits a pattern, as far as can be told."""
    try:
        return not pattern.Language(((source, True),)).empty()
    except pattern.UnsupportedPatternError:
        return True


def _language(term: Str) -> tuple[Terms, bool]:
    """A string term as patterns alone, and whether they say all of it."""
    out = term.terms
    if term.low or term.high is not None:
        out = (*out, (f"^[\\s\\S]{{{term.low},{'' if term.high is None else term.high}}}$", True))
    try:
        return ((*out, (pattern.without(term.not_in), True)) if term.not_in else out), True
    except pattern.UnsupportedPatternError:
        return out, False
