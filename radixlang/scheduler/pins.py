"""Prefixes that stay cached although nobody reads them: locks in the tree with a name and a deadline.

A pin has branches: the program that owns it forks, and every call leaves one. Pins hold a bounded share of the
pages. They are a promise to try: where that share is too small for all of them, or a running request needs the
memory, those renewed longest ago give way. Must not know requests or the pool.
"""

from __future__ import annotations

import math
from typing import Any

from radixlang.cache import RadixTree, TreeNode


class Pin:
    """`nodes` is where its branches end, the oldest first; `deadline` is in seconds since the epoch."""

    __slots__ = ("deadline", "nodes")

    def __init__(self) -> None:
        self.deadline = 0.0
        self.nodes: dict[TreeNode, None] = {}


class Pins:
    """All pins of one tree. `most`: pages that they may hold together."""

    def __init__(self, tree: RadixTree, most: int) -> None:
        self._tree = tree
        self._most = most
        self._pins: dict[str, Pin] = {}
        """by name, in the order of their last renewal"""
        self._now = 0.0
        self._next = math.inf
        """no pin ends before"""

    @property
    def locks(self) -> int:
        """Locks in the tree."""
        return sum(len(pin.nodes) for pin in self._pins.values())

    def expire(self, now: float) -> None:
        """The time is `now`: end the pins whose deadlines have passed."""
        self._now = now
        if now < self._next:
            return
        for name in [name for name, pin in self._pins.items() if pin.deadline <= now]:
            self.release(name)
        self._next = min((pin.deadline for pin in self._pins.values()), default=math.inf)

    def keep(self, name: str, node: TreeNode, seconds: float) -> None:
        """Add the path that ends at `node` to the pin, made when it is new, which now ends in `seconds`. Nothing
        is kept of a path that is empty or larger than all pins may be."""
        tree = self._tree
        if node.parent is None or node.end > self._most * tree.page_size:
            return
        pin = self._pins.pop(name, None) or Pin()
        self._pins[name] = pin  # the last to give way
        if node in pin.nodes:
            del pin.nodes[node]
        else:
            tree.pin(node)
        pin.nodes[node] = None
        above: TreeNode | None = node.parent
        while above is not None:  # what the branch has grown from
            if above in pin.nodes:
                del pin.nodes[above]
                tree.unpin(above)
            above = above.parent
        pin.deadline = self._now + seconds
        self._next = min(self._next, pin.deadline)
        while tree.pinned > self._most:
            if len(self._pins) > 1:
                self.give_way()
            else:
                self._drop(pin, next(iter(pin.nodes)))

    def release(self, name: str) -> bool:
        """End a pin. → whether there was one"""
        pin = self._pins.pop(name, None)
        if pin is None:
            return False
        for node in list(pin.nodes):
            self._drop(pin, node)
        return True

    def give_way(self) -> bool:
        """End the pin renewed longest ago. → whether there was one"""
        return self.release(next(iter(self._pins))) if self._pins else False

    def clear(self) -> None:
        """End all."""
        while self.give_way():
            pass

    def listed(self, name: str | None = None) -> list[dict[str, Any]]:
        """What clients are told of all pins, or of one: `tokens` are those of its branches, shared ones once."""
        names = self._pins if name is None else [name] if name in self._pins else []
        return [
            {
                "id": name,
                "tokens": self._tokens(self._pins[name]),
                "branches": len(self._pins[name].nodes),
                "expires": self._pins[name].deadline,
            }
            for name in names
        ]

    def _tokens(self, pin: Pin) -> int:
        seen: set[TreeNode] = set()
        for node in pin.nodes:
            step: TreeNode | None = node
            while step is not None and step not in seen:
                seen.add(step)
                step = step.parent
        return sum(node.size for node in seen) * self._tree.page_size

    def _drop(self, pin: Pin, node: TreeNode) -> None:
        del pin.nodes[node]
        self._tree.unpin(node)
