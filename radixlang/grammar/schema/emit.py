"""Shapes written down as a JSON schema that the grammar library states exactly (llguidance 1.9).

Only the library's sound subset is used: one type a schema, no siblings of `anyOf` or `$ref`, disjoint
`patternProperties`, counted properties only where all named ones are required. What falls outside is stated wider
and noted. States that recur become `$defs`; states that no finite value fulfils become `false`.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from typing import Any, NamedTuple

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.schema import pattern
from radixlang.grammar.schema.compile import Compiler
from radixlang.grammar.schema.document import Node
from radixlang.grammar.schema.numbers import common_multiple, holds_multiple, rounded, spellings
from radixlang.grammar.schema.terms import (
    ANYTHING,
    Arr,
    Contains,
    Note,
    Notes,
    Num,
    Obj,
    Plain,
    Shape,
    State,
    Str,
    canonical,
    join,
    least,
)

MAX_COMBINATIONS = 64  # ways to choose which optional properties are there
MAX_PATTERNS = 8  # of one string; the library's test whether they exclude one another doubles with each
MAX_OPTIONAL_PAIRS = (
    8_000_000  # of optional properties of an object, over all objects: 100 ns of the library's each
)
MAX_POSITIONS = 8  # places where a `contains` item may be
MAX_INLINE = 24  # nesting written in place; deeper states become definitions
_UNWRITABLE = re.compile("[\ud800-\udfff]")  # half surrogate pairs have no UTF-8
_INTEGERS = 2**53  # integers up to here are exact in the library
_REALS = 1e16  # bounds up to here are
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_INFINITE = 1e308  # bounds from here on say nothing of a double


class Child(NamedTuple):
    """A child value's place in a fragment."""

    state: State


class Fault(NamedTuple):
    """Why a state has no value: the keyword of a subschema, and a sentence."""

    node: Node
    keyword: str | None
    sentence: str


class Places(NamedTuple):
    """`least` items of an array must be of `states`, each of which so many items may be; `note` says where."""

    least: int
    states: tuple[tuple[State, int], ...]
    note: Note


class Fragment(NamedTuple):
    """One alternative of a state: a schema with `Child`ren in it; `needs` are those that every value has, of each
    of `places` it has some.
    """

    schema: dict[str, Any]
    needs: tuple[State, ...] = ()
    children: tuple[State, ...] = ()
    notes: Notes = ()
    places: tuple[Places, ...] = ()


