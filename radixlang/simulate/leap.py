"""The scheduler, with a way to take many decode steps at once.

Between two events (an arrival, an end, a page that is not to be had, an admission that is tried again) the steps
of running rows differ only in numbers that are known beforehand. `calm` says how many such steps there are,
`leap` moves the columns on as that many calls of `schedule` and `process` would have. Everything else is the
engine's own code. What rows are told stands in `Rows.outputs` beforehand (see `foretell`). Must not know time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from radixlang.plan import Ints, StepPlan
from radixlang.scheduler import Scheduler
from radixlang.scheduler.rows import Longs


class Calm(NamedTuple):
    """Rows that decode, and for how many steps nothing else can happen (at least 1)."""

    rows: npt.NDArray[np.intp]
    computed: Longs
    """of each, at the next step"""
    steps: int


class LeapScheduler(Scheduler):
    """A `Scheduler` without constraints, whose steps' results come in order, at most one of them late."""

    def foretell(self, row: int, tokens: Ints) -> None:
        """All that a row which was just set up will be told, should it keep the row."""
        self.rows.outputs[row, : len(tokens)] = tokens

    def drawn(self, plan: StepPlan) -> Ints:
        """What the step draws, whose result is the next one: in each row the next token that it is told."""
        columns, decoders = self.rows, self.flights[plan.step].alone
        rows = decoders.index if decoders is not None else plan.rows[plan.samples]
        return columns.outputs[rows, columns.made.take(rows)]

    def calm(self) -> Calm | None:
        """None when the next step must be planned."""
        if len(self.flights) > 1 or not self.steady:
            return None
        flight = next(iter(self.flights.values()), None)
        if flight is not None and (flight.prompt_tokens or flight.ending):
            return None
        columns, decoders = self.rows, self.phases.decoders()
        rows = decoders.index
        if not len(rows) or len(rows) < len(self.phases.decoding):
            return None
        if flight is not None and flight.tenants is not decoders.tenants:
            # What is on its way must be such a step of the same rows: it becomes the last of those leapt over.
            if not np.array_equal(flight.tenants, decoders.tenants):
                return None
        # A row whose next token is looked at by itself, such as its first, has no calm step.
        steps = min((columns.look_from.take(rows) - columns.made.take(rows)).tolist()) - 1
        if len(self.queue):
            if self.limits.queue_timeout is not None:
                return None
            if columns.available:
                steps = min(steps, self.admission.retry_step - self.next_step)
        if steps < 1:
            return None
        computed = columns.computed.take(rows)
        available, size = self.pages.available, self.limits.page_size
        if len(rows) * -(-steps // size) > available:  # no row lacks more; what each does lack takes longer to say
            while steps and int(self._pages_in(rows, computed, steps).sum()) > available:
                steps //= 2
        return Calm(rows, computed, steps) if steps else None

    def _pages_in(self, rows: npt.NDArray[np.intp], computed: Longs, steps: int) -> Longs:
        """Pages that each row lacks for the tokens of so many steps."""
        size = self.limits.page_size
        short = computed - self.rows.capacity.take(rows)  # at most 0
        return np.maximum(short + (steps + size - 1), 0) // size

    def leap(self, calm: Calm, steps: int) -> None:
        """Take `steps` of the calm steps."""
        columns, rows = self.rows, calm.rows
        counts = self._pages_in(rows, calm.computed, steps)
        total = int(counts.sum())
        self.pages.begin_step()
        if total:
            pages = self.pages.take(total)
            assert pages is not None
            have = columns.capacity.take(rows) // self.limits.page_size + counts
            indexes = np.arange(total) + (have - counts.cumsum()).repeat(counts)
            columns.pages[rows.repeat(counts), indexes] = pages
            columns.capacity[rows] = have * self.limits.page_size
        columns.made[rows] += steps
        columns.computed[rows] = calm.computed + steps
        columns.length[rows] += steps
        self.totals.generation_tokens += steps * len(rows)
        self.skip_decodes(steps)
