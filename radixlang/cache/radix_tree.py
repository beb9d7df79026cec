"""Which token prefixes have their KV in which pages.

        root("")            root("tenant")        one root per namespace: nothing is shared between two
          │                    │
        [A A A A]            [A A A A]            a node: a run of tokens, whole pages of them
         ├──────┐
       [B B]  [C C C]                             children differ in their first page

A page in the tree is full, and no step writes it but the one that brought it. Whoever reads pages holds a lock on
the node where its prefix ends, which protects the path up to the root; unlocked leaves can be evicted, from their
ends.
Must not know requests, pools or devices: it hands page ids back, the caller frees them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from radixlang.cache.eviction import EvictionOrder
from radixlang.cache.leaf_queue import Entry, LeafQueue
from radixlang.cache.node import ID_BYTES, PartPage, Tail, TreeNode, upwards
from radixlang.cache.reuse import Reuse
from radixlang.plan import Ints

_BRANCHES = 8
"""children that `part_page` looks at: a node can have thousands"""


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


def _ids(parts: Iterable[bytes]) -> Ints:
    """Runs of ids, joined (read-only)."""
    return np.frombuffer(b"".join(parts), np.int32)


def _is_valid(entry: Entry[TreeNode]) -> bool:
    return entry[2].entry is entry


class RadixTree:
    """The tree over all namespaces. Token runs are int32 arrays; only whole pages of them are kept."""

    def __init__(self, page_size: int, order: EvictionOrder) -> None:
        self.page_size = page_size
        self.reuse = Reuse()
        self._width = page_size * ID_BYTES
        self._order = order
        self._roots: dict[str, TreeNode] = {}
        self._leaves: LeafQueue[TreeNode] = LeafQueue(_is_valid)
        self._clock = 0
        self._nodes = 0
        self.total = 0
        """pages in the tree"""
        self.locked = 0
        """pages under a lock"""
        self.pinned = 0
        """pages under a pin, which is a lock as well"""

    @property
    def evictable(self) -> int:
        """Pages that `evict` could give back now."""
        return self.total - self.locked

    @property
    def clock(self) -> int:
        """Uses of the tree so far; a node made from now on has a larger `created`."""
        return self._clock

    @property
    def nodes(self) -> int:
        """Runs in the tree; roots are none."""
        return self._nodes

    def root(self, namespace: str) -> TreeNode:
        """The namespace's root, made when it is new."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = TreeNode(b"", b"", None, namespace, 0, self._clock)
        return root

    def roots(self) -> list[TreeNode]:
        """The roots of all namespaces in use; a root's `locks` are those of its whole namespace."""
        return list(self._roots.values())

    # ---- reading ----

    def path(self, tokens: Ints, namespace: str = "") -> tuple[list[TreeNode], int]:
        """The nodes that `match_prefix` would find, the last of them perhaps in part, and the number of tokens
        that it would match; changes nothing, not even last uses."""
        root = self._roots.get(namespace)
        if root is None:
            return [], 0
        path, shared = self._walk(root, tokens.tobytes())
        return path, path[-1].start + shared // ID_BYTES if path else 0

    def match_length(self, tokens: Ints, namespace: str = "") -> int:
        """How many tokens `match_prefix` would find."""
        return self.path(tokens, namespace)[1]

    def match_prefix(self, tokens: Ints, namespace: str = "", priority: int = 0) -> Match:
        """The longest cached prefix of `tokens`, in whole pages. A node that matches in part is split."""
        self._clock += 1
        path = self._descend(tokens.tobytes(), namespace, priority)
        node = path[-1]
        self._offer(node)
        return Match(_ids(node.page_data for node in path), node, node.end)

    def part_page(self, node: TreeNode, tokens: Ints) -> PartPage | None:
        """The page behind `node`, where a match has ended, that begins with most of the `tokens` that follow.
        None if that is neither all of them nor half a page: a copy would save too little."""
        best: PartPage | None = None
        most = 0
        for child in islice(node.children.values(), _BRANCHES):
            shared = common_prefix(child.tokens[: self.page_size], tokens)
            if shared > most:
                most = shared
                best = PartPage(shared, child.data[: self._width], int(child.pages[0]), child.created, child)
        if node.tail is not None:
            shared = common_prefix(np.frombuffer(node.tail.data, np.int32), tokens)
            if shared > most:
                most = shared
                best = PartPage(shared, *node.tail, None)
        return best if most == len(tokens) or 2 * most >= self.page_size else None

    def _walk(self, node: TreeNode, data: bytes) -> tuple[list[TreeNode], int]:
        """The nodes below `node` along `data`, and how many bytes the last of them shares with it: whole pages,
        more than none; of the others it is all."""
        width = self._width
        path: list[TreeNode] = []
        at = shared = 0
        while (child := node.children.get(data[at : at + width])) is not None:
            path.append(child)
            run = child.data
            shared = len(run)
            if not data.startswith(run, at):
                rest = np.frombuffer(data, np.int32, min(shared, len(data) - at) // ID_BYTES, at)
                shared = common_prefix(child.tokens, rest) * ID_BYTES
                shared -= shared % width
                break
            at += shared
            node = child
        return path, shared

    # ---- changing ----

    def insert(self, tokens: Ints, pages: Ints, namespace: str = "", priority: int = 0) -> Insertion:
        """Keep the KV of `tokens`, which lies in `pages` (one per page of tokens; a part page is ignored)."""
        self._clock += 1
        size = self.page_size
        stored = len(tokens) - len(tokens) % size
        pages = pages[: stored // size]
        assert len(pages) == stored // size, "fewer pages than tokens"
        data = tokens[:stored].tobytes()
        path = self._descend(data, namespace, priority)
        node = path[-1]
        present = node.end
        if present < stored:
            node = self._grow(node, data[present * ID_BYTES :], pages[present // size :].tobytes(), priority)
            path.append(node)
        self._offer(node)
        return Insertion(present, stored, _ids(node.page_data for node in path), node)

    def _descend(self, data: bytes, namespace: str, priority: int) -> list[TreeNode]:
        """The namespace's root and the nodes along `data`, split to what matches, as used now."""
        path, shared = self._walk(self.root(namespace), data)
        if path and shared < len(path[-1].data):
            path[-1] = self._split(path[-1], shared)
        now = self._clock
        for node in path:
            node.last_use = now
            if priority > node.priority:
                node.priority = priority
        return [self._roots[namespace], *path]

    def _grow(self, parent: TreeNode, data: bytes, page_data: bytes, priority: int) -> TreeNode:
        """A new leaf."""
        leaf = TreeNode(data, page_data, parent, parent.namespace, parent.end, self._clock)
        leaf.priority = priority
        self.reuse.returned(leaf.namespace, leaf.start, data, self._clock)
        parent.children[data[: self._width]] = leaf
        parent.entry = None
        self._nodes += 1
        self.total += leaf.size
        return leaf

    def _split(self, node: TreeNode, length: int) -> TreeNode:
        """Put a new node with the first `length` bytes above `node`, which stays where locked paths end."""
        parent, width = node.parent, self._width
        assert parent is not None
        cut = length // width * ID_BYTES
        upper = TreeNode(
            node.data[:length], node.page_data[:cut], parent, node.namespace, node.start, node.created
        )
        for name in ("locks", "pins", "last_use", "hit_time", "hits", "priority"):
            setattr(upper, name, getattr(node, name))
        parent.children[upper.data[:width]] = upper
        node.data = node.data[length:]
        node.page_data = node.page_data[cut:]
        node.start = upper.end
        node.parent = upper
        upper.children[node.data[:width]] = node
        self._nodes += 1
        return upper

    def hit(self, node: TreeNode) -> None:
        """Count one use of the path that ends at `node`, which is locked (a match need not lead to a use)."""
        now, reuse = self._clock, self.reuse
        while node.parent is not None:
            reuse.used(node.hits, len(node.data), now - node.hit_time)
            node.hits += 1
            node.hit_time = now
            node.cut = False
            node.turn = None  # whose turn it was reads it now; others in line are seen with the next look
            node = node.parent

    def lock(self, node: TreeNode) -> None:
        """Protect the path that ends at `node`."""
        for step in upwards(node):
            if step.locks == 0:
                self.locked += len(step.page_data) // ID_BYTES
            step.locks += 1

    def unlock(self, node: TreeNode) -> None:
        """Undo one `lock` of `node`."""
        for step in upwards(node):
            assert step.locks > 0, "a node was unlocked more often than locked"
            step.locks -= 1
            if step.locks == 0:
                self.locked -= len(step.page_data) // ID_BYTES
        self._offer(node)
        self._forget_empty_root(node)

    def pin(self, node: TreeNode) -> None:
        """Lock the path that ends at `node`, and count its pages among the pinned ones."""
        self.lock(node)
        for step in upwards(node):
            if step.pins == 0:
                self.pinned += step.size
            step.pins += 1

    def unpin(self, node: TreeNode) -> None:
        """Undo one `pin` of `node`."""
        for step in upwards(node):
            assert step.pins > 0, "a node was unpinned more often than pinned"
            step.pins -= 1
            if step.pins == 0:
                self.pinned -= step.size
        self.unlock(node)

    def lend(self, node: TreeNode, tokens: Ints, page: int) -> None:
        """Others may copy `page`, which is not full and holds the KV of `tokens` behind `node`, where a lock of
        its owner ends. The newest is remembered, of those with the same tokens the oldest."""
        data = tokens.tobytes()
        if node.tail is None or node.tail.data != data:
            self._clock += 1
            node.tail = Tail(data, page, self._clock)

    def take_back(self, node: TreeNode, page: int) -> None:
        """The owner of a page that may be lent at `node` gives it up."""
        if node.tail is not None and node.tail.page == page:
            node.tail = None

    # ---- giving pages back ----

    def evict(self, count: int) -> Ints:
        """Take up to `count` pages out of unlocked leaves, in the eviction order; the caller frees them."""
        freed: list[bytes] = []
        got = 0
        while got < count and (node := self._take_leaf()) is not None:
            size = node.size
            if not node.cut:  # once for a run, however many calls it takes
                node.cut = True
                self.reuse.lost(node.hits, node.hit_time, node.namespace, node.start, node.data)
            if size > count - got:  # the end of a long run is enough
                size = count - got
                freed.append(self._cut(node, size))
                self._queue(node)
            else:
                freed.append(self._remove(node))
            got += size
        return _ids(freed)

    def _cut(self, leaf: TreeNode, count: int) -> bytes:
        """Take the leaf's last `count` pages, which are not all."""
        freed = leaf.page_data[-count * ID_BYTES :]
        leaf.page_data = leaf.page_data[: -count * ID_BYTES]
        leaf.data = leaf.data[: -count * self._width]
        self.total -= count
        return freed

    def forget(self, node: TreeNode) -> Ints:
        """Take out the run that ends at `node`, up to where a lock or another branch needs it (its KV is not to
        be trusted); the caller frees the pages."""
        freed: list[bytes] = []
        while node.parent is not None and not node.children and not node.locks:
            parent = node.parent
            freed.append(self._remove(node))
            node = parent
        return _ids(freed)

    def flush(self) -> Ints:
        """Take out everything; nothing may be locked. The caller frees the pages."""
        assert self.locked == 0, "a locked tree cannot be flushed"
        freed = []
        for node in self._all_nodes():
            freed.append(node.page_data)
            node.entry = None
        self._roots = {name: root for name, root in self._roots.items() if root.locks}
        for root in self._roots.values():
            root.children.clear()
        self._leaves = LeafQueue(_is_valid)
        self._nodes = self.total = 0
        return _ids(freed)

    def _remove(self, leaf: TreeNode) -> bytes:
        parent = leaf.parent
        assert parent is not None
        del parent.children[leaf.data[: self._width]]
        leaf.entry = None
        self._nodes -= 1
        self.total -= leaf.size
        if not parent.children:
            if parent.parent is None:
                self._forget_empty_root(parent)
            else:
                self._offer(parent)
        return leaf.page_data

    def _forget_empty_root(self, node: TreeNode) -> None:
        if node.parent is None and not node.children and not node.locks:
            if self._roots.get(node.namespace) is node:
                del self._roots[node.namespace]

    # ---- the queue of leaves ----
    #
    # A leaf that is used stays where it is in the queue: uses raise its value in nearly all orders, and when it
    # gets to the front too early it is put to its new place. So uses are cheap, and there is one entry a leaf.

    def _offer(self, node: TreeNode) -> None:
        """See to it that a node that can be evicted is in the queue, not behind its place."""
        if node.children or node.locks or node.parent is None:
            return
        node.credit = self.reuse.credit(node.hits, len(node.data), node.start)
        if node.entry is None or self._order(node) < node.entry[0]:
            self._queue(node)

    def requeue(self, node: TreeNode) -> None:
        """The value of a node may have sunk. It need not be in the tree any more."""
        if node.entry is not None:
            self._offer(node)

    def _queue(self, node: TreeNode) -> None:
        """Put a leaf into its place in the queue."""
        node.entry = self._leaves.push(self._order(node), node)
        if len(self._leaves) > 2 * self._nodes + 64:  # an order in which uses lower the value (mru)
            self._leaves.tidy()

    def _take_leaf(self) -> TreeNode | None:
        """Take the leaf that is next to go out of the queue; None when there is none."""
        while (entry := self._leaves.pop()) is not None:
            key, _, node = entry
            if not _is_valid(entry):
                continue
            node.entry = None
            if node.locks:
                continue
            if self._order(node) <= key:
                return node
            self._queue(node)
        return None

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
        return _ids(node.page_data for node in self._all_nodes())

    def check(self) -> None:
        """Assert that counts, keys, locks and the queue of leaves agree with the nodes."""
        total = locked = pinned = count = 0
        queued = {id(entry) for entry in self._leaves.entries()}
        for node in self._all_nodes():
            count += 1
            total += node.size
            locked += node.size if node.locks else 0
            pinned += node.size if node.pins else 0
            assert node.size > 0, "an empty node"
            assert node.locks or not node.tail, "nobody holds the page that is lent"
            assert len(node.data) == node.size * self._width, "tokens and pages differ"
            assert node.locks >= sum(child.locks for child in node.children.values()), "a path is not locked"
            assert node.locks >= node.pins >= sum(child.pins for child in node.children.values()), "a pin is lost"
            assert node.entry is None or id(node.entry) in queued, "a leaf's entry is lost"
            assert not (node.children and node.entry), "a run that is no leaf is in the queue"
            if not node.children and not node.locks:
                assert node.entry is not None, "an evictable leaf is not in the queue"
                assert node.entry[0] <= self._order(node), "a leaf would be evicted too late"
        for parent in [*self._roots.values(), *self._all_nodes()]:
            for key, child in parent.children.items():
                assert child.parent is parent, "a child with another parent"
                assert child.start == parent.end, "a run begins in the wrong place"
                assert child.namespace == parent.namespace, "a node in the wrong namespace"
                assert key == child.data[: self._width], "a child under the wrong key"
        assert (total, locked, count) == (self.total, self.locked, self._nodes), "counts are off"
        assert pinned == self.pinned, "pinned pages are miscounted"
        pages = self.pages()
        assert len(np.unique(pages)) == len(pages), "a page is in the tree twice"
