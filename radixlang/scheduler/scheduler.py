"""Decides what every step computes, and what its results mean.

The rule: a request has `length` tokens and KV for `computed` of them; a step grants it some of the difference.
While there are prompts, begun or admitted now in the order of the policy, a step holds prompts alone, so that a
burst of arrivals costs the rows that decode (they miss one token) one long pause and not many; after
`max_prefill_steps` of these it is their turn. With `mixed` every step holds both, rows that decode first. Memory
that is short is evicted from the tree, then taken from running requests, which go back to the queue with their
tokens (retraction); such a step admits nobody.

Steps run on the device in the order of their plans, and `schedule` may be called while the results of earlier
plans are unknown: lengths are known in advance, token values are not. So an end by length costs nothing, and an
end by token is noticed late: the surplus token is dropped here. Must not know text, HTTP or the device.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np

from radixlang.cache import Match
from radixlang.cache.tiers import Tiers
from radixlang.errors import OverloadedError, RequestError
from radixlang.grammar.errors import GrammarFailure
from radixlang.grammar.grammar import GrammarState
from radixlang.messages import Embedding, Failed, Generate, Stats, Tokens
from radixlang.plan import Action, Flush, PositionLogprobs, StepPlan, StepResult
from radixlang.scheduler.admission import NewTokenRatio, expected_pages, pages_to_come
from radixlang.scheduler.arrivals import Arrivals
from radixlang.scheduler.constraints import Constraints, no_constraints
from radixlang.scheduler.finish import News, finish_reason
from radixlang.scheduler.limits import SchedulerLimits
from radixlang.scheduler.lower_tiers import DeviceOnly, HostAndStorage, LowerTiers
from radixlang.scheduler.overview import overview
from radixlang.scheduler.pages import Pages
from radixlang.scheduler.policy import POLICIES
from radixlang.scheduler.preemption import victim
from radixlang.scheduler.queue import WaitingQueue, level
from radixlang.scheduler.request import Request, State
from radixlang.scheduler.rows import Decoders, Rows
from radixlang.scheduler.stats import Rates, Totals
from radixlang.scheduler.step_builder import StepBuilder

Message = Tokens | Embedding | Failed

RETRY_STEPS = 8
"""a queue that memory holds up is not sorted and matched anew in every step"""
DRAFTING = 4
"""running constrained requests up to which drafts are made: a draft saves its request a step, and costs 0.2 to
0.4 ms of the host's time, which a step of many rows does not have for each of them"""
ABORTED, BAD_REQUEST, INTERNAL, OVERLOADED = 499, 400, 500, 503


