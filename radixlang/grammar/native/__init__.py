"""Regular expressions and choices on our own automata: masks are made once for a state and shared by all texts."""

from __future__ import annotations

import json
import threading
from functools import lru_cache

from radixlang.grammar.errors import GrammarError, GrammarFailure
from radixlang.grammar.grammar import Mask
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.native.automaton import LazyAutomaton
from radixlang.grammar.native.regex import Automaton, Unsuitable, choice_automaton, regex_automaton
from radixlang.grammar.native.trie import TokenTrie
from radixlang.grammar.vocabulary import Vocabulary
from radixlang.messages import GrammarSpec


@lru_cache(64)
def _automaton(kind: str, text: str) -> Automaton:
    if kind == "regex":
        return regex_automaton(text)
    choices = json.loads(text)
    if not isinstance(choices, list) or not choices or not all(isinstance(one, str) for one in choices):
        raise GrammarError("choice must be a list of texts that is not empty", param="choice")
    return choice_automaton(choices)


class NativeEngine:
    """Takes regular expressions and choices."""

    def __init__(self, vocabulary: Vocabulary, limits: GrammarLimits) -> None:
        self.vocabulary = vocabulary
        self.limits = limits
        self._trie: TokenTrie | None = None
        self._lock = threading.Lock()

    def supports(self, spec: GrammarSpec) -> str | None:
        if spec.kind not in ("regex", "choice"):
            return f"The native backend takes regular expressions and choices, not {spec.kind}."
        try:
            _automaton(spec.kind, spec.text)
        except Unsuitable as reason:
            return f"The native backend does not take this {spec.kind}: {reason}."
        except GrammarError:
            pass  # `compile` says what is wrong
        return None

    def compile(self, spec: GrammarSpec) -> NativeGrammar:
        automaton = _automaton(spec.kind, spec.text)
        with self._lock:
            if self._trie is None:
                self._trie = TokenTrie(self.vocabulary)
        lazy = LazyAutomaton(automaton, self._trie, self.vocabulary, self.limits.max_states)
        if not lazy.start:
            raise GrammarError(f"{spec.kind} matches no text", param=spec.kind)
        if not lazy.mask(lazy.start).any():
            raise GrammarError(
                f"{spec.kind} begins with characters that the model's tokens cannot write", param=spec.kind
            )
        return NativeGrammar(lazy, self.vocabulary)


class NativeGrammar:
    """A compiled expression."""

    def __init__(self, automaton: LazyAutomaton, vocabulary: Vocabulary) -> None:
        self.automaton = automaton
        self._vocabulary = vocabulary

    @property
    def nbytes(self) -> int:
        return self.automaton.nbytes

    def start(self) -> NativeState:
        return NativeState(self.automaton, self._vocabulary, [self.automaton.start])


class NativeState:
    """One text: the states after each of its tokens."""

    def __init__(self, automaton: LazyAutomaton, vocabulary: Vocabulary, path: list[int], ended: int = 0) -> None:
        self._automaton = automaton
        self._vocabulary = vocabulary
        self._path = path
        self._ended = ended
        """end tokens accepted"""

    def fill(self, row: Mask) -> None:
        if self._ended:
            row[:] = self._vocabulary.eos_mask
            return
        mask = self._automaton.mask(self._path[-1])
        if not mask.any():
            raise GrammarFailure("The constraint leaves no token to go on with.")
        row[:] = mask

    def accept(self, token: int) -> bool:
        if token in self._vocabulary.eos_ids:
            if not (self._ended or self.can_end):
                return False
            self._ended += 1
            return True
        after = 0 if self._ended else self._automaton.step(self._path[-1], token)
        if after:
            self._path.append(after)
        return bool(after)

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
        if self._ended:
            return []
        text = self._automaton.forced(self._path[-1]).decode(errors="ignore")
        return self._vocabulary.encode(text) if text else []

    @property
    def can_end(self) -> bool:
        return self._automaton.accepts(self._path[-1])

    @property
    def finished(self) -> bool:
        return bool(self._ended) or self._automaton.only_end(self._path[-1])

    def copy(self) -> NativeState:
        return NativeState(self._automaton, self._vocabulary, self._path.copy(), self._ended)