class Emitter:
    """Writes the states of one compiler."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self._fragments: dict[frozenset, list[Fragment]] = {}
        self._names: dict[frozenset, str] = {}
        self._finite: set[frozenset] = set()
        self._counts: dict[frozenset, int] = {}
        self._shared: set[frozenset] = set()  # those that are written once, as definitions
        self._definitions: dict[str, Any] = {}
        self._queue: list[State] = []
        self._optional_pairs = 0
        self._faults: dict[frozenset, Fault] = {}
        self._fault: Fault | None = None  # of the state that is being built
        self.notes: dict[Note, None] = {}

    def write(self, state: State) -> Any:
        """The schema of `state` with its definitions.

        Raises:
            GrammarError: no finite value fulfils it.
        """
        self._reach(state)
        if state and frozenset(state) not in self._finite:
            fault = self._find_fault(state)
            raise GrammarError(fault.sentence, pointer=fault.node.pointer, keyword=fault.keyword)
        root = self._render(state, 0)
        while self._queue:
            each = self._queue.pop()
            self._definitions[self._names[frozenset(each)]] = self._body(each, 0)
        if self._definitions:
            root = {**root, "$defs": self._definitions}
        return root

    # ---- reachable states, and which of them have finite values

    def _reach(self, start: State) -> None:
        order: list[State] = []
        stack = [start]
        judged: list[State] = []  # not written, only asked whether they have a value: when all others are built
        while stack or judged:
            below = stack or judged
            state = below.pop()
            key = frozenset(state)
            if below is stack:
                self._counts[key] = self._counts.get(key, 0) + 1
            if not state or key in self._fragments:
                continue
            order.append(state)
            self._fault = None
            fragments = self._fragments[key] = self._build(state)
            if self._fault and not fragments:
                self._faults[key] = self._fault
            for fragment in fragments:
                below.extend(reversed(fragment.children if below is stack else fragment.needs))
                judged.extend(each for places in fragment.places for each, _ in places.states)
        self._shared = {
            key for key, made in self._fragments.items()
            if self._counts.get(key, 0) > 1 and any(fragment.children for fragment in made)
        }  # fmt: skip
        self._find_finite([frozenset(state) for state in order])

    def _find_finite(self, keys: list[frozenset]) -> None:
        """Which of the states have finite values. A fragment waits for the first of its needs that has none yet;
        the last states come first, for those before them mostly need them."""
        self._finite.add(frozenset())
        waiting: dict[frozenset, list[tuple[frozenset, Fragment, int]]] = {}
        todo = [(key, fragment, 0) for key in keys for fragment in self._fragments[key]]
        while todo:
            key, fragment, at = todo.pop()
            if key in self._finite:
                continue
            while at < len(fragment.needs) and self._possible(fragment.needs[at]):
                at += 1
            scarce = [places for places in fragment.places if not self._are_enough(places)]
            if at == len(fragment.needs) and not scarce:
                self._finite.add(key)
                todo.extend(waiting.pop(key, ()))
                continue
            missing = fragment.needs[at : at + 1] or [each for places in scarce for each, _ in places.states]
            for need in missing:
                if not self._possible(need):
                    waiting.setdefault(frozenset(need), []).append((key, fragment, at))

    def _possible(self, state: State) -> bool:
        return frozenset(state) in self._finite

    def _has_value(self, fragment: Fragment) -> bool:
        return all(map(self._possible, fragment.needs)) and all(map(self._are_enough, fragment.places))

    def _are_enough(self, places: Places) -> bool:
        return sum(count for state, count in places.states if self._possible(state)) >= places.least

    def _find_fault(self, state: State) -> Fault:
        """What makes `state` impossible: at the innermost value that must be there, where that is plain."""
        seen: set[frozenset] = set()
        while True:
            key = frozenset(state)
            seen.add(key)
            if key in self._faults:
                return self._faults[key]
            fragments = self._fragments[key]
            scarce = [[p.note for p in f.places if not self._are_enough(p)] for f in fragments]
            if scarce and all(scarce):
                sentence = "it asks for more items than can fulfil both it and what the array says of its items."
                return Fault(*scarce[0][0], sentence)
            inner = [need for f in fragments for need in f.needs if not self._possible(need)]
            if len(fragments) != 1 or frozenset(inner[0]) in seen or not _stated(inner[0]):
                break
            state = inner[0]
        first, *others = _stated(state) or [state[0][0]]
        beside = " beside " + ", ".join(f"#{node.pointer}" for node in others[:3]) if others else ""
        return Fault(first, None, f"no finite value can fulfil the schema{beside}.")

    # ---- writing

    def _render(self, state: State, depth: int) -> Any:
        if not state:
            return {}
        key = frozenset(state)
        if key not in self._finite:
            return False
        if key not in self._shared and depth < MAX_INLINE:
            return self._body(state, depth)
        if key not in self._names:
            self._names[key] = f"s{len(self._names)}"
            self._queue.append(state)
        return {"$ref": f"#/$defs/{self._names[key]}"}

    def _body(self, state: State, depth: int) -> dict[str, Any]:
        fragments = [f for f in self._fragments[frozenset(state)] if self._has_value(f)]
        written = []
        for fragment in fragments:
            for note in fragment.notes:
                self.notes[note] = None
            schema = self._fill(fragment.schema, depth + 1) if fragment.children else fragment.schema
            if schema not in written:
                written.append(schema)
        return written[0] if len(written) == 1 else {"anyOf": written}

    def _fill(self, value: Any, depth: int) -> Any:
        if isinstance(value, Child):
            return self._render(value.state, depth)
        if isinstance(value, dict):
            return {k: self._fill(v, depth) for k, v in value.items()}
        if isinstance(value, list) and value and isinstance(value[0], Child):
            return [self._fill(v, depth) for v in value]
        return value

    # ---- fragments

    def _build(self, state: State) -> list[Fragment]:
        out: list[Fragment] = []
        for shape in self.compiler.expand(state):
            out.extend(self._values(shape["values"], state) if "values" in shape else self._shape(shape))
        return out

    def _shape(self, shape: Shape) -> list[Fragment]:
        out: list[Fragment] = []
        bare: list[str] = []
        for kind, term in shape.items():
            if term == ANYTHING[kind]:
                bare.append(kind)
                continue
            made = _WRITERS[kind](self, term)
            if len(made) == 1 and len(made[0].schema) == 1 and not made[0].notes and "type" in made[0].schema:
                bare.append(made[0].schema["type"])
            else:
                out.extend(made)
        if bare:
            whole = len(bare) == 6 and "integer" not in bare
            out.insert(0, Fragment({} if whole else {"type": bare[0] if len(bare) == 1 else bare}))
        return out

    @staticmethod
    def _values(values: list[Any], state: State) -> list[Fragment]:
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

    def _null(self, term: Plain) -> list[Fragment]:
        return [Fragment({"type": "null"}, notes=term.notes)]

    def _boolean(self, term: Plain) -> list[Fragment]:
        schema: dict[str, Any] = {"type": "boolean"} if len(term.values) == 2 else {"enum": list(term.values)}
        return [Fragment(schema, notes=term.notes)]

    def _number(self, term: Num) -> list[Fragment]:
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
            if multiple is None:
                notes = join(notes, self._lost(term.origins, "multipleOf"))
            else:
                steps = [multiple] if term.integer else spellings(multiple)
                schemas = [{**schemas[0], "multipleOf": step} for step in steps]
        spans = [span for span in spans if holds_multiple(span, term.multiples)]
        if not term.integer:
            spans = [each for span in spans for each in rounded(span)]
        return [f for span in spans for schema in schemas for f in self._span(dict(schema), span, term, notes)]

    def _lost(self, origins: tuple[Node, ...], *keywords: str) -> Notes:
        """Notes for keywords that this module cannot write, at the subschemas that have them."""
        found = tuple((node, key) for node in origins for key in keywords if key in node.schema)
        return found or tuple((node, next(iter(node.schema))) for node in origins)

    def _span(self, schema: dict[str, Any], span: tuple, term: Num, notes: Notes) -> list[Fragment]:
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
                low, lost = (None if low < 0 else _INTEGERS), self._lost(term.origins, *_LOWER)
            if high is not None and abs(high) > _INTEGERS:
                high, lost = (None if high > 0 else -_INTEGERS), join(lost, self._lost(term.origins, *_UPPER))
        else:
            if low is not None and abs(low) > _REALS:
                lost = () if low < -_INFINITE else self._lost(term.origins, *_LOWER)
                low, low_open = (None, False) if low < 0 else (_REALS, False)
            if high is not None and abs(high) > _REALS:
                lost = lost if high > _INFINITE else join(lost, self._lost(term.origins, *_UPPER))
                high, high_open = (None, False) if high > 0 else (-_REALS, False)
            if low is not None and high is not None:
                # The library lets the excluded whole number itself through in spans this short.
                if low_open and low == int(low) and high < low + 1:
                    lost = join(lost, self._lost(term.origins, *_LOWER))
                if high_open and high == int(high) and low > high - 1:
                    lost = join(lost, self._lost(term.origins, *_UPPER))
        if low is not None:
            schema["exclusiveMinimum" if low_open else "minimum"] = low
        if high is not None:
            schema["exclusiveMaximum" if high_open else "maximum"] = high
        return [Fragment(schema, notes=join(notes, lost))]

    def _string(self, term: Str) -> list[Fragment]:
        if self.compiler.no_string(term):
            (node, keyword), *_ = self._lost(term.origins, "pattern", "format")
            bounded = term.low > 0 or term.high is not None
            what = f"{keyword} and length" if bounded else "all patterns and formats"
            self._fault = Fault(node, keyword, f"no string fulfils {what} together.")
            return []
        schema: dict[str, Any] = {"type": "string"}
        notes = term.notes
        if term.low:
            schema["minLength"] = term.low
        if term.high is not None:
            schema["maxLength"] = term.high
        sources = []
        if len(term.terms) > MAX_PATTERNS:
            notes = join(notes, self._lost(term.origins, "pattern", "format"))
        for one in term.terms[:MAX_PATTERNS]:
            try:
                sources.append(pattern.Language((one,)).source())
            except pattern.UnsupportedPatternError:
                notes = join(notes, self._lost(term.origins, "pattern", "format"))
        if term.not_in:
            try:
                sources.append(pattern.without(term.not_in))
            except pattern.UnsupportedPatternError:
                notes = join(notes, self._lost(term.origins, "enum", "const"))
        if len(sources) == 1:
            schema["pattern"] = sources[0]
        elif sources:
            schema["allOf"] = [{"type": "string", "pattern": source} for source in sources]
        return [Fragment(schema, notes=notes)]

    # ---- arrays

    def _array(self, term: Arr) -> list[Fragment]:
        low, high, notes = term.low, term.high, term.notes
        prefix, items = list(term.prefix), term.items
        wanted: list[Contains] = []  # beyond what is stated of every item and of their number
        for each in term.contains:
            if not each.state:  # every item counts
                low, high = max(low, each.low), least(high, each.high)
                continue
            none = self.compiler.negated(each.state)
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
        if items == self.compiler.never:
            high, items = len(prefix) if high is None else min(high, len(prefix)), ()
        if term.unique:
            most = self._distinct(items)
            if most is not None:
                high = least(high, len(prefix) + most)
                if low > high:
                    sentence = "fewer different items are possible than minItems asks for."
                    self._fault = Fault(*term.unique, sentence)
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
                out.append(self._items(first, items, max(low, index + 1), high, notes)._replace(places=places))
            return out
        notes = join(notes, tuple(each.note for each in single))
        return [self._items(prefix, items, low, high, notes)._replace(places=places)]

    def _distinct(self, state: State) -> int | None:
        """How many values the state has at most, None where they are not counted."""
        if not state:
            return None
        values: set[Any] = set()
        integers = 0
        for shape in self.compiler.expand(state):
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

    def _items(self, prefix: list[State], items: State, low: int, high: int | None, notes: Notes) -> Fragment:
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

    # ---- objects

    def _object(self, term: Obj) -> list[Fragment]:
        compiler, notes = self.compiler, term.notes
        names = dict.fromkeys(itertools.chain(*(part.props for part in term.parts), term.required))
        states = compiler.values(term, names)
        rest: State = ()
        for part in term.parts:
            rest = join(rest, part.rest)
        keys = self._keys(term, rest)
        patterns, rest, notes = keys.regions, keys.rest, join(notes, keys.notes)
        states |= compiler.values(term, [name for name in keys.names if name not in states])
        required = tuple(term.required)
        if any(states[name] == compiler.never for name in required):
            return []
        is_open = rest != compiler.never or any(state != compiler.never for state in patterns.values())
        low, high = max(term.low - len(required), 0), None if term.high is None else term.high - len(required)
        if not low and high is None:
            return [self._properties(states, patterns, rest, required, 0, None, notes)]
        optional = [n for n in states if n not in required and not compiler.is_empty(states[n])]
        if high is not None and not is_open and high >= len(optional):
            high = None
        if high is not None and high < low:
            return []
        if not low and high is None:
            return [self._properties(states, patterns, rest, required, 0, None, notes)]
        if not is_open and low > len(optional):
            return []
        never = compiler.never
        if not is_open and high is None and math.comb(len(optional), low) <= MAX_COMBINATIONS:
            return [
                self._properties(states, patterns, rest, (*required, *chosen), 0, None, notes)
                for chosen in itertools.combinations(optional, low)
            ]
        out = []
        if is_open and low == 1 and high is None and len(optional) <= MAX_COMBINATIONS:
            for name in optional:
                out.append(self._properties(states, patterns, rest, (*required, name), 0, None, notes))
            bare = {name: state if name in required else never for name, state in states.items()}
            out.append(self._properties(bare, patterns, rest, required, len(required) + 1, None, notes))
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
                        out.append(self._properties(bare, patterns, rest, kept, 0, None, notes))
                    elif top == len(kept):
                        out.append(self._properties(bare, {}, never, kept, 0, None, notes))
                    else:
                        out.append(
                            self._properties(
                                bare, patterns, rest, kept, len(kept) + more if more else 0, top, lost
                            )
                        )
            return out
        return [self._properties(states, patterns, rest, required, 0, None, join(notes, term.size))]

    def _properties(
        self, states: dict[str, State], patterns: dict[str, State], rest: State, required: tuple[str, ...],
        low: int, high: int | None, notes: Notes,
    ) -> Fragment:  # fmt: skip
        schema: dict[str, Any] = {"type": "object"}
        self._optional_pairs += (len(states) - len(required)) ** 2
        if self._optional_pairs > MAX_OPTIONAL_PAIRS:
            most = math.isqrt(MAX_OPTIONAL_PAIRS)
            raise GrammarError(f"an object has more than {most:,} optional properties, or many have hundreds.", "")
        if states:
            schema["properties"] = {name: Child(state) for name, state in states.items()}
        if patterns:
            schema["patternProperties"] = {source: Child(state) for source, state in patterns.items()}
        if rest:
            schema["additionalProperties"] = False if rest == self.compiler.never else Child(rest)
        if required:
            schema["required"] = list(required)
        if low:
            schema["minProperties"] = low
        if high is not None:
            schema["maxProperties"] = high
        needs = tuple(states[name] for name in required)
        children = (*states.values(), *patterns.values(), rest)
        if low > len(required) and not any(not self.compiler.is_empty(s) for s in (rest, *patterns.values())):
            needs = (*needs, self.compiler.never)
        return Fragment(schema, needs, children, notes)

    def _keys(self, term: Obj, rest: State) -> _Keys:
        """How the keys that no `properties` declare split by pattern; `rest` is for those that none matches."""
        compiler, never = self.compiler, self.compiler.never
        sources = tuple(dict.fromkeys(source for part in term.parts for source, _ in part.patterns))
        allowed: tuple[tuple[str, bool], ...] = ()
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
            for signs in _regions(sources, allowed):
                state: State = ()
                for part in term.parts:
                    found = [each for source, each in part.patterns if (source, True) in signs]
                    for each in found or [part.rest]:
                        state = join(state, each)
                regions[pattern.Language(signs).source()] = state
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


def _regions(
    sources: tuple[str, ...], allowed: tuple[tuple[str, bool], ...]
) -> list[tuple[tuple[str, bool], ...]]:
    """The non-empty ways in which a key among the allowed ones matches some patterns and not the others."""
    if not sources:
        return [allowed] if allowed else []
    if len(sources) == 1 and not allowed:
        return [((sources[0], True),)]
    pairs = itertools.combinations(sources, 2)
    if not allowed and all(pattern.Language(((a, True), (b, True))).empty() for a, b in pairs):
        return [((source, True),) for source in sources]
    if len(sources) > 4:
        raise pattern.UnsupportedPatternError("too many overlapping patterns")
    out = []
    for signs in itertools.product((True, False), repeat=len(sources)):
        region = (*allowed, *zip(sources, signs, strict=True))
        if (any(signs) or allowed) and not pattern.Language(region).empty():
            out.append(region)
    return out


def _language(term: Str) -> tuple[tuple[tuple[str, bool], ...], bool]:
    """A string term as patterns alone, and whether they say all of it."""
    out = term.terms
    if term.low or term.high is not None:
        out = (*out, (f"^[\\s\\S]{{{term.low},{'' if term.high is None else term.high}}}$", True))
    try:
        return ((*out, (pattern.without(term.not_in), True)) if term.not_in else out), True
    except pattern.UnsupportedPatternError:
        return out, False


def _stated(state: State) -> list[Node]:
    """The subschemas that must hold, where they are more than a plain false."""
    return [node for node, positive in state if positive and node.schema is not False]


def _places(contains: Contains, prefix: list[State], items: State, high: int | None) -> Places:
    """Where the items may be that `contains` asks for, in an array of at most `high` items."""
    states = [(join(state, contains.state), 1) for state in prefix[:high]]
    more = contains.low if high is None else high - len(prefix)
    if more > 0:
        states.append((join(items, contains.state), more))
    return Places(contains.low, tuple(states), contains.note)


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


_WRITERS: dict[str, Any] = {
    "null": Emitter._null,
    "boolean": Emitter._boolean,
    "number": Emitter._number,
    "string": Emitter._string,
    "array": Emitter._array,
    "object": Emitter._object,
}
