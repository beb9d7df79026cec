"""A progress bar: tqdm's where it is installed, else a line of our own."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Protocol


class Bar(Protocol):
    """Counts finished programs."""

    def update(self, n: int = 1) -> Any: ...

    def close(self) -> None: ...


class _Nothing:
    def update(self, n: int = 1) -> None:
        return

    def close(self) -> None:
        return


class Line:
    """`done/total`, the time taken and the rate, redrawn in place; safe for many threads."""

    WIDTH = 30

    def __init__(self, total: int, file: Any = None) -> None:
        self.total = total
        self.done = 0
        self._file = file or sys.stderr
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._draw()

    def update(self, n: int = 1) -> None:
        """Count `n` more."""
        with self._lock:
            self.done += n
            self._draw()

    def _draw(self) -> None:
        seconds = time.monotonic() - self._began
        filled = self.WIDTH * self.done // self.total
        bar = "█" * filled + "░" * (self.WIDTH - filled)
        rate = f"{self.done / seconds:.1f}/s" if self.done and seconds else ""
        print(f"\r{bar} {self.done}/{self.total} {seconds:.1f} s {rate}", end="", file=self._file, flush=True)

    def close(self) -> None:
        """End the line."""
        print(file=self._file)


def progress(total: int, show: bool) -> Bar:
    """A bar for `total` programs; one that does nothing unless `show`."""
    if not show:
        return _Nothing()
    try:
        from tqdm import tqdm
    except ImportError:
        return Line(total)

    class Quiet(tqdm):  # type: ignore[type-arg,misc,unused-ignore]
        monitor_interval = 0  # its monitor is a thread that stays

    bar: Bar = Quiet(total=total)
    return bar
