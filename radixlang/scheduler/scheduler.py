"""Decides what every step computes, and what its results mean.

The rule: a request has `length` tokens and KV for `computed` of them; a step grants it some of the difference.
While there are prompts, begun or admitted now in the order of the policy, a step holds prompts alone, so that a
burst of arrivals costs the rows that decode (they miss one token) one long pause and not many; after
`max_prefill_steps` of these it is their turn. With `mixed` every step holds both, rows that decode first. A step
for which memory had to be taken from running requests (retraction) admits nobody.

Steps run on the device in the order of their plans, and `schedule` may be called while the results of earlier
plans are unknown: lengths are known in advance, token values are not. So an end by length costs nothing, and an
end by token is noticed late: the surplus token is dropped.

    add ─▶ queue ─▶ admission ─▶ grants ─▶ step builder ─▶ plan        result ─▶ results ─▶ messages
                        └── lifecycle: every change of a request's state ──┴─ turns: constrained rows

Must not know text, HTTP or the device.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np

from radixlang.cache.tiers import Tiers
from radixlang.errors import OverloadedError, RequestError
from radixlang.messages import Failed, Generate, Stats
from radixlang.plan import Action, Flush, StepPlan, StepResult
from radixlang.scheduler.admission import Admission
from radixlang.scheduler.arrivals import Arrivals
from radixlang.scheduler.constraints import Constraints, Unconstrained
from radixlang.scheduler.drafts import Drafts
from radixlang.scheduler.expected import NewTokenRatio
from radixlang.scheduler.grants import Grants
from radixlang.scheduler.lifecycle import ABORTED, INTERNAL, OVERLOADED, Lifecycle, Message
from radixlang.scheduler.limits import SchedulerLimits
from radixlang.scheduler.lower_tiers import DeviceOnly, HostAndStorage, LowerTiers
from radixlang.scheduler.overview import overview
from radixlang.scheduler.pages import Pages
from radixlang.scheduler.phases import Phases
from radixlang.scheduler.queue import WaitingQueue
from radixlang.scheduler.request import Request, State
from radixlang.scheduler.results import Results
from radixlang.scheduler.rows import Rows
from radixlang.scheduler.stats import Rates, Totals
from radixlang.scheduler.step_builder import StepBuilder
from radixlang.scheduler.suspects import Suspects
from radixlang.scheduler.turns import Turns


class Scheduler:
    """All requests of one engine, from `add` to their one ending.

    Endings that do not come from a step's result (a request that cannot fit) are returned by the next
    `process`, or by `take_messages`, which the engine calls after each `schedule`. The parts without an underscore
    are for those who look on, and for the simulator.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        now: float | None = None,
        constraints: Constraints | None = None,
        tiers: Tiers | None = None,
    ) -> None:
        self.limits = limits
        self.totals = totals = Totals()
        self.queue = queue = WaitingQueue()
        self.rows = rows = Rows(limits)
        self.phases = phases = Phases(rows)
        self.pages = pages = Pages(limits, rows, tiers)
        self.lower: LowerTiers = DeviceOnly()
        if tiers is not None:
            self.lower = HostAndStorage(tiers, pages, limits, phases.can_decode)
        self.ratio = ratio = NewTokenRatio(limits.conservativeness)
        self.flights: dict[int, StepBuilder] = {}
        """steps whose results are unknown, oldest first"""
        self._arrivals = Arrivals(limits)
        self._constraints = bound = Unconstrained() if constraints is None else constraints
        self._drafts = drafts = Drafts(rows)
        self._lifecycle = life = Lifecycle(queue, rows, phases, pages, drafts, bound, self.lower, totals)
        self._turns = Turns(limits.page_size, rows, phases, drafts, bound, life)
        self._results = Results(rows, self._turns, life, totals)
        self._grants = grants = Grants(limits, rows, phases, pages, drafts, self.lower, ratio, life)
        self.admission = Admission(limits, queue, rows, pages, self.lower, ratio, grants, life)
        self._suspects = Suspects(phases, grants, self.admission, life)
        self._rates = Rates(time.time() if now is None else now)
        self._prompt_steps = 0
        """steps of prompts alone since a row that could decode last had its turn"""
        self.next_step = 0
        """its number: so many have been planned"""
        self._actions: list[Action] = []
        """what the device must do before the next step"""

    # ---- requests come and go ----

    def add(self, message: Generate, now: float) -> Failed | None:
        """Take a request in, or say why not: 503 when the queue is full, 400 when it can never be served."""
        self.totals.num_requests += 1
        try:
            self._check_room(message)
            request = self._arrivals.request(message, now)
            if message.grammar is not None:
                self._constraints.begin(request, message.grammar)
        except RequestError as error:
            self.totals.num_refused_requests += error.status == OVERLOADED
            return Failed(message.rid, error.status, str(error))
        self._lifecycle.arrive(request, now)
        return None

    def _check_room(self, message: Generate) -> None:
        if message.rid in self._lifecycle.requests:
            raise RequestError(f"A request with the id {message.rid!r} is being served already.", "rid")
        most = self.limits.max_queued_requests
        if most is not None and self.queue.new >= most:
            raise OverloadedError(f"The queue is full ({most} requests wait already); try again later.")

    def abort(self, rid: str, message: str | None = None) -> Failed | None:
        """End the request wherever it is; unknown ids are ignored. `message` None: nobody waits for an ending."""
        request = self._lifecycle.requests.get(rid)
        if request is None:
            self.totals.num_late_aborts += 1
            return None
        request.pin = None  # its program has gone, and may have ended its pins already
        self._lifecycle.end(request)
        self.totals.num_aborted_requests += 1
        return None if message is None else Failed(rid, ABORTED, message)

    def rids(self) -> list[str]:
        """Ids of all requests that have not ended, in order of arrival."""
        return list(self._lifecycle.requests)

    def request(self, rid: str) -> Request | None:
        """The live request, for example to change its `waits`."""
        return self._lifecycle.requests.get(rid)

    @property
    def idle(self) -> bool:
        """No request is left, nor anything to do for the tiers below the device. (A step with surplus tokens may
        still be on its way.)"""
        return not self._lifecycle.requests and not self.lower.busy

    def flush(self) -> bool:
        """Empty the prefix cache; False, and nothing done, while there are requests."""
        if self._lifecycle.requests:
            return False
        self.lower.flush()
        self.pages.flush()
        self._actions.append(Flush())
        return True

    def pins(self, name: str | None = None) -> list[dict[str, Any]]:
        """All pins, or the one of that name: `id`, `tokens`, `branches`, `expires` (seconds since the epoch)."""
        return self.pages.pins.listed(name)

    def unpin(self, names: list[str]) -> int:
        """End these pins. → how many there were"""
        return sum(self.pages.pins.release(name) for name in names)

    def take_messages(self) -> list[Message]:
        """Endings that came up outside `process`."""
        return self._lifecycle.take_messages()

    # ---- steps ----

    def schedule(self, now: float) -> StepPlan | None:
        """The next step; None when there is nothing to do before a result or a request arrives."""
        self.pages.pins.expire(now)
        self._refuse_late(now)
        self._turns.settle()
        if self.lower.begin(now):
            self.admission.retry()
        self.pages.begin_step()
        step = StepBuilder(self.next_step, self.limits.prompt_budget)
        suspect = self._suspects.first
        if suspect is None:
            self._grant(step, now)
        elif not self.flights:
            self._suspects.grant(step, suspect, now)
        self.pages.end_step()
        transfers = self.lower.transfers(rows=step.size > 0)
        if not step.size and not transfers:
            return None
        actions: tuple[Action, ...] = ()
        if step.size:  # a plan for transfers alone brings nothing that its executor would have to look at
            for row, first, pages in self.pages.rewrites():
                step.page_run(row, first, pages)
            actions = (*self._actions, *self._constraints.take_actions())
            self._actions.clear()
        plan = step.build(actions, transfers, self.rows)
        self.flights[self.next_step] = step
        self.next_step += 1
        return plan

    def _refuse_late(self, now: float) -> None:
        """End new arrivals that have waited too long; one that has run before is never turned away."""
        most = self.limits.queue_timeout
        if most is None:
            return
        late = itertools.takewhile(lambda request: now - request.received > most, self.queue.by_arrival())
        for request in list(late):
            sentence = f"The request waited {now - request.received:.1f} s in the queue, the limit is {most:g} s."
            self._lifecycle.fail_aside(request, OVERLOADED, sentence)
            self.totals.num_refused_requests += 1

    def _grant(self, step: StepBuilder, now: float) -> None:
        """Share the step out."""
        self.admission.preempt()
        if not self.limits.mixed and (self.phases.prompts or len(self.queue)):
            turn = self.phases.can_decode()
            if self._prompt_steps < self.limits.max_prefill_steps or not turn:
                if not self._grants.prompts(step):
                    self.admission.admit(step, now)
                if step.size:
                    self._prompt_steps += turn
                    return
        self._prompt_steps = 0
        retracted = self._grants.decodes(step, awaited=bool(self.flights))
        if step.size and not retracted:
            self.ratio.step()
        if self.limits.mixed or not step.size:
            starved = self._grants.prompts(step)
            stuck = not step.size and not self.flights  # no later call would find things changed
            if stuck or not (retracted or starved):
                self.admission.admit(step, now)

    @property
    def steady(self) -> bool:
        """No running row has anything to do but to decode, and nothing else has been asked of the device."""
        return not (self.phases.prompts or self.phases.jumping or self._actions) and self._suspects.first is None

    def skip_decodes(self, steps: int) -> None:
        """The caller has moved the rows on as so many steady steps would have."""
        self.ratio.step(steps)
        self._prompt_steps = 0
        self.next_step += steps

    def masks(self, plan: StepPlan) -> np.ndarray | None:
        """What may come next in the masked rows of a launched plan, [G, words]; None without such rows. All
        results before it have been processed. Requests whose constraints fail end (see `take_messages`)."""
        return self._turns.masks(plan, self.flights[plan.step]) if len(plan.masked) else None

    def process(self, plan: StepPlan, result: StepResult, now: float | None = None) -> list[Message]:
        """What the outcome of `plan` means to clients: endings, and one `Tokens` for the whole step."""
        messages = self.take_messages()
        step = self.flights.pop(plan.step)
        messages += self._results.process(step, plan, result, time.time() if now is None else now)
        messages += self.take_messages()
        self._suspects.clear()
        if not self.rows.running:
            self.ratio.idle()
        return messages

    def abandon(self, plans: list[StepPlan], sentence: str) -> list[Message]:
        """A step raised: `plans` are it and all later ones, none of which has a result; all earlier ones have been
        processed. A request that was alone in the step, without a layered load, fails. Otherwise nobody knows who
        is at fault: all of its requests start over as suspects. The cache is emptied, since nobody knows what was
        written.
        """
        messages = self.take_messages()
        if plans[0].step not in self.flights:  # given up already, with an earlier one
            return messages
        assert plans[0].step == min(self.flights), "an earlier step has not been processed"
        steps = list(self.flights.values())
        self.flights.clear()
        for step in steps:
            step.forget_wishes()
        involved = list(dict.fromkeys(steps[0].requests))  # a draft has two rows
        live = [request for request in involved if request.state is not State.ENDED]
        if len(involved) == 1 and not plans[0].loads:  # pages that come with the step may be at fault
            messages += [self._lifecycle.fail(request, INTERNAL, sentence, keep=False) for request in live]
            live = []
        self._lifecycle.start_over()
        self._suspects.add(live)
        self.lower.reset()
        self.pages.flush()
        self._constraints.distrust()
        return messages

    # ---- what others may see ----

    def stats(self, now: float) -> Stats:
        """Gauges and counters, named as on the metrics page without prefix."""
        limits, pages = self.limits, self.pages
        throughput, hit_rate = self._rates.update(self.totals, now, self.idle)
        used = pages.pool.total - pages.available
        gauges: dict[str, float] = {
            "num_running_reqs": len(self.rows.running),
            "num_queue_reqs": len(self.queue),
            "num_retracted_reqs": len(self.queue.retracted),
            "num_grammar_queue_reqs": self._constraints.waiting,
            "token_usage": used / pages.pool.total,
            "cache_hit_rate": hit_rate,
            "gen_throughput": throughput,
            "num_used_tokens": used * limits.page_size,
            "kv_available_tokens": pages.pool.available * limits.page_size,
            "kv_evictable_tokens": pages.tree.evictable * limits.page_size,
            "kv_used_tokens": used * limits.page_size,
            "kv_pinned_tokens": pages.tree.pinned * limits.page_size,
            "max_total_num_tokens": limits.capacity,
            "page_size": limits.page_size,
            "num_pages": limits.usable_pages,
            "context_len": limits.context_length,
            "new_token_ratio": self.ratio.value,
        }
        gauges |= self.lower.gauges()
        counters = self.totals.counters(pages.evicted_tokens) | self.lower.counters()
        counters |= self._constraints.counters()
        return Stats(gauges, counters, self.idle)

    def cache_tree(self, **options: Any) -> dict[str, Any]:
        """A picture of the prefix cache; `options` and the answer are those of `tree_view`."""
        return self.pages.view(**options)

    def overview(self, limit: int) -> dict[str, Any]:
        """Where the first `limit` running and the first `limit` waiting requests are."""
        return overview(self.rows, self.queue, limit, self.limits.low_values_first)

    def take_times(self) -> dict[str, list[float]]:
        """Durations in seconds since the last call, by the name of their histogram on the metrics page."""
        return self._constraints.take_times()

    def warm_up(self) -> None:
        """Prepare, beside the loop, what the first constraint would otherwise wait for."""
        self._constraints.warm_up()

    def close(self) -> None:
        """End what runs beside the engine's loop."""
        self._constraints.close()
        self.lower.close()

    def check(self) -> None:
        """Assert the invariants; cheap enough for tests and for an idle engine, not for every step."""
        self.pages.check(list(self.rows.running.values()), [fetch.load.pages for fetch in self.lower.fetches])
        self.lower.check()
        self.rows.check()
        self.phases.check()
        self._drafts.check()
        self._lifecycle.check()
