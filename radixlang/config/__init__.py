"""Configuration: frozen dataclasses grouped by owner; flags, docs table and config files come from them.

One field is one flag (`chunked_prefill_size` → `--chunked-prefill-size`); names follow SGLang's where the
meaning is the same. `Config.from_flat(**values)` takes the flat names, `resolve()` checks everything that can
be known before weights load and fills in the automatic values that need no device. Must not import torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import json
import math
import os
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radixlang.errors import ConfigError


def flag(
    default: Any, help: str, *aliases: str, choices: tuple[str, ...] | None = None, metavar: str | None = None
) -> Any:
    """A dataclass field that is also a command-line flag. Aliases are further flag spellings."""
    return field(
        default=default, metadata={"help": help, "aliases": aliases, "choices": choices, "metavar": metavar}
    )


@dataclass(frozen=True)
class ModelConfig:
    """What is served."""

    model_path: str = flag("", "Folder in Hugging Face layout, GGUF file, hub id, or 'default'.", "--model")
    tokenizer_path: str | None = flag(
        None, "Tokenizer folder or file, or the name of a model that has it; the model's own by default."
    )
    skip_tokenizer_init: bool = flag(False, "Serve token ids only: no text in, no text out.")
    load_format: str = flag(
        "auto",
        "How weights are stored; dummy means random ones.",
        choices=("auto", "safetensors", "gguf", "dummy"),
    )
    dtype: str = flag(
        "auto",
        "Arithmetic; auto is the checkpoint's on GPUs, and on CPUs exact weights with 16-bit activations.",
        choices=("auto", "float32", "float", "bfloat16", "float16", "half"),
    )
    context_length: int | None = flag(None, "Longest prompt plus answer in tokens; the model's own by default.")
    served_model_name: str | None = flag(None, "Name the API answers to; the model path by default.")
    revision: str | None = flag(None, "Branch, tag or commit of a hub model.")
    download_dir: str | None = flag(None, "Folder that downloaded models are kept in.")
    trust_remote_code: bool = flag(False, "Allow code that comes with a model to run.")
    is_embedding: bool = flag(False, "Serve embeddings of a decoder model instead of text.")
    json_model_override_args: str = flag("{}", "JSON object that overrides keys of the model's config.")
    chat_template: str | None = flag(None, "Built-in template name, or a .jinja or .json file.")
    weight_version: str = flag("default", "Label reported with every answer.")


@dataclass(frozen=True)
class DeviceConfig:
    """Where and how it runs."""

    device: str = flag("auto", "auto, cpu, cuda, …")
    attention_backend: str = flag("auto", "Attention implementation; auto takes the first that fits the model.")
    page_size: int = flag(
        16, "Tokens per KV page, 1 to 128; prefix hits are rounded down to it if that costs less than half a page."
    )
    kv_cache_dtype: str = flag(
        "auto",
        "Storage of K and V; auto is the computing dtype.",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    mem_fraction_static: float | None = flag(None, "Share of device memory for weights and KV together.")
    max_total_tokens: int | None = flag(
        None, "Upper limit on tokens in the KV pool; sized from memory by default."
    )
    disable_cuda_graph: bool = flag(False, "Launch every kernel of a step by itself.")
    cuda_graph_max_bs: int | None = flag(
        None, "Largest batch whose decode step is a CUDA graph; all that may run, up to 512, by default."
    )
    cuda_graph_max_bs_prefill: int | None = flag(
        None,
        "Most tokens of a step with prompts that is a CUDA graph, 0 for none; by default up to 2048, fewer for "
        "models that compute longer than it takes to launch them.",
    )
    disable_tree_attention: bool = flag(
        False, "Read a prefix that requests share for each of them; by default once for all, where that pays."
    )
    disable_overlap_schedule: bool = flag(False, "Wait for each step before planning the next.")
    enable_deterministic_inference: bool = flag(
        False, "Give a token the same numbers in any batch, chunk of its prompt or prefix hit, at some cost."
    )
    random_seed: int | None = flag(None, "Seed for requests that bring none.")
    num_threads: int | None = flag(None, "CPU threads of the model; all cores by default.", "--threads")
    tp_size: int = flag(1, "Devices of this host that share one model.", "--tp", "--tensor-parallel-size")
    dp_size: int = flag(1, "Data-parallel replicas.", "--dp", "--data-parallel-size")
    pp_size: int = flag(1, "Pipeline stages.", "--pp", "--pipeline-parallel-size")
    ep_size: int = flag(1, "Devices that share a layer's experts.", "--ep", "--expert-parallel-size")
    nnodes: int = flag(1, "Hosts that share one model.")
    node_rank: int = flag(0, "Which of these hosts this one is.")


@dataclass(frozen=True)
class CacheConfig:
    """The radix cache."""

    disable_radix_cache: bool = flag(False, "Keep no KV across requests.")
    enable_prefix_caching: bool = flag(
        True, "For other servers' scripts: without it, the same as --disable-radix-cache."
    )
    radix_eviction_policy: str = flag("lru", "Order in which cached nodes are given up.")
    max_pinned_fraction: float = flag(0.25, "Share of the KV pages that pins may hold, 0 to 1; 0 for no pins.")
    enable_hierarchical_cache: bool = flag(
        False, "Keep KV pages in host memory too, for when they leave the GPU's.", "--enable-hicache"
    )
    hicache_ratio: float = flag(2.0, "Host memory for KV pages as a multiple of the device's KV pool.")
    hicache_size: float = flag(0.0, "Host memory for KV pages in GB (on each rank); 0 goes by the ratio.")
    hicache_write_policy: str = flag(
        "write_through",
        "When pages are copied to host memory and storage: when they are computed, when a second request uses "
        "them, or when they leave the device.",
        choices=("write_through", "write_through_selective", "write_back"),
    )
    cache_dir: str | None = flag(None, "Folder that keeps KV pages across restarts; servers may share it.")
    cache_dir_size: float = flag(50.0, "GB that the folder of --cache-dir may take; 0 sets no limit.")
    hicache_storage_backend: str = flag(
        "none", "Where KV pages outlive the process: file (what --cache-dir means), redis, or none."
    )
    hicache_storage_prefetch_policy: str = flag(
        "timeout",
        "How long a request waits for its pages from storage: a second and a bit for each thousand tokens, not at "
        "all, or until they are there.",
        choices=("timeout", "best_effort", "wait_complete"),
    )
    hicache_storage_backend_extra_config: str = flag(
        "{}", 'JSON object for the storage backend; redis takes "url" and "ttl" (seconds).'
    )

    @property
    def cache_dir_bytes(self) -> int:
        """`cache_dir_size` in bytes."""
        return int(self.cache_dir_size * 1e9)


@dataclass(frozen=True)
class ScheduleConfig:
    """Queue, budget and limits."""

    schedule_policy: str = flag("fcfs", "Order of the waiting queue.")
    chunked_prefill_size: int | None = flag(None, "Prompt tokens per step; -1 puts no bound on a chunk.")
    max_prefill_tokens: int = flag(16384, "Most prompt tokens in one step, over all requests.")
    max_running_requests: int | None = flag(None, "Most requests that run at once.")
    max_queued_requests: int | None = flag(None, "Most requests that wait; more are refused with 503.")
    queue_timeout: float | None = flag(None, "Seconds a request may wait before it is refused with 503.")
    schedule_conservativeness: float = flag(1.0, "Above 1 admits fewer requests and retracts less.")
    enable_priority_scheduling: bool = flag(False, "Same as --schedule-policy priority.")
    schedule_low_priority_values_first: bool = flag(False, "Take small priority values for the urgent ones.")
    priority_scheduling_preemption_threshold: int = flag(
        10, "Levels by which a waiting request must be above a running one to take its place."
    )
    disable_priority_preemption: bool = flag(False, "Let no waiting request take the place of a running one.")
    enable_mixed_chunk: bool | None = flag(
        None, "Prompts share steps with requests that decode, instead of going first; on CPUs the default."
    )
    prefill_max_requests: int | None = flag(None, "Most requests that begin in one step.")
    max_prefill_steps: int = flag(16, "Most steps of prompts alone, in a row, while requests could decode.")


@dataclass(frozen=True)
class GrammarConfig:
    """Structured output."""

    grammar_backend: str = flag(
        "auto",
        "Engine of constraints: auto, native, llguidance, xgrammar (an extra), or none: no constraints are taken.",
    )
    constrained_json_any_whitespace: bool = flag(
        False, "Let constrained JSON be laid out freely; otherwise its separators are exactly ', ' and ': '."
    )
    constrained_json_disable_any_whitespace: bool = flag(
        True, "Accepted for SGLang scripts; free white space is off unless asked for."
    )
    grammar_residual: str = flag(
        "check",
        "JSON schemas that no grammar can state: check the values as they are completed, or refuse them.",
        choices=("check", "refuse"),
    )
    grammar_cache_mb: int = flag(256, "MiB of compiled constraints that are kept for later requests.")
    disable_jump_forward: bool = flag(False, "Let the model write forced tokens one by one.")


@dataclass(frozen=True)
class ServerConfig:
    """HTTP."""

    host: str = flag("127.0.0.1", "Address to listen on.")
    port: int = flag(30000, "Port to listen on.")
    api_key: str | None = flag(None, "Key that clients must send as a bearer token.")
    admin_api_key: str | None = flag(None, "Key for control endpoints; the API key opens them if not given.")
    cors_origins: str = flag("*", "Comma-separated origins that browsers may call from.")
    fastapi_root_path: str = flag("", "Path prefix of a reverse proxy.", "--root-path")
    enable_metrics: bool = flag(True, "Accepted for SGLang scripts; /metrics is always served.")
    enable_cache_report: bool = flag(True, "Accepted for SGLang scripts; cached tokens are always reported.")
    allow_auto_truncate: bool = flag(False, "Cut over-long prompts and answers instead of refusing them.")
    sampling_defaults: str = flag(
        "model",
        "Where missing sampling parameters come from: the model's generation config, or OpenAI's defaults.",
        choices=("model", "openai"),
    )
    stream_interval: int = flag(1, "Tokens between two chunks of a stream.")
    incremental_streaming_output: bool = flag(False, "Native streams carry deltas instead of the whole text.")
    default_chat_template_kwargs: str = flag("{}", "JSON object passed to the chat template.")
    reasoning_parser: str = flag(
        "auto",
        "How the model writes its thoughts; auto looks into the chat template, none leaves them in the text.",
    )
    tool_call_parser: str = flag(
        "auto", "How the model writes tool calls; auto looks into the chat template, none leaves them in the text."
    )
    skip_server_warmup: bool = flag(False, "Open the port without a first trial request.")
    health_timeout: float = flag(20.0, "Seconds /health_generate waits for a token.")
    drain_timeout: float = flag(
        60.0, "Seconds that running requests, and pages on their way to storage, may take after SIGTERM."
    )


@dataclass(frozen=True)
class LogConfig:
    """What is written."""

    log_level: str = flag(
        "info", "Least level that is logged.", choices=("debug", "info", "warning", "error", "critical")
    )
    log_requests: bool = flag(False, "Log each request's prompt and answer (shortened).")
    disable_access_log: bool = flag(False, "Do not log a line per HTTP request.")
    decode_log_interval: int = flag(400, "Steps between two progress lines of the engine; 0 writes none.")


@dataclass(frozen=True)
class Config:
    """The whole configuration; frozen. Groups are passed to their owners only."""

    model: ModelConfig = ModelConfig()
    device: DeviceConfig = DeviceConfig()
    cache: CacheConfig = CacheConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    grammar: GrammarConfig = GrammarConfig()
    server: ServerConfig = ServerConfig()
    log: LogConfig = LogConfig()

    @classmethod
    def from_flat(cls, **values: Any) -> Config:
        """Build from flat names (`Config.from_flat(model_path="…", page_size=16)`).

        Raises:
            ConfigError: an unknown name (with the nearest known one) or a value of the wrong type.
        """
        left = {_spelled(key): value for key, value in values.items()}
        groups = {}
        for group in dataclasses.fields(cls):
            group_type = _GROUPS[group.name]
            mine = {f.name: left.pop(f.name) for f in dataclasses.fields(group_type) if f.name in left}
            for name, value in mine.items():
                mine[name] = _checked(name, value, _field_types(group_type)[name])
                choices = next(f for f in dataclasses.fields(group_type) if f.name == name).metadata["choices"]
                if choices and value not in choices:
                    raise ConfigError(f"Option {name} must be one of {', '.join(choices)}, got {value!r}.")
            groups[group.name] = group_type(**mine)
        if left:
            name = next(iter(left))
            near = difflib.get_close_matches(name, flat_names(), 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ConfigError(f"Unknown option {name!r}{hint}")
        return cls(**groups)

    def flat(self) -> dict[str, Any]:
        """All values under their flat names; keys, and what may hold a storage's password, show as "***"."""
        out: dict[str, Any] = {}
        for group in dataclasses.fields(self):
            out |= dataclasses.asdict(getattr(self, group.name))
        for name in ("api_key", "admin_api_key", "hicache_storage_backend_extra_config"):
            if out[name] not in (None, "", "{}"):
                out[name] = "***"
        return out

    def replace(self, **values: Any) -> Config:
        """A copy with some flat names changed."""
        groups = {}
        for group in dataclasses.fields(self):
            current = getattr(self, group.name)
            mine = {f.name: values.pop(f.name) for f in dataclasses.fields(current) if f.name in values}
            groups[group.name] = dataclasses.replace(current, **mine)
        if values:
            raise ConfigError(f"Unknown option {next(iter(values))!r}.")
        return Config(**groups)

    @property
    def model_name(self) -> str:
        """What clients call the model."""
        return self.model.served_model_name or self.model.model_path

    def resolve(self) -> Config:
        """Check all values and fill in those that need no device.

        Raises:
            ConfigError: names the flag, its value and the fix.
        """
        from radixlang.config.rules import resolved

        return resolved(self)


