"""A platform that also notes when its stream works: what `radixlang bench step` looks through.

Stands before a real platform; nobody else needs to know. On the CPU a stamp is a reading of the clock on the
stream's thread, on an accelerator an event on the stream. Must not know plans or models.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from radixlang.platforms import Pending, Platform


class Submission:
    """One piece of submitted work: the stamp where it began, and one at the end of each part."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.stamps: list[Any] = []

    def spans(self) -> dict[str, float]:
        """Seconds of each part on the stream; the work must be over."""
        out: dict[str, float] = {}
        for part, begin, end in zip(self.parts, self.stamps[:-1], self.stamps[1:], strict=True):
            out[part] = out.get(part, 0.0) + seconds_between(begin, end)
        return out

    def until_end_of(self, later: Submission) -> float:
        """Seconds from the end of this work to the end of `later`: the period of one step in a row of steps."""
        return seconds_between(self.stamps[-1], later.stamps[-1])


def seconds_between(begin: Any, end: Any) -> float:
    """From one stamp to another, both passed."""
    if isinstance(begin, float):
        return float(end - begin)
    return float(begin.elapsed_time(end)) / 1000


class _Waited:
    """Pending work whose waiting is timed."""

    def __init__(self, pending: Pending, platform: RecordingPlatform) -> None:
        self._pending = pending
        self._platform = platform

    def wait(self) -> Any:
        began = time.perf_counter()
        try:
            return self._pending.wait()
        finally:
            self._platform.waited += time.perf_counter() - began


class RecordingPlatform:
    """Implements `Platform` by the one it is given. `last` is the newest submission, `waited` the seconds that
    hosts have waited for submitted work."""

    def __init__(self, inner: Platform) -> None:
        self.inner = inner
        self.waited = 0.0
        self.last: Submission | None = None
        self._current = Submission()
        self._stamp: Callable[[], Any] = time.perf_counter if inner.device.type == "cpu" else self._event

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def submit(self, work: Callable[[], Any]) -> Pending:
        submission = self.last = Submission()

        def recorded() -> Any:
            self._current = submission
            submission.stamps.append(self._stamp())
            value = work()
            self.mark("rest")
            return value

        return _Waited(self.inner.submit(recorded), self)

    def mark(self, part: str) -> None:
        self._current.parts.append(part)
        self._current.stamps.append(self._stamp())

    def _event(self) -> torch.Event:
        event = torch.Event(self.inner.device, enable_timing=True)
        event.record(torch.accelerator.current_stream())
        return event
