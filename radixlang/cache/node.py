"""A node of the radix tree: a run of tokens in whole pages, and what the tree keeps about it.

Must not know the tree, requests or pools.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from radixlang.cache.leaf_queue import Entry
from radixlang.plan import Ints

ID_BYTES = 4
"""of a token's or a page's id"""


class TreeNode:
    """A run of tokens with the pages that hold their KV. Times are counts of tree uses (`RadixTree.clock`)."""

    __slots__ = (
        "children",
        "created",
        "credit",
        "cut",
        "data",
        "entry",
        "hit_time",
        "hits",
        "last_use",
        "locks",
        "namespace",
        "page_data",
        "parent",
        "pins",
        "priority",
        "start",
        "tail",
        "turn",
    )

    def __init__(
        self, data: bytes, page_data: bytes, parent: TreeNode | None, namespace: str, start: int, now: int
    ) -> None:
        self.data = data
        """the tokens, int32; comparing, looking up and joining bytes is many times faster than arrays"""
        self.page_data = page_data
        """the page ids, int32"""
        self.parent = parent
        self.namespace = namespace
        self.start = start
        """tokens before the run"""
        self.children: dict[bytes, TreeNode] = {}
        """by their first pages"""
        self.locks = 0
        """locks on this node and on all nodes below it"""
        self.pins = 0
        """those of the locks that are pins"""
        self.last_use = now
        self.created = now
        self.hit_time = now
        """when it was last hit, or made"""
        self.hits = 0
        self.credit = 0.0
        """how much later than its last use it counts as used in the order `cost` (see `Reuse.credit`), as of when
        it last became evictable"""
        self.turn: int | None = None
        """the place in line of the first waiting request that will read it; None where none is known to (see
        `Foresight`)"""
        self.cut = False
        """since it was last hit, its end has been evicted"""
        self.priority = 0
        self.entry: Entry[TreeNode] | None = None
        """its one valid entry in the queue of leaves"""
        self.tail: Tail | None = None
        """what somebody lends behind its end"""

    @property
    def tokens(self) -> Ints:
        """The run (read-only)."""
        return np.frombuffer(self.data, np.int32)

    @property
    def pages(self) -> Ints:
        """The page ids (read-only)."""
        return np.frombuffer(self.page_data, np.int32)

    @property
    def size(self) -> int:
        """Pages of the run."""
        return len(self.page_data) // ID_BYTES

    @property
    def end(self) -> int:
        """Tokens up to the end of the run."""
        return self.start + len(self.data) // ID_BYTES


class Tail(NamedTuple):
    """A page that is not full: no part of the tree, but lent by its owner to those who want a copy."""

    data: bytes
    """its tokens, which will not change"""
    page: int
    since: int
    """the clock when it was lent"""


class PartPage(NamedTuple):
    """A page whose first `tokens` tokens were looked for."""

    tokens: int
    data: bytes
    """all of its tokens"""
    page: int
    since: int
    """the clock when it came to the tree or was lent"""
    node: TreeNode | None
    """the run that it begins; None for one that is lent"""


def upwards(node: TreeNode) -> Iterator[TreeNode]:
    """The node and all above it."""
    step: TreeNode | None = node
    while step is not None:
        yield step
        step = step.parent
