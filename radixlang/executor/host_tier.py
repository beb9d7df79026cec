"""Puts host memory below the KV pool: how large it is, and what its pages are.

Must not know how pages are found.
"""

from __future__ import annotations

import json
from hashlib import blake2b

import msgspec

from radixlang.config import Config
from radixlang.errors import ConfigError
from radixlang.executor.copies import CpuCopies, CudaCopies
from radixlang.executor.launch import DeviceExecutor
from radixlang.log import get_logger
from radixlang.memory.host_pool import HostPool, page_bytes
from radixlang.models.fingerprint import weights_digest
from radixlang.models.spec import ModelSpec

log = get_logger(__name__)

PASSAGE_BYTES = 1 << 30
"""host memory that pages pass through on their way to and from storage, where no host tier is asked for"""
MEMORY_SHARE = 0.8
"""most of the free host memory that is taken"""
LAYOUT = 1
"""of the bytes in a page; see `host_pool`. To be raised with every change"""


def check_host_tier(config: Config, device: str, size: int, pool_bytes: int, free: int) -> None:
    """Refuse host memory for KV pages that no device here has, or that cannot hold a page of `size` bytes.

    `pool_bytes` are the KV pool's, or before weights load the most it may have; `free` as for `host_slots`.

    Raises:
        ConfigError: names the flag, the size and the fix.
    """
    cache = config.cache
    host = cache.enable_hierarchical_cache
    if not (host or cache.hicache_storage_backend != "none"):
        return
    if device not in ("cpu", "cuda"):
        flag = "--enable-hierarchical-cache" if host else "--hicache-storage-backend"
        raise ConfigError(f"{flag} works on cuda and cpu devices, not on {device}; leave it out.")
    page = f"one page of KV, which has {size / 1e6:.3g} MB"
    given = cache.hicache_size
    if 0 < given * 1e9 < size:
        raise ConfigError(f"--hicache-size {given:g} (GB) would not hold {page}; raise it, or leave it out.")
    if host and device != "cpu" and not given and cache.hicache_ratio * pool_bytes < size:
        raise ConfigError(
            f"--hicache-ratio {cache.hicache_ratio:g} of a KV pool of {pool_bytes / 1e6:.3g} MB would not hold "
            f"{page}; raise it, or give --hicache-size."
        )
    if MEMORY_SHARE * free < size:
        raise ConfigError(f"{free / 1e6:.3g} MB of host memory are free, too little for {page}; free some.")


def host_slots(config: Config, device: str, size: int, pool_bytes: int, free: int) -> int:
    """How many pages of `size` bytes host memory shall hold, 0 when nothing asks for any.

    `pool_bytes` are the KV pool's, `free` the host memory that this rank may take from.

    Raises:
        ConfigError: see `check_host_tier`.
    """
    cache = config.cache
    storage = cache.hicache_storage_backend != "none"
    host = cache.enable_hierarchical_cache
    if not (host or storage):
        return 0
    if host and device == "cpu":
        log.warning("--enable-hierarchical-cache changes nothing on a CPU: its KV pool is in host memory already")
        if not storage:
            return 0
    check_host_tier(config, device, size, pool_bytes, free)
    wish = int(cache.hicache_size * 1e9)
    if not wish:
        wish = int(cache.hicache_ratio * pool_bytes) if host and device != "cpu" else max(PASSAGE_BYTES, size)
    most = int(MEMORY_SHARE * free)
    if wish > most:
        log.warning(
            "host memory for KV pages: %.1f GB are wanted, %.1f GB are free, so %.1f GB are taken",
            wish / 1e9,
            free / 1e9,
            most / 1e9,
        )
    return min(wish, most) // size


def add_host_tier(executor: DeviceExecutor, slots: int, rank: int) -> None:
    """Give the executor host memory of `slots` pages. On the first rank somebody asks what was copied."""
    pool, platform = executor.pool, executor.platform
    cuda = platform.device.type == "cuda"
    host = executor.host = HostPool(pool, slots, pinned=cuda)
    if cuda:
        copies = CudaCopies(pool, host, platform.device, reports=rank == 0)
        platform.submit(copies.warm_up).wait()
        executor.copies = copies
    else:
        executor.copies = CpuCopies(pool, host, platform)
    log.info("host memory for KV pages: %d pages, %.2f GB", slots, slots * page_bytes(pool) / 1e9)


def kv_identity(config: Config, spec: ModelSpec, device: str, dtype: str, kv_dtype: str, rank: int) -> str:
    """Everything that decides which bytes a page of given tokens holds, as hex digits. With storage that is also
    what the weights are; without it pages do not outlive the process."""
    stored = config.cache.hicache_storage_backend != "none"
    facts = {
        "layout": LAYOUT,
        # how long a text may be says nothing about its first tokens
        "spec": json.loads(msgspec.json.encode(msgspec.structs.replace(spec, context_length=0))),
        "weights": weights_digest(config.model) if stored else "",
        "device": device,
        "dtype": [config.model.dtype, dtype, kv_dtype],
        "page_size": config.device.page_size,
        "rank": [rank, config.device.tp_size],
        "exact": config.device.enable_deterministic_inference,
    }
    return blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=32).hexdigest()
