"""How long each step took, and how much work was in it: what a cost model is fitted from.

`StepLog` stands before an executor. Must not know what runs on it, nor what the log is for.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, NamedTuple

from radixlang.plan import StepPlan, StepResult


class Work(NamedTuple):
    """The work of one step, in what its time depends on."""

    prompt_tokens: int
    """tokens of rows that compute more than one"""
    prompt_pairs: int
    """pairs of token and key that their attention looks at"""
    rows: int
    """rows that compute one token"""
    context: int
    """tokens whose KV those rows read"""

    @classmethod
    def of(cls, plan: StepPlan) -> Work:
        if plan.tokens == plan.size:
            return cls(0, 0, plan.size, int(plan.starts.sum()))
        tokens = pairs = rows = context = 0
        for start, count in zip(plan.starts.tolist(), plan.counts.tolist(), strict=True):
            if count == 1:
                rows += 1
                context += start
            else:
                tokens += count
                pairs += count * start + count * (count + 1) // 2
        return cls(tokens, pairs, rows, context)


class StepLog:
    """An executor that logs the steps of the one it is given.

    A step's time is that between its result and the one before, so that all times together are the time that
    passed; after a pause (`idle`) it begins with the launch.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._works: deque[Work] = deque()
        self._since: float | None = None
        self.steps: list[tuple[Work, float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def idle(self) -> None:
        """Nothing is on its way, and the clock does not count."""
        self._since = None

    def begin(self) -> None:
        """The clock counts from now on, though nothing is launched yet."""
        self._since = time.perf_counter()

    def launch(self, plan: StepPlan) -> Any:
        if self._since is None:
            self._since = time.perf_counter()
        self._works.append(Work.of(plan))
        return self._inner.launch(plan)

    def result(self, ticket: Any) -> StepResult:
        value: StepResult = self._inner.result(ticket)
        now = time.perf_counter()
        assert self._since is not None, "a result without a launch"
        self.steps.append((self._works.popleft(), now - self._since))
        self._since = now
        return value
