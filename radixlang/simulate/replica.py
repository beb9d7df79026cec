"""One engine in virtual time: the engine's loop over a scheduler, where steps take what the cost model says.

The turns are those of `engine.loop`: with overlap a step is planned and launched before the result of the one
before is waited for. Must not know workloads, routers or other replicas.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from radixlang.bench.steps import Work
from radixlang.bench.workloads import tokens_at
from radixlang.errors import ConfigError
from radixlang.messages import Failed, Generate, Tokens, pack_ids
from radixlang.plan import Ints, RowSetup, StepPlan, StepResult
from radixlang.sampling_params import SamplingParams
from radixlang.scheduler import SchedulerLimits
from radixlang.simulate.cost import CostModel
from radixlang.simulate.leap import LeapScheduler


def vocabulary(limits: SchedulerLimits) -> int:
    """Made-up tokens stay below this."""
    return limits.vocab_size or 32_000


class Job(NamedTuple):
    """A request for a replica. Its answer is the text `key` from the prompt's end on (see `bench.workloads`)."""

    id: int
    arrival: float
    prompt: Ints
    output: int
    key: int


class Done(NamedTuple):
    """What became of a job; times in seconds."""

    id: int
    first: float
    ended: float
    cached_tokens: int


@dataclass(slots=True)
class _Flight:
    """A launched step whose result is not processed; after a leap it stands for the last one leapt over."""

    plan: StepPlan
    seconds: float


class Replica:
    """`exact`: every step is planned and processed by itself; otherwise calm stretches are leapt over, with the
    same outcome."""

    def __init__(
        self, limits: SchedulerLimits, cost: CostModel, overlap: bool = True, exact: bool = False
    ) -> None:
        self.scheduler = LeapScheduler(limits, now=0.0)
        self.time = 0.0
        """when the next turn begins"""
        self.busy = 0.0
        """seconds spent in steps"""
        self.steps = 0
        self._vocab = vocabulary(limits)
        self._cost = cost
        self._overlap = overlap
        self._exact = exact
        self._arrivals: deque[Job] = deque()
        self._firsts: dict[str, float] = {}
        self._flight: _Flight | None = None

    def send(self, job: Job) -> None:
        """A job arrives, not before those sent earlier."""
        self._arrivals.append(job)

    @property
    def idle(self) -> bool:
        """Nothing runs or waits, arrivals of the future aside."""
        return self._flight is None and self.scheduler.idle

    @property
    def next_time(self) -> float | None:
        """When the next turn begins if nothing else arrives; None: never."""
        if not self.idle:
            return self.time
        return max(self.time, self._arrivals[0].arrival) if self._arrivals else None

    def run(self, until: float, first: bool = False) -> list[Done]:
        """All turns that begin before `until`; with `first`, no more after the first in which a job ends."""
        done: list[Done] = []
        while (now := self.next_time) is not None and now < until and not (first and done):
            self.time = now
            self._turn(until, done)
        return done

    def _turn(self, until: float, done: list[Done]) -> None:
        while self._arrivals and self._arrivals[0].arrival <= self.time:
            self._take_in(self._arrivals.popleft())
        if not self._exact and self._leap(until):
            return
        previous, self._flight = self._flight, None
        result = None if previous is None else self._drawn(previous.plan)  # before its rows can change hands
        plan = self.scheduler.schedule(self.time)
        self._hear(self.scheduler.take_messages(), done)
        if plan is not None:
            self.steps += 1
            for setup in plan.setups:
                self._foretell(setup)
            flight = _Flight(plan, self._cost.seconds(Work.of(plan)))
            if self._overlap:
                self._flight = flight
            else:
                previous, result = flight, self._drawn(plan)
        assert previous is not None or plan is not None, "work is left, but nothing is scheduled"
        if previous is not None and result is not None:
            self.time += previous.seconds
            self.busy += previous.seconds
            self._hear(self.scheduler.process(previous.plan, result, self.time), done)

    def _foretell(self, setup: RowSetup) -> None:
        """The rest of the answer, a text that begins where the prompt ends."""
        request = self.scheduler.rows.running[setup.row]
        size = request.tokens.size
        positions = np.arange(size, request.limit, dtype=np.uint64)
        self.scheduler.foretell(setup.row, tokens_at(np.uint64(setup.sampling.seed), positions, self._vocab))

    def _drawn(self, plan: StepPlan) -> StepResult:
        return StepResult(plan.step, self.scheduler.drawn(plan))

    def _take_in(self, job: Job) -> None:
        sampling = SamplingParams(max_new_tokens=job.output, temperature=0, ignore_eos=True, sampling_seed=job.key)
        message = Generate(str(job.id), pack_ids(job.prompt), sampling, received=job.arrival)
        failed = self.scheduler.add(message, self.time)
        if failed is not None:
            why = failed.message.rstrip(".")
            raise ConfigError(
                f"The simulated engine refused a request ({why}); lower --scale, raise --context-length or "
                "--max-total-tokens, or leave this workload or trace out."
            )

    def _hear(self, messages: Sequence[object], done: list[Done]) -> None:
        for message in messages:
            if isinstance(message, Failed):
                raise ConfigError(f"The simulated engine fails a request: {message.message}")
            assert isinstance(message, Tokens)
            for at, meta in enumerate(message.metas):
                if meta is None:
                    continue
                rid = message.rids[at]
                first = self._firsts.setdefault(rid, self.time)
                if message.finishes[at] is not None:
                    del self._firsts[rid]
                    done.append(Done(int(rid), first, self.time, meta.cached_tokens))

    # ---- many steps at once ----

    def _leap(self, until: float) -> bool:
        """Leap over the turns that begin before `until` and before the next arrival. → whether there were any"""
        calm = self.scheduler.calm()
        if calm is None:
            return False
        rows, flight = len(calm.rows), self._flight
        seconds = self._cost.decode_seconds(rows, int(calm.computed.sum()), calm.steps)
        # times[i] is when turn i begins and turn i - 1 ends; added up one by one, as turns do.
        times = np.empty(calm.steps + 1)
        times[0] = self.time
        if flight is None:
            times[1:] = seconds
        else:
            times[1] = flight.seconds
            times[2:] = seconds[:-1]
        times = times.cumsum()
        limit = min(until, self._arrivals[0].arrival) if self._arrivals else until
        steps = min(1 + int(times[1:].searchsorted(limit)), calm.steps)
        self.scheduler.leap(calm, steps)
        now = float(times[steps])
        self.steps += steps
        self.busy += now - self.time
        self.time = now
        if flight is not None:
            flight.seconds = float(seconds[steps - 1])
        return True
