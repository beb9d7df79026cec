"""Plays the sessions of a workload: which request is due when, and what every one of them got.

`Play` is a state machine without a clock of its own: whoever serves the requests, in real or in virtual time, asks
for what is `due` and tells what was `answered`. `Ideal` is the cache that nobody can beat. Must not know engines.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from radixlang.bench.report import Cell, percentiles
from radixlang.bench.workloads import Request, Session, Text, content, key_of
from radixlang.cache import Insertion, make_cache
from radixlang.plan import Ints

Said = Text | Ints


@dataclass(slots=True)
class _Live:
    """A session that has begun."""

    requests: tuple[Request, ...]
    missing: list[int]
    """by request, how many answers it still waits for"""
    said: dict[int, Said] = field(default_factory=dict)
    """answers so far"""
    left: int = 0


@dataclass(slots=True)
class Asked:
    """A request that is due, and what became of it. Times are seconds on the clock of whoever plays."""

    id: int
    """position among all requests of the play, in the order in which they were due"""
    due: float
    pieces: tuple[Said, ...]
    """what the prompt is made of; given up with the answer"""
    output: int
    first: float = 0.0
    """when the first token came"""
    ended: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    possible_tokens: int = 0
    """what `Ideal` would have found"""

    def prompt(self, vocab: int) -> Ints:
        """The token ids, int32; also sets `prompt_tokens`."""
        texts: list[Text] = []
        runs: list[Ints] = []
        for piece in self.pieces:
            if isinstance(piece, Text):
                texts.append(piece)
                continue
            runs += [content(texts, vocab), piece]
            texts = []
        tokens: Ints = np.concatenate([*runs, content(texts, vocab)])
        self.prompt_tokens = len(tokens)
        return tokens

    @property
    def ttft(self) -> float:
        return self.first - self.due

    @property
    def per_token(self) -> float | None:
        """Seconds a token after the first, None for a single one."""
        return (self.ended - self.first) / (self.output - 1) if self.output > 1 else None


class Play:
    """Sessions in the order of their starts. `concurrency`: at most so many at a time; one that has to wait starts
    when another ends, its own start being past."""

    def __init__(self, sessions: Iterator[Session], concurrency: int | None = None) -> None:
        self._sessions = sessions
        self._concurrency = concurrency
        self._next: Session | None = next(sessions, None)
        self._open = 0
        self._now = 0.0
        self._due: list[tuple[float, int, _Live, int]] = []
        self._order = 0
        self._asked = 0
        self._awaited: dict[int, tuple[_Live, int]] = {}
        """requests that were due and are not answered"""

    @property
    def done(self) -> bool:
        return self._next is None and not self._due and not self._awaited

    @property
    def next_time(self) -> float | None:
        """When the next request will be due if no answer comes before; None: never."""
        times = [self._due[0][0]] if self._due else []
        if self._next is not None and not self._full:
            times.append(max(self._next.start, self._now))
        return min(times, default=None)

    @property
    def _full(self) -> bool:
        return self._concurrency is not None and self._open >= self._concurrency

    def due(self, now: float) -> list[Asked]:
        """All requests that are due by `now`, earliest first, each told once."""
        self._begin(now)
        out = []
        while self._due and self._due[0][0] <= now:
            time, _, live, index = heapq.heappop(self._due)
            out.append(self._ask(time, live, index))
        return out

    def _begin(self, now: float) -> None:
        while self._next is not None and not self._full and max(self._next.start, self._now) <= now:
            session = self._next
            missing = [len(request.after) for request in session.requests]
            live = _Live(session.requests, missing, left=len(missing))
            for index, waits in enumerate(missing):
                if not waits:
                    self._push(max(session.start, self._now), live, index)
            self._open += 1
            self._next = next(self._sessions, None)

    def _push(self, time: float, live: _Live, index: int) -> None:
        heapq.heappush(self._due, (time, self._order, live, index))
        self._order += 1

    def _ask(self, due: float, live: _Live, index: int) -> Asked:
        request = live.requests[index]
        pieces = tuple(live.said[p] if isinstance(p, int) else p for p in request.prompt)
        asked = Asked(self._asked, due, pieces, request.output)
        self._awaited[asked.id] = (live, index)
        self._asked += 1
        return asked

    def answered(self, asked: Asked, said: Said) -> None:
        """The whole answer has come, at `asked.ended`; requests that waited for it may now be due."""
        live, answered = self._awaited.pop(asked.id)
        asked.pieces = ()
        live.said[answered] = said
        live.left -= 1
        for index, request in enumerate(live.requests):
            if answered in request.after:
                live.missing[index] -= 1
                if not live.missing[index]:
                    self._push(asked.ended + request.delay, live, index)
        if not live.left:
            self._open -= 1
            if self._concurrency is not None:
                self._now = max(self._now, asked.ended)


class Ideal:
    """An infinite cache with our rules for pages: what a prompt could find of everything sent and said before
    it."""

    def __init__(self, page_size: int) -> None:
        self._tree = make_cache(page_size)
        self._size = page_size
        self._pages = 0

    @property
    def pages(self) -> int:
        """Pages of everything so far: the working set."""
        return self._tree.total

    def sent(self, prompt: Ints) -> int:
        """→ tokens of the prompt that need not be computed. From now on others may find the prompt."""
        match = self._tree.match_prefix(prompt[:-1])
        part = self._tree.part_page(match.node, prompt[match.tokens : -1][: self._size])
        done = self._keep(prompt)
        self._tree.lend(done.node, prompt[done.stored :], 0)
        return match.tokens + (part.tokens if part is not None else 0)

    def said(self, prompt: Ints, answer: Ints) -> None:
        """The answer is complete. Nothing was ever computed after its last token."""
        self._keep(np.concatenate([prompt, answer[:-1]]))

    def _keep(self, tokens: Ints) -> Insertion:
        pages = len(tokens) // self._size
        done = self._tree.insert(tokens, np.arange(self._pages, self._pages + pages, dtype=np.int32))
        self._pages += pages
        return done


@dataclass
class Figures:
    """What a play came to. Seconds, tokens; shares are of 1."""

    requests: int
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    possible_tokens: int | None
    output_tokens: int
    ttft: list[float | None]
    """percentiles 50, 90, 99, as in `tpot`"""
    tpot: list[float | None]

    @classmethod
    def of(cls, answered: list[Asked], possible: bool = True) -> Figures:
        return cls(
            len(answered),
            max(a.ended for a in answered) - min(a.due for a in answered),
            sum(a.prompt_tokens for a in answered),
            sum(a.cached_tokens for a in answered),
            sum(a.possible_tokens for a in answered) if possible else None,
            sum(a.output for a in answered),
            percentiles(a.ttft for a in answered),
            percentiles(t for a in answered if (t := a.per_token) is not None),
        )

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens

    @property
    def best(self) -> float | None:
        """The best possible hit rate."""
        return None if self.possible_tokens is None else self.possible_tokens / self.prompt_tokens

    @property
    def of_best(self) -> float | None:
        """The hit rate as a share of the best possible one."""
        return self.cached_tokens / self.possible_tokens if self.possible_tokens else None

    COLUMNS = (
        "requests",
        "s",
        "hit rate %",
        "best %",
        "of best %",
        "requests/s",
        "output tok/s",
        "total tok/s",
        "TTFT ms p50 / p90 / p99",
        "ms per token p50 / p90 / p99",
    )

    def cells(self) -> list[Cell]:
        """One row under `COLUMNS`."""

        def share(value: float | None) -> str | None:
            return None if value is None else f"{100 * value:.1f}"

        def times(values: list[float | None]) -> str:
            return " / ".join("–" if v is None else f"{1000 * v:,.1f}" for v in values)

        return [
            self.requests,
            self.seconds,
            share(self.hit_rate),
            share(self.best),
            share(self.of_best),
            self.requests / self.seconds,
            self.output_tokens / self.seconds,
            (self.prompt_tokens + self.output_tokens) / self.seconds,
            times(self.ttft),
            times(self.tpot),
        ]

    def facts(self) -> dict[str, Any]:
        """The same as plain numbers."""
        return {
            **vars(self),
            "hit_rate": self.hit_rate,
            "best_hit_rate": self.best,
            "requests_per_second": self.requests / self.seconds,
            "total_tokens_per_second": (self.prompt_tokens + self.output_tokens) / self.seconds,
        }


def answer_key(seed: int, id: int) -> int:
    """The text that stands for the answer to request `id` where no model speaks."""
    return key_of(seed, -100, id)
