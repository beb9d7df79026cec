"""A priority queue of many entries: a small heap of new ones, and sorted runs of older ones.

One heap of 100,000 entries visits a dozen far-apart ones for each that leaves. Here a full heap becomes a sorted
list, and only the ends of these lists compete. An entry that comes in as the smallest of all waits before both: an
evicted leaf often makes room for its parent, which is next. Must not know nodes.
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
    """Smallest key first, the older one among equals. `valid` tells which entries still count; the others are
    dropped when that is cheap, and may come out of `pop` until then."""

    def __init__(self, valid: Callable[[Entry[T]], bool]) -> None:
        self._valid = valid
        self._serial = 0
        self._size = 0
        self._front: Entry[T] | None = None
        """smaller than all that follow, if it is there"""
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
        front, runs, fresh = self._front, self._runs, self._fresh
        if front is not None:
            if entry < front:
                self._front = entry
                self._add(front)
            else:
                self._add(entry)
        elif (runs and runs[0][0] < entry) or (fresh and fresh[0] < entry):
            self._add(entry)
        else:
            self._front = entry
        return entry

    def _add(self, entry: Entry[T]) -> None:
        fresh = self._fresh
        heappush(fresh, entry)
        if len(fresh) == RUN:
            run = sorted(filter(self._valid, fresh), reverse=True)
            if run:
                heappush(self._runs, (run[-1], run))
            self._fresh = []
            self._size -= RUN - len(run)

    def pop(self) -> Entry[T] | None:
        """Take out the smallest entry; None when there is none."""
        front, runs, fresh = self._front, self._runs, self._fresh
        if not self._size:
            return None
        self._size -= 1
        if front is not None:
            self._front = None
            return front
        if not runs or (fresh and fresh[0] < runs[0][0]):
            return heappop(fresh)
        entry, run = runs[0]
        run.pop()
        if run:
            heapreplace(runs, (run[-1], run))
        else:
            heappop(runs)
        return entry

    def entries(self) -> list[Entry[T]]:
        """All entries, in no particular order."""
        front = [] if self._front is None else [self._front]
        return [*front, *self._fresh, *(entry for _, run in self._runs for entry in run)]

    def tidy(self) -> None:
        """Drop all entries that do not count."""
        self._fresh = list(filter(self._valid, self._fresh))
        heapify(self._fresh)
        runs = [list(filter(self._valid, run)) for _, run in self._runs]
        self._runs = [(run[-1], run) for run in runs if run]
        heapify(self._runs)
        if self._front is not None and not self._valid(self._front):
            self._front = None
        self._size = len(self.entries())
