"""Several ranks, one plan: the first rank sends every plan to its followers and all launch it.

All ranks draw the next tokens themselves, from the same logits (gathered on every rank, bit for bit) with the same
seeds: so the tokens need no broadcast, and a decode step stays one graph on every rank.

A plan that cannot be laid out is refused by all ranks alike, before they need each other. Any other failure in a
step may have left ranks waiting for one that does not come: the process ends, and with it the ring.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from radixlang.channel import Receiver, Sender
from radixlang.errors import EngineDeadError, EngineError
from radixlang.executor import Executor
from radixlang.executor.wire import launch_frame, parse, sample_frame, stop_frame
from radixlang.log import get_logger
from radixlang.plan import StepPlan, StepResult

log = get_logger(__name__)

IDLE = 0.05
"""seconds without a plan after which a follower looks how its last step ended"""


class Leader:
    """The `Executor` of the first rank: its own, and the way to the others."""

    def __init__(self, executor: Executor, followers: Sequence[Sender]) -> None:
        self._executor = executor
        self._followers = followers

    def launch(self, plan: StepPlan) -> Any:
        self._tell(launch_frame(plan))
        return self._executor.launch(plan)

    def sample(self, ticket: Any, masks: np.ndarray | None) -> None:
        if len(ticket.plan.masked):
            self._tell(sample_frame(ticket.plan.step, masks))
        self._executor.sample(ticket, masks)

    def result(self, ticket: Any) -> StepResult:
        try:
            return self._executor.result(ticket)
        except EngineError:
            raise
        except Exception as error:
            raise EngineDeadError(
                f"A step failed on rank 0 while the other ranks ran it: {type(error).__name__}: {error}"
            ) from error

    def close(self) -> None:
        self._tell(stop_frame())
        self._executor.close()

    def _tell(self, frame: bytes) -> None:
        for follower in self._followers:
            follower.send(frame)


@dataclass
class _Launched:
    ticket: Any
    step: int
    sampled: bool


def follow(executor: Executor, receiver: Receiver) -> None:
    """Launch what the first rank says until it says stop. Raises what a step fails with on this rank alone."""
    running: deque[_Launched] = deque()
    while True:
        frames = receiver.receive(IDLE if running else None)
        if not frames:
            while running and running[0].sampled:
                _settle(executor, running.popleft())
        for frame in frames:
            kind, content = parse(frame)
            if kind == "stop":
                return
            if kind == "sample":
                step, masks = content
                launched = next(launched for launched in running if launched.step == step)
                executor.sample(launched.ticket, masks)
                launched.sampled = True
                continue
            for earlier in running:
                earlier.sampled = True  # or given up by the first rank, because a step before it was refused
            running.append(_Launched(executor.launch(content), content.step, not len(content.masked)))
            while len(running) > 1 and running[0].sampled:
                _settle(executor, running.popleft())


def _settle(executor: Executor, launched: _Launched) -> None:
    """Wait for a step; its result is the first rank's business."""
    try:
        executor.result(launched.ticket)
    except EngineDeadError:
        raise
    except EngineError as error:
        log.debug("step %d was refused, as on the first rank: %s", launched.step, error)
