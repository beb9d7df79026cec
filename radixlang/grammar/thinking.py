"""A constraint that begins after the model's thoughts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from radixlang.grammar.errors import GrammarFailure
from radixlang.grammar.filling import Filling, alone
from radixlang.grammar.grammar import Grammar, GrammarState, Mask

if TYPE_CHECKING:
    from radixlang.grammar.vocabulary import Vocabulary


class AnyGrammar:
    """Holds nothing back."""

    nbytes = 0

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._row = vocabulary.mask_of(np.arange(vocabulary.size))
        self._eos_ids = vocabulary.eos_ids

    def start(self) -> AnyState:
        return AnyState(self._row, self._eos_ids)


class AnyState:
    """Any text."""

    can_end = True

    def __init__(self, row: Mask, eos_ids: tuple[int, ...], ended: int = 0) -> None:
        self._row = row
        self._eos_ids = eos_ids
        self._ended = ended

    def fill(self, row: Mask) -> None:
        row[:] = self._row

    def filling(self, row: Mask) -> Filling[None]:
        self.fill(row)
        yield from ()

    def ready(self) -> Mask | None:
        return None

    def accept(self, token: int) -> bool:
        self._ended += token in self._eos_ids
        return True

    def rollback(self, tokens: int) -> None:
        self._ended = max(0, self._ended - tokens)

    def backtrack(self) -> int:
        return 0

    def forced(self) -> list[int]:
        return []

    def known(self) -> list[int]:
        return []

    def draft(self) -> list[int]:
        return []

    @property
    def revises(self) -> bool:
        return False

    @property
    def finished(self) -> bool:
        return self._ended > 0

    def ahead(self, tokens: list[int]) -> AnyState | None:
        return self.copy()

    def copy(self) -> AnyState:
        return AnyState(self._row, self._eos_ids, self._ended)


class ThinkingGrammar:
    """Thoughts, `end` (token ids), then `inner`. `budget`: most tokens of the thoughts before their end is forced.
    With a `start`, there are thoughts only if that token comes first."""

    def __init__(
        self,
        inner: Grammar,
        end: tuple[int, ...],
        budget: int | None,
        vocabulary: Vocabulary,
        start: int | None = None,
    ) -> None:
        self.inner = inner
        self.begin = start
        self.end = end
        self.budget = budget
        self.nbytes = inner.nbytes
        # A text that ended with its thoughts would have no answer.
        self.thoughts = vocabulary.going_on

    def start(self) -> ThinkingState:
        return ThinkingState(self, self.inner.start())


class ThinkingState:
    """One text with thoughts in front."""

    def __init__(self, grammar: ThinkingGrammar, inner: GrammarState) -> None:
        self._grammar = grammar
        self._inner = inner
        self._thoughts: list[int] = []
        self._answer = 0
        """tokens of the answer"""

    @property
    def _undecided(self) -> bool:
        """The next token tells whether there are thoughts."""
        return self._grammar.begin is not None and not self._thoughts and not self._answer

    @property
    def _thinking(self) -> bool:
        if self._grammar.begin is not None and not self._thoughts:
            return False
        end = self._grammar.end
        return tuple(self._thoughts[-len(end) :]) != end

    def _end_due(self) -> int:
        """How many tokens of the end are written already, once the budget is used up; -1 before."""
        budget, end = self._grammar.budget, self._grammar.end
        if budget is None or len(self._thoughts) < budget:
            return -1
        most = min(len(end) - 1, len(self._thoughts))
        return next(n for n in range(most, -1, -1) if tuple(self._thoughts[len(self._thoughts) - n :]) == end[:n])

    def fill(self, row: Mask) -> None:
        alone(self.filling(row))

    def filling(self, row: Mask) -> Filling[None]:
        if not self._thinking:
            yield from self._inner.filling(row)
            begin = self._grammar.begin
            if begin is not None and self._undecided:
                row.view(np.uint32)[begin >> 5] |= np.uint32(1 << (begin & 31))
            return
        row[:] = self._grammar.thoughts
        forced = self.forced()
        if forced:
            row[:] = 0
            row.view(np.uint32)[forced[0] >> 5] = 1 << (forced[0] & 31)

    def ready(self) -> Mask | None:
        return None

    def accept(self, token: int) -> bool:
        if self._undecided and token == self._grammar.begin:
            self._thoughts.append(token)
            return True
        if not self._thinking:
            taken = self._inner.accept(token)
            self._answer += taken
            return taken
        words = self._grammar.thoughts.view(np.uint32)
        if not 0 <= token < 32 * len(words) or not int(words[token >> 5]) >> (token & 31) & 1:
            return False
        self._thoughts.append(token)
        return True

    def rollback(self, tokens: int) -> None:
        answer = min(tokens, self._answer)
        self._inner.rollback(answer)
        self._answer -= answer
        if tokens > answer:
            del self._thoughts[answer - tokens :]

    def backtrack(self) -> int:
        if self._thinking:
            raise GrammarFailure("The thoughts cannot end the text.")
        undone = self._inner.backtrack()
        self._answer -= undone
        return undone

    @property
    def revises(self) -> bool:
        return not self._thinking and self._inner.revises

    def forced(self) -> list[int]:
        if not self._thinking:
            return [] if self._undecided else self._inner.forced()
        written = self._end_due()
        return [] if written < 0 else list(self._grammar.end[written:])

    def known(self) -> list[int]:
        return self.forced() if self._thinking or self._undecided else self._inner.known()

    def draft(self) -> list[int]:
        return [] if self._thinking or self._undecided else self._inner.draft()

    @property
    def can_end(self) -> bool:
        return not self._thinking and self._inner.can_end

    @property
    def finished(self) -> bool:
        return not self._thinking and not self._undecided and self._inner.finished

    def ahead(self, tokens: list[int]) -> ThinkingState | None:
        other = self.copy()
        return other if all(map(other.accept, tokens)) else None

    def copy(self) -> ThinkingState:
        other = ThinkingState(self._grammar, self._inner.copy())
        other._thoughts, other._answer = self._thoughts.copy(), self._answer
        return other
