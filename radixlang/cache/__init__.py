"""The host's view of the KV cache: free pages, and which prefixes are kept in which pages.

`make_cache` gives a radix tree or, with caching switched off, an object with the same methods that never
matches. Host column: must not import torch, and must not know requests.
"""

from __future__ import annotations

from radixlang.cache.eviction import EVICTIONS, FORESEEING
from radixlang.cache.foresight import Foresight
from radixlang.cache.node import TreeNode
from radixlang.cache.null_tree import NullTree
from radixlang.cache.page_pool import PagePool
from radixlang.cache.radix_tree import Insertion, Match, RadixTree

__all__ = [
    "EVICTIONS",
    "FORESEEING",
    "Foresight",
    "Insertion",
    "Match",
    "NullTree",
    "PagePool",
    "RadixTree",
    "TreeNode",
    "make_cache",
]


def make_cache(page_size: int, eviction: str = "lru", enabled: bool = True) -> RadixTree:
    """The prefix cache for pages of `page_size` tokens.

    Raises:
        ConfigError: `eviction` is not in `EVICTIONS`.
    """
    order = EVICTIONS.get(eviction)
    return RadixTree(page_size, order) if enabled else NullTree(page_size, order)
