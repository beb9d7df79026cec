"""What the options must be, each alone and beside the others, as far as no device and no weights need be known."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from radixlang.bearer import check_key
from radixlang.config import CacheConfig, Config, ScheduleConfig, options
from radixlang.errors import ConfigError

MOST_RANKS = 64
"""devices that a host can have, at most: each takes a process"""
MOST_RUNNING = 1 << 16
"""requests that run at once, at most: each has a row in every table"""
MOST_THREADS = 1024
"""above any machine's cores; a process that starts many more than it has dies of them"""


OFF = {
    "grammar_backend": "none",
    "disable_jump_forward": True,
    "max_pinned_fraction": 0,
    "cuda_graph_max_bs_prefill": 0,
}
"""values that turn something off: beside what turns off more they only say what holds anyway"""


def _is_text(value: str) -> bool:
    """Not what Python makes of bytes on a command line that are no UTF-8, and nothing that no path may hold."""
    if "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_effects(config: Config) -> None:
    """Refuse what was given in vain: it does nothing beside, or without, another option. Defaults stay silent,
    and so does what agrees.

    Raises:
        ConfigError: names both.
    """
    c, s = config.cache, config.schedule

    def given(*names: str) -> list[str]:
        return [
            ("--no-" if value is False else "--") + f.name.replace("_", "-")
            for group, f, _ in options()
            if f.name in names
            and (value := getattr(getattr(config, group), f.name)) not in (f.default, OFF.get(f.name, f.default))
        ]

    off = "--disable-radix-cache" if c.disable_radix_cache else "--no-enable-prefix-caching"
    uncached = c.disable_radix_cache or not c.enable_prefix_caching
    graphs = {"cuda_graph_max_bs", "cuda_graph_max_bs_prefill"}
    constraints = {f.name for group, f, _ in options() if group == "grammar"}
    generated = {"sampling_defaults", *constraints}
    streams = {"stream_interval", "incremental_streaming_output"}
    # The parsers are not among these: clients may send them texts that were made elsewhere.
    templates = {"chat_template", "default_chat_template_kwargs"}
    for there, other, names in (
        (uncached, off, {"radix_eviction_policy", "max_pinned_fraction"}),
        (config.device.disable_cuda_graph, "--disable-cuda-graph", graphs),
        (config.model.skip_tokenizer_init, "--skip-tokenizer-init", templates | generated),
        (config.model.is_embedding, "--is-embedding", streams | generated),
        (config.grammar.grammar_backend == "none", "--grammar-backend none", constraints - {"grammar_backend"}),
    ):
        if there and (flags := given(*names)):
            raise ConfigError(f"{flags[0]} has no effect with {other}; leave one of the two out.")
    if uncached and (policy := s.schedule_policy) in ("lpm", "dfs-weight"):
        raise ConfigError(f"--schedule-policy {policy} has no effect with {off}; leave one of the two out.")
    storage = c.hicache_storage_backend != "none" or bool(c.cache_dir)
    host = c.enable_hierarchical_cache
    for flag, there, needs in (
        *((flag, host, "--enable-hierarchical-cache") for flag in given("hicache_ratio")),
        *(
            (flag, host or storage, "--enable-hierarchical-cache, --cache-dir or --hicache-storage-backend")
            for flag in given("hicache_size", "hicache_write_policy")
        ),
        *(
            (flag, storage, "--cache-dir or --hicache-storage-backend")
            for flag in given("hicache_storage_prefetch_policy")
        ),
    ):
        if not there:
            raise ConfigError(f"{flag} has no effect without {needs}; add that, or leave it out.")


