"""Grammars made of hashes: what may follow a text is a hash of it, so every seed is another grammar, with forced
stretches, ends, tokens that are refused once they are drawn, and tokens that are taken back.
"""

from __future__ import annotations

import copy
import json
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np

from radixlang.grammar.errors import GrammarError, GrammarFailure
from radixlang.grammar.filling import Filling
from radixlang.messages import GrammarSpec
from tests.fakes import mix

EOS = 3
VOCAB = 29
BUDGET = 12
"""times that tokens are taken back before a state gives up"""


class ToyState:
    """`kind` of the specification: "plain"; "revises": some tokens are refused, and some of these take earlier
    ones back; "breaks": raises what no grammar should after a while."""

    def __init__(self, seed: int, kind: str) -> None:
        self._seed, self._kind = seed, kind
        self._text: list[int] = []
        self._refused: dict[int, set[int]] = {}
        self._backtracks = 0

    def _hash(self, text: list[int], salt: int) -> int:
        x = mix(self._seed)
        for token in [*text, salt]:
            x = mix(x ^ (token + 7))
        return x

    def _follow(self, text: list[int]) -> list[int]:
        """What the grammar lets follow a text: often one token."""
        x = self._hash(text, 101)
        if text[-1:] == [EOS] or (text and x % 16 == 0):
            return [EOS]
        some = [token for token in ((x >> shift) % VOCAB for shift in (8, 16, 24, 32)) if token != EOS] or [5]
        return some[:1] if x % 16 < 9 else sorted({*some, *([EOS] if x % 16 > 13 else [])})

    def _wrong(self, text: list[int], token: int) -> bool:
        follow = self._follow(text)
        return self._kind == "revises" and len(follow) > 1 and self._hash([*text, token], 107) % 3 == 0

    def _left(self) -> list[int]:
        refused = self._refused.get(len(self._text), set())
        return [token for token in self._follow(self._text) if token not in refused]

    def fill(self, row: np.ndarray) -> None:
        left = self._left()
        if not left:
            raise GrammarFailure("Nothing may follow.")
        row[:] = 0
        for token in left:
            row.view(np.uint32)[token >> 5] |= np.uint32(1 << (token & 31))

    def filling(self, row: np.ndarray) -> Filling[None]:
        self.fill(row)
        yield from ()

    def ready(self) -> np.ndarray | None:
        left = self._left()
        if not left or self._hash(self._text, 109) % 2:
            return None
        row = np.empty(-(-VOCAB // 32), np.int32)
        self.fill(row)
        return row

    def ahead(self, tokens: list[int]) -> None:
        return None

    def accept(self, token: int) -> bool:
        assert token in self._left(), "drawn against the mask"
        if self._kind == "breaks" and self._hash(self._text, 103) % 12 == 0:
            raise RuntimeError("a toy breaks")
        if self._wrong(self._text, token):
            self._refused.setdefault(len(self._text), set()).add(token)
            return False
        self._text.append(token)
        return True

    def backtrack(self) -> int:
        x, total = self._hash(self._text, 109), 0
        undone = min(len(self._text), 1 + x % 9) if x % 3 == 0 else 0
        while undone or not self._left():
            self._backtracks += 1
            if self._backtracks > BUDGET or not self._text:
                raise GrammarFailure("Nothing is left to be tried.")
            at = len(self._text) - max(undone, 1)
            total += max(undone, 1)
            undone, token = 0, self._text[at]
            del self._text[at:]
            self._refused = {place: tokens for place, tokens in self._refused.items() if place <= at}
            self._refused.setdefault(at, set()).add(token)
        return total

    def forced(self) -> list[int]:
        text, out, left = list(self._text), [], self._left()
        while len(left) == 1 and left != [EOS] and len(out) < 12 and not self._wrong(text, left[0]):
            out += left
            text += left
            left = self._follow(text)
        return out

    def known(self) -> list[int]:
        return self.forced()

    def draft(self) -> list[int]:
        if self.revises or self.forced():
            return []
        left = [token for token in self._left() if token != EOS]
        return left[:1] if self._hash(self._text, 113) % 4 else []

    @property
    def finished(self) -> bool:
        return self._left() == [EOS]

    @property
    def can_end(self) -> bool:
        return EOS in self._left()

    @property
    def revises(self) -> bool:
        return self._kind == "revises"

    def rollback(self, tokens: int) -> None:
        raise NotImplementedError

    def copy(self) -> ToyState:
        other = copy.copy(self)
        other._text = self._text.copy()
        other._refused = {place: tokens.copy() for place, tokens in self._refused.items()}
        return other


class ScriptState(ToyState):
    """A JSON list says what may stand at each place, and the text ends behind it."""

    def __init__(self, script: str) -> None:
        super().__init__(0, "script")
        self._script: list[list[int]] = json.loads(script)

    def _follow(self, text: list[int]) -> list[int]:
        over = EOS in text or len(text) >= len(self._script)
        return [EOS] if over else self._script[len(text)]

    def draft(self) -> list[int]:
        """The first of several."""
        return [] if self.forced() else self._left()[:1]


class ToyGrammar:
    nbytes = 0

    def __init__(self, spec: GrammarSpec) -> None:
        self._spec = spec

    def start(self) -> ToyState:
        spec = self._spec
        return ScriptState(spec.text) if spec.kind == "script" else ToyState(int(spec.text), spec.kind)


class ToyManager:
    """In place of a `GrammarManager`: compilations end when `work` says so. The kind "wrong" does not compile."""

    vocabulary = SimpleNamespace(words=1, eos_ids=(EOS,))
    hits = 0

    def __init__(self) -> None:
        self.waiting: list[tuple[GrammarSpec, Future[ToyGrammar]]] = []
        self.dropped = 0
        self.closed = False

    def get(self, spec: GrammarSpec) -> Future[ToyGrammar]:
        future: Future[ToyGrammar] = Future()
        self.waiting.append((spec, future))
        return future

    def drop(self, spec: GrammarSpec, future: Future[ToyGrammar]) -> None:
        self.dropped += 1

    def work(self) -> None:
        """One compilation ends."""
        if self.waiting:
            spec, future = self.waiting.pop(0)
            if spec.kind == "wrong":
                future.set_exception(GrammarError("The toy is wrong.", param="toy"))
            elif spec.kind == "panics":
                future.set_exception(BaseException("a panic"))
            else:
                future.set_result(ToyGrammar(spec))

    def start(self, spec: GrammarSpec, grammar: ToyGrammar) -> ToyState:
        return grammar.start()

    def take_times(self) -> list[float]:
        return []

    def close(self) -> None:
        self.closed = True
