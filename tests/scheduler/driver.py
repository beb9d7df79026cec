"""Drives a scheduler and the fake executor as the engine does, with or without overlap, and judges every answer
against the same request alone."""

from __future__ import annotations

import random
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from radixlang.grammar.errors import GrammarFailure
from radixlang.messages import (
    Embedding,
    Failed,
    Generate,
    GrammarSpec,
    Logprobs,
    PinWish,
    RequestMeta,
    Tokens,
    pack_ids,
    unpack_ids,
)
from radixlang.plan import StepPlan
from radixlang.sampling_params import SamplingParams
from radixlang.scheduler import Scheduler, SchedulerLimits
from radixlang.scheduler.constraints import Constraints
from radixlang.scheduler.request import State
from tests.fakes import FakeExecutor, FakeModel
from tests.scheduler.toy_grammar import EOS, ToyGrammar, ToyManager


@dataclass
class Outcome:
    """Everything the engine said about one request."""

    message: Generate
    tokens: list[int] = field(default_factory=list)
    finish: dict[str, Any] | None = None
    metas: list[RequestMeta] = field(default_factory=list)
    failed: Failed | None = None
    embedding: np.ndarray | None = None
    prompt_logprobs: list[Logprobs] = field(default_factory=list)
    output_logprobs: list[Logprobs] = field(default_factory=list)
    aborted: bool = False
    started_step: int = -1

    @property
    def ended(self) -> bool:
        return self.aborted or self.finish is not None or self.failed is not None or self.embedding is not None


