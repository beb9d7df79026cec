"""The columns of running requests: one entry per row of the request table, so that a step is arithmetic on
whole arrays. Row 0 is the sink and stays unused. Must not know policies, pages or plans.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radixlang.scheduler.request import Request, State


class Rows:
    """`count` rows, numbered from 1. All columns are int64 [count + 1] and mean nothing for a free row."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count, 0, -1))
        self.computed: npt.NDArray[np.int64] = np.zeros(count + 1, np.int64)
        """tokens whose KV is in pages once everything launched has run"""
        self.length: npt.NDArray[np.int64] = np.zeros(count + 1, np.int64)
        """tokens that exist, those the host does not know yet included"""
        self.capacity: npt.NDArray[np.int64] = np.zeros(count + 1, np.int64)
        """tokens that the row's pages can hold"""
        self.work: npt.NDArray[np.int64] = np.zeros(count + 1, np.int64)
        """`Request.work`: the row is done computing at this many tokens"""
        self.limit: npt.NDArray[np.int64] = np.zeros(count + 1, np.int64)
        self.requests: list[Request | None] = [None] * (count + 1)
        self.running: dict[int, Request] = {}
        """row → request, in order of admission"""

    @property
    def available(self) -> int:
        return len(self._free)

    def take(self, request: Request, computed: int, capacity: int) -> None:
        """Give the request a row. Caller guarantees `available`."""
        row = self._free.pop()
        request.row = row
        request.state = State.RUNNING
        self.requests[row] = request
        self.running[row] = request
        self.computed[row] = computed
        self.length[row] = request.tokens.size
        self.capacity[row] = capacity
        self.work[row] = request.work
        self.limit[row] = request.limit

    def give(self, request: Request) -> None:
        """Take the row back; its tokens still in flight become `pending`."""
        row = request.row
        request.pending = int(self.length[row]) - request.tokens.size
        request.row = 0
        self.requests[row] = None
        del self.running[row]
        self._free.append(row)
