"""From subschemas to shapes: every keyword's meaning, its negation, and the ways to fulfil several at once.

A state is a conjunction of subschemas that hold or fail (terms.State). `Compiler.expand` turns one into the
list of shapes whose union it is; child values get states of their own, so references may recurse as they like
and siblings of references are nothing special. A keyword that no grammar states is left out and noted in the term.
Knows the keywords; must not know how shapes are written down (emit.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.limits import too_long
from radixlang.grammar.schema import formats, pattern
from radixlang.grammar.schema.document import Document, Node, malformed
from radixlang.grammar.schema.keywords import asserted
from radixlang.grammar.schema.negation import failures
from radixlang.grammar.schema.terms import (
    ANYTHING,
    BOOLEAN,
    NULL,
    TYPES,
    Alternative,
    Arr,
    Contains,
    Item,
    Literal,
    Note,
    Num,
    Obj,
    Part,
    Shape,
    State,
    Str,
    canonical,
    join,
    meet,
    no_number,
    noted,
    type_of,
    whole,
)

MAX_ALTERNATIVES = 48  # shapes of one state
MAX_STEPS = 1_000  # conjunctions tried for one state
MAX_STATES = 20_000  # states of one schema
MAX_HOPS = 1_000  # references that only lead to another one
MAX_DEMANDS = 10_000_000  # subschemas compared for what they demand of the same key, 100 ns each


class Choice(NamedTuple):
    """One of the alternatives holds; `note` says which keyword is lost if the choice is given up."""

    alternatives: list[Alternative]
    note: Note


class Meaning(NamedTuple):
    """What one subschema says: all `items`, and one of each of the `choices`; `values`: its enum or const."""

    items: list[Item]
    choices: list[Choice]
    values: list[Any] | None = None


class Traits(NamedTuple):
    """What is plain of a subschema without a look at what it combines: its values, where they are listed; the types
    that it may have; and the values of members that are required of an object and listed."""

    kinds: frozenset[str]
    values: frozenset[Hashable] | None = None
    members: dict[str, frozenset[Hashable]] = {}  # noqa: RUF012


class _TooManyError(Exception):
    """An expansion passed its limits."""


class Compiler:
    """Expands the states of one document; results are kept."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.warnings: dict[str, None] = {}
        self._expanded: dict[frozenset[Literal], list[Shape]] = {}
        self._empty: dict[frozenset[Literal], bool] = {}
        self._negations: dict[Node, Choice] = {}
        self._keywords: dict[int, dict[str, Any]] = {}
        self._followed: dict[Node, tuple[Node, int]] = {}  # and by how many references
        self._validators: dict[Node, Any] = {}
        self._enums: dict[Node, set[Any]] = {}
        self._known_traits: dict[Node, Traits] = {}
        self._demands = 0
        self._never = Node(document, False, "", "", document.draft)

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
        if node is first and passed or len(passed) + ahead > MAX_HOPS:
            raise GrammarError("the reference leads back to itself.", pointer=first.pointer, keyword="$ref")
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
        if len(term.terms) + (term.low > 0 or term.high is not None) < 2 or not term.terms:
            return False
        try:
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
                    states[name] = join(state, self.value_in(part, name))
                    self._demands += len(state)
                if self._demands > MAX_DEMANDS:
                    pointer = "" if part.origin is None else part.origin.pointer
                    raise GrammarError("too many subschemas say something of every key; use fewer.", pointer=pointer)
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
        if self._steps > MAX_STEPS:
            raise _TooManyError
        todo, taken, choices = todo[::-1], dict(taken), list(choices)
        while todo:
            item = todo.pop()
            if isinstance(item, dict):
                shape = meet(shape, item)
                if not shape:
                    return
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
        choices.sort(key=lambda c: len(c.alternatives) > 1)
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
        if "const" in keywords or "enum" in keywords:
            values = [keywords["const"]] if "const" in keywords else keywords["enum"]
            return Meaning([], [], values)
        items: list[Item] = []
        choices: list[Choice] = []
        # The shape stands where `properties` does: keys are generated in the order in which the schema has them.
        plain = [key for key in keywords if key not in _COMBINATORS]
        place = "properties" if "properties" in plain else plain[0] if plain else None
        for key in keywords:
            if key in _COMBINATORS:
                _COMBINATORS[key](self, node, keywords, items, choices)
            elif key == place:
                items.append(self._base(node, keywords))
        return Meaning(items, choices)

    def _base(self, node: Node, keywords: dict[str, Any]) -> Shape:
        types = keywords.get("type", TYPES)
        shape: Shape = {}
        for kind in [types] if isinstance(types, str) else types:
            name = "number" if kind == "integer" else kind
            if name == "number":
                if "number" in shape and kind == "integer":
                    continue
                term: Any = self._number(node, keywords, kind == "integer")
            elif name == "string":
                term = self._string(node, keywords)
            elif name == "array":
                term = self._array(node, keywords)
            elif name == "object":
                term = self._object(node, keywords)
            else:
                term = NULL if name == "null" else BOOLEAN
            if term is not None:
                shape[name] = term
        return shape

    def number(self, node: Node) -> Num | None:
        """What the subschema's own keywords say of a number, None where none may stand."""
        return self._number(node, self.keywords(node), True)

    def _number(self, node: Node, k: dict[str, Any], integer: bool) -> Num | None:
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

    def _string(self, node: Node, k: dict[str, Any]) -> Str | None:
        low, high = int(k.get("minLength", 0)), whole(k.get("maxLength"))
        terms: tuple[tuple[str, bool], ...] = ()
        notes: tuple[Note, ...] = ()
        if "pattern" in k:
            if reason := too_long(k["pattern"]):
                raise GrammarError(f"the pattern is too large: {reason}.", pointer=node.pointer, keyword="pattern")
            if pattern.readable(k["pattern"]):
                terms = () if pattern.universal(k["pattern"]) else ((k["pattern"], True),)
            else:
                notes = ((node, "pattern"),)
                self._refuse_irregular(node, k["pattern"])
        if "format" in k:
            found = formats.lookup(k["format"], node.draft)
            if found is None:
                self.warnings[f"#{node.pointer}/format: {k['format']!r} is an annotation here."] = None
            else:
                terms = join(terms, found.terms)
                if found.max_length is not None:
                    high = found.max_length if high is None else min(high, found.max_length)
                if not found.exact:
                    notes = (*notes, (node, "format"))
        return None if high is not None and low > high else Str(low, high, terms, origins=(node,), notes=notes)

    @staticmethod
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

    def _array(self, node: Node, k: dict[str, Any]) -> Arr | None:
        low, high = int(k.get("minItems", 0)), whole(k.get("maxItems"))
        prefix: tuple[State, ...] = ()
        rest: State = ()
        key = "prefixItems" if "prefixItems" in k else "items" if isinstance(k.get("items"), list) else None
        if key:
            prefix = tuple(self.state(node.child(key, i)) for i in range(len(k[key])))
            key = "items" if key == "prefixItems" else "additionalItems"
        else:
            key = "items"
        if key in k:
            rest = self.state(node.child(key))
        if rest == self.never:
            high = len(prefix) if high is None else min(high, len(prefix))
            rest = ()
        contains: tuple[Contains, ...] = ()
        if "contains" in k:
            least, most = int(k.get("minContains", 1)), whole(k.get("maxContains"))
            contains = (Contains(self.state(node.child("contains")), least, most, (node, "contains")),)
        unique = (node, "uniqueItems") if k.get("uniqueItems") is True else None
        notes: tuple[Note, ...] = ()
        if "unevaluatedItems" in k:
            found = self._evaluated_items(node)
            if found is None:
                notes = ((node, "unevaluatedItems"),)
            elif found >= 0:
                extra = self.state(node.child("unevaluatedItems"))
                first = tuple(prefix[i] if i < len(prefix) else () for i in range(max(found, len(prefix))))
                if extra == self.never:
                    high = found if high is None else min(high, found)
                else:
                    prefix, rest = first, join(rest, extra)
        return None if high is not None and low > high else Arr(prefix, rest, low, high, contains, unique, notes)

    def _object(self, node: Node, k: dict[str, Any]) -> Obj | None:
        notes: list[Note] = []
        parts: tuple[Part, ...] = ()
        if "properties" in k or "patternProperties" in k or "additionalProperties" in k:
            props = {name: self.state(node.child("properties", name)) for name in k.get("properties", ())}
            patterns: list[tuple[str, State]] = []
            rest: State = ()
            if "additionalProperties" in k:
                rest = self.state(node.child("additionalProperties"))
            for source in k.get("patternProperties", ()):
                each = self.state(node.child("patternProperties", source))
                if not pattern.readable(source):
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
        names: State = self.state(node.child("propertyNames")) if "propertyNames" in k else ()
        if "unevaluatedProperties" in k:
            found = self._evaluated_properties(node)
            if found is None:
                notes.append((node, "unevaluatedProperties"))
            elif found is not True:
                extra = self.state(node.child("unevaluatedProperties"))
                parts = (*parts, Part(dict.fromkeys(found[0], ()), tuple((p, ()) for p in found[1]), extra, node))
        if high is not None and max(low, len(set(required))) > high:
            return None
        return Obj(parts, tuple(dict.fromkeys(required)), low, high, names, size, tuple(notes))

    def _in_place(self, node: Node) -> list[Node] | None:
        """The subschemas that surely apply to the same value (`$ref`, `allOf`), None if some only may."""
        keywords = self.keywords(node)
        if any(
            key in keywords for key in ("anyOf", "oneOf", "if", "dependentSchemas", "$dynamicRef", "$recursiveRef")
        ):
            return None
        out = [node.child("allOf", i) for i in range(len(keywords.get("allOf", ())))]
        if "$ref" in keywords:
            out.append(self.document.resolve(node))
        return [each for each in out if isinstance(each.schema, dict)]

    def _evaluated_properties(self, node: Node, seen: tuple[Node, ...] = ()) -> Any:
        """(names, patterns) that other keywords evaluate; True for all, None where that depends on the value."""
        if node in seen:
            return [], []
        keywords = self.keywords(node)
        if "additionalProperties" in keywords or (seen and "unevaluatedProperties" in keywords):
            return True
        names, patterns = list(keywords.get("properties", ())), list(keywords.get("patternProperties", ()))
        if not all(map(pattern.readable, patterns)):
            return None
        below = self._in_place(node)
        for each in below or ():
            found = self._evaluated_properties(each, (*seen, node))
            if found is True:
                return True
            if found is None:
                return None
            names, patterns = names + found[0], patterns + found[1]
        return None if below is None else (names, patterns)

    def _evaluated_items(self, node: Node, seen: tuple[Node, ...] = ()) -> int | None:
        """How many leading items other keywords evaluate; -1 for all, None where that depends on the value."""
        if node in seen:
            return 0
        k = self.keywords(node)
        if (seen and "unevaluatedItems" in k) or "additionalItems" in k or isinstance(k.get("items"), dict | bool):
            return -1
        if "contains" in k:
            return None
        most = len(k.get("prefixItems", k.get("items", ())))
        below = self._in_place(node)
        for each in below or ():
            found = self._evaluated_items(each, (*seen, node))
            if found is None or found < 0:
                return found
            most = max(most, found)
        return None if below is None else most

    # ---- combinators

    def _ref(self, node: Node, k: dict[str, Any], items: list[Item], choices: list[Choice]) -> None:
        items.append((self.document.resolve(node), True))

    def _dynamic_ref(self, node: Node, k: dict[str, Any], items: list[Item], choices: list[Choice]) -> None:
        target = self.document.resolve_dynamic(node)
        key = "$dynamicRef" if "$dynamicRef" in k else "$recursiveRef"
        items.append(noted(ANYTHING, (node, key)) if target is None else (target, True))

    def _all_of(self, node: Node, k: dict[str, Any], items: list[Item], choices: list[Choice]) -> None:
        items.extend((node.child("allOf", i), True) for i in range(len(k["allOf"])))

    def _any_of(self, node: Node, k: dict[str, Any], items: list[Item], choices: list[Choice]) -> None:
        choices.append(
            Choice([((node.child("anyOf", i), True),) for i in range(len(k["anyOf"]))], (node, "anyOf"))
        )

    def _one_of(self, node: Node, k: dict[str, Any], items: list[Item], choices: list[Choice]) -> None:
        options = [node.child("oneOf", i) for i in range(len(k["oneOf"]))]
        others: list[list[Literal]] = [[] for _ in options]
        for i, left in enumerate(options):
            for j in range(i):
                if not self.disjoint(left, options[j]):
                    others[i].append((options[j], False))
                    others[j].append((left, False))
        alternatives: list[Alternative] = [((o, True), *rest) for o, rest in zip(options, others, strict=True)]
        choices.append(Choice(alternatives, (node, "oneOf")))

    def disjoint(self, a: Node, b: Node) -> bool:
        if isinstance(a.schema, bool) or isinstance(b.schema, bool):
            return a.schema is False or b.schema is False
        if a is b:
            return False
        left, right = self._traits(a), self._traits(b)
        if left.values is not None and right.values is not None:
            return left.values.isdisjoint(right.values)
        if not left.kinds & right.kinds:
            return True
        if left.kinds & right.kinds == {"object"}:
            for key in left.members.keys() & right.members.keys():
                if left.members[key].isdisjoint(right.members[key]):
                    return True
        return self.is_empty(((a, True), (b, True)))

    def _traits(self, node: Node) -> Traits:
        found = self._known_traits.get(node)
        if found is None:
            found = self._known_traits[node] = self._find_traits(node)
        return found

    def _find_traits(self, node: Node) -> Traits:
        meaning = self.meaning(node)
        if meaning.values is not None:
            values = [value for value in meaning.values if self.satisfies(node, value)]
            return Traits(frozenset(map(type_of, values)), frozenset(map(canonical, values)))
        kinds, members = frozenset(TYPES), {}
        for item in meaning.items:
            if isinstance(item, dict):
                kinds &= item.keys()
                objects = item.get("object", Obj())
                for key, state in self.values(objects, objects.required).items():
                    node, positive = state[0] if len(state) == 1 else (self._never, False)
                    if positive and self.meaning(node).values is not None:
                        members[key] = self._traits(node).values or frozenset()
        return Traits(kinds, None, members)

    def _not(self, node: Node, k: dict[str, Any], items: list[Item], choices: list[Choice]) -> None:
        items.append((node.child("not"), False))

    def _if(self, node: Node, k: dict[str, Any], items: list[Item], choices: list[Choice]) -> None:
        test = node.child("if")
        yes: Alternative = ((test, True), (node.child("then"), True)) if "then" in k else ((test, True),)
        no: Alternative = ((test, False), (node.child("else"), True)) if "else" in k else ((test, False),)
        if "then" in k or "else" in k:
            choices.append(Choice([yes, no], (node, "if")))

    def _dependency(self, node: Node, key: str, k: dict[str, Any], choices: list[Choice]) -> None:
        for name, value in k[key].items():
            absent = ANYTHING | {"object": Obj(parts=(Part({name: self.never}),))}
            if value == []:
                continue
            if isinstance(value, list):
                present: Alternative = ({"object": Obj(required=tuple(dict.fromkeys((name, *value))))},)
            else:
                present = ({"object": Obj(required=(name,))}, (node.child(key, name), True))
            choices.append(Choice([(absent,), present], (node, key)))

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


_COMBINATORS: dict[str, Callable[..., None]] = {
    "$ref": Compiler._ref,
    "$dynamicRef": Compiler._dynamic_ref,
    "$recursiveRef": Compiler._dynamic_ref,
    "allOf": Compiler._all_of,
    "anyOf": Compiler._any_of,
    "oneOf": Compiler._one_of,
    "not": Compiler._not,
    "if": Compiler._if,
    "then": lambda *_: None,
    "else": lambda *_: None,
    "dependencies": lambda self, node, k, items, choices: self._dependency(node, "dependencies", k, choices),
    "dependentRequired": lambda self, node, k, items, choices: self._dependency(
        node, "dependentRequired", k, choices
    ),
    "dependentSchemas": lambda self, node, k, items, choices: self._dependency(
        node, "dependentSchemas", k, choices
    ),
}
