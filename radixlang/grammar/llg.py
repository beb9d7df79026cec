"""Context-free constraints and JSON schemas by the `llguidance` library, behind our interface.

The library reports errors as states that it never leaves; here they become exceptions. It is given limits for
each compilation and each mask, and a schema reaches it only through our normaliser, which knows what it states
exactly.
"""

from __future__ import annotations

import json
import re
import time
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from radixlang.grammar.errors import GrammarError, GrammarFailure
from radixlang.grammar.filling import THREADS, Filling, alone, later
from radixlang.grammar.gbnf import plain_escapes
from radixlang.grammar.grammar import Grammar, Mask
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.measure import Sizes, measure_lark, measure_regex, measure_schema
from radixlang.grammar.rust_regex import as_rust
from radixlang.grammar.schema.document import escape
from radixlang.grammar.spec import check_residual, read_choices, read_json
from radixlang.grammar.structural_tag import literal_pieces, to_lark
from radixlang.log import get_logger
from radixlang.messages import GrammarSpec

if TYPE_CHECKING:
    from radixlang.grammar.vocabulary import Vocabulary

log = get_logger(__name__)

ESCAPES = 'nrbtf\\"'
"""escapes a string may use. `\\u` is left out: an escaped key would not be recognised as the declared one"""
_CONTROLS = re.compile(r"\\u00(?:[01][0-9a-f]|7f)")
"""characters that JSON, or the library, writes in no other way; what else `\\u` could write it still does not"""

_OPTIONS = re.compile(r"^%llguidance\s*\{[^}]*\}", re.MULTILINE)
_BUDGET = re.compile(r"precomputation failed|grammar\) too big|[lL]exer_fuel|max_grammar_size|symbols\.len\(\) <")
"""errors of the library that mean that a limit was passed"""
UNCOMPARED = re.compile(
    r"if regex is empty|patternProperty regexes|lookarounds not supported|circular references with sibling keys"
)
"""errors that mean that the library cannot compare patterns, has one with an anchor inside, or found that one of
keys matches a declared key whose value refers to itself"""
_SYMBOLS = (1 << 16) - 11
"""most symbols of its grammars, which it numbers with 16 bits"""
_SPECIAL = 0xFF
"""how the library begins the number of a special token among bytes"""
_UNFORCED = '%llguidance {"no_forcing": true}'
"""the library computes forced text to its end, at every step: not for grammars where that may be long"""
_CHARACTER = r'[^"\\\x00-\x1F\x7F]'
_SLICES = [
    r"[\x20\x0A\x0D\x09]+",
    *(f"{_CHARACTER}{{1,{most}}}" for most in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 30)),
    _CHARACTER + "+",
]
"""Sets of tokens that the library allows at once where all of one may stand: white space, and the inside of JSON
strings, with lengths, so that what a `maxLength` leaves is mostly such a set. Its own have two lengths."""
CROWDED = 4
"""texts that a grammar has begun before it gets more matchers"""
SHARES = 4
"""threads of the library's for each of ours: a thread's share of the masks is fixed when they begin, and the more
shares there are, the less does one hold up that has several long masks"""
LANES = 2
"""matchers of such a grammar for each of our threads: the fewer texts share one, the less threads wait"""
WIDENING = 1.0
"""seconds that are spent on making them"""
MOVABLE = 128
"""tokens of a text up to which it may change to another matcher: these have to be read again"""


