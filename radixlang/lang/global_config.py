"""Settings of the language that hold for the whole process, among them the default backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from radixlang.errors import ConfigError
from radixlang.lang.backends.base import Backend


@dataclass
class GlobalConfig:
    """`enable_precache_with_tracing`: `run_batch` computes the common beginning first. The other switches are
    accepted for compatibility; decoding always skips special tokens."""

    verbosity: int = 0
    default_backend: Any = None
    skip_special_tokens_in_output: bool = True
    spaces_between_special_tokens_in_out: bool = True
    enable_precache_with_tracing: bool = True
    enable_parallel_encoding: bool = True


global_config = GlobalConfig()


def backend_of(backend: Any = None) -> Backend:
    """`backend`, or the default one; an `Engine` or a `Runtime` stands for its backend.

    Raises:
        ConfigError: there is none, or it is something else.
    """
    chosen = backend if backend is not None else global_config.default_backend
    if chosen is None:
        raise ConfigError("No backend: call set_default_backend(…), or pass backend=… to run.")
    if isinstance(chosen, Backend):
        return chosen
    inner = getattr(chosen, "endpoint", None)
    if isinstance(inner, Backend):
        return inner
    if hasattr(chosen, "async_generate") and hasattr(chosen, "tokenizer"):
        from radixlang.lang.backends.engine import backend_of_engine

        return backend_of_engine(chosen)
    raise ConfigError(f"A backend is a RuntimeEndpoint, Runtime, Engine or the like, not {type(chosen).__name__}.")
