"""Tiers below the device's memory: host memory and storage, which keep pages by what is in them.

Host column: must not import torch, and must not know requests.
"""

from __future__ import annotations

from radixlang.cache.tiers.storage import STORAGES, StorageOptions, StorageTier
from radixlang.cache.tiers.threads import StorageThreads
from radixlang.cache.tiers.tiers import WRITE_POLICIES, Load, Prefetch, Tiers

__all__ = [
    "STORAGES",
    "WRITE_POLICIES",
    "Load",
    "Prefetch",
    "StorageOptions",
    "StorageThreads",
    "StorageTier",
    "Tiers",
]
