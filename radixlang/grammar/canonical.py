"""Forced tokens that the tokenizer itself would choose.

Where a grammar leaves no choice, its bytes can be written without asking the model. But the same bytes can be cut
into tokens in many ways, and a model that finds its text cut in a way it has never seen goes astray. So a token is
forced only if it is what the tokenizer makes of the text, whatever comes after the forced part: it is held back
while some token that may stand there would reach beyond it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from radixlang.grammar.grammar import GrammarState, Mask

if TYPE_CHECKING:
    from radixlang.grammar.vocabulary import Vocabulary

CONTEXT = 12
"""tokens before the forced ones that the tokenizer gets to see"""


class CanonicalState:
    """A state whose forced tokens are canonical, and whose masks leave nothing else where there are such."""

    def __init__(self, inner: GrammarState, vocabulary: Vocabulary, history: list[int] | None = None) -> None:
        self._inner = inner
        self._vocabulary = vocabulary
        self._history = history or []
        self._forced: list[int] | None = None

    def fill(self, row: Mask) -> None:
        forced = self.forced()
        if not forced:
            self._inner.fill(row)
            return
        row[:] = 0
        row.view(np.uint32)[forced[0] >> 5] = 1 << (forced[0] & 31)

    def accept(self, token: int) -> bool:
        if not self._inner.accept(token):
            return False
        self._history.append(token)
        known = self._forced
        # What was certain stays certain: the rest of the stretch needs no second look.
        self._forced = known[1:] if known and len(known) > 1 and known[0] == token else None
        return True

    def rollback(self, tokens: int) -> None:
        self._inner.rollback(tokens)
        if tokens:
            del self._history[-tokens:]
            self._forced = None

    def forced(self) -> list[int]:
        if self._forced is None:
            tokens = self._inner.forced()
            self._forced = certain(tokens, self._history[-CONTEXT:], self._inner, self._vocabulary) if tokens else []
        return self._forced

    @property
    def can_end(self) -> bool:
        return self._inner.can_end

    @property
    def finished(self) -> bool:
        return self._inner.finished

    def copy(self) -> CanonicalState:
        return CanonicalState(self._inner.copy(), self._vocabulary, self._history.copy())


def certain(tokens: list[int], before: list[int], state: GrammarState, vocabulary: Vocabulary) -> list[int]:
    """The first of the forced `tokens` that stand however the text goes on; `state` is where they begin."""
    pieces = [vocabulary.tokens[token] for token in tokens]
    keep = _as_encoded(tokens, pieces, before, vocabulary)
    return tokens[: _not_spanned(tokens[:keep], pieces, state, vocabulary)]


def _as_encoded(tokens: list[int], pieces: list[bytes], before: list[int], vocabulary: Vocabulary) -> int:
    """How many of the tokens the tokenizer finds too."""
    context = [vocabulary.tokens[token] for token in before]
    while context and (not context[0] or 0x80 <= context[0][0] < 0xC0):  # no whole character begins here
        del context[0]
    head = b"".join(context)
    try:
        text = (head + b"".join(pieces)).decode()
    except UnicodeDecodeError as error:
        text = error.object[: error.start].decode(errors="ignore")
    at, ids = 0, iter(vocabulary.encode(text))
    for found in ids:
        if at >= len(head):
            break
        at += len(vocabulary.tokens[found])
    else:
        return 0
    if at != len(head):
        return 0
    keep = 0
    for token in tokens:
        if token != found:
            break
        keep += 1
        found = next(ids, -1)
    return keep


def _not_spanned(tokens: list[int], pieces: list[bytes], state: GrammarState, vocabulary: Vocabulary) -> int:
    """How many of the tokens come before the first place from which a token may reach beyond the forced bytes."""
    longer: dict[int, np.ndarray] = {}
    for i in range(len(tokens)):
        rest = b"".join(pieces[i:])
        ids = vocabulary.beginning_with(rest)
        ids = ids[ids != tokens[i]] if len(pieces) == i + 1 else ids
        longer[i] = ids[[len(vocabulary.tokens[index]) > len(rest) for index in ids.tolist()]] if len(ids) else ids
    if not any(len(ids) for ids in longer.values()):
        return len(tokens)
    walker = state.copy()
    row = np.zeros(vocabulary.words, np.int32)
    for i, token in enumerate(tokens):
        if len(longer[i]):
            walker.fill(row)
            ids = longer[i]
            if ((row.view(np.uint32)[ids >> 5] >> (ids & 31).astype(np.uint32)) & 1).any():
                return i
        if not walker.accept(token):
            return i
    return len(tokens)
