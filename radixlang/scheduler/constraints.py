"""The grammars of an engine's requests: requests wait while theirs are compiled, rows get their masks here.

Must not know rows' places, pages or plans' layout: it is told which requests, and says which tokens.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from radixlang.errors import RequestError
from radixlang.grammar.errors import GrammarError, GrammarFailure
from radixlang.grammar.grammar import Grammar, Mask
from radixlang.grammar.manager import GrammarManager
from radixlang.messages import GrammarSpec
from radixlang.scheduler.request import Request

WAIT = "grammar"
ALONE = 4
"""so few masks are not worth handing to other threads"""


class Constraints:
    """`manager` compiles; `jump`: tokens that must follow are written without asking the model."""

    def __init__(self, manager: GrammarManager, jump: bool = True) -> None:
        self._manager = manager
        self._jump = jump
        self._compiling: dict[str, tuple[Request, GrammarSpec, Future[Grammar]]] = {}
        self._pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="masks")

    def __len__(self) -> int:
        """Requests that wait for their grammars."""
        return len(self._compiling)

    def begin(self, request: Request, spec: GrammarSpec) -> None:
        """Make the request wait until its constraint is compiled."""
        request.waits[WAIT] = None
        self._compiling[request.rid] = (request, spec, self._manager.get(spec))

    def forget(self, request: Request) -> None:
        """The request has ended."""
        self._compiling.pop(request.rid, None)

    def settle(self) -> list[tuple[Request, str]]:
        """Let those go whose constraints are compiled → requests that cannot have theirs, and why."""
        failed = []
        for rid, (request, spec, future) in list(self._compiling.items()):
            if not future.done():
                continue
            del self._compiling[rid]
            try:
                request.grammar = self._manager.start(spec, future.result())
                request.held = [] if request.grammar.revises else None
                del request.waits[WAIT]
            except (GrammarError, GrammarFailure) as error:
                failed.append((request, str(error)))
        return failed

    def jump(self, request: Request, room: int) -> list[int]:
        """Tokens that must follow now, at most `room`; the grammar has accepted them.

        Raises:
            GrammarFailure: the constraint fails.
        """
        grammar = request.grammar
        if not self._jump or grammar is None or request.logprobs is not None or room <= 0:
            return []
        out: list[int] = []
        for token in grammar.forced()[:room]:
            if not grammar.accept(token):
                break
            out.append(token)
            if token in request.ends:
                break
        return out

    def masks(self, requests: list[Request | None], words: int) -> tuple[np.ndarray, list[tuple[Request, str]]]:
        """Masks [n, words] for the next token of each request (None: everything is allowed), and which requests
        have none, and why."""
        rows = np.full((len(requests), words), -1, np.int32)
        failed: list[tuple[Request, str]] = []

        def fill(at: int) -> None:
            request = requests[at]
            if request is None or request.grammar is None:
                return
            try:
                _fill(request, rows[at])
            except GrammarFailure as error:
                rows[at] = -1
                failed.append((request, str(error)))

        if len(requests) <= ALONE:
            for at in range(len(requests)):
                fill(at)
        else:
            list(self._pool.map(fill, range(len(requests)), chunksize=max(1, len(requests) // 32)))
        return rows, failed

    @property
    def words(self) -> int:
        return self._manager.vocabulary.words

    def close(self) -> None:
        self._manager.close()
        self._pool.shutdown(wait=False)


def _fill(request: Request, row: Mask) -> None:
    assert request.grammar is not None
    request.grammar.fill(row)


def no_constraints() -> RequestError:
    """What a request with a constraint is told by an engine that knows no tokens."""
    return RequestError("Constraints need a tokenizer; this server runs with --skip-tokenizer-init.")