def resolved(config: Config) -> Config:
    """A copy with the automatic values that need no device.

    Raises:
        ConfigError: names the flag, its value and the fix.
    """
    m, d, c, s, v = config.model, config.device, config.cache, config.schedule, config.server

    def need(ok: bool, name: str, value: Any, rule: str) -> None:
        if not ok:
            raise ConfigError(f"--{name.replace('_', '-')} must be {rule}, got {value}.")

    for name, f, _ in options():
        value = getattr(getattr(config, name), f.name)
        if isinstance(value, float):
            need(math.isfinite(value), f.name, value, "a finite number")
        elif isinstance(value, int) and f.name != "port":  # whose own rule is narrower
            # Messages between the processes hold 64 bits, counts of tokens and requests 32.
            bits = 63 if f.name == "random_seed" else 31
            need(-(2**bits) <= value < 2**bits, f.name, value, f"an integer of {bits + 1} bits")
        elif isinstance(value, str):
            need(_is_text(value), f.name, repr(value), "UTF-8 text without NUL")
    if not m.model_path:
        raise ConfigError("--model-path is required: a folder, a .gguf file, a hub id, or 'default'.")
    need(1 <= d.tp_size <= MOST_RANKS, "tp_size", d.tp_size, f"between 1 and {MOST_RANKS}")
    for name in ("dp_size", "pp_size", "ep_size", "nnodes"):
        need(getattr(d, name) == 1, name, getattr(d, name), "1 in this version (--tp-size takes more devices)")
    need(d.node_rank == 0, "node_rank", d.node_rank, "0 in this version, which runs on one host")
    named = re.fullmatch(r"[a-z]+(:[0-9]{1,3})?", d.device)
    need(named is not None, "device", repr(d.device), "auto, or a kind such as cuda, or one of them: cuda:1")
    for name, value, most in (
        ("max_running_requests", s.max_running_requests, MOST_RUNNING),
        ("num_threads", d.num_threads, MOST_THREADS),
    ):
        need(value is None or 1 <= value <= most, name, value, f"between 1 and {most}")
    need(1 <= d.page_size <= 128, "page_size", d.page_size, "between 1 and 128")
    need(
        d.mem_fraction_static is None or 0 < d.mem_fraction_static < 1,
        "mem_fraction_static",
        d.mem_fraction_static,
        "above 0 and below 1",
    )
    share = config.cache.max_pinned_fraction
    need(0 <= share <= 1, "max_pinned_fraction", share, "between 0 and 1")
    exact = d.enable_deterministic_inference
    if exact:
        with_flag = "with --enable-deterministic-inference"
        order = "(the order in which devices add up is not fixed)"
        need(d.tp_size == 1, "tp_size", d.tp_size, f"1 {with_flag} {order}")
        need(d.kv_cache_dtype == "auto", "kv_cache_dtype", d.kv_cache_dtype, f"auto {with_flag}")
        need(
            not m.is_embedding,
            "is_embedding",
            "true",
            f"left out {with_flag} (sums over a prompt are not covered)",
        )
    for name, value in (
        ("context_length", m.context_length),
        ("max_total_tokens", d.max_total_tokens),
        ("cuda_graph_max_bs", d.cuda_graph_max_bs),
        ("max_prefill_tokens", s.max_prefill_tokens),
        ("max_prefill_steps", s.max_prefill_steps),
        ("prefill_max_requests", s.prefill_max_requests),
        ("priority_scheduling_preemption_threshold", s.priority_scheduling_preemption_threshold),
        ("stream_interval", v.stream_interval),
        ("grammar_cache_mb", config.grammar.grammar_cache_mb),
    ):
        need(value is None or value >= 1, name, value, "at least 1")
    tokens = d.cuda_graph_max_bs_prefill
    need(tokens is None or tokens >= 0, "cuda_graph_max_bs_prefill", tokens, "0 or more")
    need(
        s.max_queued_requests is None or s.max_queued_requests >= 0,
        "max_queued_requests",
        s.max_queued_requests,
        "at least 0",
    )
    need(s.queue_timeout is None or s.queue_timeout > 0, "queue_timeout", s.queue_timeout, "above 0")
    chunk = s.chunked_prefill_size
    need(chunk is None or chunk == -1 or chunk >= 1, "chunked_prefill_size", chunk, "-1 or at least 1")
    for name, key in (("api_key", v.api_key), ("admin_api_key", v.admin_api_key)):
        need(key != "", name, "an empty text", "a key (leave the flag out for none)")
        if key is not None:
            check_key(f"--{name.replace('_', '-')}", key)
    need(s.schedule_conservativeness > 0, "schedule_conservativeness", s.schedule_conservativeness, "above 0")
    need(0 <= v.port <= 65535, "port", v.port, "between 0 and 65535 (0 takes a free one)")
    for name, text in (
        ("json_model_override_args", m.json_model_override_args),
        ("default_chat_template_kwargs", v.default_chat_template_kwargs),
        ("hicache_storage_backend_extra_config", c.hicache_storage_backend_extra_config),
    ):
        try:
            ok = isinstance(json.loads(text), dict)
        except (ValueError, RecursionError):
            ok = False
        need(ok, name, repr(text), "a JSON object")
    need(0 < c.hicache_ratio <= 1e6, "hicache_ratio", c.hicache_ratio, "above 0 and at most 1e6")
    for name in ("hicache_size", "cache_dir_size"):
        need(0 <= getattr(c, name) <= 1e9, name, getattr(c, name), "from 0 to 1e9 (GB)")
    need(v.health_timeout > 0, "health_timeout", v.health_timeout, "above 0")
    need(v.drain_timeout >= 0, "drain_timeout", v.drain_timeout, "0 or more")
    storage = c.hicache_storage_backend
    if c.cache_dir is not None:
        need(storage in ("none", "file"), "cache_dir", c.cache_dir, f"left out with the {storage} backend")
        storage = "file"
    need(storage != "file" or bool(c.cache_dir), "cache_dir", "nothing", "a folder with the file backend")
    if storage != "file" and c.cache_dir_size != CacheConfig.cache_dir_size:
        raise ConfigError("--cache-dir-size needs --cache-dir: the folder whose size it bounds.")
    if storage in ("none", "file") and json.loads(c.hicache_storage_backend_extra_config):
        raise ConfigError(
            "--hicache-storage-backend-extra-config needs a --hicache-storage-backend that takes it (redis)."
        )
    if storage != "none":
        need(d.tp_size == 1, "tp_size", d.tp_size, "1 with --cache-dir or --hicache-storage-backend")
    uncached = c.disable_radix_cache or not c.enable_prefix_caching
    if c.enable_hierarchical_cache or storage != "none":
        need(not uncached, "disable_radix_cache", "true", "left out with tiers below the cache")
    policy = "priority" if s.enable_priority_scheduling and s.schedule_policy == "fcfs" else s.schedule_policy
    if s.enable_priority_scheduling:
        rule = "left out (or priority) with --enable-priority-scheduling"
        need(policy == "priority", "schedule_policy", policy, rule)
    for name in (
        "schedule_low_priority_values_first",
        "disable_priority_preemption",
        "priority_scheduling_preemption_threshold",
    ):
        if getattr(s, name) != getattr(ScheduleConfig, name) and policy != "priority":
            raise ConfigError(f"--{name.replace('_', '-')} needs --enable-priority-scheduling.")
    _check_effects(config)
    dtype = {"float": "float32", "half": "float16"}.get(m.dtype, m.dtype)
    # Import here: the registries live in the host column, above this module.
    from radixlang.registry import check_name

    check_name("schedule policy", "radixlang.scheduler.policy:POLICIES", policy, "--schedule-policy")
    check_name(
        "eviction policy",
        "radixlang.cache.eviction:EVICTIONS",
        config.cache.radix_eviction_policy,
        "--radix-eviction-policy",
    )
    check_name(
        "storage backend",
        "radixlang.cache.tiers.storage:STORAGES",
        storage,
        "--hicache-storage-backend",
        also=("none",),
    )
    engine = config.grammar.grammar_backend
    check_name("grammar backend", "radixlang.grammar:ENGINES", engine, "--grammar-backend", also=("auto", "none"))
    for what, where, name, spelling in (
        ("reasoning parser", "radixlang.parsers.reasoning:NAMES", v.reasoning_parser, "--reasoning-parser"),
        ("tool-call parser", "radixlang.parsers.tools:NAMES", v.tool_call_parser, "--tool-call-parser"),
    ):
        check_name(what, where, name, spelling)
    if d.attention_backend != "auto":
        what = "attention backend of --enable-deterministic-inference" if exact else "attention backend"
        table = "radixlang.attention:EXACT_BACKENDS" if exact else "radixlang.attention:BACKENDS"
        check_name(what, table, d.attention_backend, "--attention-backend")
    return config.replace(
        schedule_policy=policy, dtype=dtype, hicache_storage_backend=storage, disable_radix_cache=uncached
    )
