"""Constraints by the `xgrammar` library, behind our interface: chosen by name, never by `auto`.

The library gives no budget to a compilation or a mask, ignores what it does not know with a line on standard
error, and takes all memory over rules that never end. So it sees nothing as a client wrote it: constraints become
rules of ours (`read.py`, `schema.py`), which are checked, and written in the part of its dialect that it reads
exactly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from radixlang.grammar.errors import GrammarError, GrammarFailure
from radixlang.grammar.filling import Filling, alone, in_threads
from radixlang.grammar.grammar import Grammar, Mask
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.spec import check_residual, read_choices, read_json
from radixlang.grammar.xgr.read import of_gbnf, of_regex, text_of
from radixlang.grammar.xgr.rules import Rules, check, write
from radixlang.grammar.xgr.schema import state_schema
from radixlang.log import get_logger
from radixlang.messages import GrammarSpec

if TYPE_CHECKING:
    from radixlang.grammar.vocabulary import Vocabulary

log = get_logger(__name__)

MAX_STRETCH = 2_048
"""characters of forced text that are looked at together"""
_KINDS = ("json_schema", "regex", "choice", "ebnf")


class XgrammarEngine:
    """Takes all kinds but structural tags, and of grammars those in GBNF."""

    def __init__(self, vocabulary: Vocabulary, limits: GrammarLimits) -> None:
        self.vocabulary = vocabulary
        self.limits = limits
        # By name, for the package is an extra, and for its own import of torch, which this half must not need.
        self.library: Any = import_module("xgrammar")
        info = self.library.TokenizerInfo(
            vocabulary.tokens,
            self.library.VocabType.RAW,
            vocab_size=vocabulary.size,
            stop_token_ids=list(vocabulary.eos_ids),
        )
        # Masks are prepared when a text first needs them, for all texts: to most places of a grammar none comes.
        self.compiler = self.library.GrammarCompiler(
            info, max_threads=1, cache_enabled=False, enable_dynamic_compilation=True
        )
        self.words = vocabulary.mask_of(np.arange(vocabulary.size))

    def warm_up(self) -> None:
        """Everything is made with the engine."""

    def supports(self, spec: GrammarSpec) -> str | None:
        if spec.kind not in _KINDS:
            return f"--grammar-backend xgrammar takes {', '.join(_KINDS)}, not {spec.kind}."
        if spec.kind == "ebnf" and "::=" not in spec.text:
            return "--grammar-backend xgrammar takes ebnf in GBNF, not in Lark."
        return None

    def compile(self, spec: GrammarSpec) -> Grammar:
        if spec.kind == "json_schema":
            return self._schema(spec)
        if spec.kind == "regex":
            return self._grammar(of_regex(spec.text), "regex")
        if spec.kind == "choice":
            texts = tuple(text_of(choice, "choice") for choice in read_choices(spec.text))
            return self._grammar({"root": ("alt", texts)}, "choice")
        rules = of_gbnf(spec.text)
        if len(rules) > self.limits.max_rules:
            raise GrammarError(f"ebnf has more than {self.limits.max_rules:,} rules", param="ebnf")
        return self._grammar(rules, "ebnf")

    def _schema(self, spec: GrammarSpec) -> Grammar:
        """A JSON schema: normalised, and what no rule states checked value by value."""
        from radixlang.grammar.residual import ResidualGrammar
        from radixlang.grammar.schema import check_all, find_keyword, normalise

        schema = read_json(spec.text, spec.kind)
        normalised = normalise(schema)
        for warning in normalised.warnings:
            log.info("a JSON schema was given a keyword without effect: %s", warning)
        stated = state_schema(normalised.schema, spec.any_whitespace, self._number)
        lost = [find_keyword(schema, keyword, "format") for keyword in stated.lost]
        check_residual(spec, [*normalised.places, *lost])
        checks = check_all(schema) if stated.lost else normalised.checks
        return ResidualGrammar(self._grammar(stated.rules, "json_schema"), checks, self.vocabulary)

    def _number(self, schema: Any) -> dict[str, str]:
        """The library's own rules of a number with bounds."""
        try:
            text = str(self.library.Grammar.from_json_schema(schema, any_whitespace=False, strict_mode=False))
        except RuntimeError as error:
            raise GrammarError(f"json_schema cannot be compiled: {_why(error)}", param="json_schema") from None
        return dict(line.split(" ::= ", 1) for line in text.splitlines() if line.strip())

    def _grammar(self, rules: Rules, kind: str) -> XgrammarGrammar:
        check(rules, kind)
        try:
            compiled = self.compiler.compile_grammar(write(rules))
        except RuntimeError as error:
            raise GrammarError(f"{kind} cannot be compiled: {_why(error)}", param=kind) from None
        grammar = XgrammarGrammar(compiled, self)
        try:  # a grammar that cannot begin is no grammar
            grammar.start().fill(self.words.copy())
        except GrammarFailure as error:
            raise GrammarError(f"{kind} cannot be used: {error}", param=kind) from None
        return grammar