_GROUPS: dict[str, type] = {
    "model": ModelConfig,
    "device": DeviceConfig,
    "cache": CacheConfig,
    "schedule": ScheduleConfig,
    "grammar": GrammarConfig,
    "server": ServerConfig,
    "log": LogConfig,
}

#: flat names of articles and other servers that mean one of ours
ALIASES = {
    "model": "model_path",
    "tp": "tp_size",
    "dp": "dp_size",
    "pp": "pp_size",
    "ep": "ep_size",
    "tensor_parallel_size": "tp_size",
    "data_parallel_size": "dp_size",
    "pipeline_parallel_size": "pp_size",
    "expert_parallel_size": "ep_size",
    "gpu_memory_utilization": "mem_fraction_static",
    "max_model_len": "context_length",
    "max_num_seqs": "max_running_requests",
    "tokenizer": "tokenizer_path",
    "seed": "random_seed",
}


def _field_types(group: type) -> dict[str, Any]:
    return typing.get_type_hints(group)


def _scalar(kind: Any) -> tuple[type, bool]:
    """(bool|int|float|str, may be None) of a field's annotation."""
    if isinstance(kind, types.UnionType):
        inner = next(arg for arg in typing.get_args(kind) if arg is not type(None))
        return inner, True
    return kind, False


