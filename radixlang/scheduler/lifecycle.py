"""The moves of requests between their states: the one way into a row, the one way out of it, the one way to end.

    WAITING ──enter_row──▶ RUNNING ──leave_row──▶ WAITING (put_back) or LANDING
       └──────────── end ─────┴───────────────────────┴──────▶ ENDED

Must not know policies, budgets or plans.
"""

from __future__ import annotations

from radixlang.cache import Match
from radixlang.messages import Embedding, Failed, Tokens
from radixlang.plan import PositionLogprobs
from radixlang.scheduler.constraints import Unconstrained
from radixlang.scheduler.drafts import Drafts
from radixlang.scheduler.finish import News, finish_reason
from radixlang.scheduler.lower_tiers import LowerTiers
from radixlang.scheduler.pages import Pages
from radixlang.scheduler.phases import Phases
from radixlang.scheduler.queue import WaitingQueue
from radixlang.scheduler.request import Request, State
from radixlang.scheduler.rows import Rows
from radixlang.scheduler.stats import Totals

Message = Tokens | Embedding | Failed

ABORTED, BAD_REQUEST, INTERNAL, OVERLOADED = 499, 400, 500, 503
"""statuses of `Failed` endings"""


class Lifecycle:
    """Everything that has to be told when a request changes its state is told here."""

    def __init__(
        self,
        queue: WaitingQueue,
        rows: Rows,
        phases: Phases,
        pages: Pages,
        drafts: Drafts,
        constraints: Unconstrained,
        lower: LowerTiers,
        totals: Totals,
    ) -> None:
        self._queue = queue
        self._rows = rows
        self._phases = phases
        self._pages = pages
        self._drafts = drafts
        self._constraints = constraints
        self._lower = lower
        self._totals = totals
        self._admissions = 0
        self._outbox: list[Message] = []
        self.requests: dict[str, Request] = {}
        """all that have not ended, by id, in order of arrival"""
        self.departures = 0
        """times that a running request has left its row"""

    def arrive(self, request: Request, now: float) -> None:
        """A new request waits."""
        self._lower.arrived(request, now)  # first: if this fails, nothing is left of the request
        self.requests[request.rid] = request
        self._queue.add(request)

    # ---- rows ----

    def enter_row(self, request: Request, match: Match) -> None:
        """Give a waiting request a row that begins with the pages of a locked match. It stays in the queue until
        `admitted`, because policies read that lazily. Caller guarantees that a row is available."""
        self._constraints.enter(request)
        self._rows.take(request, match.tokens, match.pages)
        self._pages.open(request, match)
        self._phases.begin(request)

    def admitted(self, request: Request, now: float) -> None:
        """The request has got its row and waits no more."""
        self._queue.remove(request)
        self._admissions += 1
        request.admission = self._admissions
        if not request.retractions:
            request.queue_time = max(0.0, now - request.received)
            self._totals.prompt_tokens += request.prompt_length
            self._totals.cached_tokens += request.cached_tokens

    def leave_row(self, request: Request, keep: bool = True) -> None:
        """Give pages and row back; `keep`: the computed pages are good and go to the tree. Steps in flight may
        still write there: they run before any later plan."""
        self._constraints.leave(request)
        self._phases.leave(request.row)
        self.departures += 1
        self._rows.fold(request)
        if request.draft is not None:
            self._drafts.drop(request)
        if keep:
            self._pages.close(request, min(int(self._rows.computed[request.row]), request.tokens.size))
        else:
            self._pages.distrust(request)
        self._rows.give(request)

    def put_back(self, request: Request) -> None:
        """A request without a row goes to the front of the queue, with its tokens."""
        request.state = State.WAITING
        request.retractions += 1
        self._queue.put_back(request)

    def retract(self, request: Request) -> None:
        """A running request has to make room."""
        self.leave_row(request)
        self.put_back(request)
        self._totals.num_retracted_requests += 1

    def land(self, request: Request) -> None:
        """All work of a running request is launched: it loses nothing by giving its row back."""
        self.leave_row(request)
        request.state = State.LANDING

    def start_over(self) -> None:
        """Nobody knows what the launched steps did: all requests wait, and no result of theirs will come."""
        for request in list(self.requests.values()):
            if request.state is State.RUNNING:
                self.leave_row(request, keep=False)
            if request.state is not State.WAITING:
                self.put_back(request)
            request.pending = request.surplus = 0

    # ---- endings ----

    def end(self, request: Request, keep: bool = True) -> None:
        """The one way out of the engine. `keep` as for `leave_row`."""
        if request.state is State.RUNNING:
            self.leave_row(request, keep)
        elif request.state is State.WAITING:
            self._queue.remove(request)
        request.state = State.ENDED
        if keep and request.admission:
            self._pages.pin(request)
        del self.requests[request.rid]
        self._lower.ended(request)
        self._constraints.forget(request)

    def fail(
        self, request: Request, status: int, sentence: str, keep: bool = True, constraint: bool = False
    ) -> Failed:
        """End the request → what its client is told. `constraint`: its constraint has failed."""
        self.end(request, keep)
        self._totals.num_failed_requests += 1
        return Failed(request.rid, status, sentence, constraint)

    def fail_aside(self, request: Request, status: int, sentence: str, constraint: bool = False) -> None:
        """As `fail`, where no messages are being made: its client is told by `take_messages`."""
        self._outbox.append(self.fail(request, status, sentence, constraint=constraint))

    def take_messages(self) -> list[Message]:
        """Endings of `fail_aside`, told once."""
        messages, self._outbox = self._outbox, []
        return messages

    def tell(
        self,
        request: Request,
        tokens: list[int],
        news: News,
        logprobs: PositionLogprobs | None = None,
        ended: bool = False,
    ) -> None:
        """The news of the request's newest tokens, and its end if these were the last; `ended` as for
        `finish_reason`."""
        reason = finish_reason(request, tokens[-1], self._rows.known(request), ended)
        values = [] if logprobs is None else [logprobs]
        if request.held or (request.grammar is not None and request.grammar.revises):
            request.held += tokens
            request.held_logprobs += values
            if reason is None:
                return
            tokens, values = request.held, request.held_logprobs
        news.tokens(request, tokens, reason)
        if values:
            news.logprobs(tokens[-len(values) :], values)
        if reason is not None:
            self.end(request)

    def check(self) -> None:
        """Assert that every request is where its state says."""
        waiting = list(self._queue)
        assert all(request.state is State.WAITING and request.node is None for request in waiting)
        assert len(waiting) == len(self._queue), "the queue miscounts"
        landing = sum(request.state is State.LANDING for request in self.requests.values())
        assert len(self.requests) == len(self._rows.running) + len(waiting) + landing, "a request is lost"
