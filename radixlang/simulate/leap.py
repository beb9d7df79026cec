"""The scheduler, with a way to take many decode steps at once.

Between two events (an arrival, an end, a page that is not to be had, an admission that is tried again) the steps
of running rows differ only in numbers that are known beforehand. `calm` says how many such steps there are,
`leap` moves the columns on as that many calls of `schedule` and `process` would have. Everything else is the
engine's own code. Must not know time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from radixlang.plan import Ints
from radixlang.scheduler import Scheduler
from radixlang.scheduler.rows import Longs


class Calm(NamedTuple):
    """Rows that decode, and for how many steps nothing else can happen (at least 1)."""

    rows: npt.NDArray[np.intp]
    known: Longs
    """tokens of each that the host knows: the position of the next one that it is told"""
    computed: Longs
    """of each, at the next step"""
    steps: int


class LeapScheduler(Scheduler):
    """A `Scheduler` without constraints, whose steps' results come in order, at most one of them late."""

    def calm(self) -> Calm | None:
        """None when the next step must be planned."""
        if not self.steady or len(self.flights) > 1:
            return None
        columns, decoders, flights = self.rows, self.phases.decoders(), len(self.flights)
        rows = decoders.index
        if not len(rows) or len(rows) < len(self.phases.decoding):
            return None
        # A row whose next token is looked at by itself, such as its first, has no calm step.
        steps = int((columns.look_from.take(rows) - columns.made.take(rows)).min()) - 1
        if len(self.queue):
            if self.limits.queue_timeout is not None:
                return None
            if columns.available:
                steps = min(steps, self.admission.retry_step - self.next_step)
        for step in self.flights.values():
            # What is on its way must be such a step of the same rows: it becomes the last of the steps leapt over.
            same = len(step.tenants) == len(rows) and bool((step.tenants == decoders.tenants).all())
            if step.prompt_tokens or step.ending or not same:
                return None
        computed = columns.computed.take(rows)
        while steps > 0 and self._pages_in(rows, computed, steps).sum() > self.pages.available:
            steps //= 2
        if steps < 1:
            return None
        return Calm(rows, columns.length[rows] - flights, computed, steps)

    def _pages_in(self, rows: npt.NDArray[np.intp], computed: Longs, steps: int) -> Longs:
        """Pages that each row lacks for the tokens of so many steps."""
        size = self.limits.page_size
        missing: Longs = -(-(computed + steps) // size) - self.rows.capacity[rows] // size
        return np.maximum(missing, 0)

    def leap(self, calm: Calm, steps: int, tokens: Ints) -> None:
        """Take `steps` of the calm steps. `tokens` [rows, steps]: what the rows are told from `calm.known` on."""
        columns, rows = self.rows, calm.rows
        counts = self._pages_in(rows, calm.computed, steps)
        self.pages.begin_step()
        if counts.any():
            pages = self.pages.take(int(counts.sum()))
            assert pages is not None
            owners = np.repeat(rows, counts)
            first = np.repeat(columns.capacity[rows] // self.limits.page_size, counts)
            nth = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
            columns.pages[owners, first + nth] = pages
            columns.capacity[rows] += counts * self.limits.page_size
        made = columns.made[rows]
        columns.outputs[rows[:, None], made[:, None] + np.arange(steps)] = tokens
        columns.made[rows] = made + steps
        columns.computed[rows] += steps
        columns.length[rows] += steps
        self.totals.generation_tokens += steps * len(rows)
        self.skip_decodes(steps)
