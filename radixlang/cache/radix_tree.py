"""Which token prefixes have their KV in which pages.

        root("")            root("tenant")        one root per namespace: nothing is shared between two
          │                    │
        [A A A A]            [A A A A]            a node: a run of tokens, whole pages of them
         ├──────┐
       [B B]  [C C C]                             children differ in their first page

A page in the tree is full and never written again. Whoever reads pages holds a lock on the node where its
prefix ends, which protects the path up to the root; unlocked leaves can be evicted, from their ends.
Must not know requests, pools or devices: it hands page ids back, the caller frees them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from radixlang.cache.eviction import EvictionOrder
from radixlang.plan import Ints

_NO_TOKENS: Ints = np.zeros(0, np.int32)
_BRANCHES = 8
"""children that `part_page` looks at: a node can have thousands"""
_GONE = -1


class TreeNode:
    """A run of tokens with the pages that hold their KV; `last_use` and `created` are counts of tree uses."""

    __slots__ = (
        "children",
        "created",
        "hits",
        "last_use",
        "locks",
        "namespace",
        "pages",
        "parent",
        "priority",
        "stamp",
        "tokens",
    )

    def __init__(self, tokens: Ints, pages: Ints, parent: TreeNode | None, namespace: str, now: int) -> None:
        self.tokens = tokens
        self.pages = pages
        self.parent = parent
        self.namespace = namespace
        self.children: dict[bytes, TreeNode] = {}
        self.locks = 0
        """locks on this node and on all nodes below it"""
        self.last_use = now
        self.created = now
        self.hits = 0
        self.priority = 0
        self.stamp = 0
        """names the node's one valid entry in the eviction heap"""


class Match(NamedTuple):
    """The longest cached prefix: its pages, the node where it ends (not locked yet), its tokens."""

    pages: Ints
    node: TreeNode
    tokens: int


class Insertion(NamedTuple):
    """What became of inserted pages, in tokens from the start of the run.

    `present` tokens were there before: the caller keeps owning its pages of these (duplicates).
    From `present` to `stored` the tree took the pages over; beyond `stored` they remain the caller's.
    `pages` are the tree's pages of the `stored` tokens, `node` is where these end (not locked).
    """

    present: int
    stored: int
    pages: Ints
    node: TreeNode


