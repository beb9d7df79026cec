"""Runs a storage beside the engine's loop: work goes in, and is asked for when it is done. Nothing here raises.

A storage that fails is left alone for a while, and one that hangs until it answers, so that a dead server or disk
costs no request its time. Must not know what the pages are for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

import numpy as np

from radixlang.cache.tiers.storage import StorageTier
from radixlang.log import get_logger

log = get_logger(__name__)

READERS = 4
REST = 5.0
"""seconds in which a storage that has failed is not asked"""
HANGING = 5.0
"""seconds after which a storage that does not come back from one call counts as hanging (a network's disk may)"""
CLOSING = 60.0
"""seconds that unwritten pages get when the engine ends"""


class Job(Protocol):
    """Whatever the caller knows its work by."""

    @property
    def vain(self) -> bool:
        """Nobody needs it any more: it is done, with no pages, when its turn comes. Asked in another thread."""
        ...


class Done(NamedTuple):
    """`job` as it was given; `pages`, from the first on, so many were found, read or written."""

    job: Any  # a `Job`; only the caller knows of which kind
    pages: int


class StorageThreads:
    """`READERS` threads that find and read, and one that writes; `array` is the host pool's memory."""

    def __init__(self, storage: StorageTier, array: np.ndarray) -> None:
        self.storage = storage
        self._array = array
        self._readers = ThreadPoolExecutor(READERS, "storage-read")
        self._writer = ThreadPoolExecutor(1, "storage-write")
        self._done: SimpleQueue[Done] = SimpleQueue()
        self._rest_until = 0.0
        self._lock = threading.Lock()
        self._unwritten = 0
        self._reading_since: dict[int, float] = {}
        """by thread: when it began the call that it is in"""
        self._told_hanging = False
        self.failures = 0

    def _buffers(self, slots: Sequence[int]) -> list[memoryview]:
        return [self._array[slot].data for slot in slots]

    def find(self, job: Job, keys: Sequence[bytes]) -> None:
        self._readers.submit(self._look, job, lambda: self.storage.exists(keys))

    def read(self, job: Job, keys: Sequence[bytes], slots: Sequence[int]) -> None:
        """Into these slots, which are the job's until it is done."""
        self._readers.submit(self._look, job, lambda: self.storage.read(keys, self._buffers(slots)))

    def write(self, job: Job, keys: Sequence[bytes], slots: Sequence[int], behind: Sequence[bytes] = ()) -> None:
        """From these slots, which stay as they are until the job is done; see `StorageTier.write`."""
        with self._lock:
            self._unwritten += 1
        self._writer.submit(self._write, job, keys, slots, behind)

    @property
    def hanging(self) -> bool:
        """Whoever asked the storage for pages now would wait in vain."""
        now = time.monotonic()
        with self._lock:
            hanging = any(now - since > HANGING for since in self._reading_since.values())
        if hanging and not self._told_hanging:
            log.warning(
                "the %s storage has not answered for %g s and is not asked before it does",
                self.storage.name,
                HANGING,
            )
        self._told_hanging = hanging
        return hanging

    def _look(self, job: Job, work: Callable[[], int]) -> None:
        me = threading.get_ident()
        with self._lock:
            self._reading_since[me] = time.monotonic()
        self._run(job, work)
        with self._lock:
            del self._reading_since[me]

    def _write(self, job: Job, keys: Sequence[bytes], slots: Sequence[int], behind: Sequence[bytes]) -> None:
        self._run(job, lambda: self.storage.write(keys, self._buffers(slots), behind))
        with self._lock:
            self._unwritten -= 1

    def _run(self, job: Job, work: Callable[[], int]) -> None:
        count = 0
        if not job.vain and time.monotonic() >= self._rest_until:
            try:
                count = work()
            except Exception as error:
                self.failures += 1
                self._rest_until = time.monotonic() + REST
                told = log.warning if self.failures == 1 else log.debug
                told(
                    "the %s storage failed and is asked again in %g s (later failures are counted only): %s: %s",
                    self.storage.name,
                    REST,
                    type(error).__name__,
                    error,
                )
        self._done.put(Done(job, count))

    def done(self) -> list[Done]:
        """What was done since the last call."""
        return [self._done.get() for _ in range(self._done.qsize())]

    def close(self) -> None:
        """Write what is left to write, then end."""
        self._readers.shutdown(wait=True, cancel_futures=True)
        give_up = time.monotonic() + CLOSING
        while self._unwritten and time.monotonic() < give_up:
            time.sleep(0.005)
        if self._unwritten:
            log.warning("%d groups of cached pages were not written in time", self._unwritten)
        self._writer.shutdown(wait=True, cancel_futures=True)
        self.storage.close()
