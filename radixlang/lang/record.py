"""What happened while a program ran: one span per call, fork and branch, in the order in which they began.

`radixlang.show` draws it. Written by the interpreter, read from anywhere.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["program", "branch", "gen", "select", "prefix", "text", "join"]


@dataclass
class Span:
    """Something that took time. Times are seconds since the record began; None: not yet.

    Attributes:
        parent: id of the span it belongs to: a call's is its branch, a branch's the branch that forked.
        name: the variable, the program's name, or "".
        prompt: what a call was made with (text), `text` what came back; of a branch, what it shares with its
            parent, and all that it said (as `messages` in its meta, too).
        prompt_tokens, cached_tokens, completion_tokens: as the backend counted them; None where it does not.
        fork_index: the place of a branch among its siblings.
        where: file and line of the statement.
    """

    id: int
    kind: Kind
    parent: int | None = None
    name: str = ""
    prompt: str = ""
    text: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    started: float = 0.0
    first_token: float | None = None
    ended: float | None = None
    fork_index: int | None = None
    where: str = ""
    error: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)


_keepers: list[list[Record]] = []


@contextlib.contextmanager
def keeping() -> Iterator[list[Record]]:
    """A list that every record made in the meantime, in any thread, goes into. Until the block ends, no program is
    given up because nobody reads it."""
    kept: list[Record] = []
    _keepers.append(kept)
    try:
        yield kept
    finally:
        _keepers.remove(kept)
        for record in kept:
            record.held = None


class Record:
    """The spans of one program, its forks included. `began` is in seconds since the epoch."""

    def __init__(self, name: str, backend: str) -> None:
        self.name = name
        self.backend = backend
        self.began = time.time()
        self.spans: list[Span] = []
        self._zero = time.perf_counter()
        self._lock = threading.Lock()
        #: what must live as long as the record is kept; None: nothing
        self.held: list[Any] | None = [] if _keepers else None
        for kept in list(_keepers):
            kept.append(self)

    @property
    def ended(self) -> bool:
        """Whether the program has ended."""
        return bool(self.spans) and self.spans[0].ended is not None

    def now(self) -> float:
        """Seconds since the record began."""
        return time.perf_counter() - self._zero

    def begin(self, kind: Kind, parent: int | None = None, **values: Any) -> Span:
        """Open a span."""
        with self._lock:  # branches begin on the program's thread, calls on the loop's
            span = Span(len(self.spans), kind, parent, started=self.now(), **values)
            self.spans.append(span)
        return span

    def first(self, span: Span) -> None:
        """The first token of `span` has come."""
        if span.first_token is None:
            span.first_token = self.now()

    def end(
        self, span: Span, text: str = "", meta: dict[str, Any] | None = None, error: str | None = None
    ) -> None:
        """Close a span; `meta` is what the backend said of the call."""
        span.ended = self.now()
        span.text = text
        span.error = error
        if meta:
            span.meta = meta
            for key in ("prompt_tokens", "cached_tokens", "completion_tokens"):
                if isinstance(meta.get(key), int):
                    setattr(span, key, meta[key])
