"""Runs compiled kernels on several threads, now or as a recording that is run again and again.

The helpers are threads of our own that sleep while there is nothing to do; `crew.py` says how they share work.
An operation is (kernel, task, chunks): the kernel is called with the task for every chunk, on any thread.
Knows nothing of what the kernels compute.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch

from radixlang.kernels.cpu import available

if available():
    from radixlang.kernels.cpu import crew

Operation = tuple[int, np.ndarray, int]
"""Address of a kernel, its task (an int64 array, or an address), chunks"""

_PATIENCE = 20_000
"""looks at the board, about half a millisecond, before a helper goes to sleep"""


def threads() -> int:
    """Threads a kernel may run on: torch's number."""
    return torch.get_num_threads()


class _Crew:
    """The board and the helpers of this process."""

    def __init__(self) -> None:
        self.board = np.zeros(crew.BOARD + 8, np.int64)
        # Its start on a cache line.
        self.address = (self.board.ctypes.data + 63) // 64 * 64
        self.numbers = self.board[(self.address - self.board.ctypes.data) // 8 :]
        try:
            usleep = ctypes.CDLL(None).usleep
            self.numbers[crew.USLEEP] = ctypes.cast(usleep, ctypes.c_void_p).value or 0
        except (OSError, AttributeError, TypeError):
            pass  # the leader then waits busily
        self.lead, self.assist = (_native(function()) for function in (crew.lead, crew.assist))
        self.leading = threading.Lock()
        self.busy = False
        self.asleep: list[bool] = []
        self.calls: list[SimpleQueue[None]] = []
        atexit.register(self._stop)

    def wake(self, helpers: int) -> None:
        while len(self.calls) < helpers:
            self.calls.append(SimpleQueue())
            self.asleep.append(False)
            number = len(self.calls)
            name = f"radixlang-cpu-{number}"
            threading.Thread(target=self._help, args=(number,), name=name, daemon=True).start()
        self.numbers[crew.HELPERS] = helpers
        for i in range(helpers):
            if self.asleep[i]:
                self.asleep[i] = False
                self.calls[i].put(None)

    def _help(self, number: int) -> None:
        i = number - 1
        while True:
            self.assist(self.address, number, _PATIENCE)
            # The leader says it is busy before it looks who sleeps, so one of the two sees the other.
            self.asleep[i] = True
            if not (self.busy and self.asleep[i] and number <= self.numbers[crew.HELPERS]):
                self.calls[i].get()
            self.asleep[i] = False

    def _stop(self) -> None:
        """Before the interpreter takes the compiled code away, nobody may run it."""
        self.numbers[crew.HELPERS] = -1
        end = time.monotonic() + 1
        while not all(self.asleep) and time.monotonic() < end:
            time.sleep(0.0005)


def _native(address: int) -> Callable[[int, int, int], None]:
    return ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(address)


@cache
def _crew() -> _Crew:
    return _Crew()


if hasattr(os, "register_at_fork"):
    # A child has none of its parent's threads.
    os.register_at_fork(after_in_child=_crew.cache_clear)


def warm_up() -> None:
    """Compile, or load from disk, what shares the work."""
    _crew()


class Arena:
    """Float32 memory that is used again once no tensor refers to it: fresh pages from the system cost more than
    many a kernel."""

    def __init__(self, most: int) -> None:
        """At most `most` floats are kept while nobody uses them and no recording is in need of them."""
        self._most = most
        self._kept = 0
        self._recordings = 0
        self._free: OrderedDict[int, list[np.ndarray]] = OrderedDict()

    def empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        size = math.prod(shape)
        # Few sizes, so that blocks fit again: at most an eighth is wasted.
        step = max(16, 1 << max(0, size.bit_length() - 4))
        whole = -(-size // step) * step
        free = self._free.setdefault(whole, [])
        self._free.move_to_end(whole)
        try:
            block = free.pop()
            self._kept -= len(block)
        except IndexError:
            block = np.empty(whole, np.float32)
        view = block[:size]
        weakref.finalize(view, self._release, block).atexit = False
        return torch.from_numpy(view).view(shape)

    def _release(self, block: np.ndarray) -> None:
        self._kept += len(block)
        self._free[len(block)].append(block)
        self._trim()

    def hold(self, recording: Recording) -> None:
        """Give nothing up as long as `recording` lives: what it noted will write to memory that no tensor refers
        to any more."""
        self._recordings += 1
        weakref.finalize(recording, self._let_go).atexit = False

    def _let_go(self) -> None:
        self._recordings -= 1
        self._trim()

    def _trim(self) -> None:
        if self._recordings or self._kept <= self._most:
            return
        # Blocks of sizes that nobody has asked for lately make room, or they would fill the arena for good.
        for blocks in list(self._free.values()):
            while blocks and self._kept > self._most:
                self._kept -= len(blocks.pop())


class Recording:
    """Operations to run in order, and the memory they work in, which nobody else uses."""

    def __init__(self, arena: Arena | None = None) -> None:
        """`arena`: memory shared with other recordings, which then must not outlive each other."""
        self._operations: list[Operation] = []
        self._arena = arena or Arena(sys.maxsize)
        self._arena.hold(self)
        self._table = np.zeros(0, np.int64)
        self._kept: list[np.ndarray] = []

    def add(self, operations: list[Operation]) -> None:
        self._operations += operations

    def empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Float32 memory; once no tensor refers to it, a later operation of the recording may use it again."""
        return self._arena.empty(shape)

    def keep(self, numbers: np.ndarray) -> None:
        """Hold an array that tasks have the address of."""
        self._kept.append(numbers)

    def close(self) -> None:
        """Nothing will be added any more."""
        self._table = _table(self._operations)

    def run(self) -> None:
        """Run all operations."""
        _run_table(self._table)


_recording: Any = threading.local()


@contextmanager
def recording(arena: Arena | None = None) -> Iterator[Recording]:
    """Within this, kernels of the calling thread are noted instead of run; `arena` as in `Recording`."""
    made = Recording(arena)
    _recording.current = made
    try:
        yield made
    finally:
        _recording.current = None
    made.close()


def is_recording() -> bool:
    """Whether kernels are being noted instead of run."""
    return getattr(_recording, "current", None) is not None


_LARGE = 1 << 15
_shared = Arena(32 << 20)


def empty(*shape: int) -> torch.Tensor:
    """Float32 memory for a kernel's results."""
    current: Recording | None = getattr(_recording, "current", None)
    if current is not None:
        return current.empty(shape)
    # Below the size from which the C library asks the system each time, it is quicker itself.
    return torch.empty(shape) if math.prod(shape) < _LARGE else _shared.empty(shape)


def keep(numbers: np.ndarray) -> np.ndarray:
    """The array, whose address a task is to hold: it lives as long as the current recording."""
    current: Recording | None = getattr(_recording, "current", None)
    if current is not None:
        current.keep(numbers)
    return numbers


def run(*operations: Operation) -> None:
    """Run operations, one after the other, and wait for them; or note them in the current recording."""
    current: Recording | None = getattr(_recording, "current", None)
    if current is not None:
        current.add(list(operations))
    else:
        _run_table(_table(list(operations)))


def _table(operations: list[Operation]) -> np.ndarray:
    return np.array([(function, task.ctypes.data, chunks) for function, task, chunks in operations], np.int64)


def _run_table(table: np.ndarray) -> None:
    team, helpers = _crew(), threads() - 1
    # One leader at a time; a second caller works alone.
    if helpers == 0 or (len(table) == 1 and table[0, 2] == 1) or not team.leading.acquire(blocking=False):
        team.lead(0, table.ctypes.data, len(table))
        return
    try:
        team.busy = True
        team.wake(helpers)
        team.lead(team.address, table.ctypes.data, len(table))
    finally:
        team.busy = False
        team.leading.release()
