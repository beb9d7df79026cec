"""Forced tokens that the tokenizer itself would choose.

Where a grammar leaves no choice, its bytes can be written without asking the model. But the same bytes can be cut
into tokens in many ways, and a model that finds its text cut in a way it has never seen goes astray. So a token is
forced only if it is what the tokenizer makes of the text, however the text goes on. It may go on so that a token
begins inside the forced bytes and reaches beyond them; then what stands before that token is cut as the tokenizer
cuts it alone. What all these cuts begin with is certain.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from radixlang.grammar.filling import Filling, alone
from radixlang.grammar.grammar import GrammarState, Mask

if TYPE_CHECKING:
    from radixlang.grammar.vocabulary import Vocabulary

MOST = 256
"""tokens that are looked at together: the rest of a longer stretch comes when it is its turn"""
CONTEXT = 12
"""most tokens before the forced ones that the tokenizer gets to see"""
RARE = 4
"""a draft is made where at most one in so many of the bytes that may follow would make another token of it"""
MAX_KNOWN = 4096


class Shared:
    """What the states of one grammar have found, for inner states that have a `place` or are `ready`."""

    def __init__(self) -> None:
        self.forced: dict[Any, list[int]] = {}
        """by place and the bytes before it that matter"""
        self.free: dict[int, Mask] = {}
        """masks, by their identities, where nothing is forced"""

    def __len__(self) -> int:
        return len(self.forced) + len(self.free)

    def trim(self) -> None:
        for found in (self.forced, self.free):
            if len(found) >= MAX_KNOWN:
                found.clear()


class CanonicalState:
    """A state whose forced tokens are canonical, and whose masks leave nothing else where there are such.

    `shared` by the states of one grammar.
    """

    def __init__(
        self,
        inner: GrammarState,
        vocabulary: Vocabulary,
        shared: Shared | None = None,
        history: list[int] | None = None,
    ) -> None:
        self._inner = inner
        self._vocabulary = vocabulary
        self._shared = Shared() if shared is None else shared
        self._history = history or []
        self._forced: list[int] | None = None

    def fill(self, row: Mask) -> None:
        alone(self.filling(row))

    def filling(self, row: Mask) -> Filling[None]:
        filled = self._forced is None and not self.revises  # which must know that it had no choice
        if filled:  # most masks show at once that nothing is forced, which takes longer to ask for
            yield from self._inner.filling(row)
            if self._vocabulary.differ(row):
                self._forced = []
                if (mask := self._inner.ready()) is not None:
                    self._shared.trim()
                    self._shared.free[id(mask)] = mask
                return
        forced = yield from self._search()
        if not forced:
            if not filled:
                yield from self._inner.filling(row)
            return
        row[:] = self._vocabulary.only(forced[0])

    def ready(self) -> Mask | None:
        mask = None if self.revises else self._inner.ready()
        if mask is None:
            return None
        if self._forced is None:
            if id(mask) in self._shared.free:
                self._forced = []
            else:
                self._forced = self._shared.forced.get(self._key(self._inner.forced()))
        if self._forced is None:
            return None
        return self._vocabulary.only(self._forced[0]) if self._forced else mask

    def accept(self, token: int) -> bool:
        if not self._inner.accept(token):
            return False
        self._history.append(token)
        forced = self._forced
        # What was certain stays certain, and no more becomes so, except behind a special token.
        same = forced and forced[0] == token and self._vocabulary.tokens[token]
        self._forced = forced[1:] if forced and same else None
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
        return alone(self._search())

    def _search(self) -> Filling[list[int]]:
        if self._forced is None:
            tokens = self._inner.forced()[:MOST]
            self._forced = (yield from self._find(tokens)) if tokens else []
        return self._forced

    def known(self) -> list[int]:
        return self._forced or []

    def draft(self) -> list[int]:
        if self.revises or self.forced():
            return []
        data = b"".join(self._vocabulary.tokens[token] for token in self._inner.draft())
        head = head_of(self._history[-CONTEXT:], data, self._vocabulary)
        tokens = alone(_as_encoded(data, head, self._vocabulary)) if data else []
        return tokens[:1] if tokens and _likely(tokens[0], self._inner, self._vocabulary) else []

    def _find(self, tokens: list[int]) -> Filling[list[int]]:
        place, head = key = self._key(tokens)
        found = None if place is None else self._shared.forced.get(key)
        if found is None:
            found = yield from certain(tokens, head, self._inner, self._vocabulary)
            if place is not None:
                self._shared.trim()
                self._shared.forced[key] = found
        return found

    def _key(self, tokens: list[int]) -> tuple[Hashable, bytes]:
        """What decides which of `tokens`, which must follow, are certain: the place, if that is known, and what of
        the text before them matters."""
        data = self._vocabulary.tokens[tokens[0]] if tokens else b""
        return getattr(self._inner, "place", None), head_of(self._history[-CONTEXT:], data, self._vocabulary)

    @property
    def can_end(self) -> bool:
        return self._inner.can_end

    @property
    def finished(self) -> bool:
        return self._inner.finished

    @property
    def revises(self) -> bool:
        return self._inner.revises

    def ahead(self, tokens: list[int]) -> GrammarState | None:
        return self._inner.ahead(tokens)

    def copy(self) -> CanonicalState:
        return CanonicalState(self._inner.copy(), self._vocabulary, self._shared, self._history.copy())


class EncodeJob:
    """Cut a text into tokens."""

    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        self.text, self.vocabulary = text, vocabulary
        self.ids: list[int] = []

    def run(self) -> None:
        self.ids = self.vocabulary.encode(self.text)

    @classmethod
    def run_all(cls, jobs: Sequence[EncodeJob]) -> None:
        if any(job.vocabulary is not jobs[0].vocabulary for job in jobs):
            for job in jobs:
                job.run()
            return
        for job, ids in zip(jobs, jobs[0].vocabulary.encode_batch([job.text for job in jobs]), strict=True):
            job.ids = ids


def certain(forced: list[int], head: bytes, state: GrammarState, vocabulary: Vocabulary) -> Filling[list[int]]:
    """The tokens that stand, however the text goes on, where the bytes of `forced` must follow; `state` is where
    these begin, `head` what of the text in front of them matters (`head_of`)."""
    special = next((i for i, token in enumerate(forced) if not vocabulary.tokens[token]), len(forced))
    if special == 0:
        return forced[:1]  # a special token has no other spelling
    data = b"".join(vocabulary.tokens[token] for token in forced[:special])
    tokens = yield from _as_encoded(data, head, vocabulary)
    if special < len(forced):
        return tokens  # a special token cuts the text: nothing reaches beyond
    sure = len(tokens)
    cuts = vocabulary.reaching_beyond(data)
    nexts = (yield from _bytes_behind(data, tokens, state, vocabulary)) if tokens and cuts else -1
    for cut, longer in cuts:
        if not sure:
            break
        if longer is not None and not longer & nexts:
            continue
        # Where the cut lies behind what is certain so far, tokens before it are cut as they are alone.
        cut_alone = (yield from _as_encoded(data[:cut], head, vocabulary)) if cut else []
        sure = min(sure, _common(cut_alone, tokens))
    return tokens[:sure]


def _bytes_behind(data: bytes, tokens: list[int], state: GrammarState, vocabulary: Vocabulary) -> Filling[int]:
    """The bytes that may come behind `data`, which must follow the state (bit b: byte b); inside a character all:
    who knows. `tokens`: a way to cut it. Which one it is does not matter."""
    if sum(len(vocabulary.tokens[token]) for token in tokens) != len(data):
        return -1
    there = state.ahead(tokens)
    if there is None:
        return -1
    row = np.empty(vocabulary.words, np.int32)
    yield from there.filling(row)
    return vocabulary.next_bytes(row)


def _likely(token: int, state: GrammarState, vocabulary: Vocabulary) -> bool:
    """Whether it would be rare that a longer token comes in place of one that may come: few of the bytes that may
    follow it are in such. A quote before free text is likely; a space before `true` or a brace is not."""
    row = np.zeros(vocabulary.words, np.int32)
    state.fill(row)
    data = vocabulary.tokens[token]
    longer = vocabulary.beginning_with(data)
    longer = longer[vocabulary.lengths[longer] > len(data)]
    joined = {vocabulary.tokens[other][len(data)] for other in _set(row, longer)}
    after = state.copy()
    if not after.accept(token):
        return False
    after.fill(row)
    return RARE * len(joined) <= len({vocabulary.tokens[other] for other in _set(row, vocabulary.single)})


def _set(row: Mask, ids: npt.NDArray[np.int32]) -> list[int]:
    """Those of the ids that the mask allows."""
    found: list[int] = ids[(row.view(np.uint32)[ids >> 5] >> (ids & 31).astype(np.uint32)) & 1 > 0].tolist()
    return found


def _common(one: list[int], other: list[int]) -> int:
    """How many tokens both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def head_of(before: list[int], data: bytes, vocabulary: Vocabulary) -> bytes:
    """What stands in front of `data`, behind some tokens, that may change how the tokenizer cuts it."""
    if data[:1] == b" " and not data[1:2].isspace():
        return b""  # tokenizers begin anew in front of the space before a word
    joined, text, first = vocabulary.joined, b"", data[0] if data else -1
    for token in reversed(before):
        piece = vocabulary.tokens[token]
        if not piece:  # nothing reaches across a special token
            break
        for at in range(len(piece), 0, -1):
            if first in _ENDS_WORDS and not joined[piece[at - 1]][first] and _ends_in_a_word(piece[:at]):
                return piece[at:] + text
            first = piece[at - 1]
        text = piece + text
        if piece[:1] == b" " and not piece[1:2].isspace():
            break
    while text and 0x80 <= text[0] < 0xC0:  # no character begins here
        text = text[1:]
    return text