def _why(error: Exception) -> str:
    """The library's sentence without its place in the library."""
    return re.sub(r"^\[[\d:]+\] \S+: ", "", " ".join(str(error).split()))[:300]


class MatcherJob(NamedTuple):
    """Compute the mask of a matcher."""

    matcher: Any
    row: Mask

    def run(self) -> None:
        # Drops the interpreter's lock. False: it has not written the row, for everything may follow.
        if not self.matcher.fill_next_token_bitmask(self.row[None]):
            self.row[:] = -1

    @classmethod
    def run_all(cls, jobs: Sequence[MatcherJob]) -> None:
        in_threads(jobs)


class XgrammarGrammar:
    """What the library compiled."""

    def __init__(self, compiled: Any, engine: XgrammarEngine) -> None:
        self.compiled = compiled
        self.engine = engine

    @property
    def nbytes(self) -> int:
        return int(self.compiled.memory_size_bytes)

    def start(self) -> XgrammarState:
        return XgrammarState(self.engine, self.engine.library.GrammarMatcher(self.compiled))


class XgrammarState:
    """One text. The end token is ours: the library's matchers are not told of it."""

    def __init__(self, engine: XgrammarEngine, matcher: Any, ended: int = 0) -> None:
        self._engine = engine
        self._vocabulary = engine.vocabulary
        self._matcher = matcher
        self._ended = ended
        """end tokens accepted"""
        self._finished: bool | None = None
        """what is known of it here"""

    def fill(self, row: Mask) -> None:
        alone(self.filling(row))

    def filling(self, row: Mask) -> Filling[None]:
        if self._ended:
            row[:] = self._vocabulary.eos_mask
            return
        row = row.view(np.int32)  # the library looks at the type
        yield MatcherJob(self._matcher, row)
        row &= self._engine.words
        if not row.any():
            raise GrammarFailure("The constraint leaves no token to go on with.")

    def ready(self) -> Mask | None:
        return None

    def accept(self, token: int) -> bool:
        if token in self._vocabulary.eos_ids:
            if not (self._ended or self.can_end):
                return False
            self._ended += 1
            return True
        if self._ended or not 0 <= token < self._vocabulary.size or not self._vocabulary.tokens[token]:
            return False
        taken = bool(self._matcher.accept_token(token))
        if taken:
            self._finished = None
        return taken

    def rollback(self, tokens: int) -> None:
        ends = min(tokens, self._ended)
        self._ended -= ends
        if tokens > ends:
            self._matcher.rollback(tokens - ends)
            self._finished = None

    def backtrack(self) -> int:
        raise GrammarFailure("A token was drawn that the constraint forbids.")

    def forced(self) -> list[int]:
        if self._ended:
            return []
        text = self._matcher.find_jump_forward_string()[:MAX_STRETCH]
        return self._vocabulary.encode(text) if text else []

    def known(self) -> list[int]:
        return []

    def draft(self) -> list[int]:
        return self.forced()

    @property
    def can_end(self) -> bool:
        return bool(self._matcher.is_completed())

    @property
    def finished(self) -> bool:
        if self._ended:
            return True
        if self._finished is None:
            self._finished = self.can_end and self._only_end()
        return self._finished

    def _only_end(self) -> bool:
        row = np.zeros(self._vocabulary.words, np.int32)
        self.fill(row)
        return not (row & self._vocabulary.going_on).any()

    @property
    def revises(self) -> bool:
        return False

    def ahead(self, tokens: list[int]) -> XgrammarState | None:
        other = self.copy()
        return other if all(map(other.accept, tokens)) else None

    def copy(self) -> XgrammarState:
        return XgrammarState(self._engine, self._matcher.fork(), self._ended)
