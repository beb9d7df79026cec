"""A priority queue of many entries: a small heap of new ones, and sorted runs of older ones.

One heap of 100,000 entries visits a dozen far-apart ones for each that leaves. Here a full heap becomes a sorted
list, and only the ends of these lists compete. Must not know nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")
Entry: TypeAlias = tuple[Any, int, T]
"""key, a number that no other entry has, item"""

RUN = 1024
"""entries of the heap when it becomes a run"""


class LeafQueue(Generic[T]):
    """Smallest key first, the older one among equals."""

    def __init__(self) -> None:
        self._serial = 0
        self._size = 0
        self._fresh: list[Entry[T]] = []
        self._runs: list[tuple[Entry[T], list[Entry[T]]]] = []
        """a heap of (last entry, run); runs are sorted, the smallest entry last"""

    def __len__(self) -> int:
        return self._size

    def push(self, key: Any, item: T) -> Entry[T]:
        """Take an item in → its entry."""
        self._serial += 1
        self._size += 1
        entry = (key, self._serial, item)
        heappush(self._fresh, entry)
        if len(self._fresh) == RUN:
            self._fresh.sort(reverse=True)
            heappush(self._runs, (self._fresh[-1], self._fresh))
            self._fresh = []
        return entry

    def first(self) -> Entry[T] | None:
        """The smallest entry, which stays."""
        runs, fresh = self._runs, self._fresh
        if runs and not (fresh and fresh[0] < runs[0][0]):
            return runs[0][0]
        return fresh[0] if fresh else None

    def pop(self) -> None:
        """Drop the smallest entry; there must be one."""
        runs, fresh = self._runs, self._fresh
        self._size -= 1
        if not runs or (fresh and fresh[0] < runs[0][0]):
            heappop(fresh)
            return
        run = runs[0][1]
        run.pop()
        if run:
            heapreplace(runs, (run[-1], run))
        else:
            heappop(runs)

    def entries(self) -> list[Entry[T]]:
        """All entries, in no particular order."""
        return [*self._fresh, *(entry for _, run in self._runs for entry in run)]

    def keep(self, wanted: Callable[[Entry[T]], bool]) -> None:
        """Drop all other entries."""
        self._fresh = [entry for entry in self._fresh if wanted(entry)]
        heapify(self._fresh)
        runs = [[entry for entry in run if wanted(entry)] for _, run in self._runs]
        self._runs = [(run[-1], run) for run in runs if run]
        heapify(self._runs)
        self._size = len(self._fresh) + sum(len(run) for _, run in self._runs)