def _ends_in_a_word(data: bytes) -> bool:
    """Whether it ends with a letter or a digit."""
    if data[-1] < 0x80:
        return data[-1:].isalnum()
    return data[-4:].decode(errors="replace")[-1:].isalnum()


_ENDS_WORDS = frozenset(b'!"#$%&()*+,-./:;<=>?@[\\]^`{|}~')
"""Where no token joins such a byte to the letter or digit before it, none reaches across, and the expressions by
which tokenizers cut texts into words begin anew. (Apostrophes and underscores may belong to words, and runs of
other characters go together.)"""


def _as_encoded(data: bytes, head: bytes, vocabulary: Vocabulary) -> Filling[list[int]]:
    """The tokens that the tokenizer makes of the bytes behind `head`; none if it cuts across the seam."""
    try:
        text = (head + data).decode()
    except UnicodeDecodeError as error:
        text = error.object[: error.start].decode()
    job = EncodeJob(text, vocabulary)
    yield job
    at, out = 0, []
    for token in job.ids:
        if at >= len(head):
            out.append(token)
        at += len(vocabulary.tokens[token])
        if at > len(head) and not out:
            return []
    # A tokenizer may change what it is given, or have no token for it.
    return out if data.startswith(b"".join(vocabulary.tokens[token] for token in out)) else []
