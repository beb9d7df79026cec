"""From subschemas to shapes: the ways to fulfil several at once, or to fail them.

A state is a conjunction of subschemas that hold or fail (terms.State). `Compiler.expand` turns one into the
list of shapes whose union it is; child values get states of their own, so references may recurse as they like
and siblings of references are nothing special. What the keywords mean is said by assertions.py, combinators.py and
negation.py. Must not know how shapes are written down (emit.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.schema import pattern
from radixlang.grammar.schema.assertions import shape_of
from radixlang.grammar.schema.automaton import Terms, size_of
from radixlang.grammar.schema.combinators import COMBINATORS
from radixlang.grammar.schema.document import Document, Node, malformed
from radixlang.grammar.schema.exclusion import Traits
from radixlang.grammar.schema.keywords import asserted, listed
from radixlang.grammar.schema.members import narrow
from radixlang.grammar.schema.negation import failures
from radixlang.grammar.schema.terms import (
    ANYTHING,
    Alternative,
    Arr,
    Choice,
    Item,
    Literal,
    Obj,
    Part,
    Shape,
    State,
    Str,
    canonical,
    join,
    meet,
    noted,
    type_of,
)

MAX_ALTERNATIVES = 48  # shapes of one state
MAX_STEPS = 1_000  # conjunctions tried for one state
MAX_STATES = 20_000  # states of one schema
MAX_HOPS = 1_000  # references that only lead to another one
MAX_WORK = 20_000_000  # in one schema, counted in steps of about 100 ns
CONJUNCTION = 50  # such steps for each
LOOK = 200  # for each character of a pattern with look-arounds, these counted as `size_of` does
CHARACTER = 20  # for each that is matched with a pattern


class Meaning(NamedTuple):
    """What one subschema says: all `items`, and one of each of the `choices`; `values`: its enum or const."""

    items: list[Item]
    choices: list[Choice]
    values: list[Any] | None = None


class _TooManyError(Exception):
    """An expansion passed its limits."""


class Compiler:
    """Expands the states of one document; results are kept."""

    def __init__(self, document: Document, looks: bool = False) -> None:
        """`looks`: patterns may be written with look-arounds where they cannot be without."""
        self.document = document
        self._looks = looks
        self._read: set[str] = set()
        self.looked = False
        """whether one is"""
        self.warnings: dict[str, None] = {}
        if document.foreign:
            self.warnings[f"#/$schema: no known draft; read as draft {document.draft}."] = None
        self._expanded: dict[frozenset[Literal], list[Shape]] = {}
        self._empty: dict[frozenset[Literal], bool] = {}
        self._negations: dict[Node, Choice] = {}
        self._keywords: dict[int, dict[str, Any]] = {}
        self._followed: dict[Node, tuple[Node, int]] = {}  # and by how many references
        self._validators: dict[Node, Any] = {}
        self._enums: dict[Node, set[Any]] = {}
        self.traits: dict[Node, Traits] = {}  # what exclusion.py keeps
        self.listed: dict[State, list[Any] | None] = {}  # and members.py
        self._work = 0
        self._never = Node(document, False, "", "", document.draft)

    def spend(self, steps: int) -> None:
        """Count work of which a small schema may ask for much.

        Raises:
            GrammarError: it is too much.
        """
        self._work += steps
        if self._work > MAX_WORK:
            raise GrammarError(
                "its subschemas combine in too many ways; simplify allOf, anyOf, oneOf, patternProperties or "
                "patterns that look around.",
                pointer="",
            )

    # ---- patterns

    def readable(self, source: str) -> bool:
        """Whether `pattern_of` states a pattern.

        Raises:
            GrammarError: it looks around, as so many do that this would take long.
        """
        if source not in self._read:
            self._read.add(source)
            size = size_of(((source, True),))
            self.spend(LOOK * size if size > len(source) else 0)
        return pattern.readable(source) or (self._looks and pattern.followed(source))

    def pattern_of(self, terms: Terms) -> str:
        """One pattern for some strings.

        Raises:
            UnsupportedPatternError: none can be written.
        """
        try:
            return pattern.Language(terms).source()
        except pattern.UnsupportedPatternError:
            if not self._looks:
                raise
        written = pattern.Language(terms).looking()
        self.looked = True
        return written

    def has_none(self, terms: Terms) -> bool:
        """Whether no string fulfils some terms.

        Raises:
            UnsupportedPatternError: that is not known; where patterns may look around it does not matter.
        """
        try:
            return pattern.Language(terms).empty()
        except pattern.UnsupportedPatternError:
            if not self._looks:
                raise
            return False

    # ---- states

    @property
    def never(self) -> State:
        """The state that no value fulfils."""
        return ((self._never, True),)

    def state(self, node: Node, positive: bool = True) -> State:
        """The state of one subschema, `()` or `never` where it is that plain; what only refers is followed."""
        node = self._follow(node)
        if isinstance(node.schema, bool) or not node.schema:
            return () if bool(node.schema is not False) == positive else self.never
        return ((node, positive),)

    def _follow(self, node: Node) -> Node:
        """Where a chain of subschemas that only refer to another one ends."""
        first = node
        passed: list[Node] = []
        ahead = 0
        while isinstance(node.schema, dict) and "$ref" in node.schema and len(self.keywords(node)) == 1:
            if node in self._followed:
                node, ahead = self._followed[node]
                break
            passed.append(node)
            node = self.document.resolve(node)
            if node is first or len(passed) > MAX_HOPS:
                break
        if (node is first and passed) or len(passed) + ahead > MAX_HOPS:
            ring = node is first or len(set(passed)) < len(passed)
            problem = "leads back to itself" if ring else f"passes through more than {MAX_HOPS:,} others"
            raise GrammarError(f"the reference {problem}.", pointer=first.pointer, keyword="$ref")
        for hops, each in enumerate(reversed(passed), ahead + 1):
            self._followed[each] = node, hops
        return node

    def negated(self, state: State) -> State | None:
        """The state that holds where `state` fails; None where it has no single statement."""
        if not state:
            return self.never
        if len(state) > 1:
            return None
        node, positive = state[0]
        return () if node.schema is False else self.state(node, not positive)

    def expand(self, state: State) -> list[Shape]:
        """The shapes whose union the state is (or, where terms carry notes, is contained in)."""
        key = frozenset(state)
        found = self._expanded.get(key)
        if found is None:
            if len(self._expanded) >= MAX_STATES:
                raise GrammarError(f"the schema has more than {MAX_STATES:,} distinct states.", pointer="")
            found = self._expanded[key] = self._expand(state)
        return found

    def is_empty(self, state: State) -> bool:
        """Whether no value can fulfil the state, as far as its shapes tell; recursion counts as possible."""
        if not state:
            return False
        key = frozenset(state)
        found = self._empty.get(key)
        if found is None:
            self._empty[key] = False
            found = self._empty[key] = all(self._is_empty_shape(shape) for shape in self.expand(state))
        return found

    def possible(self, state: State) -> list[Shape]:
        """The shapes of a state without the types of which, as far as they tell, there is no value."""
        found = []
        for shape in self.expand(state):
            found.append(
                shape if "values" in shape else {k: t for k, t in shape.items() if not self._is_empty_term(t)}
            )
        return found

    def _is_empty_shape(self, shape: Shape) -> bool:
        return "values" not in shape and all(self._is_empty_term(term) for term in shape.values())

    def _is_empty_term(self, term: Any) -> bool:
        if isinstance(term, Arr):
            return any(
                self.is_empty(self.item(term, index)) for index in range(min(term.low, len(term.prefix) + 1))
            )
        if isinstance(term, Obj):
            return any(map(self.is_empty, self.values(term, term.required).values()))
        return isinstance(term, Str) and self.no_string(term)

    @staticmethod
    def no_string(term: Str) -> bool:
        """Whether the patterns and the bounds of the length leave no string, as far as can be told."""
        if not term.terms:
            return False
        try:
            alone = len(term.terms) == 1 and not term.low and term.high is None
            if alone and not pattern.looking(term.terms[0][0]):
                return False  # which is nearly always right
            return pattern.Language(term.terms).empty(term.low, term.high)
        except pattern.UnsupportedPatternError:
            return False

    @staticmethod
    def item(term: Arr, index: int) -> State:
        """What item `index` of an array must fulfil."""
        return term.prefix[index] if index < len(term.prefix) else term.items

    def values(self, term: Obj, names: Iterable[str]) -> dict[str, State]:
        """What the value of each key must fulfil, `never` where the key is not allowed."""
        states: dict[str, State] = dict.fromkeys(names, ())
        for part in term.parts:
            if part.rest or part.patterns:
                for name, state in states.items():
                    self.spend(len(state) + CHARACTER * len(name) * len(part.patterns))
                    states[name] = join(state, self.value_in(part, name))
            else:
                for name, each in part.props.items():
                    if name in states:
                        states[name] = join(states[name], each)
        if term.names:
            states |= {name: self.never for name in states if not self.admits(term.names, name)}
        return states

    @staticmethod
    def value_in(part: Part, name: str) -> State:
        """What one part demands of the value of key `name`."""
        state = part.props.get(name)
        for source, each in part.patterns:
            if pattern.Language(((source, True),)).matches(name):
                state = each if state is None else join(state, each)
        return part.rest if state is None else state

    def _expand(self, state: State) -> list[Shape]:
        if state == self.never:
            return []
        if len(state) == 1 and state[0][1]:
            meaning = self.meaning(state[0][0])
            if not meaning.choices and meaning.values is None and len(meaning.items) == 1:
                if isinstance(meaning.items[0], dict):
                    return [meaning.items[0]] if meaning.items[0] else []
        for lossy in (0, 1, 2):
            out: list[Shape] = []
            self._steps = 0
            try:
                self._conjunction(list(state), {}, ANYTHING, [], out, lossy)
                return out
            except _TooManyError:
                continue
        raise GrammarError(
            "the combination of keywords has too many alternatives; simplify allOf, anyOf or enum.",
            pointer=state[0][0].pointer,
        )

    def _conjunction(
        self,
        todo: list[Item],
        taken: dict[Literal, None],
        shape: Shape,
        choices: list[Choice],
        out: list[Shape],
        lossy: int,
    ) -> None:
        """Collect what all of `todo` says, then branch on the first choice left."""
        self._steps += 1
        self.spend(CONJUNCTION)
        if self._steps > MAX_STEPS:
            raise _TooManyError
        todo, taken, choices = todo[::-1], dict(taken), list(choices)
        while todo:
            item = todo.pop()
            if isinstance(item, dict):
                shape = meet(shape, item)
                if not shape:
                    return
                if "object" in shape:
                    self.spend(len(shape["object"].parts))  # each of which was compared with the new ones
                continue
            node, positive = item
            if isinstance(node.schema, bool):
                if node.schema != positive:
                    return
                continue
            if item in taken:
                continue
            if (node, not positive) in taken:
                return
            taken[item] = None
            if positive:
                meaning = self.meaning(node)
                if meaning.values is not None:
                    others = [each for each in reversed(todo) if not isinstance(each, dict)]
                    self._finite(meaning.values, [*taken, *others], out)
                    return
                todo.extend(reversed(meaning.items))
                choices.extend(meaning.choices)
            else:
                choices.append(self.negation(node))
        if not choices:
            out.append(shape)
            if len(out) > MAX_ALTERNATIVES:
                raise _TooManyError
            return
        shape, choices = narrow(self, shape, choices)
        if not shape:
            return
        decided = [each for each in choices if len(each.alternatives) == 1]
        if decided or not choices:
            items = [item for each in decided for item in each.alternatives[0]]
            rest = [each for each in choices if len(each.alternatives) != 1]
            self._conjunction(items, taken, shape, rest, out, lossy)
            return
        choice, rest = choices[0], choices[1:]
        alternatives = choice.alternatives
        if lossy and len(alternatives) > 1:
            if choice.note[1] == "oneOf":
                positive_only: list[Alternative] = [a[:1] for a in alternatives]
                if positive_only != alternatives:
                    shape, alternatives = noted(shape, choice.note), positive_only
            if lossy == 2 or choice.note[1] == "not":
                self._conjunction([], taken, noted(shape, choice.note), rest, out, lossy)
                return
        for alternative in alternatives:
            self._conjunction(list(alternative), taken, shape, rest, out, lossy)

    def _finite(self, values: list[Any], literals: list[Literal], out: list[Shape]) -> None:
        """An enum beside whatever else: each value is tried on all subschemas taken so far."""
        left = [v for v in values if all(self.satisfies(node, v) == positive for node, positive in literals)]
        if left:
            out.append({"values": left})

    def admits(self, state: State, value: Any) -> bool:
        """Whether `value` fulfils the state."""
        return all(self.satisfies(node, value) == positive for node, positive in state)

    def satisfies(self, node: Node, value: Any) -> bool:
        """Whether `value` is valid under the subschema."""
        schema = node.schema
        if isinstance(schema, bool):
            return schema
        keywords = self.keywords(node)
        if keywords.keys() <= {"type", "enum", "const"}:
            if "enum" in keywords:
                if node not in self._enums:
                    self._enums[node] = {canonical(v) for v in keywords["enum"]}
                if canonical(value) not in self._enums[node]:
                    return False
            if "const" in keywords and canonical(value) != canonical(keywords["const"]):
                return False
            return "type" not in keywords or _has_type(value, keywords["type"])
        validator = self._validators.get(node)
        if validator is None:
            try:
                validator = self._validators[node] = self.document.validator(node)
            except ValueError as error:
                raise malformed(error, self.document.schema, node.pointer) from None
        return bool(validator.is_valid(value))

    # ---- subschemas

    def keywords(self, node: Node) -> dict[str, Any]:
        """The keywords of a subschema that assert something in its draft."""
        found = self._keywords.get(id(node.schema))
        if found is None:
            found = self._keywords[id(node.schema)] = asserted(node, self.warnings)
        return found

    def meaning(self, node: Node) -> Meaning:
        """What the subschema says where it must hold."""
        if node.memo is None:
            node.memo = self._meaning(node)
        return node.memo

    def _meaning(self, node: Node) -> Meaning:
        keywords = self.keywords(node)
        values = listed(keywords)
        if values is not None:
            return Meaning([], [], values)
        items: list[Item] = []
        choices: list[Choice] = []
        # The shape stands where `properties` does: keys are generated in the order in which the schema has them.
        plain = [key for key in keywords if key not in COMBINATORS]
        place = "properties" if "properties" in plain else plain[0] if plain else None
        for key in keywords:
            if key in COMBINATORS:
                for each in COMBINATORS[key](self, node, keywords):
                    if isinstance(each, Choice):
                        choices.append(each)
                    else:
                        items.append(each)
            elif key == place:
                items.append(shape_of(self, node, keywords))
        return Meaning(items, choices)

    # ---- negation

    def negation(self, node: Node) -> Choice:
        """The ways in which the subschema fails: one keyword at least does."""
        found = self._negations.get(node)
        if found is None:
            keywords = self.keywords(node)
            alternatives = [a for keyword in keywords for a in failures(self, node, keyword, keywords)]
            found = self._negations[node] = Choice(alternatives, (node, "not"))
        return found


def _has_type(value: Any, types: str | list[str]) -> bool:
    kind = type_of(value)
    for each in [types] if isinstance(types, str) else types:
        if each == kind or (each == "integer" and kind == "number" and float(value).is_integer()):
            return True
    return False
