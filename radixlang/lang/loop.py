"""The one event loop of all programs, in a daemon thread that starts with the first program; and how threads and
coroutines of any other loop wait for what happens on it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.RLock()  # garbage collection within may cancel a forgotten program, which asks for the loop
_waking = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_owner = 0  # process id: a forked child has no thread behind the loop it inherits


def get_loop() -> asyncio.AbstractEventLoop:
    """The running loop of the language."""
    global _loop, _owner
    with _lock:
        if _loop is None or _owner != os.getpid():
            _loop, _owner = asyncio.new_event_loop(), os.getpid()
            threading.Thread(target=_loop.run_forever, name="radixlang-lang", daemon=True).start()
        return _loop


def started() -> bool:
    """Whether there is a loop in this process."""
    return _loop is not None and _owner == os.getpid()


def on_loop() -> bool:
    """Whether the caller runs on the language's loop, where nothing may block."""
    try:
        return asyncio.get_running_loop() is _loop
    except RuntimeError:
        return False


def submit(work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Run a coroutine on the loop."""
    return asyncio.run_coroutine_threadsafe(work, get_loop())


def call(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop and wait for it.

    Raises:
        RuntimeError: the caller is on the loop itself.
    """
    if on_loop():
        work.close()
        raise RuntimeError("A coroutine of a program must await; it cannot wait for the loop that it runs on.")
    future = submit(work)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


class Watched:
    """Something that changes on the loop's thread while others look on.

    `wait` and `wait_async` return the first value other than None that `look` gives; it is asked again after every
    `changed()`.
    """

    __slots__ = ("_wakers",)

    def __init__(self) -> None:
        self._wakers: list[Callable[[], None]] = []

    def changed(self) -> None:
        """Wake everybody who waits."""
        if not self._wakers:
            return
        with _waking:
            wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    def _wake_by(self, wake: Callable[[], None]) -> None:
        # Without the lock it could land in the list that is just being worked off, and wait for ever.
        with _waking:
            self._wakers.append(wake)

    def wait(self, look: Callable[[], T | None]) -> T:
        """Block the calling thread."""
        while (found := look()) is None:
            if on_loop():
                raise RuntimeError(
                    "An async program must not block: read with `await s.get_var_async(name)`, "
                    "`await s.text_async()` or `await s.sync_async()`."
                )
            event = threading.Event()
            self._wake_by(event.set)
            # It may have changed between the look and the entry.
            if (found := look()) is not None:
                return found
            event.wait()
        return found

    async def wait_async(self, look: Callable[[], T | None]) -> T:
        """Suspend the calling coroutine, on whichever loop it runs."""
        loop = asyncio.get_running_loop()
        while (found := look()) is None:
            event = asyncio.Event()
            self._wake_by(functools.partial(_set, loop, event))
            if (found := look()) is not None:
                return found
            await event.wait()
        return found


def _set(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)
