"""`radixlang bench prefix`: what the prefix cache is worth on the classical workloads.

Runs the engine's loop in this thread and plays the workloads to it, each with the cache on and off, and under
several eviction orders where memory is short: one model is loaded, every run has a scheduler of its own. Times are
those of clients at the engine's door: no tokenizer, no HTTP (`prefix_http` measures a server).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from radixlang.bench.play import Asked, Figures, Ideal, Play
from radixlang.bench.report import Report, Table
from radixlang.bench.steps import StepLog, Work
from radixlang.bench.workloads import WORKLOADS, Maker, Session, generator_of
from radixlang.cache import EVICTIONS
from radixlang.config import Config
from radixlang.engine.build import engine_info, scheduler_limits
from radixlang.engine.idle import Collector
from radixlang.engine.loop import EngineLoop
from radixlang.errors import ConfigError
from radixlang.messages import Failed, Generate, Tokens, pack_ids, unpack_ids
from radixlang.plan import Ints
from radixlang.sampling_params import SamplingParams
from radixlang.scheduler import Scheduler, SchedulerLimits


@dataclass(frozen=True)
class Settings:
    """`scale` multiplies all lengths, `think` all pauses; None: what suits the device (see `filled`)."""

    workloads: tuple[str, ...] = tuple(WORKLOADS)
    sessions: int | None = None
    scale: float | None = None
    concurrency: int | None = None
    """most sessions at a time; no limit with a finite `rate`, unless one is set"""
    rate: float = math.inf
    """sessions a second"""
    think: float = 0.0
    policies: tuple[str, ...] = ()
    """eviction orders to compare where memory is short; none: the engine's own"""
    memory_share: float | None = None
    """KV memory as a share of the workload's working set; None: all there is"""
    baseline: bool = True
    """run without the cache as well"""
    record: Path | None = None
    prompt_seed: int = 0

    def filled(self, accelerator: bool) -> Settings:
        """A copy without None where the device decides."""
        sessions, scale, concurrency = (256, 1.0, 64) if accelerator else (12, 0.25, 4)
        if math.isfinite(self.rate) and self.concurrency is None:
            concurrency = 1 << 30
        return dataclasses.replace(
            self,
            sessions=self.sessions or sessions,
            scale=self.scale or scale,
            concurrency=self.concurrency or concurrency,
        )

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it: no infinite rate, no path."""
        values = dataclasses.asdict(self) | {"record": None if self.record is None else str(self.record)}
        return values | ({} if math.isfinite(self.rate) else {"rate": None})

    @classmethod
    def of_plain(cls, values: dict[str, Any]) -> Settings:
        """From `plain`."""
        lists = {name: tuple(values[name]) for name in ("workloads", "policies")}
        rate = math.inf if values["rate"] is None else values["rate"]
        return cls(**{**values, **lists, "rate": rate, "record": None})

    def check(self) -> None:
        """Find what cannot be run.

        Raises:
            ConfigError: an unknown workload or eviction order.
        """
        for name in self.workloads:
            generator_of(name)
        for name in self.policies:
            EVICTIONS.get(name)

    def play(self, workload: str) -> Play:
        """The workload, filled in; the same requests every time."""
        return Play(sessions_of(self, workload), self.concurrency)


def sessions_of(s: Settings, workload: str) -> Iterator[Session]:
    """The first sessions of a workload."""
    make = Maker(s.prompt_seed, s.scale or 1.0, s.rate, s.think)
    return itertools.islice(generator_of(workload)(make), s.sessions)


class Client:
    """Both ends of the loop's channels: brings what is due, takes what comes. It waits when the loop may wait."""

    def __init__(self, play: Play, vocab: int, page_size: int, log: StepLog | None = None) -> None:
        self._play = play
        self._vocab = vocab
        self._log = log
        self._began = time.perf_counter()
        self._open: dict[str, tuple[Asked, Ints, list[bytes]]] = {}
        self.ideal = Ideal(page_size)
        self.answered: list[Asked] = []

    def _now(self) -> float:
        return time.perf_counter() - self._began

    # ---- the loop's receiver ----

    def receive(self, timeout: float | None) -> list[Generate]:
        due = self._play.due(self._now())
        if not due and timeout and not self._open and self._play.next_time is not None:
            if self._log is not None:
                self._log.idle()
            time.sleep(max(0.0, min(timeout, self._play.next_time - self._now())))
            due = self._play.due(self._now())
        return [self._send(asked) for asked in due]

    def _send(self, asked: Asked) -> Generate:
        prompt, rid = asked.prompt(self._vocab), str(asked.id)
        asked.possible_tokens = self.ideal.sent(prompt)
        self._open[rid] = (asked, prompt, [])
        sampling = SamplingParams(max_new_tokens=asked.output, temperature=0, ignore_eos=True)
        return Generate(rid, pack_ids(prompt), sampling)

    # ---- the loop's sender ----

    def send(self, message: Any) -> None:
        if isinstance(message, Failed):
            why = message.message.rstrip(".")
            raise ConfigError(f"The engine refused a request ({why}); lower --scale, or leave this workload out.")
        if isinstance(message, Tokens):
            self._take(message, self._now())

    def send_all(self, messages: Sequence[Any]) -> None:
        for message in messages:
            self.send(message)

    def close(self) -> None:
        """Nothing to release."""

    def _take(self, message: Tokens, now: float) -> None:
        at = 0
        for rid, count, finish, meta in zip(
            message.rids, message.counts, message.finishes, message.metas, strict=True
        ):
            asked, prompt, said = self._open[rid]
            if not said:
                asked.first = now
            said.append(message.ids[4 * at : 4 * (at + count)])
            at += count
            if finish is not None:
                assert meta is not None
                asked.ended, asked.cached_tokens = now, meta.cached_tokens
                answer: Ints = unpack_ids(b"".join(said)).astype(np.int32)
                self.ideal.said(prompt, answer)
                del self._open[rid]
                self.answered.append(asked)
                self._play.answered(asked, answer)


