"""How much memory a request is expected to need, so that admitting it rarely leads to a retraction later.

A request is expected to make a share, `NewTokenRatio.value`, of the tokens it may make; the share falls
while all goes well and rises when the guess was too low. Must not know the tree or policies.
"""

from __future__ import annotations

import math

import numpy as np

from radixlang.scheduler.limits import SchedulerLimits
from radixlang.scheduler.request import Request
from radixlang.scheduler.rows import Rows

START_RATIO = 0.7
FLOOR_SHARE = 0.14
DECAY_STEPS = 600
RETRACT_LOOKAHEAD = 20
CLIP = 4096
"""no request is expected to make more tokens than this; most end long before a large limit"""


class NewTokenRatio:
    """The expected share of `max_new_tokens` that requests use."""

    def __init__(self, conservativeness: float) -> None:
        self.start = min(START_RATIO * conservativeness, 1.0)
        self.floor = FLOOR_SHARE * self.start
        self.value = self.start

    def step(self, count: int = 1) -> None:
        """So many steps in which rows decoded and none was retracted."""
        self.value = max(self.floor, self.value - count * (self.start - self.floor) / DECAY_STEPS)

    def retracted(self, rows: Rows) -> None:
        """The guess was too low: at least the share seen so far, and some steps more, are to be expected."""
        running = rows.running.values()
        made = sum(rows.known(request) - request.prompt_length + RETRACT_LOOKAHEAD for request in running)
        allowed = sum(request.limit - request.prompt_length for request in running)
        self.value = min(1.0, max(self.start, made / (allowed + 1)))

    def idle(self) -> None:
        """Nothing runs: what comes next need not resemble what was."""
        self.value = self.start


def expected_pages(request: Request, ratio: float, limits: SchedulerLimits) -> int:
    """Pages that a waiting request is expected to need in all."""
    length = request.tokens.size
    more = math.ceil(min(request.limit - length, CLIP) * ratio)
    return limits.pages_for(max(length, min(length + more, request.work)))


def pages_to_come(rows: Rows, ratio: float, limits: SchedulerLimits) -> int:
    """Pages that the running requests are expected to need beyond those they have."""
    if not rows.running:
        return 0
    index = np.fromiter(rows.running, np.int64, len(rows.running))
    length = rows.length[index]
    more = np.ceil(np.minimum(rows.limit[index] - length, CLIP) * ratio).astype(np.int64)
    tokens = np.minimum(length + more, rows.work[index]) - rows.capacity[index]
    return int((-(-np.maximum(tokens, 0) // limits.page_size)).sum())
