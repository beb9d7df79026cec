"""Decode steps of the same rows, one after another: what they bring to a graph differs in few numbers.

A scheduler shares the arrays of rows that go on between its plans, and nobody changes a plan: plans that hold the
same arrays are about the same rows, which have been checked. Must not know tensors or graphs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radixlang.executor.shapes import Shape
from radixlang.kernels.step_inputs import sections
from radixlang.memory.request_table import RequestTable
from radixlang.plan import Ints, StepPlan


class Repeat:
    """The packed numbers of a decode step, see `kernels.step_inputs`, brought up to date for each that repeats it.

    `plan` has been checked and run in `shape`, from the `packed` numbers, which now belong to this object.
    """

    def __init__(self, plan: StepPlan, shape: Shape, packed: Ints, table: RequestTable, page_size: int) -> None:
        self.shape = shape
        self.packed = packed
        self.rows: npt.NDArray[np.intp] = plan.rows.astype(np.intp)
        """[B] all of them draw"""
        self._plan = plan
        self._page_size = page_size
        self._table = table.host_pages
        self._pages = self._table.reshape(-1)
        self._first_page = self.rows * self._table.shape[1]
        self._longest = self._table.shape[1] * page_size
        _, _, lengths, _, _, drawn, _, positions, slots, self._entries = sections(packed, shape.tokens, shape.rows)
        self._lengths, self._drawn, self._positions, self._slots = (
            part[: plan.size] for part in (lengths, drawn, positions, slots)
        )

    def holds(self, plan: StepPlan) -> bool:
        """The plan is one more step of the same rows, and nothing else."""
        first = self._plan
        return (
            plan.rows is first.rows
            and plan.token_ids is first.token_ids
            and plan.counts is first.counts
            and plan.samples is first.samples
            and plan.pools is first.pools
            and not (plan.setups or plan.logprobs or plan.actions)
            and plan.new_pages.size <= self._entries.size
            and int(plan.starts.max()) < self._longest
        )

    def fill(self, plan: StepPlan, drawn: npt.NDArray[np.int64]) -> None:
        """Bring `packed` and the host's page table up to date. The rows have drawn so many tokens before."""
        starts, entries = plan.starts, plan.new_pages
        self._entries.fill(0)
        if len(entries):
            self._table[entries[:, 0], entries[:, 1]] = entries[:, 2]
            self._entries[: entries.size] = entries.ravel()
        np.add(starts, 1, out=self._lengths)
        self._positions[:] = starts
        self._drawn[:] = drawn
        if len(plan.masked):
            self._drawn[plan.masked] = -1
        index = starts // self._page_size
        pages = self._pages.take(self._first_page + index)
        # page * size + start % size
        pages -= index
        pages *= self._page_size
        np.add(pages, starts, out=self._slots)
