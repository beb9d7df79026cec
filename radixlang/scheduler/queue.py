"""The requests that wait for a row, in orders that policies can read cheaply however long the queue is.

Must not know the tree, pages or plans.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Iterator
from typing import Any

from radixlang.scheduler.request import Request

MAX_PRIORITY = 100
"""priorities beyond ± this are treated as this, so that no request can be postponed without bound"""


def level(request: Request) -> int:
    """The request's priority as the queue counts it."""
    return max(-MAX_PRIORITY, min(MAX_PRIORITY, request.priority))


class WaitingQueue:
    """New arrivals in first-come order per priority level, and retracted requests, which come first."""

    def __init__(self) -> None:
        self._levels: dict[int, dict[int, Request]] = {}
        self._retracted: list[Request] = []
        self.arrivals = 0
        """requests that ever arrived; the next one's serial"""
        self.departures = 0
        """arrivals that have left the line for the first time, admitted or not"""

    def __len__(self) -> int:
        return self.new + len(self._retracted)

    @property
    def new(self) -> int:
        """Requests that wait for their first admission."""
        return self.arrivals - self.departures

    @property
    def retracted(self) -> list[Request]:
        """Requests that ran before, earliest arrival first."""
        return self._retracted

    def add(self, request: Request) -> None:
        """A new arrival."""
        request.serial = self.arrivals
        self.arrivals += 1
        self._levels.setdefault(level(request), {})[request.serial] = request

    def put_back(self, request: Request) -> None:
        """A request that had to give its row back."""
        insort(self._retracted, request, key=lambda item: item.serial)

    def remove(self, request: Request) -> None:
        """Take out a waiting request."""
        if request.retractions:
            self._retracted.remove(request)
            return
        line = self._levels[level(request)]
        del line[request.serial]
        if not line:
            del self._levels[level(request)]
        self.departures += 1

    def merged(self, key: Callable[[Request], Any]) -> Iterator[Request]:
        """New arrivals by `key`, smallest first, lazily. `key` must not fall along a level's line."""
        lines = list(self._levels.values())
        return iter(lines[0].values()) if len(lines) == 1 else heapq.merge(*(x.values() for x in lines), key=key)

    def by_arrival(self) -> Iterator[Request]:
        """New arrivals, first come first."""
        return self.merged(lambda request: request.serial)

    def __iter__(self) -> Iterator[Request]:
        yield from self._retracted
        yield from self.by_arrival()