def common_prefix(a: Ints, b: Ints) -> int:
    """Number of equal leading elements."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n


def _trimmed(part: Ints) -> Ints:
    """A slice, copied once it pins an array more than twice its size."""
    base = part.base
    return part.copy() if isinstance(base, np.ndarray) and base.size > 2 * part.size else part


class RadixTree:
    """The tree over all namespaces. Token runs are int32 arrays; only whole pages of them are kept."""

    def __init__(self, page_size: int, order: EvictionOrder) -> None:
        self.page_size = page_size
        self._order = order
        self._roots: dict[str, TreeNode] = {}
        self._heap: list[tuple[Any, int, TreeNode]] = []
        self._clock = 0
        self._stamps = 0
        self._nodes = 0
        self.total = 0
        """pages in the tree"""
        self.locked = 0
        """pages under a lock"""

    @property
    def evictable(self) -> int:
        """Pages that `evict` could give back now."""
        return self.total - self.locked

    def root(self, namespace: str) -> TreeNode:
        """The namespace's root, made when it is new."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = TreeNode(_NO_TOKENS, _NO_TOKENS, None, namespace, self._clock)
        return root

    def roots(self) -> list[TreeNode]:
        """The roots of all namespaces in use; a root's `locks` are those of its whole namespace."""
        return list(self._roots.values())

    # ---- reading ----

    def match_length(self, tokens: Ints, namespace: str = "") -> int:
        """How many tokens `match_prefix` would find; changes nothing, not even last uses."""
        root = self._roots.get(namespace)
        if root is None:
            return 0
        return sum(length for _, length in self._walk(root, tokens))

    def match_prefix(self, tokens: Ints, namespace: str = "", priority: int = 0) -> Match:
        """The longest cached prefix of `tokens`, in whole pages. A node that matches in part is split."""
        self._clock += 1
        node = self.root(namespace)
        runs: list[Ints] = []
        matched = 0
        for child, length in self._walk(node, tokens):
            node = child if length == len(child.tokens) else self._split(child, length)
            self._touch(node, priority)
            runs.append(node.pages)
            matched += length
        self._offer(node)
        pages = runs[0] if len(runs) == 1 else np.concatenate(runs) if runs else _NO_TOKENS
        return Match(pages, node, matched)

    @property
    def clock(self) -> int:
        """Uses of the tree so far; a node made from now on has a larger `created`."""
        return self._clock

    def part_page(self, node: TreeNode, tokens: Ints) -> tuple[TreeNode, int]:
        """The child of `node` (where a match has ended) whose first page shares most with `tokens`, the tokens
        behind the match, and how many these are: less than a page, 0 (and `node`) when there are none."""
        best, most = node, 0
        for child in islice(node.children.values(), _BRANCHES):
            shared = common_prefix(child.tokens[: self.page_size], tokens)
            if shared > most:
                best, most = child, shared
        return best, most

    def _walk(self, node: TreeNode, tokens: Ints) -> Iterator[tuple[TreeNode, int]]:
        """The nodes along `tokens` with the number of tokens (whole pages, > 0) that each shares with them."""
        size = self.page_size
        at = 0
        end = len(tokens) - len(tokens) % size
        while at < end:
            child = node.children.get(tokens[at : at + size].tobytes())
            if child is None:
                return
            length = common_prefix(child.tokens, tokens[at:end])
            length -= length % size
            full = length == len(child.tokens)
            yield child, length
            if not full:
                return
            at += length
            node = child

    # ---- changing ----

    def insert(self, tokens: Ints, pages: Ints, namespace: str = "", priority: int = 0) -> Insertion:
        """Keep the KV of `tokens`, which lies in `pages` (one per page of tokens; a part page is ignored)."""
        self._clock += 1
        size = self.page_size
        stored = len(tokens) - len(tokens) % size
        tokens, pages = tokens[:stored], pages[: stored // size]
        assert len(pages) == stored // size, "fewer pages than tokens"
        node = self.root(namespace)
        runs: list[Ints] = []
        present = 0
        for child, length in self._walk(node, tokens):
            node = child if length == len(child.tokens) else self._split(child, length)
            self._touch(node, priority)
            runs.append(node.pages)
            present += length
        if present < stored:
            leaf = TreeNode(tokens[present:].copy(), pages[present // size :].copy(), node, namespace, self._clock)
            leaf.priority = priority
            node.children[leaf.tokens[:size].tobytes()] = leaf
            self._nodes += 1
            self.total += len(leaf.pages)
            runs.append(leaf.pages)
            node = leaf
        self._offer(node)
        return Insertion(present, stored, np.concatenate(runs) if runs else _NO_TOKENS, node)

    def _touch(self, node: TreeNode, priority: int) -> None:
        node.last_use = self._clock
        if priority > node.priority:
            node.priority = priority

    def _split(self, node: TreeNode, length: int) -> TreeNode:
        """Put a new node with the first `length` tokens above `node`, which stays where locked paths end."""
        size = self.page_size
        parent = node.parent
        assert parent is not None
        upper = TreeNode(
            _trimmed(node.tokens[:length]), _trimmed(node.pages[: length // size]), parent, node.namespace, 0
        )
        upper.locks = node.locks
        upper.last_use, upper.created = node.last_use, node.created
        upper.hits, upper.priority = node.hits, node.priority
        parent.children[upper.tokens[:size].tobytes()] = upper
        node.tokens = _trimmed(node.tokens[length:])
        node.pages = _trimmed(node.pages[length // size :])
        node.parent = upper
        upper.children[node.tokens[:size].tobytes()] = node
        self._nodes += 1
        return upper

    def hit(self, node: TreeNode) -> None:
        """Count one use of the path that ends at `node`, which is locked (a match need not lead to a use)."""
        step: TreeNode | None = node
        while step is not None:
            step.hits += 1
            step = step.parent

    def lock(self, node: TreeNode) -> None:
        """Protect the path that ends at `node`."""
        step: TreeNode | None = node
        while step is not None:
            if step.locks == 0:
                self.locked += len(step.pages)
            step.locks += 1
            step = step.parent

    def unlock(self, node: TreeNode) -> None:
        """Undo one `lock` of `node`."""
        step: TreeNode | None = node
        while step is not None:
            assert step.locks > 0, "a node was unlocked more often than locked"
            step.locks -= 1
            if step.locks == 0:
                self.locked -= len(step.pages)
            step = step.parent
        self._offer(node)
        self._forget_empty_root(node)

    # ---- giving pages back ----

    def evict(self, count: int) -> Ints:
        """Take up to `count` pages out of unlocked leaves, in the eviction order; the caller frees them."""
        freed: list[Ints] = []
        got = 0
        while got < count and self._heap:
            entry = heapq.heappop(self._heap)
            node = entry[2]
            if not self._valid(entry):
                continue
            spare = len(node.pages) - (count - got)
            if spare > 0:  # the end of a long run is enough
                freed.append(node.pages[spare:])
                node.pages = _trimmed(node.pages[:spare])
                node.tokens = _trimmed(node.tokens[: spare * self.page_size])
                self.total -= len(freed[-1])
                heapq.heappush(self._heap, entry)
            else:
                freed.append(self._remove(node))
            got += len(freed[-1])
        return np.concatenate(freed) if freed else _NO_TOKENS

    def forget(self, node: TreeNode) -> Ints:
        """Take out the run that ends at `node`, up to where a lock or another branch needs it (its KV is not to
        be trusted); the caller frees the pages."""
        freed: list[Ints] = []
        while node.parent is not None and not node.children and not node.locks:
            parent = node.parent
            freed.append(self._remove(node))
            node = parent
        return np.concatenate(freed) if freed else _NO_TOKENS

    def flush(self) -> Ints:
        """Take out everything; nothing may be locked. The caller frees the pages."""
        assert self.locked == 0, "a locked tree cannot be flushed"
        freed = [node.pages for node in self._all_nodes()]
        self._roots = {name: root for name, root in self._roots.items() if root.locks}
        for root in self._roots.values():
            root.children.clear()
        self._heap.clear()
        self._nodes = self.total = 0
        return np.concatenate(freed) if freed else _NO_TOKENS

    def _remove(self, leaf: TreeNode) -> Ints:
        parent = leaf.parent
        assert parent is not None
        del parent.children[leaf.tokens[: self.page_size].tobytes()]
        leaf.stamp = _GONE
        self._nodes -= 1
        self.total -= len(leaf.pages)
        self._offer(parent)
        self._forget_empty_root(parent)
        return leaf.pages

    def _forget_empty_root(self, node: TreeNode) -> None:
        if node.parent is None and not node.children and not node.locks:
            if self._roots.get(node.namespace) is node:
                del self._roots[node.namespace]

    # ---- the eviction heap: entries are replaced by pushing a newer stamp, stale ones fall out when popped ----

    def _offer(self, node: TreeNode) -> None:
        """(Re-)enter a node whose place in the order may have changed, if it can be evicted."""
        if node.children or node.locks or node.parent is None:
            return
        self._stamps += 1
        node.stamp = self._stamps
        heapq.heappush(self._heap, (self._order(node), node.stamp, node))
        if len(self._heap) > 4 * self._nodes + 64:
            self._heap = [entry for entry in self._heap if self._valid(entry)]
            heapq.heapify(self._heap)

    @staticmethod
    def _valid(entry: tuple[Any, int, TreeNode]) -> bool:
        _, stamp, node = entry
        return node.stamp == stamp and not node.children and not node.locks

    # ---- checks ----

    def _all_nodes(self) -> Iterator[TreeNode]:
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            if node.parent is not None:
                yield node

    def pages(self) -> Ints:
        """All pages in the tree, in no particular order."""
        runs = [node.pages for node in self._all_nodes()]
        return np.concatenate(runs) if runs else _NO_TOKENS

    def check(self) -> None:
        """Assert that counts, keys, locks and the heap agree with the nodes."""
        total = locked = count = 0
        in_heap = {id(entry[2]): entry[0] for entry in self._heap if self._valid(entry)}
        for node in self._all_nodes():
            count += 1
            total += len(node.pages)
            locked += len(node.pages) if node.locks else 0
            assert len(node.pages) > 0, "an empty node"
            assert len(node.tokens) == len(node.pages) * self.page_size, "tokens and pages differ"
            assert node.locks >= sum(child.locks for child in node.children.values()), "a path is not locked"
            assert node.stamp != _GONE, "a removed node is still linked"
            if not node.children and not node.locks:
                assert in_heap.get(id(node)) == self._order(node), "an evictable leaf is not in the heap"
        for parent in [*self._roots.values(), *self._all_nodes()]:
            for key, child in parent.children.items():
                assert child.parent is parent, "a child with another parent"
                assert child.namespace == parent.namespace, "a node in the wrong namespace"
                assert key == child.tokens[: self.page_size].tobytes(), "a child under the wrong key"
        assert (total, locked, count) == (self.total, self.locked, self._nodes), "counts are off"
        pages = self.pages()
        assert len(np.unique(pages)) == len(pages), "a page is in the tree twice"
