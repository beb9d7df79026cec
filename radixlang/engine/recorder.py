"""Where the time of a step goes: a recorder that stands between the loop and what the loop calls.

A loop without a recorder pays nothing for it. Must not know what is measured for what.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from radixlang.plan import StepPlan

#: parts of a turn in the order in which they happen. `wait` is the device's time, all else the host's
HOST_PARTS = ("messages", "plan", "launch", "wait", "result", "process", "send")


@dataclass
class Turn:
    """One round of the loop. `rows` and `tokens` are those of the plan it launched, 0 without one."""

    began: float
    spans: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """seconds of each of `HOST_PARTS`"""
    seconds: float = 0.0
    """the whole turn; set when the next one begins"""
    rows: int = 0
    tokens: int = 0
    device: Any = None
    """the `Submission` that was launched, None on an executor that is not recorded"""

    @property
    def host(self) -> float:
        """Seconds in which the host did not wait for the device."""
        return self.seconds - self.spans["wait"]


class _Timed:
    """Stands before an object: calls of some methods are timed, everything else passes through."""

    def __init__(self, target: Any, **methods: Callable[..., Any]) -> None:
        self._target = target
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


class StepRecorder:
    """Collects `turns`. `device` is the executor's `RecordingPlatform`, if it has one."""

    def __init__(self, device: Any = None) -> None:
        self.device = device
        self.turns: list[Turn] = []
        self._turn = Turn(time.perf_counter())

    def around(self, executor: Any, scheduler: Any, receiver: Any, sender: Any) -> tuple[Any, Any, Any, Any]:
        """The four that a loop works with, timed."""
        timed = self._timed

        def receive(timeout: float | None) -> list[Any]:
            self._begin()
            return read(timeout)

        def launch(plan: StepPlan) -> Any:
            self._turn.rows, self._turn.tokens = plan.size, plan.tokens
            ticket = start(plan)
            if self.device is not None:
                self._turn.device = self.device.last
            return ticket

        def result(ticket: Any) -> Any:
            waited = self._waited()
            try:
                return take(ticket)
            finally:
                waited = self._waited() - waited
                self._turn.spans["wait"] += waited
                self._turn.spans["result"] -= waited

        read, start = timed(receiver.receive, "messages"), timed(executor.launch, "launch")
        take = timed(executor.result, "result")
        return (
            _Timed(executor, launch=launch, result=result),
            _Timed(
                scheduler,
                add=timed(scheduler.add, "messages"),
                abort=timed(scheduler.abort, "messages"),
                schedule=timed(scheduler.schedule, "plan"),
                take_messages=timed(scheduler.take_messages, "plan"),
                process=timed(scheduler.process, "process"),
            ),
            _Timed(receiver, receive=receive),
            _Timed(sender, send=timed(sender.send, "send"), send_all=timed(sender.send_all, "send")),
        )

    def take(self) -> list[Turn]:
        """The turns since the last call, the one in progress left out."""
        turns, self.turns = self.turns, []
        return turns

    def _begin(self) -> None:
        now = time.perf_counter()
        self._turn.seconds = now - self._turn.began
        self.turns.append(self._turn)
        self._turn = Turn(now)

    def _waited(self) -> float:
        return self.device.waited if self.device is not None else 0.0

    def _timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args)
            finally:
                self._turn.spans[part] += time.perf_counter() - began

        return call
