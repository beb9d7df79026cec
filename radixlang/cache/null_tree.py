"""The prefix cache that is switched off: the tree's methods, keeping nothing.

Must not know requests or pools.
"""

from __future__ import annotations

import numpy as np

from radixlang.cache.node import TreeNode
from radixlang.cache.radix_tree import Insertion, Match, RadixTree
from radixlang.plan import Ints

_NO_PAGES: Ints = np.zeros(0, np.int32)


class NullTree(RadixTree):
    """Matches nothing and stores nothing; roots are still locked, so that callers need no branch."""

    def match_length(self, tokens: Ints, namespace: str = "") -> int:
        return 0

    def match_prefix(self, tokens: Ints, namespace: str = "", priority: int = 0) -> Match:
        return Match(_NO_PAGES, self.root(namespace), 0)

    def insert(self, tokens: Ints, pages: Ints, namespace: str = "", priority: int = 0) -> Insertion:
        return Insertion(0, 0, _NO_PAGES, self.root(namespace))

    def lend(self, node: TreeNode, tokens: Ints, page: int) -> None:
        pass
