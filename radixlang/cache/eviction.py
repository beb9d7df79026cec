"""In which order the tree gives up its leaves: a function of a node, the smallest value goes first.

The value may only change when the node is used (`RadixTree.match_prefix`, `insert`, `hit`) or its `turn` does,
never by the mere passing of time: the queue of leaves would not notice. Must not know pools or requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from radixlang.registry import Registry

if TYPE_CHECKING:
    from radixlang.cache.node import TreeNode

EvictionOrder: TypeAlias = "Callable[[TreeNode], Any]"

EVICTIONS: Registry[EvictionOrder] = Registry(
    "eviction order",
    "eviction",
    {name: f"radixlang.cache.eviction:{name}" for name in ("lru", "lfu", "slru", "fifo", "mru", "filo")}
    | {name: f"radixlang.cache.eviction:{name}" for name in ("priority", "cost")},
)

FORESEEING = frozenset({"cost"})
"""orders that go by `TreeNode.turn`; for the others nobody looks at the queue"""

_AWAITED = 1 << 62
"""more than any last use"""


def lru(node: TreeNode) -> Any:
    """Least recently used first."""
    return node.last_use


def lfu(node: TreeNode) -> Any:
    """Least often matched first, the older use first among equals."""
    return node.hits, node.last_use


def slru(node: TreeNode) -> Any:
    """Two segments: what was never matched again goes before what was; least recently used inside each."""
    return node.hits > 0, node.last_use


def fifo(node: TreeNode) -> Any:
    """Oldest first."""
    return node.created


def mru(node: TreeNode) -> Any:
    """Most recently used first."""
    return -node.last_use


def filo(node: TreeNode) -> Any:
    """Youngest first."""
    return -node.created


def priority(node: TreeNode) -> Any:
    """What served the lowest request priority first, least recently used inside each."""
    return node.priority, node.last_use


def cost(node: TreeNode) -> Any:
    """Least recently used first, where a node counts as used later, the likelier it is used again and the more it
    costs to compute again (see `Reuse.credit`). What a waiting request will read is used again for certain: it
    goes after all others, the end of the line first, as an optimal cache would have it (Belady 1966)."""
    return node.last_use + node.credit if node.turn is None else _AWAITED - node.turn
