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

    def backtrack(self) -> int:
        undone = self._inner.backtrack()
        if undone:
            del self._history[-undone:]
        self._forced = None
        return undone

    def forced(self) -> list[int]:
        if self._forced is None:
            tokens = self._inner.forced()
            self._forced = (
                certain(tokens, self._history[-CONTEXT:], self._inner, self._vocabulary) if tokens else []
            )
        return self._forced

    @property
    def can_end(self) -> bool:
        return self._inner.can_end

    @property
    def finished(self) -> bool:
        return self._inner.finished

    @property
    def revises(self) -> bool:
        return self._inner.revises

    def copy(self) -> CanonicalState:
        return CanonicalState(self._inner.copy(), self._vocabulary, self._history.copy())


def certain(forced: list[int], before: list[int], state: GrammarState, vocabulary: Vocabulary) -> list[int]:
    """The tokens that stand, however the text goes on, where the bytes of `forced` must follow; `state` is where
    these begin, `before` the tokens in front of them."""
    special = next((i for i, token in enumerate(forced) if not vocabulary.tokens[token]), len(forced))
    if special == 0:
        return forced[:1]  # a special token has no other spelling
    data = b"".join(vocabulary.tokens[token] for token in forced[:special])
    tokens = _as_encoded(data, before, vocabulary)
    return tokens[: _not_spanned(tokens, data, state, vocabulary)]


def _as_encoded(data: bytes, before: list[int], vocabulary: Vocabulary) -> list[int]:
    """The tokens that the tokenizer makes of the bytes behind `before`; none if it cuts across the seam."""
    context = [vocabulary.tokens[token] for token in before]
    while context and (not context[0] or 0x80 <= context[0][0] < 0xC0):  # no whole character begins here
        del context[0]
    head = b"".join(context)
    try:
        text = (head + data).decode()
    except UnicodeDecodeError as error:
        text = error.object[: error.start].decode(errors="ignore")
    at, out = 0, []
    for token in vocabulary.encode(text):
        if at >= len(head):
            out.append(token)
        at += len(vocabulary.tokens[token])
        if at > len(head) and not out:
            return []
    return out


def _not_spanned(tokens: list[int], data: bytes, state: GrammarState, vocabulary: Vocabulary) -> int:
    """How many of the tokens come before the first place from which a token may reach beyond the forced bytes."""
    at, longer = 0, []
    for token in tokens:
        rest = data[at:]
        ids = vocabulary.beginning_with(rest)
        longer.append(ids[np.array([len(vocabulary.tokens[i]) > len(rest) for i in ids.tolist()], np.bool_)])
        at += len(vocabulary.tokens[token])
    if not any(map(len, longer)):
        return len(tokens)
    walker = state.copy()
    row = np.zeros(vocabulary.words, np.int32)
    for i, (token, ids) in enumerate(zip(tokens, longer, strict=True)):
        if len(ids):
            walker.fill(row)
            if ((row.view(np.uint32)[ids >> 5] >> (ids & 31).astype(np.uint32)) & 1).any():
                return i
        if not walker.accept(token):
            return i
    return len(tokens)
