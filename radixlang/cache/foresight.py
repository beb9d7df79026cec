"""What waiting requests will read: the one part of the future that a cache can know.

When memory is short, requests wait, and those that are served next want prefixes that were not used for longest.
An order that only looks back gives these up first. So the nodes that the line will read are told when they will be
(`TreeNode.turn`). Must not know requests, or who is served first.
"""

from __future__ import annotations

from collections.abc import Iterable

from radixlang.cache.node import TreeNode
from radixlang.cache.radix_tree import RadixTree
from radixlang.plan import Ints


class Foresight:
    """Keeps the turns of one tree's nodes."""

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._awaited: list[TreeNode] = []
        """nodes that had a turn after the last look"""

    def look(self, line: Iterable[tuple[Ints, str]], first: int) -> None:
        """Set all turns anew. `line` are (tokens, namespace) in the order in which they will be served; `first` is
        the turn of the foremost. It is read until it has named as much as the tree holds, since no more can be
        kept."""
        tree, before, after, pages = self._tree, self._awaited, [], 0
        for node in before:
            node.turn = None
        for turn, (tokens, namespace) in enumerate(line, first):
            for node in tree.path(tokens, namespace)[0]:
                if node.turn is None:
                    node.turn = turn
                    after.append(node)
                    pages += node.size
            if pages >= tree.total:
                break
        self._awaited = after
        for node in before:  # its turn may have gone, or come later now
            tree.requeue(node)
