"""`radixlang bench latency`: the wait for the first token and the time of a decode step, by batch size.

The times are those of the engine's client side: when a step's tokens came back from the ring, not when the device
had them.
"""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixlang.bench.offline import Answered, Trace, answer, check_lengths, info_of, on_accelerator, traced
from radixlang.bench.report import Report, Table, random_prompts

if TYPE_CHECKING:
    from radixlang.llm import Engine


@dataclass(frozen=True)
class Settings:
    """Lengths in tokens. None: what suits the device (see `filled`)."""

    batch_sizes: tuple[int, ...] | None = None
    input_len: int | None = None
    output_len: int | None = None
    runs: int = 3
    prompt_seed: int = 0
    trace: Trace | None = None

    def filled(self, accelerator: bool) -> Settings:
        """A copy without None."""
        sizes, read, written = ((1, 8, 32, 64, 128, 256), 1024, 128) if accelerator else ((1, 4, 16), 64, 24)
        return dataclasses.replace(
            self,
            batch_sizes=self.batch_sizes or sizes,
            input_len=self.input_len or read,
            output_len=self.output_len or written,
        )


@dataclass(frozen=True)
class Run:
    """One batch: seconds to the median and the last first token, and of a step between all first and all last."""

    ttft: float
    prefill: float
    step: float | None
    """None when no token follows the first"""


def times_of(answers: list[Answered]) -> Run:
    """What a batch's answers say."""
    began = min(a.received for a in answers)
    first, last = max(a.first for a in answers), max(a.finished for a in answers)
    steps = max(a.output_tokens for a in answers) - 1
    return Run(
        statistics.median(a.first - began for a in answers),
        first - began,
        (last - first) / steps if steps else None,
    )


def measure(engine: Engine, settings: Settings) -> Report:
    """Run every batch size `runs` times, on fresh prompts, after one run that does not count.

    Raises:
        ConfigError: the engine cannot take requests of these lengths.
    """
    info = info_of(engine)
    s = settings.filled(on_accelerator(info))
    assert s.batch_sizes is not None
    assert s.input_len is not None
    assert s.output_len is not None
    check_lengths(engine, s.input_len, s.output_len)
    notes: list[str] = []
    table = Table(
        f"{s.input_len} in / {s.output_len} out, median of {s.runs}",
        ["batch", "TTFT ms", "all first tokens ms", "prefill tok/s", "ms per decode step", "decode tok/s"],
    )
    for size in s.batch_sizes:
        runs = []
        for run in range(s.runs + 1):
            prompts = random_prompts(size, s.input_len, info["vocab_size"], [s.prompt_seed, size, run])
            engine.flush_cache()
            trace = s.trace if run == 1 and size == s.batch_sizes[0] else None
            with traced(engine, trace, notes):
                runs.append(times_of(answer(engine, prompts, s.output_len)))
        counted = runs[1:]
        prefill = statistics.median(run.prefill for run in counted)
        steps = [run.step for run in counted if run.step is not None]
        step = statistics.median(steps) if steps else None
        table.rows.append(
            [
                str(size),
                1000 * statistics.median(run.ttft for run in counted),
                1000 * prefill,
                size * s.input_len / prefill,
                None if step is None else 1000 * step,
                None if step is None else size / step,
            ]
        )
    return Report("latency", info["device"], dataclasses.asdict(s), [table], notes)