def measure(config: Config, settings: Settings, progress: Callable[[str, int, int], None]) -> Report:
    """Load, play everything, report.

    Raises:
        ConfigError, ModelError: the engine cannot be built, or cannot take the workloads.
    """
    settings.check()
    if config.device.tp_size > 1:
        raise ConfigError("`radixlang bench prefix` runs one rank; measure --tp-size by a server and --base-url.")
    from radixlang.executor.build import build_executor

    started = time.time()
    executor, shape = build_executor(config, progress, 0, "")
    try:
        if shape.encoder:
            raise ConfigError("`radixlang bench prefix` needs a model that generates; this one makes embeddings.")
        bench = Bench(executor, engine_info(shape, started), scheduler_limits(config, shape), config, settings)
        return bench.report()
    finally:
        executor.close()


class Bench:
    """Runs on one loaded executor."""

    def __init__(
        self, executor: Any, info: dict[str, Any], limits: SchedulerLimits, config: Config, settings: Settings
    ) -> None:
        self._executor = executor
        self._info = info
        self._limits = limits
        self._overlap = not config.device.disable_overlap_schedule
        self._settings = settings.filled(not str(info["device"]).startswith("cpu"))
        self._log = StepLog(executor) if settings.record is not None else None
        self._collector = Collector()
        self._recorded: list[dict[str, Any]] = []

    def report(self) -> Report:
        s = self._settings
        self._warm_up()
        table, facts = Table(self._title(), ["workload", "cache", *Figures.COLUMNS]), {}
        for workload in s.workloads:
            working_set = 0
            for name, limits in self._arms(workload):
                figures, pages = self._run(workload, name, limits)
                working_set = max(working_set, pages * limits.page_size)
                table.rows.append([workload, name, *figures.cells()])
                facts[f"{workload}, {name}"] = figures.facts() | {"working_set_tokens": working_set}
        if s.record is not None:
            self._write(s.record)
        notes = ["best: the hit rate of an infinite cache with the same pages, by the requests as they were sent."]
        return Report("prefix", self._info["device"], s.plain(), [table], notes, facts)

    def _title(self) -> str:
        s = self._settings
        load = f"{s.rate:g} sessions/s" if math.isfinite(s.rate) else f"{s.concurrency} sessions at a time"
        return f"{s.sessions} sessions, lengths × {s.scale:g}, {load}, seed {s.prompt_seed}"

    def _warm_up(self) -> None:
        """One request of a short prompt and one of a full chunk: what is compiled on first use is there then."""
        chunk = min(self._limits.prompt_budget, self._limits.context_length, self._limits.capacity) // 2
        for length in (16, chunk):
            make = Maker(self._settings.prompt_seed + 1, length / 1024)
            play = Play(itertools.islice(generator_of("few-shot")(make), 2))
            self._turn(play, self._limits, None)

    def _arms(self, workload: str) -> Iterator[tuple[str, SchedulerLimits]]:
        """The runs of one workload: a name and the limits under which its scheduler works."""
        s, limits = self._settings, self._limits
        if s.memory_share is None:
            for order in s.policies or (limits.eviction,):
                yield order, dataclasses.replace(limits, eviction=order)
        else:
            pages = short_of_memory(s, workload, limits, s.memory_share)
            for order in s.policies or (limits.eviction,):
                some = dataclasses.replace(limits, eviction=order, num_pages=pages + 1)
                yield f"{order}, {pages * limits.page_size:,} tokens", some
        if s.baseline:
            yield "off", dataclasses.replace(limits, radix_cache=False)

    def _run(self, workload: str, name: str, limits: SchedulerLimits) -> tuple[Figures, int]:
        client = self._turn(self._settings.play(workload), limits, self._log)
        figures = Figures.of(client.answered)
        if self._log is not None:
            run: dict[str, Any] = {"workload": workload, "cache": name, "figures": figures.facts()}
            run["limits"] = dataclasses.asdict(limits) | {"random_seed": 0}
            run["steps"] = [[*work, seconds] for work, seconds in self._log.steps]
            self._recorded.append(run)
            self._log.steps = []
        return figures, client.ideal.pages

    def _turn(self, play: Play, limits: SchedulerLimits, log: StepLog | None) -> Client:
        client = Client(play, self._info["vocab_size"], limits.page_size, log)
        loop = EngineLoop(
            log or self._executor,
            Scheduler(limits),
            client,
            client,
            self._info,
            overlap=self._overlap,
            collector=self._collector,
        )
        if log is not None:
            log.idle()
        while not play.done:
            loop.turn()
        return client

    def _write(self, path: Path) -> None:
        """The steps of all runs, with the limits of the engine: `radixlang simulate` fits its costs to them."""
        engine = {"limits": dataclasses.asdict(self._limits) | {"random_seed": 0}, "overlap": self._overlap}
        engine |= {name: self._info[name] for name in ("device", "architecture", "dtype", "vocab_size")}
        engine["settings"] = self._settings.plain()
        data = {"kind": "steps", **engine, "columns": [*Work._fields, "seconds"], "runs": self._recorded}
        try:
            path.write_text(json.dumps(data) + "\n")
        except OSError as error:
            raise ConfigError(f"--record {path} cannot be written: {error.strerror}.") from None


def short_of_memory(s: Settings, workload: str, limits: SchedulerLimits, share: float) -> int:
    """Pages that hold `share` of the workload's working set, and at least its largest request.

    Raises:
        ConfigError: the engine has less.
    """
    ideal, largest = Ideal(limits.page_size), 0
    play, vocab = s.play(workload), limits.vocab_size
    while not play.done:
        for asked in play.due(math.inf):
            prompt = asked.prompt(vocab)
            answer = np.full(asked.output, asked.id % vocab, np.int32)
            ideal.said(prompt, answer)
            largest = max(largest, len(prompt) + len(answer))
            play.answered(asked, answer)
    pages = max(round(share * ideal.pages), limits.pages_for(largest) + 1)
    if pages > limits.usable_pages:
        raise ConfigError(
            f"--memory-share {share:g} of {workload} is {pages * limits.page_size:,} tokens of KV, but the engine "
            f"has {limits.capacity:,}; lower --sessions or --scale."
        )
    return pages