class LlguidanceEngine:
    """Takes every kind of constraint."""

    def __init__(self, vocabulary: Vocabulary, limits: GrammarLimits) -> None:
        self.vocabulary = vocabulary
        self.bounds = limits
        self.tokenizer = LLTokenizer(
            TokenizerWrapper(_Words(vocabulary)),
            n_vocab=vocabulary.size,
            eos_token=list(vocabulary.eos_ids),
            slices=_SLICES,
        )

    def warm_up(self) -> None:
        """Everything is made with the engine."""

    def supports(self, spec: GrammarSpec) -> str | None:
        return None

    def compile(self, spec: GrammarSpec) -> Grammar:
        if spec.kind == "json_schema":
            return self.schema(spec)
        if spec.kind == "structural_tag":
            text = to_lark(read_json(spec.text, spec.kind), self.vocabulary, spec.any_whitespace)
            return self.lark(text, spec.kind)
        if spec.kind == "regex":
            return self._regex(spec.text)
        if spec.text.count("::=") > self.bounds.max_rules:
            raise GrammarError(f"ebnf has more than {self.bounds.max_rules:,} rules", param="ebnf")
        return self.lark(_lark_of(spec), spec.kind)

    def schema(self, spec: GrammarSpec) -> Grammar:
        """A JSON schema: normalised, and what no grammar can state checked value by value."""
        from radixlang.grammar.residual import ResidualGrammar
        from radixlang.grammar.schema import normalise, normalise_text

        normalised = normalise_text(spec.text)
        check_residual(spec, normalised.places)
        try:
            try:
                grammar = self.json(normalised.schema, spec.any_whitespace)
            except GrammarError as error:
                if not UNCOMPARED.search(str(error)):
                    raise
                normalised = normalise(read_json(spec.text, spec.kind), patterns=False)
                check_residual(spec, normalised.places)
                grammar = self.json(normalised.schema, spec.any_whitespace)
        except GrammarError as error:
            if "Unsatisfiable schema" in str(error):  # more than the normaliser compares
                sentence = "no value can fulfil it: its patterns, lengths or bounds contradict each other"
                raise GrammarError(sentence, pointer="", param="json_schema") from None
            pointer, keyword = _largest_bound(read_json(spec.text, spec.kind))
            raise GrammarError(str(error), pointer, keyword, "json_schema") from None
        return ResidualGrammar(grammar, normalised.checks, self.vocabulary)

    def json(self, schema: Any, any_whitespace: bool) -> LlguidanceGrammar:
        """A schema that the library states exactly."""
        options = json_options(any_whitespace, schema)
        if self._is_short(measure_schema(schema), "json_schema"):
            text = LLMatcher.grammar_from_json_schema(json.dumps(schema, ensure_ascii=False), overrides=options)
            return self._grammar(text, "json_schema")
        inner = json.dumps(schema | {"x-guidance": options}, ensure_ascii=False)
        text = LLMatcher.grammar_from_lark(f"{_UNFORCED}\nstart: %json {inner}\n")
        return self._grammar(text, "json_schema", forces=False)

    def lark(self, text: str, kind: str) -> LlguidanceGrammar:
        """A grammar in the library's dialect of Lark."""
        forces = self._is_short(measure_lark(text), kind)
        if not forces:
            text = f"{_UNFORCED}\n{_OPTIONS.sub('', text)}"
        return self._grammar(LLMatcher.grammar_from_lark(text), kind, forces)

    def _regex(self, pattern: str) -> LlguidanceGrammar:
        text = as_rust(pattern)
        try:
            return self._rust(pattern, text)
        except (GrammarError, ValueError) as error:
            if not isinstance(error, GrammarError) or "cannot be compiled" in str(error):
                raise GrammarError(f"regex cannot be read: {_reading(pattern, error)}", param="regex") from None
            raise

    def _rust(self, pattern: str, text: str) -> LlguidanceGrammar:
        if self._is_short(measure_regex(pattern), "regex"):
            return self._grammar(LLMatcher.grammar_from_regex(text), "regex")
        text = LLMatcher.grammar_from_lark(f"{_UNFORCED}\nstart: /{regex_to_lark(text)}/\n")
        return self._grammar(text, "regex", forces=False)

    def _is_short(self, sizes: Sizes, kind: str) -> bool:
        """Whether no stretch of forced text is long."""
        if sizes.endless:
            raise GrammarError(f"{kind} cannot be compiled: no finite text fulfils it", param=kind)
        if sizes.least > self.bounds.max_least or sizes.repeat > self.bounds.max_count:
            what = f"its shortest text has {sizes.least:,} bytes" if sizes.least > self.bounds.max_least else ""
            what = what or f"it counts to {sizes.repeat:,}"
            least = f"{self.bounds.max_least:,} bytes of text and repeats up to {self.bounds.max_count:,}"
            raise GrammarError(f"{kind} is too large: {what}; at most {least} can be held", param=kind)
        if sizes.optional > self.bounds.max_optional:
            raise GrammarError(
                f"{kind} is too large: {sizes.optional:,} parts of an expression in a row may each be left out; "
                f"at most {self.bounds.max_optional:,} can be held",
                param=kind,
            )
        most = self.bounds.max_nested_stretch if sizes.recursive else self.bounds.max_stretch
        return sizes.stretch <= most

    def _grammar(self, text: str, kind: str, forces: bool = True) -> LlguidanceGrammar:
        bounds = self.bounds
        limits = LLParserLimits(
            initial_lexer_fuel=bounds.compile_fuel,
            step_lexer_fuel=bounds.step_fuel,
            max_items_in_row=bounds.own_row_items if kind == "ebnf" else bounds.row_items,
            step_max_items=bounds.step_items,
            max_lexer_states=bounds.lexer_states,
            max_grammar_size=bounds.max_grammar_size,
            verbose_errors=False,
        )

        def make() -> LLMatcher:
            return LLMatcher(self.tokenizer, text, log_level=0, limits=limits)

        matcher = make()
        if matcher.is_error():
            why = _one_line(matcher.get_error())
            if _BUDGET.search(why):
                steps = f"{self.bounds.compile_fuel:,} steps of work"
                most = f"{_SYMBOLS:,} symbols" if "symbols" in why else steps
                raise GrammarError(
                    f"{kind} is too large: its parts need more than the {most} that one constraint may take; use "
                    "fewer alternatives and repeats",
                    param=kind,
                )
            raise GrammarError(f"{kind} cannot be compiled: {why}", param=kind)
        doubts = [line for line in matcher.get_grammar_warnings() if line.strip()]
        if doubts:
            raise GrammarError(f"{kind} cannot be held exactly: {_one_line(doubts[0])}", param=kind)
        grammar = LlguidanceGrammar(matcher, self.vocabulary, len(text), forces, make)
        try:  # a grammar that cannot begin is no grammar
            state = grammar.start()
            state.forced()
            state.fill(self.vocabulary.eos_mask.copy())
        except GrammarFailure as error:
            raise GrammarError(f"{kind} cannot be used: {error}", param=kind) from None
        return grammar


