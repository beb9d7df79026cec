"""Shapes written down as a JSON schema that the grammar library states exactly (llguidance 1.9).

Only the library's sound subset is used: one type a schema, no siblings of `anyOf` or `$ref`, disjoint
`patternProperties`, counted properties only where all named ones are required. What falls outside is stated wider
and noted. States that recur become `$defs`; states that no finite value fulfils become `false`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.schema.compile import Compiler
from radixlang.grammar.schema.document import Node
from radixlang.grammar.schema.fragments import Child, Fault, Fragment, Places, Writing
from radixlang.grammar.schema.terms import ANYTHING, Note, Shape, State
from radixlang.grammar.schema.write_arrays import write_array
from radixlang.grammar.schema.write_objects import write_object
from radixlang.grammar.schema.write_scalars import (
    write_boolean,
    write_null,
    write_number,
    write_string,
    write_values,
)

MAX_INLINE = 24  # nesting written in place; deeper states become definitions


class Emitter:
    """Writes the states of one compiler."""

    def __init__(self, compiler: Compiler, patterns: bool = True) -> None:
        self.compiler = compiler
        self._writing = Writing(compiler, patterns)
        self._fragments: dict[frozenset, list[Fragment]] = {}
        self._names: dict[frozenset, str] = {}
        self._finite: set[frozenset] = set()
        self._counts: dict[frozenset, int] = {}
        self._shared: set[frozenset] = set()  # those that are written once, as definitions
        self._definitions: dict[str, Any] = {}
        self._queue: list[State] = []
        self._faults: dict[frozenset, Fault] = {}
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
            self._writing.fault = None
            fragments = self._fragments[key] = self._build(state)
            if self._writing.fault and not fragments:
                self._faults[key] = self._writing.fault
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
            out.extend(write_values(shape["values"], state) if "values" in shape else self._shape(shape))
        return out

    def _shape(self, shape: Shape) -> list[Fragment]:
        out: list[Fragment] = []
        bare: list[str] = []
        for kind, term in shape.items():
            if term == ANYTHING[kind]:
                bare.append(kind)
                continue
            made = _WRITERS[kind](self._writing, term)
            if len(made) == 1 and len(made[0].schema) == 1 and not made[0].notes and "type" in made[0].schema:
                bare.append(made[0].schema["type"])
            else:
                out.extend(made)
        if bare:
            whole = len(bare) == 6 and "integer" not in bare
            out.insert(0, Fragment({} if whole else {"type": bare[0] if len(bare) == 1 else bare}))
        return out


def _stated(state: State) -> list[Node]:
    """The subschemas that must hold, where they are more than a plain false."""
    return [node for node, positive in state if positive and node.schema is not False]


_WRITERS: dict[str, Callable[[Writing, Any], list[Fragment]]] = {
    "null": write_null,
    "boolean": write_boolean,
    "number": write_number,
    "string": write_string,
    "array": write_array,
    "object": write_object,
}
