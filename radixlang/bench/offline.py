"""What the benchmarks of an in-process `Engine` share: its facts, one batch of requests, a trace of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radixlang.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from radixlang.llm import Engine


@dataclass(frozen=True)
class Trace:
    """Where a trace of the first measured run goes, and how many steps it holds."""

    folder: str
    steps: int = 32


@dataclass(frozen=True)
class Answered:
    """One request's times, in seconds since the epoch by the engine's client side."""

    received: float
    first: float
    finished: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


def info_of(engine: Engine) -> dict[str, Any]:
    """The engine's facts (vocabulary, device, KV pool).

    Raises:
        ConfigError: the model writes no text.
    """
    info: dict[str, Any] = engine.hub.info
    if not engine.hub.limits.is_generation:
        raise ConfigError("Benchmarks need a model that generates; this one makes embeddings.")
    return info


def check_lengths(engine: Engine, input_len: int, output_len: int) -> None:
    """Raise ConfigError if a request of so many tokens does not fit."""
    limits = engine.hub.limits
    if input_len + output_len > limits.longest:
        raise ConfigError(
            f"--input-len {input_len} and --output-len {output_len} are more than {limits.what}; lower them."
        )


def on_accelerator(info: dict[str, Any]) -> bool:
    return not str(info["device"]).startswith("cpu")


def answer(engine: Engine, prompts: list[list[int]], output_len: int) -> list[Answered]:
    """Send all prompts at once, greedy, ends ignored, and wait for `output_len` tokens of each."""
    sampling = {"temperature": 0, "max_new_tokens": output_len, "ignore_eos": True}
    out = []
    for item in engine.generate(input_ids=prompts, sampling_params=sampling):
        meta = item["meta_info"]
        received = meta["request_received_ts"]
        out.append(
            Answered(
                received,
                received + meta["first_token_latency"],
                received + meta["e2e_latency"],
                meta["prompt_tokens"],
                meta["cached_tokens"],
                meta["completion_tokens"],
            )
        )
    return out


@contextlib.contextmanager
def traced(engine: Engine, trace: Trace | None, notes: list[str]) -> Iterator[None]:
    """Trace what runs inside, if asked to; says in `notes` where the trace is."""
    if trace is None:
        yield
        return
    path = engine.start_profile(output_dir=trace.folder, num_steps=trace.steps)["path"]
    yield
    # Refused when all steps were run: then it is written already.
    with contextlib.suppress(RequestError):
        engine.stop_profile()
    notes.append(f"Trace of the first {trace.steps} steps: `{path}`. Tracing slows the run that it records.")