class Driver:
    """The engine's loop. `depth` is how many steps may be launched ahead of the one whose result is processed:
    0 without overlap, 1 as the engine overlaps. `jump`: forced tokens are written without asking the model."""

    def __init__(
        self,
        limits: SchedulerLimits,
        depth: int,
        model: FakeModel | None = None,
        jump: bool = True,
        **fake: Any,
    ) -> None:
        self.limits = limits
        self.model = model or FakeModel()
        self.grammars = ToyManager()
        self.constraints = Constraints(self.grammars, jump)  # type: ignore[arg-type]
        self.scheduler = Scheduler(limits, now=1.0, constraints=self.constraints)
        self.executor = FakeExecutor(
            limits.num_pages,
            limits.page_size,
            limits.max_running_requests,
            limits.context_length,
            self.model,
            **fake,
        )
        self.depth = depth
        self.flights: deque[tuple[StepPlan, Any]] = deque()
        self.outcomes: dict[str, Outcome] = {}
        self.now = 1.0
        self.steps = 0
        self.seen: Counter[str] = Counter()
        """what the programs exercised"""
        self.plans: list[StepPlan] = []
        """the most recent plans"""

    def add(self, rid: str, prompt: list[int], **fields: Any) -> Outcome:
        sampling = fields.pop("sampling", None) or SamplingParams(
            max_new_tokens=fields.pop("max_new_tokens", 8), temperature=0.0
        )
        message = Generate(rid=rid, input_ids=pack_ids(prompt), sampling=sampling, received=self.now, **fields)
        outcome = self.outcomes[rid] = Outcome(message)
        outcome.failed = self.scheduler.add(message, self.now)
        return outcome

    def abort(self, rid: str, message: str | None = None) -> None:
        outcome = self.outcomes[rid]
        request = self.scheduler.request(rid)
        if request is not None:
            self.seen[f"abort {request.state.name}"] += 1
            if request.pending:
                self.seen["abort pending"] += 1
        failed = self.scheduler.abort(rid, message)
        assert (failed is not None) == (message is not None and request is not None)
        outcome.aborted = outcome.aborted or not outcome.ended

    def step(self) -> bool:
        """One turn of the loop. → whether anything happened"""
        self.now += 0.01
        plan = self.scheduler.schedule(self.now)
        self._receive(self.scheduler.take_messages())
        self.grammars.work()
        for request in map(self.scheduler.request, self.scheduler.rids()):
            self.seen["landing"] += request.state is State.LANDING
            self.seen["pending"] += request.pending > 0 and request.state is State.WAITING
            if request.grammar is not None:
                self.seen["landing, bound"] += request.state is State.LANDING
                self.seen["pending, bound"] += request.pending > 0 and request.state is State.WAITING
                self.seen["surplus, running"] += request.surplus > 0 and request.state is State.RUNNING
                self.seen["surplus, waiting"] += request.surplus > 0 and request.state is State.WAITING
        if plan is not None:
            self.steps += 1
            self.plans = [*self.plans[-2:], plan]
            self.seen["copied behind"] += plan.copies is not None
            self._judge(plan)
            self.flights.append((plan, self.executor.launch(plan)))
        else:
            assert self.flights or self.scheduler.idle or self._all_wait(), (
                "work is left, but nothing is scheduled"
            )
        done = False
        while self.flights and (len(self.flights) > self._ahead(plan) or plan is None):
            self._process(*self.flights.popleft())
            done = True
            if plan is None:
                break
        if plan is not None and self.flights and len(plan.masked):
            self._sample(plan)
            if self.depth == 0:
                self._process(*self.flights.popleft())
        return plan is not None or done or bool(self.constraints.waiting)

    def _ahead(self, plan: StepPlan | None) -> int:
        """Masks are made when all earlier results are known, and before the next launch."""
        return 1 if plan is not None and len(plan.masked) else self.depth

    def _sample(self, plan: StepPlan) -> None:
        masks = self.scheduler.masks(plan)
        self._receive(self.scheduler.take_messages())
        self.executor.sample(plan.step, masks)
        if self.steps % 8 == 0:
            self.scheduler.check()

    def _all_wait(self) -> bool:
        return all(self.scheduler.request(rid).waits for rid in self.scheduler.rids())

    def _process(self, plan: StepPlan, ticket: Any) -> None:
        try:
            result = self.executor.result(ticket)
        except RuntimeError as error:
            later = list(self.flights)
            self.flights.clear()
            for _, follower in later:
                with suppress(RuntimeError):
                    self.executor.result(follower)
            self._receive(self.scheduler.abandon([plan, *(item for item, _ in later)], str(error)))
            self.scheduler.check()
            self.seen["abandoned"] += 1
            return
        self._receive(self.scheduler.process(plan, result, self.now))

    def finish(self, most: int = 100_000) -> None:
        """Run until every request has ended and every step is processed."""
        while self.step():
            most -= 1
            assert most > 0, "no end in sight"
        self.scheduler.check()
        assert self.scheduler.idle

    def _judge(self, plan: StepPlan) -> None:
        """The budgets of one step."""
        limits = self.limits
        known = plan.token_ids[np.cumsum(plan.counts) - plan.counts] != -1
        prompts, requests = plan.counts[known], self.scheduler.flights[plan.step].requests
        if len({requests[index].rid for index in np.flatnonzero(known)}) > 1 or limits.chunked:
            assert prompts.sum() <= limits.prompt_budget, "more prompt tokens than the budget"
        assert plan.size <= limits.max_running_requests
        if limits.encoder:
            assert (plan.starts == 0).all()

    def _receive(self, messages: list[Any]) -> None:
        for message in messages:
            if isinstance(message, Tokens):
                self._receive_tokens(message)
                continue
            outcome = self.outcomes[message.rid]
            assert not outcome.ended, "two endings"
            if isinstance(message, Failed):
                outcome.failed = message
            elif isinstance(message, Embedding):
                outcome.embedding = np.frombuffer(message.vector, "<f4")
                assert message.meta.prompt_tokens == len(unpack_ids(outcome.message.input_ids))
                outcome.metas.append(message.meta)

    def _receive_tokens(self, message: Tokens) -> None:
        ids = unpack_ids(message.ids).tolist()
        assert len(set(message.rids)) == len(message.rids)
        for index, rid in enumerate(message.rids):
            outcome = self.outcomes[rid]
            assert not outcome.ended, "news after the end"
            first = not outcome.tokens
            count = message.counts[index]
            outcome.tokens += ids[:count]
            ids = ids[count:]
            outcome.finish = message.finishes[index]
            meta = message.metas[index]
            assert (meta is not None) == (first or outcome.finish is not None)
            if meta is not None:
                outcome.metas.append(meta)
            if first:
                outcome.started_step = self.steps
            if index in message.prompt_logprobs:
                assert first, "prompt log-probabilities belong to the first message"
                outcome.prompt_logprobs.append(message.prompt_logprobs[index])
            if index in message.output_logprobs:
                outcome.output_logprobs.append(message.output_logprobs[index])
        assert ids == []

    # ---- judging ----

    def judge_all(self) -> None:
        for outcome in self.outcomes.values():
            self.judge(outcome)

    def judge(self, outcome: Outcome) -> None:
        """Compare what was said with the request alone."""
        message, limits = outcome.message, self.limits
        assert outcome.ended, f"{message.rid} has no ending"
        if outcome.failed is not None and not outcome.tokens:
            return
        prompt = unpack_ids(message.input_ids).tolist()
        if message.embed:
            if not outcome.aborted:
                expected = self.model.embedding(self.model.contexts(prompt)[-1])
                assert outcome.embedding is not None
                assert outcome.embedding.tolist() == expected.tolist()
            return
        params = message.sampling
        room = min(limits.context_length, limits.capacity + 1) - len(prompt)
        count = room if params.max_new_tokens is None else params.max_new_tokens
        sampling = self.row_sampling(message)
        if message.grammar is not None:
            self._judge_bound(outcome, prompt, count, sampling)
            return
        expected_tokens = self.model.answer(prompt, count, sampling)
        if outcome.finish is None:  # aborted or failed on the way: what came so far was right
            assert outcome.tokens == expected_tokens[: len(outcome.tokens)]
        else:
            assert outcome.tokens == expected_tokens
            if expected_tokens and expected_tokens[-1] in sampling.end_ids:
                assert outcome.finish == {"type": "stop", "matched": expected_tokens[-1]}
            else:
                assert outcome.finish == {"type": "length", "length": count}
        for meta in outcome.metas:
            assert meta.prompt_tokens == len(prompt)
            assert 0 <= meta.cached_tokens < len(prompt)
        if message.return_logprob and outcome.metas:
            self._judge_logprobs(outcome, prompt)

    def _judge_bound(self, outcome: Outcome, prompt: list[int], count: int, sampling: Any) -> None:
        """An answer under a grammar is what one token after the other gives, whether it gets to its end or not."""
        tokens, finish = self._bound_answer(outcome.message, prompt, count, sampling)
        if outcome.finish is None:
            assert outcome.tokens == tokens[: len(outcome.tokens)]
            if outcome.failed is not None and outcome.failed.message.startswith(
                ("The constraint", "Nothing is left")
            ):
                assert finish is None
                assert outcome.failed.status == (500 if outcome.message.grammar.kind == "breaks" else 400)
                self.seen["grammar failed"] += 1
        else:
            assert (outcome.tokens, outcome.finish) == (tokens, finish)
            self.seen[f"bound {finish['type']}"] += 1
            if outcome.message.return_logprob and tokens:
                self._judge_logprobs(outcome, prompt)

    def _bound_answer(
        self, message: Generate, prompt: list[int], count: int, sampling: Any
    ) -> tuple[list[int], dict[str, Any] | None]:
        """(tokens, finish reason), the latter None where the grammar fails."""
        assert message.grammar is not None
        state, output, row = ToyGrammar(message.grammar).start(), [], np.zeros(1, np.int32)
        params = message.sampling
        context = self.model.contexts(prompt)
        while len(output) < count:
            try:
                state.fill(row)
                allowed = [token for token in range(32) if int(row[0]) >> token & 1]
                early = len(output) < params.min_new_tokens
                out = {EOS} if params.ignore_eos or early else set()
                out |= set(sampling.end_ids) if early else set()
                allowed = [token for token in allowed if token not in out] or allowed
                token = self.model.next_token(context[-1], sampling, output, allowed, prompt)
                if not state.accept(token):
                    undone = state.backtrack()
                    self.seen["vetoes"] += 1
                    self.seen["taken back"] += undone
                    output = output[: len(output) - undone]
                    context = self.model.contexts(prompt + output)
                    continue
            except (GrammarFailure, RuntimeError):
                return output, None
            output.append(token)
            position = len(prompt) + len(output) - 1
            context.append(self.model.extend(context[-1], self.model.slot(context[-1], token, position), position))
            if token in sampling.end_ids:
                return output, {"type": "stop", "matched": token}
            if state.finished:
                return output, {"type": "stop", "matched": EOS}
        return output, {"type": "length", "length": count}

    def row_sampling(self, message: Generate) -> Any:
        from radixlang.scheduler.arrivals import Arrivals

        assert message.sampling.temperature == 0 or message.sampling.sampling_seed is not None
        return Arrivals(self.limits).request(message, 1.0).sampling

    def _judge_logprobs(self, outcome: Outcome, prompt: list[int]) -> None:
        message = outcome.message
        contexts = self.model.contexts(prompt + outcome.tokens)
        start = len(prompt) if message.logprob_start_len < 0 else message.logprob_start_len
        positions = list(range(start + 1, len(prompt)))
        assert len(outcome.prompt_logprobs) == (1 if positions else 0)
        everything = [(outcome.prompt_logprobs, positions)] if positions else []
        at = len(prompt)
        for value in outcome.output_logprobs:  # several positions where tokens were held back
            count = len(unpack_ids(value.ids))
            everything.append(([value], list(range(at, at + count))))
            at += count
        assert at == len(prompt) + len(outcome.tokens)
        tokens = prompt + outcome.tokens
        for parts, places in everything:
            expected = self.model.values(
                [contexts[p] for p in places],
                [tokens[p] for p in places],
                message.top_logprobs_num,
                message.token_ids_logprob,
            )
            assert unpack_ids(parts[0].ids).tolist() == [tokens[p] for p in places]
            assert np.frombuffer(parts[0].chosen, "<f4").tolist() == expected.chosen.tolist()
            assert unpack_ids(parts[0].top_ids).tolist() == expected.top_ids.ravel().tolist()
            assert np.frombuffer(parts[0].top, "<f4").tolist() == expected.top.ravel().tolist()
            assert np.frombuffer(parts[0].asked, "<f4").tolist() == expected.ids.ravel().tolist()