def json_options(any_whitespace: bool, schema: Any) -> Any:
    """How JSON is laid out: `, ` and `: ` exactly, or anything JSON allows; and what strings may escape."""
    layout: dict[str, Any] = {"whitespace_flexible": True}
    if not any_whitespace:
        layout = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    escapes = ESCAPES + "u" * bool(_CONTROLS.search(json.dumps(schema)))
    return layout | {"json_allowed_escapes": escapes}


def _largest_bound(schema: Any) -> tuple[str, str | None]:
    """Where a schema asks for the most: pointer and keyword of its largest lower bound, or of the whole."""
    found: tuple[int, str, str | None] = (1, "", None)
    todo = [(schema, "")]
    while todo:
        value, pointer = todo.pop()
        if isinstance(value, list):
            todo.extend((each, f"{pointer}/{index}") for index, each in enumerate(value))
        elif isinstance(value, dict):
            for key, each in value.items():
                if key in ("minItems", "minLength", "minProperties") and isinstance(each, int | float):
                    found = max(found, (int(each), pointer, key), key=lambda one: one[0])
                todo.append((each, f"{pointer}/{escape(str(key))}"))
    return found[1], found[2]


def _lark_of(spec: GrammarSpec) -> str:
    if spec.kind == "choice":
        return "start: " + literal_pieces(read_choices(spec.text))
    try:
        return any_to_lark(plain_escapes(spec.text) if "::=" in spec.text else spec.text)
    except Exception as error:
        raise GrammarError(f"ebnf cannot be read as GBNF: {_one_line(str(error))}", param="ebnf") from None


