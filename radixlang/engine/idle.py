"""Garbage collection at the right moments: a pass over all objects takes longer than a step's host work.

Only for a process that is the engine's own: it turns Python's automatic passes off. Must not know requests.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

BUSY_INTERVAL = 120.0
"""seconds between two passes of an engine that never falls idle"""
IDLE_INTERVAL = 1.0
"""seconds between two passes of an engine that falls idle often"""


class Collector:
    """Collects when the engine has nothing to do, and rarely otherwise. Little is left to it: objects without
    cycles, nearly all of an engine's, are freed at once anyway.

    What exists now (modules, the model) is never looked at again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        gc.collect()
        gc.freeze()
        gc.disable()
        self._clock = clock
        self._last = clock()

    def turn(self, idle: bool) -> None:
        """A turn of the loop has ended; `idle`: nothing is left to do."""
        now = self._clock()
        if now - self._last >= (IDLE_INTERVAL if idle else BUSY_INTERVAL):
            gc.collect()
            self._last = self._clock()