def random_sampling(rng: random.Random, most: int, long: bool) -> SamplingParams:
    """Greedy or seeded, short or long, with and without end tokens."""
    count = most if long else rng.choice([0, 1, 2, rng.randint(1, most), None if rng.random() < 0.1 else most])
    return SamplingParams(
        max_new_tokens=count,
        min_new_tokens=rng.randint(0, min(3, count or 0)) if rng.random() < 0.3 else 0,
        temperature=0.0 if rng.random() < 0.5 else 1.0,
        sampling_seed=rng.randrange(1 << 40),
        ignore_eos=rng.random() < 0.5,
        stop_token_ids=(5, 11) if rng.random() < 0.2 else (),
        repetition_penalty=1.0 if rng.random() < 0.8 else 1.5,
    )


def random_prompt(driver: Driver, rng: random.Random, stems: list[list[int]]) -> list[int]:
    """It begins as others do."""
    stem = rng.choice(stems)
    prompt = stem[: rng.randint(1, len(stem))] + [
        rng.randrange(driver.model.vocab_size) for _ in range(rng.randint(0, 6))
    ]
    done = [o for o in driver.outcomes.values() if o.finish and len(o.tokens) > 1]
    if done and rng.random() < 0.3:  # a further turn of an earlier conversation
        earlier = rng.choice(done)
        prompt = unpack_ids(earlier.message.input_ids).tolist() + earlier.tokens + prompt[:3]
    return prompt[: driver.limits.context_length // 2]


def random_program(
    driver: Driver, rng: random.Random, requests: int, longest: int, abort_rate: float, bound: float = 0.0
) -> None:
    """Arrivals in bursts, prompts that share prefixes (also with earlier answers), aborts at any time, checks.
    `bound`: share of requests with a grammar."""
    limits = driver.limits
    stems = [[rng.randrange(driver.model.vocab_size) for _ in range(longest)] for _ in range(3)]
    share_long = rng.choice([0.1, 0.9])
    left = requests
    prompt: list[int] = []
    while left or not driver.scheduler.idle or driver.flights:
        if left and rng.random() < 0.4:
            for _ in range(min(left, rng.randint(1, 6))):
                left -= 1
                if not prompt or rng.random() < 0.7:  # else the same once more
                    prompt = random_prompt(driver, rng, stems)
                wants = rng.random() < 0.25
                grammar = None
                if rng.random() < bound:
                    kind = rng.choice(["plain", "plain", "revises", "revises", "breaks", "wrong"])
                    grammar = GrammarSpec(kind, str(rng.randrange(1 << 30)))
                long = rng.random() < share_long
                driver.add(
                    f"r{left}",
                    prompt,
                    sampling=random_sampling(rng, limits.context_length - len(prompt) if long else 12, long),
                    namespace=rng.choice(["", "", "tenant"]),
                    priority=rng.choice([0, 0, 5, -200]),
                    return_logprob=wants,
                    logprob_start_len=rng.choice([-1, 0, rng.randint(0, len(prompt))]) if wants else -1,
                    top_logprobs_num=rng.randint(0, 2) if wants else 0,
                    token_ids_logprob=(1, 2, 3) if wants and rng.random() < 0.5 else (),
                    embed=not wants and grammar is None and rng.random() < 0.08,
                    grammar=grammar,
                    sample_index=rng.randint(0, 2),
                    pin=PinWish(rng.choice("pqr"), rng.choice([0.03, 60.0])) if rng.random() < 0.2 else None,
                )
        if rng.random() < abort_rate and driver.outcomes:
            driver.abort(rng.choice(list(driver.outcomes)), rng.choice([None, "Enough."]))
        if rng.random() < 0.02:
            driver.seen["unpinned"] += driver.scheduler.unpin([rng.choice("pqr")])
        driver.step()
        driver.seen["pinned"] += bool(driver.scheduler.pins())
        if rng.random() < 0.5:
            driver.scheduler.check()
    driver.scheduler.check()
    driver.judge_all()
    counters = driver.scheduler.totals
    driver.seen["retracted"] += counters.num_retracted_requests
    driver.seen["evicted"] += driver.scheduler.pages.evicted_tokens
    driver.seen["cached"] += counters.cached_tokens
    driver.seen["failed"] += counters.num_failed_requests
    totals = driver.constraints.counters()
    driver.seen["forced"] += int(totals["grammar_forced_tokens_total"])
    driver.seen["drafted"] += int(totals["grammar_drafted_tokens_total"])
    driver.seen["missed"] += int(totals["grammar_missed_drafts_total"])
    driver.scheduler.unpin(list("pqr"))
    assert driver.constraints.waiting == 0
    pages = driver.scheduler.pages
    assert pages.tree.locked == 0
    assert pages.pool.available + pages.tree.total + sum(map(len, pages._retired)) == pages.pool.total
    assert driver.scheduler.flush()
    assert pages.pool.available == pages.pool.total
    driver.scheduler.check()
