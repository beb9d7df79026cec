"""The numbers of `/metrics`: requests and HTTP counted here, the engine's own figures passed through.

Plain dictionaries written on the server's loop and turned into Prometheus families when scraped, so that
counting costs next to nothing per token. Names are SGLang's (`sglang:` prefix), so existing dashboards work.
Must not know HTTP routes or messages beyond `Stats`.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from radixlang.messages import Stats

if TYPE_CHECKING:
    from radixlang.server.stream import Sequence

PREFIX = "sglang:"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LATENCY = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 1200, 2400)
_PER_TOKEN = (
    0.002,
    0.004,
    0.006,
    0.008,
    0.01,
    0.015,
    0.02,
    0.03,
    0.04,
    0.06,
    0.08,
    0.1,
    0.2,
    0.4,
    0.8,
    1,
    2,
    4,
    8,
)
_TOKENS = (1, 10, 50, 100, 250, 500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000)
_COMPILATION = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_QUEUE = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 300, 1000, 3000)

#: gauges of the engine: shown as 0 before it has told anything and after it has gone
ENGINE_GAUGES = {
    "num_running_reqs": "Requests that run.",
    "num_queue_reqs": "Requests that wait.",
    "num_grammar_queue_reqs": "Requests whose constraints are being compiled.",
    "num_retracted_reqs": "Requests that had to give their memory back and wait to go on.",
    "gen_throughput": "Generated tokens per second.",
    "cache_hit_rate": "Share of the prompt tokens that the last requests to begin found in the cache.",
    "token_usage": "Share of the KV pool that running requests and pins hold.",
    "num_used_tokens": "Tokens of the KV pool that running requests and pins hold.",
    "kv_available_tokens": "Free tokens of the KV pool.",
    "kv_evictable_tokens": "Tokens that only the radix cache holds.",
    "kv_pinned_tokens": "Tokens that pins keep in the radix cache.",
    "kv_used_tokens": "Tokens of the KV pool that are neither free nor evictable.",
    "hicache_host_used_tokens": "Tokens whose KV is in host memory.",
    "hicache_host_total_tokens": "Tokens whose KV host memory can hold.",
    "new_token_ratio": "Share of the running requests' remaining tokens that admission keeps free.",
}
ENGINE_COUNTERS = {
    "num_refused_requests": "Requests refused because the queue was full or the wait too long.",
    "num_late_aborts": "Aborts of requests that had ended already.",
    "num_retracted_requests": "Times a request had to give its memory back.",
    "evicted_tokens": "Tokens evicted from the radix cache.",
    "hicache_backup_tokens": "Tokens whose KV was copied to host memory.",
    "hicache_backup_dropped_tokens": "Tokens not copied for want of room, or not written for want of time.",
    "load_back_tokens": "Tokens whose KV was copied from host memory to the device.",
    "prefetched_tokens": "Tokens whose KV was read from storage.",
    "storage_prefetch_hit_tokens": "Prompt tokens that came out of storage.",
    "backuped_tokens": "Tokens whose KV was written to storage.",
    "storage_failures": "Times the storage failed.",
    "num_grammar": "Requests with a constraint.",
    "num_grammar_cache_hit": "Constraints that were known already.",
    "num_grammar_aborted": "Requests that ended while their constraints were compiled.",
    "grammar_forced_tokens": "Tokens that constraints wrote without asking the model.",
    "grammar_drafted_tokens": "Tokens computed in the step that drew them, since their bytes must follow.",
    "grammar_missed_drafts": "Of these, tokens in whose place another was drawn.",
    "num_grammar_device": "Requests whose constraints the device followed by itself.",
    "grammar_vetoed_tokens": "Drawn tokens that were refused because a value would have been wrong.",
}
#: gauges that are 0 whenever nothing runs, whatever was said last
_IDLE_ZERO = ("num_running_reqs", "num_queue_reqs", "gen_throughput", "num_used_tokens", "token_usage")

_COUNTERS = {
    "prompt_tokens": "Prompt tokens of finished requests.",
    "generation_tokens": "Generated tokens of finished requests.",
    "cached_tokens": "Prompt tokens that came out of the cache.",
    "num_requests": "Requests that ended with an answer.",
    "num_aborted_requests": "Requests ended by an abort or because the client left.",
    "num_failed_requests": "Accepted requests that ended with an error.",
    "http_requests": "HTTP requests received.",
    "http_responses": "HTTP responses sent.",
}
_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("From arrival to the first token.", _LATENCY),
    "inter_token_latency_seconds": ("Between two tokens of one request.", _PER_TOKEN),
    "request_time_per_output_token_seconds": ("Per output token after the first.", _PER_TOKEN),
    "e2e_request_latency_seconds": ("From arrival to the last token.", _LATENCY),
    "queue_time_seconds": ("From arrival to the first step.", _QUEUE),
    "prompt_tokens_histogram": ("Prompt lengths.", _TOKENS),
    "uncached_prompt_tokens_histogram": ("Prompt tokens that had to be computed.", _TOKENS),
    "generation_tokens_histogram": ("Answer lengths.", _TOKENS),
    "grammar_compilation_time_seconds": ("To compile a constraint that was not known.", _COMPILATION),
}
#: those that tell streamed requests from others
_STREAMING_HISTOGRAMS = {
    "time_to_first_token_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
}
_INFO_GAUGES = {
    "max_total_num_tokens": ("max_total_num_tokens", 1.0, "Tokens the KV pool holds."),
    "page_size": ("page_size", 1.0, "Tokens per KV page."),
    "num_pages": ("num_pages", 1.0, "Pages of the KV pool."),
    "context_len": ("context_length", 1.0, "Longest prompt plus answer in tokens."),
    "weight_memory_usage_gb": ("weight_bytes", 2.0**-30, "Memory of the weights in GiB."),
    "kv_cache_memory_usage_gb": ("kv_bytes", 2.0**-30, "Memory of the KV pool in GiB."),
    "startup_time_seconds": ("startup_time", 1.0, "Seconds from start to ready."),
}

Labels = tuple[tuple[str, str], ...]


class _Histogram:
    __slots__ = ("counts", "total")

    def __init__(self, size: int) -> None:
        self.counts = [0] * (size + 1)
        self.total = 0.0


class Metrics:
    """All counters of one server. Also a Prometheus collector; `text()` is the page."""

    def __init__(self, model_name: str, info: dict[str, Any]) -> None:
        self._base: Labels = (("model_name", model_name), ("engine_type", "unified"))
        self._rank: Labels = (("tp_rank", "0"), ("pp_rank", "0"), ("moe_ep_rank", "0"))
        self._info = info
        self._counters: dict[str, dict[Labels, float]] = {name: defaultdict(float) for name in _COUNTERS}
        self._histograms: dict[str, dict[Labels, _Histogram]] = {name: {} for name in _HISTOGRAMS}
        self._active: dict[Labels, int] = defaultdict(int)
        self.gauges: dict[str, float] = dict.fromkeys(ENGINE_GAUGES, 0.0)
        self.engine_counters: dict[str, float] = dict.fromkeys(ENGINE_COUNTERS, 0.0)
        # The series that dashboards ask for exist from the start, so that rates have a first value.
        for streaming in ("true", "false"):
            labels = (("is_streaming", streaming),)
            for name in ("prompt_tokens", "generation_tokens", "num_requests"):
                self._count(name, labels, 0)
            for name in _STREAMING_HISTOGRAMS:
                self._observe(name, 0, labels, times=0)
        self._count("num_aborted_requests", (), 0)
        self._count("num_failed_requests", (("status_code", "500"),), 0)
        self._count("num_failed_requests", (("status_code", "503"),), 0)
        self._count("cached_tokens", (("cache_source", "device"),), 0)
        for name in _HISTOGRAMS.keys() - _STREAMING_HISTOGRAMS:
            self._observe(name, 0, times=0)

    # ---- counting ----

    def _count(self, name: str, labels: Labels, value: float = 1.0) -> None:
        self._counters[name][labels] += value

    def _observe(self, name: str, value: float, labels: Labels = (), times: int = 1) -> None:
        bounds = _HISTOGRAMS[name][1]
        table = self._histograms[name]
        histogram = table.get(labels)
        if histogram is None:
            histogram = table[labels] = _Histogram(len(bounds))
        histogram.counts[bisect_left(bounds, value)] += times
        histogram.total += value * times

    def first_token(self, sequence: Sequence) -> None:
        """The first token of a request has arrived."""
        self._observe("time_to_first_token_seconds", sequence.first_at - sequence.received, _streaming(sequence))

    def next_tokens(self, gap: float, count: int) -> None:
        """`count` further tokens arrived, each `gap` seconds after the one before it."""
        self._observe("inter_token_latency_seconds", gap, (), count)

    def finished(self, sequence: Sequence) -> None:
        """A request ended with an answer."""
        labels = _streaming(sequence)
        prompt, cached, made = sequence.prompt_tokens, sequence.cached_tokens, sequence.completion_tokens
        if sequence.finish_reason is not None and sequence.finish_reason["type"] == "abort":
            self._count("num_aborted_requests", ())
        self._count("num_requests", labels)
        self._count("prompt_tokens", labels, prompt)
        self._count("generation_tokens", labels, made)
        for source, tokens in sequence.cached_by_tier.items():
            if tokens:
                self._count("cached_tokens", (("cache_source", source),), tokens)
        self._observe("e2e_request_latency_seconds", sequence.finished_at - sequence.received, labels)
        if made > 1:
            per_token = (sequence.finished_at - sequence.first_at) / (made - 1)
            self._observe("request_time_per_output_token_seconds", per_token, labels)
        if sequence.meta is not None:
            self._observe("queue_time_seconds", sequence.meta.queue_time)
        self._observe("prompt_tokens_histogram", prompt)
        self._observe("uncached_prompt_tokens_histogram", prompt - cached)
        self._observe("generation_tokens_histogram", made)

    def aborted(self) -> None:
        """The client left before the end."""
        self._count("num_aborted_requests", ())

    def failed(self, status: int) -> None:
        """An accepted request ended with an error."""
        self._count("num_failed_requests", (("status_code", str(status)),))

    def http_started(self, endpoint: str, method: str) -> None:
        labels = (("endpoint", endpoint), ("method", method))
        self._count("http_requests", labels)
        self._active[labels] += 1

    def http_finished(self, endpoint: str, method: str, status: int) -> None:
        self._active[(("endpoint", endpoint), ("method", method))] -= 1
        self._count("http_responses", (("endpoint", endpoint), ("status_code", str(status)), ("method", method)))

    def update(self, stats: Stats) -> None:
        """Take a snapshot of the engine."""
        if stats.idle:
            self.gauges.update(dict.fromkeys(_IDLE_ZERO, 0.0))
        self.gauges.update(stats.gauges)
        for name, value in stats.counters.items():
            self.engine_counters[name.removesuffix("_total")] = value
        for name, values in stats.times.items():
            for value in values:
                self._observe(name, value)

    def clear(self) -> None:
        """The engine is gone: nothing runs any more."""
        self.gauges.update(dict.fromkeys(self.gauges, 0.0))

    # ---- showing ----

    def text(self) -> bytes:
        """The page in Prometheus' text format."""
        # Import here: only scrapes need it.
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)  # type: ignore[arg-type]
        return generate_latest(registry)

    def collect(self) -> Iterator[Any]:
        """Prometheus families (the collector interface)."""
        yield from self._own_families()
        yield from self._engine_families()

    def _own_families(self) -> Iterator[Any]:
        """What is counted in this process."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        base = self._base
        family: Any
        for name, series in self._counters.items():
            if not series:
                continue
            prefix = () if name.startswith("http_") else base
            family = CounterMetricFamily(
                PREFIX + name, _COUNTERS[name], labels=_names((*prefix, *next(iter(series))))
            )
            for labels, value in series.items():
                family.add_metric(_values((*prefix, *labels)), value)
            yield family
        active = GaugeMetricFamily(
            PREFIX + "http_requests_active", "HTTP requests being served.", labels=["endpoint", "method"]
        )
        for labels, value in self._active.items():
            active.add_metric(_values(labels), value)
        yield active
        for name, table in self._histograms.items():
            help_text, bounds = _HISTOGRAMS[name]
            if not table:
                continue
            family = HistogramMetricFamily(PREFIX + name, help_text, labels=_names((*base, *next(iter(table)))))
            for labels, histogram in table.items():
                counts = list(accumulate(histogram.counts))
                edges = [*(str(float(bound)) for bound in bounds), "+Inf"]
                family.add_metric(
                    _values((*base, *labels)), list(zip(edges, counts, strict=True)), histogram.total
                )
            yield family
        cpu = CounterMetricFamily(
            PREFIX + "process_cpu_seconds", "CPU seconds of the server's process.", labels=["component"]
        )
        cpu.add_metric(["server"], time.process_time())
        yield cpu

    def _engine_families(self) -> Iterator[Any]:
        """What the engine has told."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = (*self._base, *self._rank)
        gauges: dict[str, tuple[float, str]] = {}
        for name, (key, factor, help_text) in _INFO_GAUGES.items():
            if isinstance(self._info.get(key), int | float):
                gauges[name] = (self._info[key] * factor, help_text)
        for name, value in self.gauges.items():
            gauges[_clean(name)] = (value, ENGINE_GAUGES.get(name, "Reported by the engine."))
        family: Any
        for name, (value, help_text) in gauges.items():
            family = GaugeMetricFamily(PREFIX + name, help_text, labels=_names(labels))
            family.add_metric(_values(labels), value)
            yield family
        for name, value in self.engine_counters.items():
            if name in _COUNTERS or name in gauges:
                continue
            help_text = ENGINE_COUNTERS.get(name, "Counted by the engine.")
            family = CounterMetricFamily(PREFIX + _clean(name), help_text, labels=_names(labels))
            family.add_metric(_values(labels), value)
            yield family


def _names(labels: Labels) -> list[str]:
    return [name for name, _ in labels]


def _values(labels: Labels) -> list[str]:
    return [value for _, value in labels]


def _streaming(sequence: Sequence) -> Labels:
    return (("is_streaming", "true" if sequence.stream.incremental else "false"),)


def _clean(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)
