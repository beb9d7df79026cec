"""`radixlang bench step`: where the time of a decode step goes, on the host and on the device.

Runs the engine's loop in this thread, with the channels of the real ring and no server beside it: what is seen is
the engine's process alone.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from radixlang.bench.report import Cell, Report, Table, percentiles, random_prompts
from radixlang.channel import ZmqReceiver, ZmqSender
from radixlang.config import Config
from radixlang.engine.build import build_engine
from radixlang.engine.loop import EngineLoop
from radixlang.engine.recorder import HOST_PARTS, StepRecorder, Turn
from radixlang.errors import ConfigError
from radixlang.messages import Failed, FromEngine, Generate, ToEngine, Tokens, pack_ids
from radixlang.sampling_params import SamplingParams

#: decode steps at the start that do not count: the first ones after a prompt's steps
SETTLE = 4

#: what the parts are, in the words of the table
_HOST_NAMES = {
    "messages": "take messages",
    "plan": "plan",
    "launch": "launch",
    "wait": "wait for the device",
    "result": "read the result",
    "process": "process the result",
    "send": "send",
}
#: the part of the device's time in which it does not compute: it counts as idle, like the gaps between steps
_COPY = "copy"


@dataclass(frozen=True)
class Settings:
    """None: what suits the device (see `filled`)."""

    batch_sizes: tuple[int, ...] | None = None
    input_len: int | None = None
    steps: int | None = None
    temperature: float = 0.0
    prompt_seed: int = 0

    def filled(self, accelerator: bool) -> Settings:
        """A copy without None."""
        sizes, read, steps = ((1, 8, 32, 64, 128, 256), 1024, 200) if accelerator else ((1, 4, 16), 64, 40)
        return dataclasses.replace(
            self,
            batch_sizes=self.batch_sizes or sizes,
            input_len=self.input_len or read,
            steps=self.steps or steps,
        )


@dataclass
class Measured:
    """Samples of one batch size, in seconds, one a step; `idle` is a share of the whole time."""

    turn: list[float]
    host: list[float]
    parts: dict[str, list[float]]
    device: dict[str, list[float]]
    idle: float | None


def measure(config: Config, settings: Settings, progress: Callable[[str, int, int], None]) -> Report:
    """Load, run every batch size, report.

    Raises:
        ConfigError, ModelError: the engine cannot be built, or cannot hold the batches.
    """
    if config.device.tp_size > 1:
        raise ConfigError("`radixlang bench step` runs one rank; measure --tp-size by `radixlang bench latency`.")
    recorder = StepRecorder()
    folder = tempfile.mkdtemp(prefix="radixlang-")
    try:
        inbox, outbox = ZmqReceiver(f"ipc://{folder}/in", ToEngine), ZmqReceiver(f"ipc://{folder}/out", FromEngine)
        loop = build_engine(config, inbox, ZmqSender(f"ipc://{folder}/out"), progress, recorder, own_process=True)
        client = ZmqSender(f"ipc://{folder}/in")
        try:
            return _measure(loop, recorder, client, outbox, settings, config.device.disable_overlap_schedule)
        finally:
            loop.executor.close()
            for end in (client, loop.sender, inbox, outbox):
                end.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(
    loop: EngineLoop,
    recorder: StepRecorder,
    client: ZmqSender,
    outbox: ZmqReceiver,
    settings: Settings,
    no_overlap: bool,
) -> Report:
    info = loop.info
    if info["encoder"]:
        raise ConfigError("`radixlang bench step` needs a model that generates; this one makes embeddings.")
    s = settings.filled(not info["device"].startswith("cpu"))
    assert s.batch_sizes is not None
    assert s.input_len is not None
    assert s.steps is not None
    output_len = s.steps + SETTLE + 2
    _check_room(info, s.batch_sizes, s.input_len + output_len)
    measured = []
    for size in s.batch_sizes:
        prompts = random_prompts(size, s.input_len, info["vocab_size"], [s.prompt_seed, size])
        run_batch(loop, client, outbox, prompts, output_len, s)
        measured.append(steady(recorder.take(), size))
    overlap = "overlap off" if no_overlap else "overlap on"
    title = f"Decode steps at {s.input_len} tokens of context and more, {overlap}: median / p99 in ms"
    table = Table(title, ["", *(f"batch {size}" for size in s.batch_sizes)], list(_rows(measured)))
    facts = {f"batch_{size}": _facts(m) for size, m in zip(s.batch_sizes, measured, strict=True)}
    return Report("step", info["device"], dataclasses.asdict(s), [table], facts=facts)


def _check_room(info: dict[str, Any], sizes: Sequence[int], length: int) -> None:
    rows, context = info["max_rows"] - 1, info["context_length"]
    pages, page = info["num_pages"] - 1, info["page_size"]
    largest = max(sizes)
    if largest > rows:
        raise ConfigError(f"A batch of {largest} needs --max-running-requests {largest} or more; it is {rows}.")
    if length > context:
        raise ConfigError(f"--input-len and --steps make {length} tokens; the context holds {context}.")
    need = largest * -(-length // page)
    if need > pages:
        raise ConfigError(
            f"A batch of {largest} requests of {length} tokens needs {need * page} tokens of KV; the pool holds"
            f" {pages * page}."
        )


def run_batch(
    loop: EngineLoop,
    client: ZmqSender,
    outbox: ZmqReceiver,
    prompts: list[list[int]],
    output_len: int,
    settings: Settings,
) -> None:
    """Send the prompts and turn the loop until all have ended.

    Raises:
        ConfigError: the engine refused a request.
    """
    sampling = SamplingParams(max_new_tokens=output_len, temperature=settings.temperature, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        client.send(Generate(f"{len(prompts)}-{i}", pack_ids(prompt), sampling))
    left = len(prompts)
    while left:
        loop.turn()
        if not loop.scheduler.idle:
            continue  # what was sent waits in the socket: reading it is another process's work
        for message in outbox.receive(0.001):
            if isinstance(message, Tokens):
                left -= sum(finish is not None for finish in message.finishes)
            elif isinstance(message, Failed):
                raise ConfigError(f"The engine refused a request of the benchmark: {message.message}")


def steady(turns: list[Turn], size: int) -> Measured:
    """The turns that launched a decode step of all `size` rows and processed one, without the first few."""
    chosen: list[tuple[Turn, Turn]] = [
        (before, turn)
        for before, turn in pairwise(turns)
        if before.rows == before.tokens == size and turn.rows == turn.tokens == size
    ][SETTLE:]
    steps = [turn for _, turn in chosen]
    device: dict[str, list[float]] = {}
    busy = period = 0.0
    for before, turn in chosen:
        if turn.device is None or before.device is None:
            continue
        spans = turn.device.spans()
        for part, seconds in spans.items():
            device.setdefault(part, []).append(seconds)
        busy += sum(seconds for part, seconds in spans.items() if part != _COPY)
        period += before.device.until_end_of(turn.device)
    return Measured(
        [turn.seconds for turn in steps],
        [turn.host for turn in steps],
        {part: [turn.spans[part] for turn in steps] for part in HOST_PARTS},
        device,
        1 - busy / period if period else None,
    )


def _rows(measured: list[Measured]) -> Iterator[Sequence[Cell]]:
    def line(name: str, samples: list[list[float]]) -> Sequence[Cell]:
        return [name, *map(_pair, samples)]

    yield line("whole step", [m.turn for m in measured])
    yield line("host work (all but waiting)", [m.host for m in measured])
    for part in HOST_PARTS:
        yield line(f"– {_HOST_NAMES[part]}", [m.parts[part] for m in measured])
    yield line("– the rest", [_rest(m) for m in measured])
    for part in dict.fromkeys(name for m in measured for name in m.device):
        yield line(f"device: {part}", [m.device.get(part, []) for m in measured])
    if any(m.idle is not None for m in measured):
        yield ["device idle", *("–" if m.idle is None else f"{100 * m.idle:.1f} %" for m in measured)]


def _rest(m: Measured) -> list[float]:
    """What of each step belongs to no part: the loop itself, its snapshots for the metrics page."""
    return [whole - sum(parts) for whole, *parts in zip(m.turn, *m.parts.values(), strict=True)]


def _pair(samples: list[float]) -> str:
    middle, high = percentiles([1000 * s for s in samples], (50, 99))
    return "–" if middle is None or high is None else f"{middle:.3f} / {high:.3f}"


def _facts(m: Measured) -> dict[str, object]:
    """The same as plain numbers, in ms."""
    samples = {"step": m.turn, "host": m.host, **m.parts, "rest": _rest(m)}
    samples |= {f"device_{part}": values for part, values in m.device.items()}
    pairs = {name: percentiles([1000 * v for v in values], (50, 99)) for name, values in samples.items()}
    out: dict[str, object] = {name: {"p50": middle, "p99": high} for name, (middle, high) in pairs.items()}
    return out | {"samples": len(m.turn), "device_idle": m.idle}
