"""The lowest tier: pages by key, on disks or on other machines, kept across restarts and shared between servers.

A `StorageTier` is called from a few threads at once, never from the engine's loop. Whatever goes wrong in it costs
time and no request: pages that cannot be had are computed. Must not know tokens, slots or requests.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from radixlang.cache.tiers.keys import KEY_BYTES
from radixlang.registry import Registry

Buffer: TypeAlias = memoryview
"""the bytes of a page, in the host pool's memory"""

HEADER_BYTES = 64
_MAGIC = b"radixkv1"


class DamagedEntry(Exception):
    """What lies under a key is not the page that should."""


@dataclass(frozen=True)
class StorageOptions:
    """What a storage is made from."""

    identity: bytes
    """model, layout and arithmetic of the pages; see `keys`"""
    page_bytes: int
    """0 as long as it is not known"""
    folder: str | None = None
    """`--cache-dir`"""
    limit_bytes: int = 0
    """`--cache-dir-size` in bytes, 0: no limit"""
    extra: dict[str, Any] | None = None
    """`--hicache-storage-backend-extra-config`"""


class StorageTier(Protocol):
    """Made from `StorageOptions`. Any method may raise: the caller says so once and does without."""

    name: str

    @staticmethod
    def check(options: StorageOptions) -> None:
        """Called before weights load, at first when not even the size of a page is known.

        Raises:
            ConfigError: the storage cannot be used.
        """
        ...

    def exists(self, keys: Sequence[bytes]) -> int:
        """How many of `keys`, from the first on, are there (or seem to be)."""
        ...

    def read(self, keys: Sequence[bytes], buffers: Sequence[Buffer]) -> int:
        """Fill `buffers` with the pages; → how many, from the first on, are whole and right. A damaged entry is
        deleted."""
        ...

    def write(self, keys: Sequence[bytes], buffers: Sequence[Buffer], behind: Sequence[bytes] = ()) -> int:
        """Keep the pages, those that are there already left alone; → how many were written.

        They follow one another in a prefix, which begins with those `behind`. All count as used now, `keys` or
        none, and the first most of all: without its beginning a prefix is worth nothing.
        """
        ...

    def close(self) -> None:
        """Nothing is read or written any more."""
        ...


STORAGES: Registry[Any] = Registry(
    "storage backend",
    "storage",
    {
        "file": "radixlang.cache.tiers.disk:DiskStorage",
        "redis": "radixlang.cache.tiers.redis:RedisStorage",
    },
)
"""`name(options)` → `StorageTier`; ConfigError when it cannot be used."""


def header(key: bytes, identity: bytes, page: Buffer) -> bytes:
    """What stands before a page's bytes: magic 8, key 16, identity 16, length 8, checksum of the page 4, 8 zeros,
    checksum of all that 4; little-endian. `HEADER_BYTES` in all."""
    body = _MAGIC + key + identity[:16].ljust(16, b"\0")
    body += page.nbytes.to_bytes(8, "little") + zlib.crc32(page).to_bytes(4, "little") + bytes(8)
    return body + zlib.crc32(body).to_bytes(4, "little")


def check_entry(head: bytes, key: bytes, identity: bytes, page: Buffer) -> None:
    """Check what was read: the header, and the bytes that are in `page` already.

    Raises:
        DamagedEntry: short, changed, or another key's or model's.
    """
    if len(head) != HEADER_BYTES or head[:8] != _MAGIC:
        raise DamagedEntry("it does not begin like an entry")
    if zlib.crc32(head[:-4]) != int.from_bytes(head[-4:], "little"):
        raise DamagedEntry("its header is damaged")
    if head[8 : 8 + KEY_BYTES] != key or head[24:40] != identity[:16].ljust(16, b"\0"):
        raise DamagedEntry("it belongs to another key or model")
    if int.from_bytes(head[40:48], "little") != page.nbytes:
        raise DamagedEntry("it has another length")
    if zlib.crc32(page) != int.from_bytes(head[48:52], "little"):
        raise DamagedEntry("its bytes have changed")
