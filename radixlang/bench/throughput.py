"""`radixlang bench throughput`: how many tokens a second an engine makes when it has many requests at once."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radixlang.bench.offline import Trace, answer, check_lengths, info_of, on_accelerator, traced
from radixlang.bench.report import Report, Table, random_prompts
from radixlang.errors import ConfigError

if TYPE_CHECKING:
    from radixlang.llm import Engine


@dataclass(frozen=True)
class Settings:
    """Lengths in tokens. None: as many as suit the device (see `filled`)."""

    num_prompts: int | None = None
    input_len: int | None = None
    output_len: int | None = None
    shared_len: int = 0
    """leading tokens that all prompts share"""
    runs: int = 1
    keep_cache: bool = False
    """later runs find the prompts of earlier ones in the cache"""
    warmup: int = 2
    """requests of the same lengths before the first run"""
    prompt_seed: int = 0
    trace: Trace | None = None

    def filled(self, accelerator: bool) -> Settings:
        """A copy without None.

        Raises:
            ConfigError: lengths that contradict each other.
        """
        defaults = (256, 1024, 256) if accelerator else (16, 64, 32)
        names = ("num_prompts", "input_len", "output_len")
        chosen: dict[str, Any] = {
            n: d if getattr(self, n) is None else getattr(self, n) for n, d in zip(names, defaults, strict=True)
        }
        if self.shared_len > chosen["input_len"]:
            raise ConfigError(f"--shared-len {self.shared_len} is more than --input-len {chosen['input_len']}.")
        return dataclasses.replace(self, **chosen)


def measure(engine: Engine, settings: Settings) -> Report:
    """Run and report.

    Raises:
        ConfigError: the engine cannot take requests of these lengths.
    """
    info = info_of(engine)
    s = settings.filled(on_accelerator(info))
    assert s.num_prompts is not None
    assert s.input_len is not None
    assert s.output_len is not None
    check_lengths(engine, s.input_len, s.output_len)
    vocab = info["vocab_size"]
    notes: list[str] = []
    if s.warmup:
        answer(engine, random_prompts(s.warmup, s.input_len, vocab, s.prompt_seed + 1), s.output_len)
    table = Table(
        f"{s.num_prompts} × {s.input_len} in / {s.output_len} out",
        ["run", "s", "requests/s", "output tok/s", "total tok/s", "cached prompt tokens", "retractions"],
    )
    prompts = random_prompts(s.num_prompts, s.input_len, vocab, s.prompt_seed, s.shared_len)
    for run in range(s.runs):
        if run == 0 or not s.keep_cache:
            engine.flush_cache()
        retracted = _retractions(engine)
        with traced(engine, s.trace if run == 0 else None, notes):
            began = time.perf_counter()
            answers = answer(engine, prompts, s.output_len)
            seconds = time.perf_counter() - began
        read, written = (sum(getattr(a, name) for a in answers) for name in ("prompt_tokens", "output_tokens"))
        table.rows.append(
            [
                str(run + 1),
                seconds,
                len(answers) / seconds,
                written / seconds,
                (read + written) / seconds,
                sum(a.cached_tokens for a in answers),
                _retractions(engine) - retracted,
            ]
        )
    return Report("throughput", info["device"], dataclasses.asdict(s), [table], notes)


def _retractions(engine: Engine) -> int:
    return int(engine.get_server_info()["num_retracted_requests_total"])
