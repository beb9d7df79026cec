"""Which KV pages are free.

Page 0 is the sink: padded rows write there, so that no kernel needs a branch; it is never handed out. Must not
know requests, the tree or what a page holds.
"""

from __future__ import annotations

import numpy as np

from radixlang.plan import Ints


class PagePool:
    """A stack of free page ids. `num_pages` counts the sink, so `num_pages - 1` can be handed out."""

    def __init__(self, num_pages: int) -> None:
        assert num_pages >= 2, "a pool needs the sink and at least one page"
        self.total = num_pages - 1
        """pages that can be handed out"""
        # Descending, so that a fresh pool hands out 1, 2, 3, ...: neighbours in memory.
        self._stack: Ints = np.arange(self.total, 0, -1, dtype=np.int32)
        self.available = self.total
        """free pages"""

    def alloc(self, count: int) -> Ints | None:
        """`count` page ids (int32 [count]), or None, and nothing taken, when there are not enough."""
        if count > self.available:
            return None
        self.available -= count
        return self._stack[self.available : self.available + count][::-1].copy()

    def free(self, pages: Ints) -> None:
        """Take pages back. Whoever frees a page must be its only owner."""
        end = self.available + len(pages)
        assert end <= self.total, "more pages were freed than handed out"
        self._stack[self.available : end] = pages
        self.available = end

    def free_pages(self) -> Ints:
        """The free page ids (a view), for checks."""
        return self._stack[: self.available]

    def check(self) -> None:
        """Assert that every free page is real and listed once."""
        seen = np.bincount(self.free_pages(), minlength=self.total + 1)
        assert len(seen) == self.total + 1, "a page id beyond the pool is listed as free"
        assert seen[0] == 0, "the sink is listed as free"
        assert seen.max(initial=0) <= 1, "a page is listed as free twice"
