"""Regular expressions, choices, and what of JSON schemas and structural tags is small and regular, on our own
automata: masks are made once for a place and shared by all texts."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from radixlang.grammar.errors import GrammarError, GrammarFailure
from radixlang.grammar.filling import Filling, alone, in_threads
from radixlang.grammar.grammar import Grammar, Mask
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.measure import measure_lark, measure_schema
from radixlang.grammar.native.dfa import Dfa, build, choice_dfa
from radixlang.grammar.native.looking import looking_automaton
from radixlang.grammar.native.machines import Choices, Expression, Machine
from radixlang.grammar.native.plain import PlainTokens
from radixlang.grammar.native.pushdown import Pushdown
from radixlang.grammar.native.regex import LooksAround, Unsuitable, regex_automaton
from radixlang.grammar.native.schema import Builder
from radixlang.grammar.native.subsets import Subsets
from radixlang.grammar.native.tag import MAX_TAG_WORK, TagBuilder
from radixlang.grammar.native.trie import TokenTries, walker
from radixlang.grammar.schema import Normalised, normalise_text
from radixlang.grammar.schema.regex import in_any_case
from radixlang.grammar.schema.shortest import shortest_at_most
from radixlang.grammar.spec import check_residual, read_choices, read_json
from radixlang.grammar.structural_tag import format_of, to_lark
from radixlang.grammar.vocabulary import Vocabulary
from radixlang.messages import GrammarSpec

MAX_FORCED = 16_384
"""places whose forced tokens one grammar keeps"""
MAX_MASK_BYTES = 32 << 20
"""masks that one grammar keeps; beyond, all are forgotten and made anew"""


_NAMES = {"regex": "regex", "json_schema": "schema", "structural_tag": "structural tag"}


class NativeEngine:
    """Takes regular expressions, choices, and what of JSON schemas and structural tags is small and regular."""

    def __init__(self, vocabulary: Vocabulary, limits: GrammarLimits) -> None:
        self.vocabulary = vocabulary
        self.limits = limits
        self._tries: TokenTries | None = None
        self._plain: PlainTokens | None = None
        self._lock = threading.Lock()
        self._regex = lru_cache(4)(self._make_regex)
        self._json = lru_cache(4)(self._make_json)

    def warm_up(self) -> None:
        """The token trees, the compiled walk, large classes of characters, and which differ in case alone."""
        self._regex(r"\w\d\s")
        in_any_case(((0x61, 0x61),))
        _ = self.plain

    def supports(self, spec: GrammarSpec) -> str | None:
        if spec.kind == "choice":
            return None
        if spec.kind not in _NAMES:
            return f"The native backend takes regex, choice, json_schema and structural_tag, not {spec.kind}."
        try:
            if spec.kind == "regex":
                self._regex(spec.text)
            else:
                self._json(spec.kind, spec.text, spec.any_whitespace)
        except Unsuitable as reason:
            return f"The native backend does not take this {_NAMES[spec.kind]}: {reason}."
        return None

    def compile(self, spec: GrammarSpec) -> Grammar:
        from radixlang.grammar.residual import ResidualGrammar

        machine: Machine
        normalised, checked = None, False
        if spec.kind == "choice":
            choices = self._choices(spec.text)
            dfa = choice_dfa(choices, self.limits.max_states)
            if dfa is None:
                machine = Choices(choices, self.tries, self.vocabulary.words)
            else:
                machine = Expression(dfa, self.tries, self.vocabulary.words, self.plain)
        elif spec.kind == "regex":
            made = self._regex(spec.text)
            if made is None:
                raise GrammarError("regex matches no text that the model's tokens can write", param="regex")
            if isinstance(made, Dfa):
                machine = Expression(made, self.tries, self.vocabulary.words, self.plain)
            else:
                machine = self._pushdown(made)
        else:
            machine, normalised, checked = self._json(spec.kind, spec.text, spec.any_whitespace)
            if normalised is not None:
                check_residual(spec, normalised.places)
        grammar = NativeGrammar(machine, self.vocabulary)
        try:
            first = grammar.mask(machine.start)
        except GrammarFailure as error:
            raise GrammarError(f"{spec.kind} cannot be used: {error}", param=spec.kind) from None
        if not first.any():
            raise GrammarError(
                f"{spec.kind} begins with characters that the model's tokens cannot write", param=spec.kind
            )
        # An automaton that knows which numbers a double holds needs hundreds of states for each.
        checks = None if normalised is None else normalised.checks
        return ResidualGrammar(grammar, checks, self.vocabulary) if checked else grammar

    @property
    def tries(self) -> TokenTries:
        """Made, with the compiled walk, on first use."""
        with self._lock:
            if self._tries is None:
                self._tries = TokenTries.of(self.vocabulary)
                walker()
        return self._tries

    @cached_property
    def writable(self) -> npt.NDArray[np.bool_]:
        """[256] the bytes that occur in tokens."""
        return self.tries.writable()

    @property
    def plain(self) -> PlainTokens:
        """Made on first use."""
        with self._lock:
            if self._plain is None:
                self._plain = PlainTokens(self.vocabulary)
        return self._plain

    def _make_regex(self, pattern: str) -> Dfa | Subsets | None:
        """None: it matches nothing."""
        try:
            return build(regex_automaton(pattern), self.limits.max_states, self.writable) or None
        except LooksAround:
            automaton = looking_automaton(pattern)
        try:
            return Subsets(automaton, self.writable)
        except Unsuitable:
            return None

    def _make_json(self, kind: str, text: str, any_whitespace: bool) -> tuple[Pushdown, Normalised | None, bool]:
        """The automaton of a schema or tag, the schema as it states it, and whether anything else has to be
        checked."""
        if any_whitespace:
            raise Unsuitable("white space is free in it (--constrained-json-any-whitespace)")
        if kind == "json_schema":
            normalised = normalise_text(text, looks=True)
            try:
                return self._make_schema(normalised)
            except Unsuitable:
                if not normalised.looks:
                    raise
            return self._make_schema(normalise_text(text))  # patterns that are too large are checked
        written = read_json(text, kind)
        sizes = measure_lark(to_lark(written, self.vocabulary))  # says what is wrong with it
        builder = TagBuilder(self.writable, self.vocabulary.special)
        first_node = builder.format(format_of(written), builder.automaton.accept)
        subsets = self._subsets(builder, first_node, written, sizes.least)
        subsets.explore_outside(MAX_TAG_WORK)
        return self._pushdown(subsets), None, False

    def _make_schema(self, normalised: Normalised) -> tuple[Pushdown, Normalised, bool]:
        builder = Builder(self.writable)
        first_node = builder.schema(normalised.schema, builder.automaton.accept)
        least = shortest_at_most(normalised.schema)
        if least > self.limits.max_least:
            least = measure_schema(normalised.schema).least
        subsets = self._subsets(builder, first_node, normalised.schema, least)
        return self._pushdown(subsets), normalised, builder.unbounded or normalised.checks is not None

    def _subsets(self, builder: Builder, first_node: int, written: Any, least: float) -> Subsets:
        from radixlang.grammar.llg import ESCAPES, json_options

        if least > self.limits.max_least:
            raise Unsuitable(f"its shortest text has more than {self.limits.max_least:,} bytes")
        if json_options(False, written)["json_allowed_escapes"] != ESCAPES:
            raise Unsuitable("it writes control characters")
        builder.automaton.start = first_node
        return Subsets(builder.automaton, self.writable)

    def _pushdown(self, subsets: Subsets) -> Pushdown:
        return Pushdown(subsets, self.tries, self.vocabulary.words, self.plain)

    def _choices(self, text: str) -> list[bytes]:
        try:
            texts = [choice.encode() for choice in read_choices(text)]
        except UnicodeEncodeError:
            raise GrammarError(
                "choice holds half of a surrogate pair, which no text can", param="choice"
            ) from None
        missing = bytes(np.flatnonzero(~self.writable).astype(np.uint8))
        possible = [one for one in texts if one.translate(None, delete=missing) == one]
        if not possible:
            raise GrammarError("choice holds only texts that the model's tokens cannot write", param="choice")
        return sorted(set(possible))


class NativeGrammar:
    """A compiled expression or list of choices, with the masks made so far."""

    def __init__(self, machine: Machine, vocabulary: Vocabulary) -> None:
        self.machine = machine
        self.vocabulary = vocabulary
        self._masks: dict[Hashable, Mask] = {}
        self._bytes = 0
        """at most, of these: equal ones may be shared"""
        self._forced: dict[Hashable, list[int]] = {}

    @property
    def nbytes(self) -> int:
        return self.machine.nbytes + self._bytes + 200 * len(self._forced)

    def start(self) -> NativeState:
        return NativeState(self, [self.machine.start])

    def known(self, place: Any) -> Mask | None:
        """`mask`, if it has been made."""
        return self._masks.get(self.machine.key(place))

    def mask(self, place: Any) -> Mask:
        """The tokens that may follow, ends included; not to be written to. Threads may make one twice."""
        mask = self.known(place)
        return self._make_mask(place) if mask is None else mask

    def _make_mask(self, place: Any) -> Mask:
        if self._bytes > MAX_MASK_BYTES:
            self._bytes, self._masks = 0, {}
            self.machine.forget()
        mask = self.machine.tokens(place)
        if self.machine.accepts(place):
            mask = mask | self.vocabulary.eos_mask
        self._masks[self.machine.key(place)] = mask
        self._bytes += 4 * self.vocabulary.words
        return mask

    def forced(self, place: Any) -> list[int]:
        """Tokens of the bytes that must follow."""
        tokens = self._forced.get(place)
        if tokens is None:
            data = self.machine.forced(place)
            # Inside of a character nobody can say, and its end may be left out.
            text = "" if data and 0x80 <= data[0] < 0xC0 else data.decode(errors="ignore")
            if len(self._forced) >= MAX_FORCED:
                self._forced = {}
            tokens = self._forced[place] = self.vocabulary.encode(text) if text else []
        return tokens


@dataclass(frozen=True)
class MaskJob:
    """Make the mask of a place known."""

    grammar: NativeGrammar
    place: Any

    def run(self) -> None:
        with suppress(Exception):  # whoever wants the mask meets it again
            self.grammar.mask(self.place)

    @classmethod
    def run_all(cls, jobs: Sequence[MaskJob]) -> None:
        in_threads(jobs)


class NativeState:
    """One text: the places after each of its tokens."""

    def __init__(self, grammar: NativeGrammar, path: list[Any], ended: int = 0) -> None:
        self._grammar = grammar
        self._machine = grammar.machine
        self._path = path
        self._ended = ended
        """end tokens accepted"""

    def fill(self, row: Mask) -> None:
        alone(self.filling(row))

    def filling(self, row: Mask) -> Filling[None]:
        vocabulary = self._grammar.vocabulary
        if self._ended:
            row[:] = vocabulary.eos_mask
            return
        place = self._path[-1]
        if self._grammar.known(place) is None:
            yield MaskJob(self._grammar, place)
        mask = self._grammar.mask(place)
        row[:] = mask
        if not self.can_end and not mask.any():
            raise GrammarFailure("The constraint leaves no token to go on with.")

    def ready(self) -> Mask | None:
        return None if self._ended else self._grammar.known(self._path[-1])

    def accept(self, token: int) -> bool:
        vocabulary = self._grammar.vocabulary
        if token in vocabulary.eos_ids:
            if not (self._ended or self.can_end):
                return False
            self._ended += 1
            return True
        data = vocabulary.tokens[token] if 0 <= token < vocabulary.size else b""
        after = self._machine.read(self._path[-1], data) if data and not self._ended else None
        if after is None:
            return False
        self._path.append(after)
        return True

    def rollback(self, tokens: int) -> None:
        ends = min(tokens, self._ended)
        self._ended -= ends
        if tokens > ends:
            del self._path[max(1, len(self._path) - (tokens - ends)) :]

    def backtrack(self) -> int:
        raise GrammarFailure("A token was drawn that the constraint forbids.")

    @property
    def revises(self) -> bool:
        return False

    def forced(self) -> list[int]:
        return [] if self._ended else self._grammar.forced(self._path[-1])

    def known(self) -> list[int]:
        return self.forced()

    def draft(self) -> list[int]:
        return self.forced()

    @property
    def place(self) -> Hashable:
        """Equal where the same may follow."""
        return None if self._ended else self._path[-1]

    @property
    def can_end(self) -> bool:
        return self._machine.accepts(self._path[-1])

    @property
    def finished(self) -> bool:
        return bool(self._ended) or self._machine.only_end(self._path[-1])

    def ahead(self, tokens: list[int]) -> NativeState | None:
        other = self.copy()
        return other if all(map(other.accept, tokens)) else None

    def copy(self) -> NativeState:
        return NativeState(self._grammar, self._path.copy(), self._ended)