def _checked(name: str, value: Any, kind: Any) -> Any:
    scalar, optional = _scalar(kind)
    if value is None and optional:
        return None
    if isinstance(value, os.PathLike) and scalar is str:
        return os.fspath(value)
    if isinstance(value, dict) and scalar is str:
        return json.dumps(value)
    if scalar is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 1 << 1000 else math.inf
    if not isinstance(value, scalar) or (scalar is not bool and isinstance(value, bool)):
        raise ConfigError(f"Option {name} must be of type {scalar.__name__}, got {value!r}.")
    return value


@functools.cache
def _aliases() -> dict[str, str]:
    """All other spellings of options → their flat names."""
    flags = {alias: f.name for _, f, _ in options() for alias in f.metadata["aliases"]}
    return ALIASES | {_underscored(alias): name for alias, name in flags.items()}


def _underscored(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _spelled(name: str) -> str:
    """The flat name of an option in any spelling; unknown ones come back as they are, but with underscores."""
    return _aliases().get(name := _underscored(name), name)


def flat_names() -> list[str]:
    """Every option name, in order."""
    return [f.name for group in _GROUPS.values() for f in dataclasses.fields(group)]


def options() -> list[tuple[str, dataclasses.Field[Any], Any]]:
    """(group name, field, annotation) of every option: what the flags and the docs table are made from."""
    return [
        (name, f, _field_types(group)[f.name])
        for name, group in _GROUPS.items()
        for f in dataclasses.fields(group)
    ]


def add_arguments(parser: argparse.ArgumentParser, skip: tuple[str, ...] = ()) -> None:
    """Add one flag per option, in titled groups. Absent flags leave no attribute behind."""
    groups: dict[str, Any] = {}
    for group_name, f, kind in options():
        if f.name in skip:
            continue
        title = groups.get(group_name)
        if title is None:
            title = groups[group_name] = parser.add_argument_group(
                (_GROUPS[group_name].__doc__ or group_name).rstrip(".")
            )
        scalar, _ = _scalar(kind)
        names = ["--" + f.name.replace("_", "-"), *f.metadata["aliases"]]
        names += ["--" + a.replace("_", "-") for a, target in ALIASES.items() if target == f.name]
        names = list(dict.fromkeys(names))
        common: dict[str, Any] = {"dest": f.name, "default": argparse.SUPPRESS}
        if scalar is bool:
            common |= (
                {"action": argparse.BooleanOptionalAction} if f.default is not False else {"action": "store_true"}
            )
            title.add_argument(*names, help=f.metadata["help"], **common)
        else:
            default = "" if f.default in (None, "") else f" Default: {f.default}."
            title.add_argument(
                *names,
                type=scalar,
                choices=f.metadata["choices"],
                metavar=f.metadata["metavar"] or (None if f.metadata["choices"] else scalar.__name__.upper()),
                help=(f.metadata["help"] + default).replace("%", "%%"),
                **common,
            )
    parser.add_argument("--config", default=argparse.SUPPRESS, help="YAML or JSON file of options; flags win.")


def from_namespace(namespace: argparse.Namespace) -> Config:
    """Options from parsed flags, on top of those of `--config FILE`."""
    values = dict(vars(namespace))
    path = values.pop("config", None)
    known = set(flat_names())
    values = {key: value for key, value in values.items() if key in known}
    base = read_file(path) if path else {}
    return Config.from_flat(**{**base, **values})


def read_file(path: str) -> dict[str, Any]:
    """Options of a YAML or JSON file: a mapping of flag names (dashes or underscores) to values."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:  # bytes that are no text, or a path that can be none
        raise ConfigError(f"--config {path!r} cannot be read: {error}.") from None
    data: Any
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        try:
            import yaml
        except ImportError:
            raise ConfigError(
                f"--config {path} is not JSON, and YAML needs PyYAML: pip install 'radixlang[yaml]'."
            ) from None
        try:
            data = yaml.safe_load(text)
        except (yaml.YAMLError, RecursionError) as error:
            raise ConfigError(f"--config {path} is not valid YAML: {error}.") from None
    if not isinstance(data, dict):
        raise ConfigError(f"--config {path} must hold a mapping of option names to values.")
    return {_spelled(str(key)): value for key, value in data.items()}
