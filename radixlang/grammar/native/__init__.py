"""Regular expressions and choices on our own automata: masks are made once for a place and shared by all texts."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from radixlang.grammar.errors import GrammarError, GrammarFailure
from radixlang.grammar.filling import Filling, alone, in_threads
from radixlang.grammar.grammar import Mask
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.native.dfa import Dfa, build, choice_dfa
from radixlang.grammar.native.machines import Choices, Expression, Machine
from radixlang.grammar.native.regex import Unsuitable, regex_automaton
from radixlang.grammar.native.trie import TokenTries, walker
from radixlang.grammar.spec import read_choices
from radixlang.grammar.vocabulary import Vocabulary
from radixlang.messages import GrammarSpec

MAX_MASK_BYTES = 32 << 20
"""masks that one grammar keeps; beyond, all are forgotten and made anew"""


class NativeEngine:
    """Takes regular expressions and choices."""

    def __init__(self, vocabulary: Vocabulary, limits: GrammarLimits) -> None:
        self.vocabulary = vocabulary
        self.limits = limits
        self._tries: TokenTries | None = None
        self._lock = threading.Lock()
        self._dfa = lru_cache(4)(self._make_dfa)

    def warm_up(self) -> None:
        """The token tree, the compiled walk, and the largest classes of characters."""
        self._dfa(r"\w\d\s")

    def supports(self, spec: GrammarSpec) -> str | None:
        if spec.kind == "choice":
            return None
        if spec.kind != "regex":
            return f"The native backend takes regular expressions and choices, not {spec.kind}."
        try:
            self._dfa(spec.text)
        except Unsuitable as reason:
            return f"The native backend does not take this regex: {reason}."
        return None

    def compile(self, spec: GrammarSpec) -> NativeGrammar:
        dfa: Dfa | None
        if spec.kind == "choice":
            choices = self._choices(spec.text)
            dfa = choice_dfa(choices, self.limits.max_states)
        else:
            dfa = self._dfa(spec.text)
            if not len(dfa):
                raise GrammarError("regex matches no text that the model's tokens can write", param="regex")
        machine: Machine
        if dfa is None:
            machine = Choices(choices, self.tries, self.vocabulary.words)
        else:
            machine = Expression(dfa, self.tries, self.vocabulary.words)
        grammar = NativeGrammar(machine, self.vocabulary)
        if not grammar.mask(machine.start).any():
            raise GrammarError(
                f"{spec.kind} begins with characters that the model's tokens cannot write", param=spec.kind
            )
        return grammar

    @property
    def tries(self) -> TokenTries:
        """Made, with the compiled walk, on first use."""
        with self._lock:
            if self._tries is None:
                self._tries = TokenTries.of(self.vocabulary)
                walker()
        return self._tries

    def _make_dfa(self, pattern: str) -> Dfa:
        return build(regex_automaton(pattern), self.limits.max_states, self.tries.writable())

    def _choices(self, text: str) -> list[bytes]:
        try:
            texts = [choice.encode() for choice in read_choices(text)]
        except UnicodeEncodeError:
            raise GrammarError(
                "choice holds half of a surrogate pair, which no text can", param="choice"
            ) from None
        missing = bytes(np.flatnonzero(~self.tries.writable()).astype(np.uint8))
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

    def knows(self, place: Any) -> bool:
        """Whether `mask` has been made."""
        return place in self._masks

    def mask(self, place: Any) -> Mask:
        """The tokens that may follow, ends included; not to be written to. Threads may make one twice."""
        mask = self._masks.get(place)
        if mask is None:
            mask = self._make_mask(place)
        return mask

    def _make_mask(self, place: Any) -> Mask:
        if self._bytes > MAX_MASK_BYTES:
            self._bytes, self._masks = 0, {}
            self.machine.forget()
        mask = self.machine.tokens(place)
        if self.machine.accepts(place):
            mask = mask | self.vocabulary.eos_mask
        self._masks[place] = mask
        self._bytes += 4 * self.vocabulary.words
        return mask

    def forced(self, place: Any) -> list[int]:
        """Tokens of the bytes that must follow."""
        tokens = self._forced.get(place)
        if tokens is None:
            text = self.machine.forced(place).decode(errors="ignore")
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
        if not self._grammar.knows(place):
            yield MaskJob(self._grammar, place)
        mask = self._grammar.mask(place)
        row[:] = mask
        if not self.can_end and not mask.any():
            raise GrammarFailure("The constraint leaves no token to go on with.")

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