def _reading(pattern: str, error: Exception) -> str:
    """What is wrong with an expression: in the words of Python's `re`, or the library's where that reads it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as own:
        if "bad escape \\p" not in str(own).lower():  # which the library knows
            return str(own)
    return _one_line(str(error))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]


class _Words:
    """The tokens as the library wants them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = list(vocabulary.tokens)
        self.eos_token_id = vocabulary.eos_ids[0] if vocabulary.eos_ids else 0
        self.bos_token_id = None
        for name, index in vocabulary.special.items():
            if index < len(self.tokens):
                self.tokens[index] = name.encode()
        self.special_token_ids = sorted({*vocabulary.special.values(), *vocabulary.eos_ids})
        # the library asks for the same forced texts again and again
        self._encode = lru_cache(4096)(vocabulary.encode)

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


class MatcherJob(NamedTuple):
    """Compute the mask of a matcher, a copy of the grammar's `lane`-th."""

    matcher: LLMatcher
    row: Mask
    lane: int

    def run(self) -> None:
        self.matcher.unsafe_compute_mask_ptr(self.row.ctypes.data, self.row.nbytes)

    @classmethod
    def run_all(cls, jobs: Sequence[MatcherJob]) -> None:
        # Neighbours go to the same thread, and copies of one matcher wait for each other.
        jobs = sorted(jobs, key=lambda job: job.lane)
        places = [int(job.row.__array_interface__["data"][0]) for job in jobs]
        first, size = min(places), jobs[0].row.nbytes
        numbers = [(place - first) // size for place in places]
        if max(numbers) < 4 * len(jobs) and all((place - first) % size == 0 for place in places):
            # rows of one array: the library counts by rows
            numbered = [(job.matcher, number) for job, number in zip(jobs, numbers, strict=True)]
            _executor().unsafe_compute_mask_ptr(numbered, first, size, max(numbers) + 1)
            return
        rows = np.empty((len(jobs), len(jobs[0].row)), np.int32)
        numbered = [(job.matcher, at) for at, job in enumerate(jobs)]
        _executor().unsafe_compute_mask_ptr(numbered, rows.ctypes.data, size, len(rows))
        for job, row in zip(jobs, rows, strict=True):
            job.row[:] = row


@lru_cache(1)
def _executor() -> LLExecutor:
    return LLExecutor(SHARES * THREADS)


class LlguidanceGrammar:
    """Holds matchers that are never moved; states are copies of them. All copies of one share its lexer behind a
    lock, so a grammar of many texts has several."""

    def __init__(
        self,
        matcher: LLMatcher,
        vocabulary: Vocabulary,
        size: int,
        forces: bool,
        make: Callable[[], LLMatcher],
    ) -> None:
        """`forces` off: what must follow can be so long that nobody shall ask for it. `make`: another matcher."""
        self.vocabulary = vocabulary
        self.forces = forces
        self.matchers = [matcher]
        self._size = 200_000 + 40 * size
        self._make = make
        self._started = 0

    @property
    def nbytes(self) -> int:
        return self._size * len(self.matchers)

    def start(self) -> LlguidanceState:
        self._started += 1
        if self._started == CROWDED and THREADS > 1:
            later(self._widen)
        return LlguidanceState(self, self._started)

    def _widen(self) -> None:
        until, made = time.monotonic() + WIDENING, list(self.matchers)
        while len(made) < LANES * THREADS and time.monotonic() < until:
            made.append(self._make())
        self.matchers = made


class LlguidanceState:
    """One text. The end token is ours: the library's matchers stop before it."""

    def __init__(self, grammar: LlguidanceGrammar, number: int) -> None:
        """`number`: of the text, among the grammar's."""
        self._grammar = grammar
        self._number = number
        self._lane = number % len(grammar.matchers)
        self._matcher = grammar.matchers[self._lane].deep_copy()
        self._tokens: list[int] = []
        """that the matcher has read"""
        self._ended = 0
        """end tokens accepted"""

    @property
    def _vocabulary(self) -> Vocabulary:
        return self._grammar.vocabulary

    def fill(self, row: Mask) -> None:
        alone(self.filling(row))

    def filling(self, row: Mask) -> Filling[None]:
        if self._ended or self._matcher.is_stopped():
            self._check()
            row[:] = self._vocabulary.eos_mask
            return
        self._move()
        yield MatcherJob(self._matcher, row, self._lane)
        self._check()
        if not np.count_nonzero(row):
            raise GrammarFailure("The constraint leaves no token to go on with.")

    def ready(self) -> Mask | None:
        return None

    def accept(self, token: int) -> bool:
        if token in self._vocabulary.eos_ids:
            if not (self._ended or self.can_end):
                return False
            self._ended += 1
            return True
        if self._ended or not 0 <= token < self._vocabulary.size:
            return False
        taken = self._matcher.try_consume_tokens([token]) == 1
        self._check()
        if taken:
            self._tokens.append(token)
        return taken

    def rollback(self, tokens: int) -> None:
        ends = min(tokens, self._ended)
        self._ended -= ends
        if tokens > ends:
            if not self._matcher.rollback(tokens - ends):
                raise GrammarFailure(f"The constraint cannot go back {tokens} tokens.")
            del self._tokens[ends - tokens :]
        self._check()

    def backtrack(self) -> int:
        raise GrammarFailure("A token was drawn that the constraint forbids.")

    def forced(self) -> list[int]:
        if not self._grammar.forces or self._ended or self._matcher.is_stopped():
            return []
        tokens = self._matcher.compute_ff_tokens()
        self._check()
        return tokens

    def known(self) -> list[int]:
        return []

    def draft(self) -> list[int]:
        if not self._grammar.forces or self._ended or self._matcher.is_stopped():
            return []
        data = self._matcher.compute_ff_bytes()
        self._check()
        special = data.find(_SPECIAL)
        text = data[: special if special >= 0 else None].decode(errors="ignore")
        return self._vocabulary.encode(text) if text else []

    @property
    def can_end(self) -> bool:
        return self._matcher.is_accepting()

    @property
    def finished(self) -> bool:
        return bool(self._ended) or self._matcher.is_stopped()

    @property
    def revises(self) -> bool:
        return False

    def copy(self) -> LlguidanceState:
        other = object.__new__(LlguidanceState)
        other.__dict__ |= self.__dict__
        other._matcher, other._tokens = self._matcher.deep_copy(), self._tokens.copy()
        return other

    def ahead(self, tokens: list[int]) -> LlguidanceState | None:
        other = self.copy()
        return other if not self._ended and other._matcher.consume_tokens(tokens) else None

    def _move(self) -> None:
        """To the matcher that the text would have if it began now."""
        lane = self._number % len(self._grammar.matchers)
        if lane == self._lane or len(self._tokens) > MOVABLE:
            return
        matcher = self._grammar.matchers[lane].deep_copy()
        if matcher.consume_tokens(self._tokens) and not matcher.is_error():
            self._matcher, self._lane = matcher, lane

    def _check(self) -> None:
        if self._matcher.is_error():
            log.info("a grammar's limits were reached: %s", _one_line(self._matcher.get_error()))
            raise GrammarFailure(
                "The constraint became too complex while its text was generated; use smaller repeats, "
                "shorter patterns, fewer alternatives, or rules that can be read in one way only."
            )
