"""Puts the tiers below the device together: the host's books, the executor's copies, and a storage."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from radixlang.cache.tiers import STORAGES, StorageOptions, StorageThreads, Tiers
from radixlang.config import Config
from radixlang.executor import EngineShape

if TYPE_CHECKING:
    from radixlang.executor.launch import DeviceExecutor


def storage_options(config: Config, identity: str = "", page_bytes: int = 0) -> StorageOptions:
    """What the flags say of the storage; `identity` and `page_bytes` are known when the model is loaded."""
    cache = config.cache
    return StorageOptions(
        identity=bytes.fromhex(identity),
        page_bytes=page_bytes,
        folder=cache.cache_dir,
        limit_bytes=cache.cache_dir_bytes,
        extra=json.loads(cache.hicache_storage_backend_extra_config),
    )


def check_storage(config: Config, page_bytes: int = 0) -> None:
    """Before weights load: can the storage be used? As soon as that is known, for pages of so many bytes?

    Raises:
        ConfigError: it cannot.
    """
    if config.cache.hicache_storage_backend != "none":
        STORAGES.get(config.cache.hicache_storage_backend).check(storage_options(config, page_bytes=page_bytes))


def build_tiers(config: Config, shape: EngineShape, device: DeviceExecutor) -> Tiers | None:
    """The tiers of an engine, None where there are none."""
    if device.host is None:
        return None
    threads = None
    if config.cache.hicache_storage_backend != "none":
        options = storage_options(config, shape.kv_identity, device.host.array.shape[1])
        storage = STORAGES.get(config.cache.hicache_storage_backend)(options)
        threads = StorageThreads(storage, device.host.array)
    return Tiers(
        bytes.fromhex(shape.kv_identity),
        shape.page_size,
        shape.num_pages,
        shape.host_slots,
        device.copies,
        config.cache.hicache_write_policy,
        threads,
    )
