"""Pages in a Redis server (or one that speaks its protocol): `--hicache-storage-backend redis`.

    radixlang:<model and layout>:<key>  →  a header, then the page's bytes

What is deleted when the server's memory is full is the server's business (`maxmemory`, `maxmemory-policy
allkeys-lru`), or a time to live is given. Must not know requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from radixlang.cache.tiers.storage import (
    HEADER_BYTES,
    Buffer,
    DamagedEntry,
    StorageOptions,
    check_entry,
    header,
)
from radixlang.errors import ConfigError
from radixlang.log import get_logger

log = get_logger(__name__)

DEFAULT_URL = "redis://127.0.0.1:6379/0"
FLAG = "--hicache-storage-backend-extra-config"
BATCH_BYTES = 16 << 20
"""of one request to the server"""
LONGEST = 10**9
"""seconds of a time to live, 31 years; Redis overflows above some more"""
TIMEOUT = 5.0
"""seconds for connecting, and for one answer"""


class RedisStorage:
    """A `StorageTier` behind a network connection. Extra configuration: `url`, and `ttl` in seconds."""

    name = "redis"

    def __init__(self, options: StorageOptions) -> None:
        self._ttl, self._client = _connect(options)
        self._identity = options.identity
        self._prefix = b"radixlang:" + options.identity[:16].hex().encode() + b":"
        self._batch = max(1, BATCH_BYTES // max(1, options.page_bytes))

    @staticmethod
    def check(options: StorageOptions) -> None:
        """Raises:
        ConfigError: the package is missing, the configuration is wrong, or nobody answers.
        """
        _, client = _connect(options)
        try:
            client.ping()
        except Exception as error:
            reason = str(error).rstrip(".")
            raise ConfigError(
                f"The Redis server at {_without_password(_url(options))} cannot be used: {reason}; start it, or "
                f"give another url (redis://:password@host:port/0) in {FLAG}."
            ) from None
        finally:
            client.close()

    def _name(self, key: bytes) -> bytes:
        return self._prefix + key.hex().encode()

    def exists(self, keys: Sequence[bytes]) -> int:
        found = 0
        for names in _batches([self._name(key) for key in keys], 256):
            pipeline = self._client.pipeline(transaction=False)
            for name in names:
                pipeline.exists(name)
            answers = pipeline.execute()
            here = answers.index(0) if 0 in answers else len(answers)
            found += here
            if here < len(names):
                break
        return found

    def read(self, keys: Sequence[bytes], buffers: Sequence[Buffer]) -> int:
        done = 0
        for batch in _batches(list(zip(keys, buffers, strict=True)), self._batch):
            values = self._client.mget([self._name(key) for key, _ in batch])
            good = True
            for (key, buffer), value in zip(batch, values, strict=True):
                if value is None:
                    return done
                try:
                    if len(value) != HEADER_BYTES + buffer.nbytes:
                        raise DamagedEntry("it has another length")
                    buffer[:] = value[HEADER_BYTES:]
                    check_entry(value[:HEADER_BYTES], key, self._identity, buffer)
                except DamagedEntry as error:
                    log.warning("the cache entry %s is deleted: %s", self._name(key).decode(), error)
                    self._client.delete(self._name(key))
                    good = False  # those behind it are looked at all the same, as files are
                done += good
            if not good:
                break
        return done

    def write(self, keys: Sequence[bytes], buffers: Sequence[Buffer], behind: Sequence[bytes] = ()) -> int:
        written = 0
        if behind:
            pipeline = self._client.pipeline(transaction=False)
            pipeline.touch(*(self._name(key) for key in reversed(behind)))
            pipeline.execute(raise_on_error=False)  # a server that lacks this command does without
        for batch in _batches(list(zip(keys, buffers, strict=True)), self._batch):
            pipeline = self._client.pipeline(transaction=False)
            for key, _ in batch:
                pipeline.exists(self._name(key))
            for (key, buffer), here in zip(batch, pipeline.execute(), strict=True):
                if not here:
                    value = header(key, self._identity, buffer) + buffer.tobytes()
                    pipeline.set(self._name(key), value, ex=self._ttl)
                    written += 1
            pipeline.execute()
        return written

    def close(self) -> None:
        self._client.close()


def _connect(options: StorageOptions) -> tuple[int | None, Any]:
    """(time to live, client); connections are made when they are needed."""
    extra = dict(options.extra or {})
    url, ttl = _url(options), extra.pop("ttl", None)
    extra.pop("url", None)
    if extra:
        raise ConfigError(f"{FLAG}: redis takes the keys url and ttl, not {next(iter(extra))!r}.")
    if not isinstance(url, str):
        raise ConfigError(f"{FLAG}: url must be a text like {DEFAULT_URL}, got {url!r}.")
    if ttl is not None and (type(ttl) is not int or not 1 <= ttl <= LONGEST):
        raise ConfigError(f"{FLAG}: ttl must be a whole number of seconds from 1 to {LONGEST}, got {ttl!r}.")
    try:
        import redis
    except ImportError:
        raise ConfigError(
            "--hicache-storage-backend redis needs the package redis: pip install 'radixlang[redis]'."
        ) from None
    try:
        client = redis.Redis.from_url(url, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT)
    except ValueError as error:
        reason = str(error).rstrip(".")
        raise ConfigError(f"{FLAG}: url {_without_password(url)!r} cannot be used: {reason}.") from None
    return ttl, client


def _url(options: StorageOptions) -> Any:
    return (options.extra or {}).get("url", DEFAULT_URL)


def _without_password(url: str) -> str:
    """What an error may show of it: logs are read by more people than configurations."""
    return re.sub(r"//.*@", "//***@", url.partition("?")[0])


def _batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
