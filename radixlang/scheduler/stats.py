"""Totals of the scheduler, and rates between two snapshots. Must not know how they are shown."""

from __future__ import annotations

WINDOW = 1.0
"""seconds over which rates are taken, at least"""


class Totals:
    """What has happened since the start; every field only grows. Names are those of the metrics page."""

    def __init__(self) -> None:
        self.num_requests = 0
        self.num_refused_requests = 0
        self.num_aborted_requests = 0
        self.num_late_aborts = 0
        """of requests that had ended, and whose last tokens were on their way to the client"""
        self.num_failed_requests = 0
        self.num_retracted_requests = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0

    def counters(self, evicted_tokens: int) -> dict[str, float]:
        values = {f"{name}_total": float(value) for name, value in vars(self).items()}
        return values | {"evicted_tokens_total": float(evicted_tokens)}


class Rates:
    """Throughput and cache hit rate over the window before the last snapshot."""

    def __init__(self, now: float) -> None:
        self._time = now
        self._generated = 0
        self._prompt = 0
        self._cached = 0
        self._hit_rate = 0.0
        self._throughput = 0.0

    def update(self, totals: Totals, now: float, idle: bool) -> tuple[float, float]:
        """Generated tokens per second (0 when idle), and the cached share of the prompt tokens admitted (the
        former share while none were). A window is `WINDOW` seconds at least, however often somebody looks."""
        elapsed = now - self._time
        if elapsed >= WINDOW:
            self._throughput = (totals.generation_tokens - self._generated) / elapsed
            prompt = totals.prompt_tokens - self._prompt
            if prompt > 0:
                self._hit_rate = (totals.cached_tokens - self._cached) / prompt
            self._time, self._generated = now, totals.generation_tokens
            self._prompt, self._cached = totals.prompt_tokens, totals.cached_tokens
        return 0.0 if idle else self._throughput, self._hit_rate