class Scheduler:
    """All requests of one engine, from `add` to their one ending.

    Endings that do not come from a step's result (a request that cannot fit) are returned by the next
    `process`, or by `take_messages`, which the engine calls after each `schedule`.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        now: float | None = None,
        constraints: Constraints | None = None,
        tiers: Tiers | None = None,
    ) -> None:
        self.limits = limits
        self.totals = Totals()
        self._policy = POLICIES.get(limits.policy)
        self._arrivals = Arrivals(limits)
        self._constraints = constraints
        self._requests: dict[str, Request] = {}
        self._queue = WaitingQueue()
        self._rows = Rows(limits)
        self._pages = Pages(limits, self._rows, tiers)
        self._lower: LowerTiers = DeviceOnly()
        if tiers is not None:
            self._lower = HostAndStorage(tiers, self._pages, limits)
        self._ratio = NewTokenRatio(limits.conservativeness)
        self._rates = Rates(time.time() if now is None else now)
        self._filling: dict[int, Request] = {}
        """row → running request with more than its newest token to compute, in order of admission"""
        self._decoding: dict[int, Request] = {}
        """row → other running request, in the order in which they got there"""
        self._jumping: dict[int, Request] = {}
        """row → running request with several tokens to compute that no prompt brought: its grammar forced them"""
        self._decoders: Decoders | None = None
        """those of `_decoding` that are not known to be done computing; None when out of date"""
        self._prompt_steps = 0
        """steps of prompts alone since a row that could decode last had its turn"""
        self._flights: dict[int, StepBuilder] = {}
        """steps whose results are unknown, oldest first"""
        self._suspects: list[Request] = []
        """requests one of which made a step raise; see `abandon`"""
        self._step = 0
        self._admissions = 0
        self._budget = 0
        self._retry_step = 0
        """before this step nothing is admitted, unless a running request leaves: memory was too short"""
        self._actions: list[Action] = []
        self._outbox: list[Message] = []

    # ---- requests come and go ----

    def add(self, message: Generate, now: float) -> Failed | None:
        """Take a request in, or say why not: 503 when the queue is full, 400 when it can never be served."""
        self.totals.num_requests += 1
        try:
            self._check_room(message)
            request = self._arrivals.request(message, now)
            if message.grammar is not None:
                if self._constraints is None:
                    raise no_constraints()
                self._constraints.begin(request, message.grammar)
        except RequestError as error:
            self.totals.num_refused_requests += 1
            return Failed(message.rid, error.status, str(error))
        self._requests[request.rid] = request
        self._queue.add(request)
        self._lower.arrived(request, now)
        return None

    def _check_room(self, message: Generate) -> None:
        if message.rid in self._requests:
            raise RequestError(f"A request with the id {message.rid!r} is being served already.", "rid")
        most = self.limits.max_queued_requests
        if most is not None and self._queue.new >= most:
            raise OverloadedError(f"The queue is full ({most} requests wait already); try again later.")

    def abort(self, rid: str, message: str | None = None) -> Failed | None:
        """End the request wherever it is; unknown ids are ignored. `message` None: nobody waits for an ending."""
        request = self._requests.get(rid)
        if request is None:
            self.totals.num_late_aborts += 1
            return None
        request.pin = None  # its program has gone, and may have ended its pins already
        self._end(request)
        self.totals.num_aborted_requests += 1
        return None if message is None else Failed(rid, ABORTED, message)

    def rids(self) -> list[str]:
        """Ids of all requests that have not ended, in order of arrival."""
        return list(self._requests)

    def request(self, rid: str) -> Request | None:
        """The live request, for example to change its `waits`."""
        return self._requests.get(rid)

    @property
    def idle(self) -> bool:
        """No request is left, nor anything to do for the tiers below the device. (A step with surplus tokens may
        still be on its way.)"""
        return not self._requests and not self._lower.busy

    def flush(self) -> bool:
        """Empty the prefix cache; False, and nothing done, while there are requests."""
        if self._requests:
            return False
        self._lower.flush()
        self._pages.flush()
        self._actions.append(Flush())
        return True

    def pins(self, name: str | None = None) -> list[dict[str, Any]]:
        """All pins, or the one of that name: `id`, `tokens`, `branches`, `expires` (seconds since the epoch)."""
        return self._pages.pins.listed(name)

    def unpin(self, names: list[str]) -> int:
        """End these pins. → how many there were"""
        return sum(self._pages.pins.release(name) for name in names)

    def take_messages(self) -> list[Message]:
        """Endings that came up outside `process`."""
        messages, self._outbox = self._outbox, []
        return messages

    def _end(self, request: Request, keep: bool = True) -> None:
        """The one way out of the engine. `keep`: the computed pages are good and go to the tree."""
        if request.state is State.RUNNING:
            self._leave_row(request, keep)
        elif request.state is State.WAITING:
            self._queue.remove(request)
        request.state = State.ENDED
        if keep and request.admission:
            self._pages.pin(request)
        del self._requests[request.rid]
        self._lower.ended(request)
        if self._constraints is not None:
            self._constraints.forget(request)
        if request in self._suspects:
            self._suspects.remove(request)

    def _leave_row(self, request: Request, keep: bool = True) -> None:
        """Give pages and row back. Steps in flight may still write there: they run before any later plan."""
        row = request.row
        if self._constraints is not None:
            self._constraints.leave(request)
        if self._filling.pop(row, None) is None and self._jumping.pop(row, None) is None:
            del self._decoding[row]
            if self._decoders is not None and row in self._decoders.rows:
                self._decoders = None
        self._retry_step = 0
        self._rows.fold(request)
        if request.draft is not None:
            self._drop_draft(request)
        if keep:
            self._pages.close(request, min(int(self._rows.computed[row]), request.tokens.size))
        else:
            self._pages.distrust(request)
        self._rows.give(request)

    def _fail(self, request: Request, status: int, sentence: str, keep: bool = True) -> Failed:
        self._end(request, keep)
        self.totals.num_failed_requests += 1
        return Failed(request.rid, status, sentence)

    # ---- schedule ----

    def schedule(self, now: float) -> StepPlan | None:
        """The next step; None when there is nothing to do before a result or a request arrives."""
        self._pages.pins.expire(now)
        self._refuse_late(now)
        self._settle_constraints()
        if self._lower.begin(now):
            self._retry_step = 0
        self._pages.begin_step()
        step = StepBuilder()
        self._budget = self.limits.prompt_budget
        if self._suspects:
            self._grant_suspect(step, now)
        else:
            self._grant(step, now)
        self._pages.end_step()
        transfers = self._lower.transfers(rows=step.size > 0)
        if not step.size and not transfers:
            return None
        actions: tuple[Action, ...] = ()
        if step.size:  # a plan for transfers alone brings nothing that its executor would have to look at
            for row, first, pages in self._pages.rewrites():
                step.page_run(row, first, pages)
            if self._constraints is not None:
                self._actions += self._constraints.take_actions()
            actions = tuple(self._actions)
            self._actions.clear()
        plan = step.build(self._step, actions, transfers, self._rows)
        self._flights[self._step] = step
        self._step += 1
        return plan

    def _refuse_late(self, now: float) -> None:
        """End new arrivals that have waited too long; one that has run before is never turned away."""
        most = self.limits.queue_timeout
        if most is None:
            return
        late = itertools.takewhile(lambda request: now - request.received > most, self._queue.by_arrival())
        for request in list(late):
            sentence = f"The request waited {now - request.received:.1f} s in the queue, the limit is {most:g} s."
            self._outbox.append(self._fail(request, OVERLOADED, sentence))

    def _settle_constraints(self) -> None:
        if self._constraints is not None and self._constraints.waiting:
            self._fail_bound(self._constraints.settle())

    def _grant(self, step: StepBuilder, now: float) -> None:
        """Share the step out."""
        self._preempt()
        if not self.limits.mixed and (self._filling or len(self._queue)):
            turn = self._can_decode()
            if self._prompt_steps < self.limits.max_prefill_steps or not turn:
                if not self._grant_prompts(step):
                    self._admit(step, now)
                if step.size:
                    self._prompt_steps += turn
                    return
        self._prompt_steps = 0
        retracted = self._grant_decodes(step)
        if step.size and not retracted:
            self._ratio.step()
        if self.limits.mixed or not step.size:
            starved = self._grant_prompts(step)
            stuck = not step.size and not self._flights  # no later call would find things changed
            if stuck or not (retracted or starved):
                self._admit(step, now)

    def _current_decoders(self) -> Decoders:
        """See `_decoders`."""
        if self._decoders is None:
            self._decoders = self._rows.decoders(self._decoding, len(self._decoding))
        return self._decoders

    def _can_decode(self) -> bool:
        """Some row has something to compute and no prompt."""
        decoders = self._current_decoders()
        return bool(self._jumping) or bool((self._rows.computed.take(decoders.index) < decoders.work).any())

    def _grant_decodes(self, step: StepBuilder) -> bool:
        """One token to every row that is one token short, and what budget allows to those whose grammars forced
        more. Room is made for all of them first: a row that has its grant must not lose its pages in the same
        step. → whether memory was too short"""
        columns = self._rows
        retracted = False
        while self._decoding or self._jumping:
            decoders = self._current_decoders()
            starts = columns.computed.take(decoders.index)
            going = starts < decoders.work
            if not going.all():
                starts = starts[going]
                decoders = self._decoders = decoders.part(going)
            rows = decoders.index
            full = np.flatnonzero(starts >= columns.capacity.take(rows))
            needed = len(full) + self._jump_pages()
            if needed > self._pages.free_up(needed):
                if len(self._rows.running) == 1 and (self._flights or self._lower.fetches):
                    return True  # it cannot go on; but the token on its way may be its last, or pages come free
                retracted |= self._make_room()
                continue
            if len(rows):
                if len(full):
                    pages = self._pages.take(len(full))
                    assert pages is not None
                    indexes = starts[full] // self.limits.page_size
                    columns.add_page_each(rows[full], indexes, pages)
                    step.page_entries(rows[full], indexes, pages)
                step.decodes(decoders, starts.astype(np.int32))
                columns.computed[rows] = starts + 1
                columns.length[rows] += 1
            for request in list(self._jumping.values()):
                if self._budget > 0:
                    granted = self._grant_prompt(step, request)
                    assert granted, "a forced token got no grant"
            break
        return retracted

    def _jump_pages(self) -> int:
        """Pages that the rows of `_jumping` lack for what the budget allows them in this step."""
        limits, columns, budget, pages = self.limits, self._rows, self._budget, 0
        for row in self._jumping:
            if budget <= 0:
                break
            start = int(columns.computed[row])
            end = min(int(columns.length[row]), start + budget)
            pages += max(0, limits.pages_for(end) - int(columns.capacity[row]) // limits.page_size)
            budget -= end - start
        return pages

    def _grant_prompts(self, step: StepBuilder) -> bool:
        """Go on with prompts begun earlier. → whether one of them got nothing for want of memory"""
        for request in list(self._filling.values()):
            if self._budget <= 0:
                break
            if not self._grant_prompt(step, request):
                return True
        return False

    def _grant_prompt(self, step: StepBuilder, request: Request) -> bool:
        """As much of the request's known tokens as budget and memory allow. → whether that was any"""
        limits, columns, row = self.limits, self._rows, request.row
        have = int(columns.capacity[row]) // limits.page_size
        start, length = int(columns.computed[row]), int(columns.length[row])
        cut = limits.chunked or row in self._jumping  # only a prompt may have to be computed in one step
        end = min(length, start + self._budget) if cut else length
        if request.draft is not None and end == length - 1:  # the draft and the draw before it go together
            self._drop_draft(request)
            length = end
        missing = limits.pages_for(end) - have
        room = self._pages.free_up(missing)
        if missing > room:
            if not cut:
                return False
            missing, end = room, (have + room) * limits.page_size
            if end <= start:
                return False
        if missing > 0:
            fresh = self._pages.take(missing)
            assert fresh is not None
            step.page_run(row, have, fresh)
            columns.add_pages(request, fresh)
        complete = end == length
        if complete and row in self._jumping and request.sampling.follows_output:
            step.setup(request)  # the device has not seen the tokens that were not drawn
        if complete and request.draft is not None:
            step.up_to_draft(request, start, end - 1 - start, columns.pages_of(request))
            step.prompt(request, end - 1, 1, True)
        else:
            step.prompt(request, start, end - start, complete)
        columns.computed[row] = end
        self._budget -= end - start
        if complete:
            columns.length[row] += request.samples
            if self._jumping.pop(row, None) is None:
                del self._filling[row]
                self._pages.settle(request, length)
            self._decoding[row] = request
            self._decoders = None
        return True

    def _admit(self, step: StepBuilder, now: float) -> None:
        """Give rows to waiting requests while rows, budget and memory last."""
        if not len(self._queue) or not self._rows.available or self._budget <= 0:
            return
        if self._step < self._retry_step:
            return
        to_come = self._all_to_come()
        admitted: list[Request] = []
        hopeless: list[Request] = []
        for request in self._policy(self._queue, self._pages.tree):
            rows = self._rows.available - sum(fetch.wanted for fetch in self._lower.fetches)
            if rows <= 0 or self._budget <= 0 or len(admitted) == self.limits.prefill_max_requests:
                break
            if request.waits:
                continue
            if self.limits.pages_for(request.tokens.size) > self.limits.usable_pages:
                hopeless.append(request)
                continue
            # A token in flight has no value yet that a new row could start from.
            if request.pending or not self._try_admit(step, request, to_come):
                if request.waits:  # for its pages: others go first
                    to_come += self._lower.fetches[-1].missing(self._expected(request))
                    continue
                break
            to_come += self._pages_to_come(request)
            admitted.append(request)
        for request in admitted:
            self._queue.remove(request)
            self._note_admission(request, now)
        for request in hopeless:
            self._outbox.append(self._fail(request, BAD_REQUEST, self._too_large(request)))

    def _try_admit(self, step: StepBuilder, request: Request, to_come: int) -> bool:
        """Match, find room, take a row, grant. → whether the request runs now"""
        limits, cap = self.limits, request.match_cap
        match = self._pages.match(request, cap)
        must = limits.pages_for(request.tokens.size) - len(match.pages)
        whole = limits.chunked or request.tokens.size - match.tokens <= self._budget or not step.prompt_tokens
        if not self._fits(request, match, to_come) or not whole:
            self._pages.unmatch(match)
            if whole:
                self._retry_step = self._step + RETRY_STEPS
            return False
        if self._lower.fetch(request, match, cap):
            return False
        if self._constraints is not None:
            self._constraints.enter(request)
        self._rows.take(request, match.tokens, match.pages)
        self._pages.open(request, match)
        self._filling[request.row] = request
        step.setup(request)
        step.page_run(request.row, 0, match.pages)
        self._copy_part(step, request, match, cap, must)
        cached = int(self._rows.computed[request.row])
        if not request.retractions:
            request.cached_tokens = cached
        self._lower.admitted(request, cached)
        granted = self._grant_prompt(step, request)
        assert granted, "an admitted request got no grant"
        return True

    def _fits(self, request: Request, match: Match, to_come: int) -> bool:
        """Whether there are pages for a request whose match is locked, and for the `to_come` of those that run."""
        have, alone = len(match.pages), not self._rows.running
        need = self._expected(request) - have
        must = self.limits.pages_for(request.tokens.size) - have
        # With nothing else running everything can be evicted, and waiting would not help.
        available = self._pages.free_up(must) if alone else self._pages.available
        return must <= available and (alone or need + to_come <= available)

    def _preempt(self) -> None:
        """Send running requests back to the queue where there is no room for the first in line and it is far more
        urgent. Before anything is granted: a row that has its grant must not lose its pages in the same step."""
        threshold = self.limits.preemption_threshold
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
            self._retract(least)
        self._pages.unmatch(match)

    def _all_to_come(self) -> int:
        return pages_to_come(self._rows, self._ratio.value, self.limits) + self._lower.to_come(self._expected)

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
        if written:
            step.page_run(request.row, len(match.pages), np.array([source], np.int32))
            self._pages.redirect(request, len(match.pages))
        else:
            step.page_run(request.row, len(match.pages), fresh)
        self._rows.add_pages(request, fresh)
        self._rows.computed[request.row] += tokens

    def _expected(self, request: Request) -> int:
        return expected_pages(request, self._ratio.value, self.limits)

    def _pages_to_come(self, request: Request) -> int:
        have = int(self._rows.capacity[request.row]) // self.limits.page_size
        return max(0, self._expected(request) - have)

    def _note_admission(self, request: Request, now: float) -> None:
        self._admissions += 1
        request.admission = self._admissions
        if not request.retractions:
            request.queue_time = max(0.0, now - request.received)
            self.totals.prompt_tokens += request.prompt_length
            self.totals.cached_tokens += request.cached_tokens

    def _make_room(self) -> bool:
        """Free the pages of one running request. → whether it was retracted"""
        running = list(self._rows.running.values())
        for request in running:
            if self._rows.computed[request.row] >= request.work and request.draft is None:
                self._leave_row(request)  # all its work is launched: it loses nothing
                request.state = State.LANDING
                return False
        if len(running) == 1:
            self._outbox.append(self._fail(running[0], BAD_REQUEST, self._too_large(running[0])))
            return False
        by_level = self.limits.policy == "priority"
        least = min(running, key=lambda item: (level(item) if by_level else 0, -item.admission))
        self._ratio.retracted(self._rows)
        self._retract(least)
        return True

    def _retract(self, request: Request) -> None:
        self._leave_row(request)
        self._put_back(request)
        self.totals.num_retracted_requests += 1

    def _put_back(self, request: Request) -> None:
        """To the front of the queue, with its tokens."""
        request.state = State.WAITING
        request.retractions += 1
        self._queue.put_back(request)

    def _too_large(self, request: Request) -> str:
        return (
            f"The request has grown to {self._rows.known(request)} tokens, but the KV cache holds only "
            f"{self.limits.capacity}; lower max_new_tokens or start the server with more KV memory."
        )

    # ---- process ----

    def process(self, plan: StepPlan, result: StepResult, now: float | None = None) -> list[Message]:
        """What the outcome of `plan` means to clients: endings, and one `Tokens` for the whole step."""
        now = time.time() if now is None else now
        messages = self.take_messages()
        step = self._flights.pop(plan.step)
        requests = step.requests
        for index, sentence in result.failed.items():
            if requests[index].state is not State.ENDED:
                messages.append(self._fail(requests[index], INTERNAL, sentence, keep=False))
        for wish in plan.logprobs:
            values = result.prompt_logprobs.get(wish.index)
            logprobs = requests[wish.index].logprobs
            if values is not None and logprobs is not None:
                logprobs.keep(wish, values)
        news = News()
        self._take_tokens(step, plan, result, news, now)
        for index in step.ending:
            request = requests[index]
            if request.state is not State.ENDED:
                news.ending(request, {"type": "length", "length": 0}, now)
                self._end(request)
        for index, vector in result.embeddings.items():
            request = requests[index]
            if request.state is not State.ENDED:
                data = np.asarray(vector, "<f4").tobytes()
                messages.append(Embedding(request.rid, data, request.prompt_length))
                self._end(request)
        self.totals.generation_tokens += news.size
        if news.rids:
            messages.append(news.message())
        messages += self.take_messages()
        if self._suspects:
            self._clear_suspect()
        if not self._rows.running:
            self._ratio.idle()
        return messages

    def _take_tokens(self, step: StepBuilder, plan: StepPlan, result: StepResult, news: News, now: float) -> None:
        """Append the step's tokens; all rows at once but for those of which more than a token is to be told."""
        columns, tokens = self._rows, result.tokens
        at = np.flatnonzero(plan.samples)
        ended = np.zeros(len(at), np.bool_)
        ended[result.ended] = True
        rows = plan.rows[at]
        if columns.given != step.given:
            here = columns.tenant[rows] == step.tenants[at]
            # the others have ended, or lost their rows while this token was on its way
            late = (at[~here].tolist(), tokens[~here].tolist(), ended[~here].tolist())
            for index, token, end in zip(*late, strict=True):
                request = step.requests[index]
                if request.state is not State.ENDED and index not in step.drafts:
                    self._take_late(request, token, news, now, result.output_logprobs.get(index), end)
            at, rows, tokens, ended = at[here], rows[here], tokens[here], ended[here]
        if columns.bound:
            bound = columns.constrained[rows]
            for index, token in zip(at[bound].tolist(), tokens[bound].tolist(), strict=True):
                if index in step.drafts:
                    self._judge_draft(step.requests[index], token, news, now)
                else:
                    self._take_bound(step.requests[index], token, news, now, result.output_logprobs.get(index))
            at, rows, tokens, ended = at[~bound], rows[~bound], tokens[~bound], ended[~bound]
        look = columns.append(rows, tokens) | ended
        if not look.any():
            news.plain(columns.rids.take(rows).tolist(), tokens)
            return
        plain = ~look
        news.plain(columns.rids[rows[plain]].tolist(), tokens[plain])
        for index, token, end in zip(at[look].tolist(), tokens[look].tolist(), ended[look].tolist(), strict=True):
            request = step.requests[index]
            columns.looked(request)
            self._tell(request, [token], news, now, result.output_logprobs.get(index), end)

    def _take_late(
        self, request: Request, token: int, news: News, now: float, logprobs: PositionLogprobs | None, ended: bool
    ) -> None:
        """A token of a request that lost its row while it was on its way."""
        if request.surplus:
            request.surplus -= 1
            return
        request.pending -= 1
        tokens = [token]
        if request.grammar is not None and request.table is None:
            assert self._constraints is not None
            try:
                undone = self._constraints.take(request, token)
                if undone is not None:
                    self._take_back(request, undone)
                    if request.state is State.LANDING:
                        self._put_back(request)  # more tokens are to be made than was thought
                    return
                if not request.pending:
                    room = request.limit - request.tokens.size - 1
                    tokens += self._constraints.jump(request, token, room, 0, self._rows.bound)
            except GrammarFailure as error:
                self._fail_bound([(request, str(error), error.ours)])
                return
        request.tokens.extend(np.array(tokens, np.int32))
        self._tell(request, tokens, news, now, logprobs, ended)

    def _take_bound(
        self, request: Request, token: int, news: News, now: float, logprobs: PositionLogprobs | None
    ) -> None:
        """A token of a running request that has a grammar, and those that the grammar makes follow it."""
        if request.surplus:
            request.surplus -= 1
            return
        assert self._constraints is not None
        columns = self._rows
        draft, request.draft = request.draft, None
        assert draft is None or draft.sure
        try:
            undone = self._constraints.take(request, token)
            if undone is not None:
                columns.length[request.row] -= 1
                self._go_back(request, undone)
                return
            flying = columns.flying(request) - 1
            room = request.limit - columns.known(request) - 1
            more = self._constraints.jump(request, token, room, flying, columns.bound)
        except GrammarFailure as error:
            self._fail_bound([(request, str(error), error.ours)])
            return
        tokens = [token, *more]
        columns.put(request, tokens)
        self._tell(request, tokens if draft is None else [draft.token, *tokens], news, now, logprobs)
        if request.state is State.RUNNING and (self._write_draft(request, len(more) - flying) or more):
            self._jump(request, flying)

    def _write_draft(self, request: Request, gain: int) -> bool:
        """Let the text go on by a draft, if there is one; `gain` tokens before it are more than what is launched
        will draw. → whether there is"""
        assert self._constraints is not None
        columns = self._rows
        if columns.bound > DRAFTING or not columns.available:
            return False
        if gain < 0 or columns.known(request) + 2 > request.limit:
            return False
        request.draft = self._constraints.draft(request)
        if request.draft is None:
            return False
        request.draft.row = columns.lend()
        columns.put(request, [request.draft.token])
        return True

    def _judge_draft(self, request: Request, token: int, news: News, now: float) -> None:
        """`token` was drawn where the draft stands."""
        assert self._constraints is not None
        draft, columns = request.draft, self._rows
        assert draft is not None
        columns.give_lent(draft.row)
        draft.row = 0
        if token == draft.token:
            draft.sure = True  # it is told together with the token behind it, which comes next
            return
        self._constraints.missed()
        self._jump(request, columns.flying(request))
        self._drop_draft(request)
        try:
            if self._constraints.take(request, token) is not None:
                raise GrammarFailure("The constraint refuses a token that it allowed.", ours=True)
            room = request.limit - request.tokens.size - 1
            more = self._constraints.jump(request, token, room, 0, columns.bound)
        except GrammarFailure as error:
            self._fail_bound([(request, str(error), error.ours)])
            return
        tokens = [token, *more]
        request.tokens.extend(np.array(tokens, np.int32))
        self._rewind(request, request.tokens.size - len(tokens))
        self._tell(request, tokens, news, now, None)

    def _drop_draft(self, request: Request) -> None:
        """Forget the draft; whatever is drawn behind it is surplus."""
        columns, draft = self._rows, request.draft
        assert draft is not None
        request.surplus += columns.flying(request)
        request.tokens.size -= 1
        columns.length[request.row] = request.tokens.size
        request.grammar, request.draft = draft.before, None
        if draft.row:
            columns.give_lent(draft.row)

    def _fail_bound(self, failures: list[tuple[Request, str, bool]]) -> None:
        """Constraints have failed: with a sentence, and whether that is our fault."""
        for request, sentence, ours in failures:
            self._outbox.append(self._fail(request, INTERNAL if ours else BAD_REQUEST, sentence))

    def _jump(self, request: Request, flying: int) -> None:
        """The host knows better than the device: the `flying` tokens on their way are surplus, and the row goes on
        from the host's tokens."""
        columns, row = self._rows, request.row
        request.surplus += flying
        columns.fold(request)
        columns.length[row] = request.tokens.size
        del self._decoding[row]
        self._decoders = None
        self._jumping[row] = request

    def _go_back(self, request: Request, undone: int) -> None:
        """The newest token is not taken, nor are the `undone` ones before it: the row draws again behind them."""
        self._jump(request, self._rows.flying(request))
        self._take_back(request, undone)
        self._rewind(request, request.tokens.size - 1)

    def _rewind(self, request: Request, right: int) -> None:
        """The tokens of a row that jumps have changed: at most `right` of them have the KV that they should."""
        columns, row = self._rows, request.row
        columns.length[row] = request.tokens.size
        columns.computed[row] = min(int(columns.computed[row]), right)
        if columns.computed[row] < request.shared * self.limits.page_size:
            # The tree keeps pages of tokens that are undone now (it got them when memory was short): nobody may
            # write there again. The row begins anew with those that still hold.
            self._leave_row(request)
            self._put_back(request)

    def _take_back(self, request: Request, undone: int) -> None:
        """Drop the newest tokens, which no client has been told of.

        Raises:
            GrammarFailure: clients have been told.
        """
        if undone > len(request.held):
            raise GrammarFailure("The constraint takes back tokens that have been sent.", ours=True)
        if undone:
            del request.held[-undone:]
            del request.held_logprobs[-undone:]
            request.tokens.size -= undone

    def _tell(
        self,
        request: Request,
        tokens: list[int],
        news: News,
        now: float,
        logprobs: PositionLogprobs | None,
        ended: bool = False,
    ) -> None:
        """The news of one request's newest tokens, and its end if these were the last; `ended` as for
        `finish_reason`."""
        reason = finish_reason(request, tokens[-1], self._rows.known(request), ended)
        values = [] if logprobs is None else [logprobs]
        if request.held or (request.grammar is not None and request.grammar.revises):
            request.held += tokens
            request.held_logprobs += values
            if reason is None:
                return
            tokens, values = request.held, request.held_logprobs
        news.tokens(request, tokens, reason, now)
        if values:
            news.logprobs(tokens[-len(values) :], values)
        if reason is not None:
            self._end(request)

    def masks(self, plan: StepPlan) -> np.ndarray | None:
        """What may come next in the masked rows of a launched plan, [G, words]; None without such rows. All
        results before it have been processed. Requests whose constraints fail end (see `take_messages`)."""
        if not len(plan.masked):
            return None
        assert self._constraints is not None
        step = self._flights[plan.step]
        here = self._rows.tenant[plan.rows[plan.masked]] == step.tenants[plan.masked]
        rows: list[tuple[Request, GrammarState | None, int] | None] = []
        for index, there in zip(plan.masked.tolist(), here.tolist(), strict=True):
            request = step.requests[index]
            wanted = there and not request.surplus  # whatever is drawn for others is dropped
            grammar, made = request.grammar, self._rows.known(request) - request.prompt_length
            if index in step.drafts and request.draft is not None:
                grammar, made = request.draft.before, made - 1
            rows.append((request, grammar, made) if wanted else None)
        masks, failed = self._constraints.masks(rows)
        self._fail_bound(failed)
        return masks

    # ---- steps that raised ----

    def abandon(self, plans: list[StepPlan], sentence: str) -> list[Message]:
        """A step raised: `plans` are it and all later ones, none of which has a result; all earlier ones have been
        processed. A request that was alone in the step fails. Otherwise nobody knows who is at fault: all of its
        requests start over one at a time, nothing beside them, until each has got through its prompt.
        The cache is emptied, since nobody knows what was written.
        """
        messages = self.take_messages()
        if plans[0].step not in self._flights:  # given up already, with an earlier one
            return messages
        assert plans[0].step == min(self._flights), "an earlier step has not been processed"
        steps = [self._flights.pop(number) for number in list(self._flights)]
        for step in steps:
            step.forget_wishes()
        live = [request for request in steps[0].requests if request.state is not State.ENDED]
        live = list(dict.fromkeys(live))  # a draft has two rows
        if len(set(steps[0].requests)) == 1:
            messages += [self._fail(request, INTERNAL, sentence, keep=False) for request in live]
            live = []
        for request in list(self._requests.values()):
            if request.state is State.RUNNING:
                self._leave_row(request, keep=False)
            if request.state is not State.WAITING:
                self._put_back(request)
            request.pending = request.surplus = 0
        self._suspects += [request for request in live if request not in self._suspects]
        self._lower.reset()
        self._pages.flush()
        if self._constraints is not None:
            self._constraints.distrust()
        return messages

    def _grant_suspect(self, step: StepBuilder, now: float) -> None:
        """Let the first suspect go on, alone, when no other step is on its way."""
        if self._flights:
            return
        request = self._suspects[0]
        if request.state is State.RUNNING:
            self._grant_prompts(step)
        elif not request.waits and self._try_admit(step, request, 0):
            self._queue.remove(request)
            self._note_admission(request, now)

    def _clear_suspect(self) -> None:
        """A step went well. A suspect that got through its prompt waits, its KV cached, for the others."""
        request = self._suspects[0]
        if request.row in self._decoding or request.row in self._jumping:
            self._leave_row(request)
            self._put_back(request)
            self._suspects.remove(request)

    # ---- what others may see ----

    def stats(self, now: float) -> Stats:
        """Gauges and counters, named as on the metrics page without prefix."""
        limits, pages = self.limits, self._pages
        throughput, hit_rate = self._rates.update(self.totals, now, self.idle)
        used = pages.pool.total - pages.available
        gauges: dict[str, float] = {
            "num_running_reqs": len(self._rows.running),
            "num_queue_reqs": len(self._queue),
            "num_grammar_queue_reqs": self._constraints.waiting if self._constraints is not None else 0,
            "token_usage": used / pages.pool.total,
            "cache_hit_rate": hit_rate,
            "gen_throughput": throughput,
            "num_used_tokens": used * limits.page_size,
            "kv_available_tokens": pages.pool.available * limits.page_size,
            "kv_evictable_tokens": pages.tree.evictable * limits.page_size,
            "kv_pinned_tokens": pages.tree.pinned * limits.page_size,
            "max_total_num_tokens": limits.capacity,
            "page_size": limits.page_size,
            "num_pages": limits.usable_pages,
            "context_len": limits.context_length,
            "new_token_ratio": self._ratio.value,
        }
        gauges |= self._lower.gauges()
        counters = self.totals.counters(pages.evicted_tokens) | self._lower.counters()
        if self._constraints is not None:
            counters |= self._constraints.counters()
        return Stats(gauges, counters, self.idle)

    def cache_tree(self, **options: Any) -> dict[str, Any]:
        """A picture of the prefix cache; `options` and the answer are those of `tree_view`."""
        return self._pages.view(**options)

    def overview(self, limit: int) -> dict[str, Any]:
        """Where the first `limit` running and the first `limit` waiting requests are."""
        return overview(self._rows, self._queue, limit)

    def take_times(self) -> dict[str, list[float]]:
        """Durations in seconds since the last call, by the name of their histogram on the metrics page."""
        if self._constraints is None:
            return {}
        return {"grammar_compilation_time_seconds": self._constraints.take_times()}

    def warm_up(self) -> None:
        """Prepare, beside the loop, what the first constraint would otherwise wait for."""
        if self._constraints is not None:
            self._constraints.warm_up()

    def close(self) -> None:
        """End what runs beside the engine's loop."""
        if self._constraints is not None:
            self._constraints.close()
        self._lower.close()

    def check(self) -> None:
        """Assert the invariants; cheap enough for tests and for an idle engine, not for every step."""
        rows, limits = self._rows, self.limits
        running = list(rows.running.values())
        self._pages.check(running, [fetch.load.pages for fetch in self._lower.fetches])
        self._lower.check()
        assert len(running) + rows.available + rows.lent == rows.count, "a row is lost"
        lent = [request.draft.row for request in running if request.draft is not None and request.draft.row]
        assert len(set(lent)) == rows.lent, "a lent row is lost"
        assert rows.running == self._filling | self._decoding | self._jumping
        assert len(running) == len(self._filling) + len(self._decoding) + len(self._jumping)
        assert not rows.made[rows.tenant == 0].any(), "a free row has tokens"
        assert rows.bound == sum(request.grammar is not None for request in running), "grammars are miscounted"
        if self._decoders is not None:
            left = set(self._decoding) - set(self._decoders.rows.tolist())
            assert len(left) + len(self._decoders.rows) == len(self._decoding), "another row decodes"
            assert all(rows.computed[row] >= rows.work[row] for row in left), "a row that could decode is left out"
            assert self._decoders.tenants.tolist() == rows.tenant[self._decoders.index].tolist()
        for row, request in rows.running.items():
            computed, length = int(rows.computed[row]), int(rows.length[row])
            assert request.state is State.RUNNING
            assert request.row == row
            assert computed <= length <= max(request.limit, request.prompt_length), "more computed than exists"
            assert rows.known(request) <= length, "more tokens known than exist"
            assert computed <= rows.capacity[row], "KV without pages"
            assert request.shared * limits.page_size <= computed, "shared pages that are not computed"
        waiting = list(self._queue)
        assert all(request.state is State.WAITING and request.node is None for request in waiting)
        assert len(waiting) == len(self._queue), "the queue miscounts"
        landing = sum(request.state is State.LANDING for request in self._requests.values())
        assert len(self._requests) == len(running) + len(waiting) + landing, "a request is lost"
