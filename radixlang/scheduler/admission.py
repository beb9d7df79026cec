"""Which waiting requests get a row, and which running ones make way for a far more urgent one.

Must not know results, or how the step is shared out among those that run.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

import numpy as np

from radixlang.cache import Match
from radixlang.scheduler.expected import NewTokenRatio, expected_pages, pages_to_come
from radixlang.scheduler.grants import Grants
from radixlang.scheduler.lifecycle import BAD_REQUEST, Lifecycle
from radixlang.scheduler.limits import SchedulerLimits
from radixlang.scheduler.lower_tiers import LowerTiers
from radixlang.scheduler.pages import Pages
from radixlang.scheduler.policy import POLICIES, WINDOW
from radixlang.scheduler.preemption import victim
from radixlang.scheduler.queue import WaitingQueue
from radixlang.scheduler.request import Request
from radixlang.scheduler.rows import Rows
from radixlang.scheduler.step_builder import StepBuilder

RETRY_STEPS = 8
"""a queue that memory holds up is not sorted and matched anew in every step"""


class Admission:
    """Gives rows to requests in the order of the policy, as far as memory is expected to last."""

    def __init__(
        self,
        limits: SchedulerLimits,
        queue: WaitingQueue,
        rows: Rows,
        pages: Pages,
        lower: LowerTiers,
        ratio: NewTokenRatio,
        grants: Grants,
        lifecycle: Lifecycle,
    ) -> None:
        self._limits = limits
        self._policy = POLICIES.get(limits.policy)
        self._queue = queue
        self._rows = rows
        self._pages = pages
        self._lower = lower
        self._ratio = ratio
        self._grants = grants
        self._lifecycle = lifecycle
        self._retry_step = 0
        """before this step nothing is admitted: memory was too short"""
        self._departures = 0
        """those of the lifecycle at that time: when a running request leaves its row, that holds no more"""
        self._foreseen = (0, 0, 0)
        """what arrived and left before the last look ahead"""

    @property
    def retry_step(self) -> int:
        """Before this step nothing is admitted, unless a running request leaves its row."""
        return self._retry_step if self._departures == self._lifecycle.departures else 0

    def retry(self) -> None:
        """Something has come that may change things."""
        self._retry_step = 0

    def admit(self, step: StepBuilder, now: float) -> None:
        """Give rows to waiting requests while rows, budget and memory last."""
        if not len(self._queue) or not self._rows.available or step.budget <= 0:
            return
        if step.number < self.retry_step:
            return
        to_come = self._all_to_come()
        admitted: list[Request] = []
        hopeless: list[Request] = []
        for request in self._look_ahead(step, self._policy(self._queue, self._pages.tree)):
            rows = self._rows.available - sum(fetch.wanted for fetch in self._lower.fetches)
            if rows <= 0 or step.budget <= 0 or len(admitted) == self._limits.prefill_max_requests:
                break
            if request.waits:
                continue
            if not self.could_hold(request):
                hopeless.append(request)
                continue
            # A token in flight has no value yet that a new row could start from.
            if request.pending or not self._try(step, request, to_come):
                if request.waits:  # for its pages: others go first
                    to_come += self._lower.fetches[-1].missing(self._expected(request))
                    continue
                break
            to_come += self._pages_to_come(request)
            admitted.append(request)
        for request in admitted:
            self._lifecycle.admitted(request, now)
        for request in hopeless:
            self._lifecycle.fail_aside(request, BAD_REQUEST, self._grants.too_large(request))

    def _look_ahead(self, step: StepBuilder, line: Iterator[Request]) -> Iterator[Request]:
        """Tell the tree what the line will read, if pages may have to be evicted for this step, and something has
        come or gone since it was told last. → the line"""
        foresight, queue = self._pages.foresight, self._queue
        if foresight is None or self._pages.pool.available >= self._limits.pages_for(step.budget):
            return line
        news = (queue.arrivals, len(queue), self._lifecycle.departures)
        if news == self._foreseen:
            return line
        self._foreseen = news
        ahead = list(islice(line, WINDOW))
        foresight.look(((item.tokens.view(), item.namespace) for item in ahead), queue.departures)
        return chain(ahead, line)

    def admit_alone(self, step: StepBuilder, request: Request, now: float) -> None:
        """Give a waiting request a row, whoever else waits, if it waits for nothing else."""
        if not request.waits and self._try(step, request, 0):
            self._lifecycle.admitted(request, now)

    def preempt(self) -> None:
        """Send running requests back to the queue where there is no room for the first in line and it is far more
        urgent. Before anything is granted: a row that has its grant must not lose its pages in the same step."""
        threshold = self._limits.preemption_threshold
        if threshold is None or not len(self._queue) or not self._rows.running:
            return
        line = self._policy(self._queue, self._pages.tree)
        urgent = next((request for request in line if not request.waits), None)
        if urgent is None or urgent.pending:
            return
        match = self._pages.match(urgent, urgent.match_cap)
        while not self._rows.available or not self._fits(urgent, match, self._all_to_come()):
            rows = self._rows
            unfinished = (item for row, item in rows.running.items() if rows.computed[row] < item.work)
            least = victim(urgent, unfinished, threshold)
            if least is None:
                break
            self._lifecycle.retract(least)
        self._pages.unmatch(match)

    def _try(self, step: StepBuilder, request: Request, to_come: int) -> bool:
        """Match, find room, take a row, grant. → whether the request runs now"""
        limits, cap = self._limits, request.match_cap
        match = self._pages.match(request, cap)
        whole = limits.chunked or request.tokens.size - match.tokens <= step.budget or not step.prompt_tokens
        if not self._fits(request, match, to_come) or not whole:
            self._pages.unmatch(match)
            if whole:
                self._retry_step = step.number + RETRY_STEPS
                self._departures = self._lifecycle.departures
            return False
        found = self._lower.fetch(request, match, cap, step.prompt_tokens)
        if found is None:
            return False
        match, must = found, limits.pages_for(request.tokens.size) - len(found.pages)
        self._lifecycle.enter_row(request, match)
        step.setup(request)
        step.page_run(request.row, 0, match.pages)
        self._copy_part(step, request, match, cap, must)
        cached = int(self._rows.computed[request.row])
        if not request.retractions:
            request.cached_tokens = cached
        self._lower.admitted(request, cached)
        granted = self._grants.prompt(step, request)
        assert granted, "an admitted request got no grant"
        return True

    def _copy_part(self, step: StepBuilder, request: Request, match: Match, cap: int, needed: int) -> None:
        """Begin with a copy where a page shares only its first tokens with the request. If this step writes that
        page, the copy is made behind it; until then both rows use the page, and write the same there."""
        part = self._pages.part_page(request, match, cap, needed)
        if part is None:
            return
        source, tokens, written = part
        fresh = self._pages.take(1)
        assert fresh is not None
        step.copy_page(source, int(fresh[0]), behind=written)
        step.page_run(request.row, len(match.pages), np.array([source], np.int32) if written else fresh)
        if written:
            self._pages.redirect(request, len(match.pages))
        self._rows.add_pages(request, fresh)
        self._rows.computed[request.row] += tokens

    # ---- room ----

    def could_hold(self, request: Request) -> bool:
        """Whether all memory would be enough for the request's tokens."""
        return self._limits.pages_for(request.tokens.size) <= self._limits.usable_pages

    def _fits(self, request: Request, match: Match, to_come: int) -> bool:
        """Whether there are pages for a request whose match is locked, and for the `to_come` of those that run."""
        have, alone = len(match.pages), not self._rows.running
        need = self._expected(request) - have
        must = self._limits.pages_for(request.tokens.size) - have
        # With nothing else running everything can be evicted, and waiting would not help.
        available = self._pages.free_up(must) if alone else self._pages.available
        return must <= available and (alone or need + to_come <= available)

    def _expected(self, request: Request) -> int:
        return expected_pages(request, self._ratio.value, self._limits)

    def _pages_to_come(self, request: Request) -> int:
        have = int(self._rows.capacity[request.row]) // self._limits.page_size
        return max(0, self._expected(request) - have)

    def _all_to_come(self) -> int:
        return pages_to_come(self._rows, self._ratio.value, self._limits) + self._lower.to_come(self._expected)
