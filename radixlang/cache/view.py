"""A bounded picture of the radix tree for those who look at it: the runs that matter most, as columns.

It is made between two steps of the engine, so that its cost is bounded too, whatever the tree's size: it looks at
`SCAN` runs at most, and of a run with more children than that at the newest. Must not know requests or text.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from radixlang.cache.node import TreeNode
from radixlang.cache.radix_tree import RadixTree
from radixlang.errors import NotFoundError, RequestError

SCAN = 16384
"""runs that one picture looks at"""

Key = Callable[[TreeNode], int]


def _newest(node: TreeNode, most: int) -> list[TreeNode]:
    return list(islice(reversed(node.children.values()), most))


#: what matters. No run has more of it than the run above it, except of `tokens`, so that the best are found from
#: the top; large runs are found as far as they lie below ones that are large themselves.
ORDERS: dict[str, Key] = {
    "recent": lambda node: node.last_use,
    "hits": lambda node: node.hits,
    "depth": lambda node: -node.start,
    "tokens": lambda node: node.size,
}


def _find(tree: RadixTree, path: Sequence[int]) -> TreeNode:
    """The run at the end of a path of ids, which begins with a root's.

    Raises:
        NotFoundError: there is none (any more).
    """
    found: TreeNode | None = None
    level: Iterable[TreeNode] = tree.roots()
    for name in path:
        found = next((node for node in level if node.created == name), None)
        if found is None:
            raise NotFoundError("This part of the cache is not there any more.", "node")
        level = found.children.values()
    assert found is not None
    return found


class _Picture:
    """Runs as they are chosen, from the top down, best first."""

    def __init__(self, limit: int, key: Key) -> None:
        self.runs: list[TreeNode] = []
        self.index: dict[TreeNode, int] = {}
        self._limit = limit
        self._key = key
        self._left = SCAN
        self._serial = 0
        self._heap: list[tuple[int, int, TreeNode]] = []

    def show(self, node: TreeNode) -> None:
        self.index[node] = len(self.runs)
        self.runs.append(node)

    def consider(self, node: TreeNode, most: int) -> None:
        """The newest of the runs below this one; half of what may be looked at is kept for those below them."""
        looked = _newest(node, min(most, self._left // 2 + 1))
        self._left = max(0, self._left - len(looked))
        room = max(0, self._limit - len(self.runs))
        for run in looked if len(looked) <= room else heapq.nlargest(room, looked, self._key):
            heapq.heappush(self._heap, (-self._key(run), self._serial, run))
            self._serial += 1

    def fill(self) -> None:
        while self._heap and len(self.runs) < self._limit:
            node = heapq.heappop(self._heap)[2]
            if node.parent is not None and node.parent not in self.index:  # a root
                self.show(node.parent)
            self.show(node)
            if node.children:
                self.consider(node, self._left)


def tree_view(
    tree: RadixTree,
    limit: int,
    order: str = "recent",
    head: int = 32,
    namespace: str | None = None,
    path: Sequence[int] = (),
    copied: Callable[[int], bool] | None = None,
) -> dict[str, Any]:
    """The `limit` runs that have most of `order` (a root may be one more), of all namespaces or one, or of what is
    below the run at the end of a `path` of ids, which then is the first. `copied`: whether a page is in a lower
    tier too.

    Returns the tree's own figures, and `runs`, by column one value a run, parents before their children: `id`
    (among its siblings; it lives as long as the run, and a split leaves it to both parts), `parent` (its index, -1
    at the top), `start` (tokens before it), `tokens`, `hits`, `locks` (of running requests and of pins), `pins`,
    `unused` (uses of the tree since its own last), `copied` (its last page is in a lower tier too), `children`
    (all of them, shown or not), `namespace` (of a root, else None), `head` (how many token ids it has in `heads`,
    at most `head`). `heads`: the first token ids of all runs, int32, one behind the other.

    Raises:
        RequestError: no such order; NotFoundError: nothing at `path`.
    """
    if order not in ORDERS:
        raise RequestError(f"order must be one of {', '.join(ORDERS)}, got {order!r}.", "order")
    if path:
        top = [_find(tree, path)]
    else:
        roots = reversed(tree.roots())  # newest first, like everything else
        top = [root for root in roots if namespace is None or root.namespace == namespace][:SCAN]
    picture = _Picture(limit, ORDERS[order])
    if path:
        picture.show(top[0])
    for node in top:
        picture.consider(node, SCAN // len(top) + 1)
    picture.fill()
    shown, index = picture.runs, picture.index
    size, now = tree.page_size, tree.clock
    heads = [node.data[: 4 * head] for node in shown]
    return {
        "page_size": size,
        "nodes": tree.nodes,
        "tokens": tree.total * size,
        "locked_tokens": tree.locked * size,
        "pinned_tokens": tree.pinned * size,
        "runs": {
            "id": [node.created for node in shown],
            "parent": [-1 if node.parent is None else index.get(node.parent, -1) for node in shown],
            "start": [node.start for node in shown],
            "tokens": [node.size * size for node in shown],
            "hits": [node.hits for node in shown],
            "locks": [node.locks for node in shown],
            "pins": [node.pins for node in shown],
            "unused": [now - node.last_use for node in shown],
            "copied": [copied is not None and any(map(copied, node.pages[-1:].tolist())) for node in shown],
            "children": [len(node.children) for node in shown],
            "namespace": [node.namespace if node.parent is None else None for node in shown],
            "head": [len(data) // 4 for data in heads],
        },
        "heads": b"".join(heads),
    }
