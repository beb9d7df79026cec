"""What a decode step brings to its graph, kept for the next one: while the same rows go on, few numbers change.

A scheduler shares the arrays of rows that go on between its plans, and nobody changes a plan: plans that hold the
same arrays are about the same rows, which have been checked. Must not know tensors or graphs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radixlang.executor.prefixes import TreePlan
from radixlang.executor.shapes import Shape
from radixlang.kernels.step_inputs import packed_size, sections
from radixlang.kernels.tree_work import tree_size
from radixlang.memory.request_table import RequestTable
from radixlang.plan import Ints, StepPlan


def step_size(shape: Shape) -> int:
    """int32 of a step's packed numbers: its inputs, and behind them what tree attention shall read."""
    return packed_size(shape.tokens, shape.rows) + (tree_size(shape.rows) if shape.tree else 0)


class DecodePack:
    """The packed numbers of a decode step (see `kernels.step_inputs` and `kernels.tree_work`), brought up to date
    for each of its rows' steps. `plan` has been checked, and `shape` holds it and, where it has one, its `tree`.

    Rows that go on share what they shared: the pages that hold it are full, and locked.
    """

    def __init__(
        self, plan: StepPlan, shape: Shape, table: RequestTable, page_size: int, tree: TreePlan | None = None
    ) -> None:
        size = plan.size
        self.shape = shape
        self.rows: npt.NDArray[np.intp] = plan.rows.astype(np.intp)
        """[B] all of them draw"""
        inputs = packed_size(shape.tokens, shape.rows)
        self.packed: Ints = np.zeros(step_size(shape), np.int32)
        if tree is not None:
            tree.write(self.packed[inputs:], shape.rows)
        self._plan = plan
        self._page_size = page_size
        self._table = table.host_pages
        self._pages = self._table.reshape(-1)
        self._first_page = self.rows * self._table.shape[1]
        self._longest = self._table.shape[1] * page_size
        rows, starts, lengths, wanted, drawing, drawn, ids, positions, slots, self._entries = sections(
            self.packed[:inputs], shape.tokens, shape.rows
        )
        rows[:size] = drawing[:size] = plan.rows
        np.negative(plan.rows, out=ids[:size])
        starts[:] = np.arange(len(starts))  # rows that pad the step have a token each, too
        np.minimum(starts[: shape.rows], size - 1, out=wanted)
        self._lengths, self._drawn = lengths[:size], drawn[:size]
        self._positions, self._slots = positions[:size], slots[:size]

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
            and plan.starts[plan.starts.argmax()] < self._longest
        )

    def fill(self, plan: StepPlan, drawn: npt.NDArray[np.int64]) -> None:
        """Bring `packed` and the host's page table up to date. The rows have drawn so many tokens before.
        Page-table entries for which `packed` has no room are left to the caller."""
        starts, entries = plan.starts, plan.new_pages
        self._entries.fill(0)
        if len(entries):
            self._table[entries[:, 0], entries[:, 1]] = entries[:, 2]
            flat = entries.reshape(-1)[: self._entries.size]
            self._entries[: len(flat)] = flat
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
