"""Minutes of hard use: more requests than memory, aborts, retractions, flushes; and every greedy text checked.

    python benchmarks/soak.py [--minutes 10] [--device cuda] [--model default] [--out FILE]

A real `Engine` (a ring of processes) gets as many open requests as would fill `--pressure` times its KV memory:
prompts of random lengths over shared heads, answers of random lengths, some sampled or with log-probabilities, and
some that are cut short in each of the ways a user has: a cancelled wait, a stream that is left, `abort_request`.
Every `--pause` seconds the load ends (every second time by aborting all), pages and streams are counted, and the
prefix cache is flushed.

**What counts as a wrong text.** Beforehand the same engine answers each prompt of the pool alone, its cache emptied
each time. Every greedy answer of the run, those ended by `abort_request` too, must be the beginning of that text,
token for token. One that is not goes back to the quiet engine, alone: given the prompt and the answer, it must find
no token of the answer less likely than its own best by more than `--tie` (log-probabilities); such an answer took
another side of a near-tie, any other is wrong. In float32 (the default) near-ties are 1e-3.

**Memory.** Own memory of every process and of the card is sampled each second; a line is fitted to the last two thirds
of the run, and what it rises in that time must stay below `--flat` MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from common import TINY, environment
from processes import Usage, device_memory, usage

from radixlang.errors import RadixLangError
from radixlang.llm import Engine

DOCS = Path(__file__).resolve().parent.parent / "docs"


@dataclass(frozen=True)
class Size:
    """The load. Lengths in tokens, as (shortest, longest); `capacity` is the KV pool, `rows` run at most."""

    prompts: int
    heads: int
    head: tuple[int, int]
    own: tuple[int, int]
    new: tuple[int, int]
    capacity: int
    rows: int
    chunk: int
    pause: float

    @property
    def context(self) -> int:
        return self.head[1] + self.own[1] + self.new[1] + 1


SIZES = {
    "cpu": Size(24, 3, (16, 96), (4, 48), (4, 40), 1024, 48, 64, 15.0),
    "cuda": Size(200, 8, (64, 512), (16, 384), (8, 192), 24576, 256, 512, 60.0),
}

#: how a request ends, and how often: by itself, as a stream, or cut short
ENDS = {"answer": 60, "stream": 15, "cancelled": 8, "stream left": 8, "aborted": 9}
SHORT = ("cancelled", "stream left", "aborted")
#: what it asks for, and how often: only greedy ones have a text to compare
KINDS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "greedy": (80, {"temperature": 0}, {}),
    "greedy with log-probabilities": (8, {"temperature": 0}, {"return_logprob": True, "top_logprobs_num": 2}),
    "sampled": (8, {"temperature": 0.9, "top_p": 0.9}, {}),
    "sampled with penalties": (4, {"temperature": 0.7, "frequency_penalty": 0.5}, {}),
}


@dataclass
class Prompt:
    ids: list[int]
    own: int
    """tokens after the head, which other prompts share"""
    answer: list[int] = field(default_factory=list)
    """what the quiet engine says"""


@dataclass
class Sample:
    """What one look showed. `pressure` is the open requests' need by the KV capacity."""

    at: float
    pressure: float
    running: float
    queued: float
    processes: dict[str, Usage]
    device: float | None


def pool(engine: Engine, size: Size, rng: random.Random) -> list[Prompt]:
    """Prompts of pieces of this repository's documentation, or of random ids without a tokenizer."""
    if engine.tokenizer is None:
        corpus = [rng.randrange(3, engine.hub.info["vocab_size"]) for _ in range(20000)]
    else:
        text = "\n".join(path.read_text() for path in sorted(DOCS.glob("*.md")))
        corpus = engine.tokenizer.encode(text, add_special_tokens=False)

    def piece(length: int) -> list[int]:
        at = rng.randrange(len(corpus) - length)
        return corpus[at : at + length]

    heads = [piece(rng.randint(*size.head)) for _ in range(size.heads)]
    owns = [piece(rng.randint(*size.own)) for _ in range(size.prompts)]
    return [Prompt([*rng.choice(heads), *own], len(own)) for own in owns]


def alone(engine: Engine, ids: list[int], sampling: dict[str, Any], **more: Any) -> dict[str, Any]:
    """One answer of an engine that has nothing else to do and nothing cached."""
    flush(engine)
    return dict(engine.generate(input_ids=ids, sampling_params=sampling, **more))


def flush(engine: Engine) -> bool:
    """Empty the prefix cache; a step with surplus tokens may hold it up for a moment."""
    for _ in range(200):
        if engine.flush_cache():
            return True
        time.sleep(0.005)
    return False


def worst_gap(engine: Engine, prompt: list[int], answer: list[int]) -> float:
    """By how much the quiet engine prefers its own token to the answer's, where it does so most."""
    meta = alone(
        engine,
        [*prompt, *answer],
        {"temperature": 0, "max_new_tokens": 0},
        return_logprob=True,
        logprob_start_len=len(prompt) - 1,
        top_logprobs_num=1,
    )["meta_info"]
    chosen, best = meta["input_token_logprobs"][1:], meta["input_top_logprobs"][1:]
    assert [token for _, token, _ in chosen] == answer
    return max(top[0][0] - value for (value, _, _), top in zip(chosen, best, strict=True))


class Soak:
    """The load on one engine, and what came of it."""

    def __init__(self, engine: Engine, size: Size, prompts: list[Prompt], pressure: float, seed: int) -> None:
        self.engine = engine
        self.size = size
        self.prompts = prompts
        self.rng = random.Random(seed)
        info = engine.get_server_info()
        self.capacity, self._page = int(info["max_total_num_tokens"]), int(info["page_size"])
        self.goal = pressure * self.capacity
        self.need = 0
        self.counts: Counter[str] = Counter()
        self.tokens = 0
        self.differing: Counter[tuple[int, tuple[int, ...]]] = Counter()
        self.problems: list[str] = []
        self.failures: Counter[str] = Counter()
        self.samples: list[Sample] = []
        self.feeding = False
        self._latency = 1.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._serial = 0
        self._pids = dict(zip(("engine", "detokenizer"), engine.get_all_child_pids(), strict=True))
        self._pids["client and hub"] = os.getpid()

    async def run(self, seconds: float, pause: float) -> None:
        """Load until the time is over, with pauses; raises nothing that a request raised."""
        began = time.monotonic()
        watcher = asyncio.create_task(self._watch(began))
        number = 0
        while (left := began + seconds - time.monotonic()) > 0 and sum(self.failures.values()) < 100:
            await self._feed(time.monotonic() + min(pause, left))
            number += 1
            if number % 2 == 0:
                self.engine.abort_request(abort_all=True)
            await asyncio.gather(*self._tasks)
            await self._count_everything(f"pause {number}")
            print(f"[{time.monotonic() - began:.0f} s: {dict(self.counts)}]", file=sys.stderr, flush=True)
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)

    async def _feed(self, until: float) -> None:
        self.feeding = True
        while time.monotonic() < until:
            while self.need < self.goal:
                task = asyncio.create_task(self._serve())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                await asyncio.sleep(0)  # the task's first step counts its need
            self._room.clear()
            try:
                await asyncio.wait_for(self._room.wait(), max(0.01, until - time.monotonic()))
            except TimeoutError:
                break
        self.feeding = False

    async def _serve(self) -> None:
        """One request from its draw to its end."""
        rng = self.rng
        index = rng.randrange(len(self.prompts))
        prompt = self.prompts[index]
        kind = rng.choices(list(KINDS), [share for share, _, _ in KINDS.values()])[0]
        end = rng.choices(list(ENDS), list(ENDS.values()))[0]
        new = rng.randint(*self.size.new)
        delay = rng.random() * 1.2 * self._latency
        need = prompt.own + new
        self.need += need
        self.counts["opened"] += 1
        try:
            began = time.monotonic()
            answer = await self._ask(prompt, kind, end, new, delay)
            if answer is None:
                self.counts[end] += 1
                return
            self._take(index, kind, new, answer)
            self._latency += 0.05 * (time.monotonic() - began - self._latency)
        except RadixLangError as error:
            self.failures[f"{type(error).__name__}: {error}"] += 1
        finally:
            self.need -= need
            self._room.set()

    async def _ask(self, prompt: Prompt, kind: str, end: str, new: int, delay: float) -> dict[str, Any] | None:
        """The answer as far as it came; None for one whose reader has gone."""
        _, sampling, fields = KINDS[kind]
        self._serial += 1
        rid = f"soak-{self._serial}"
        body = {
            "input_ids": prompt.ids,
            "sampling_params": {**sampling, "max_new_tokens": new, "ignore_eos": True},
            "rid": rid,
            **fields,
        }
        if end.startswith("stream"):
            leave_after = self.rng.randint(1, new) if end == "stream left" else None
            chunks = await self.engine.async_generate(stream=True, **body)
            last: dict[str, Any] | None = None
            try:
                async for last in chunks:
                    if leave_after is not None and len(last["output_ids"]) >= leave_after:
                        return None
            finally:
                await chunks.aclose()
            return last
        if end == "cancelled":
            try:
                return dict(await asyncio.wait_for(self.engine.async_generate(**body), delay))
            except TimeoutError:
                return None
        if end == "aborted":
            asyncio.get_running_loop().call_later(delay, self.engine.abort_request, rid)
        return dict(await self.engine.async_generate(**body))

    def _take(self, index: int, kind: str, new: int, answer: dict[str, Any]) -> None:
        ids, finish = answer["output_ids"], answer["meta_info"]["finish_reason"]["type"]
        self.tokens += len(ids)
        self.counts["aborted" if finish == "abort" else "finished"] += 1
        if finish != "abort" and (finish, len(ids)) != ("length", new):
            self.problems.append(f"an answer of {new} tokens has {len(ids)} and ends by {finish}")
        if not kind.startswith("greedy"):
            self.counts["sampled: not compared"] += 1
        elif ids == self.prompts[index].answer[: len(ids)]:
            self.counts["equal"] += bool(ids)
        else:
            self.differing[index, tuple(ids)] += 1

    async def _count_everything(self, when: str) -> None:
        """Nothing is open any more: every page, row and stream must be back; then flush."""
        info = await self._settled()
        free, cached = int(info["kv_available_tokens"]), int(info["kv_evictable_tokens"])
        if free + cached != self.capacity:
            self.problems.append(f"{when}: {free} free + {cached} cached of {self.capacity} tokens of KV")
        for what in ("num_running_reqs", "num_queue_reqs"):
            if info[what]:
                self.problems.append(f"{when}: {what} is {info[what]:g}")
        if self.engine.hub.running:
            self.problems.append(f"{when}: {self.engine.hub.running} streams are open in the hub")
        if self.need:
            self.problems.append(f"{when}: the load miscounts")
        if await asyncio.to_thread(flush, self.engine):
            self.counts["flushes"] += 1
        else:
            self.problems.append(f"{when}: an idle engine refuses to flush")
        free = int((await asyncio.to_thread(self.engine.get_server_info))["kv_available_tokens"])
        if free != self.capacity:
            self.problems.append(f"{when}: {free} of {self.capacity} tokens of KV are free after a flush")
        await self._use_all_rows(when)

    async def _settled(self) -> dict[str, Any]:
        """The engine's figures when it is idle; aborts of readers that left may still be on their way."""
        for _ in range(400):
            info = await asyncio.to_thread(self.engine.get_server_info)
            if not (info["num_running_reqs"] or info["num_queue_reqs"] or self.engine.hub.running):
                break
            await asyncio.sleep(0.025)
        return info

    async def _use_all_rows(self, when: str) -> None:
        """As many requests as there are rows must run at once: a row that was lost would be missed."""
        pages = self.capacity // self._page
        rows = min(self.size.rows, pages)
        new = min(max(2, pages // rows * self._page * 6 // 10), self.size.context - 2)
        sampling = {"temperature": 0, "max_new_tokens": new, "ignore_eos": True}
        work = asyncio.ensure_future(
            self.engine.async_generate(
                input_ids=[[5 + i % 100] for i in range(rows)], sampling_params=sampling
            )
        )
        most = 0
        while not work.done() and most < rows:
            info = await asyncio.to_thread(self.engine.get_server_info)
            most = max(most, int(info["num_running_reqs"]))
        await work
        if most != rows:
            self.problems.append(f"{when}: {most} of {rows} rows can run at once")
        await self._settled()
        await asyncio.to_thread(flush, self.engine)

    async def _watch(self, began: float) -> None:
        while True:
            info = await asyncio.to_thread(self.engine.get_server_info)
            device = await asyncio.to_thread(device_memory)
            processes = {name: found for name, pid in self._pids.items() if (found := usage(pid))}
            self.samples.append(
                Sample(
                    time.monotonic() - began,
                    self.need / self.capacity if self.feeding else float("nan"),
                    info["num_running_reqs"],
                    info["num_queue_reqs"],
                    processes,
                    device,
                )
            )
            await asyncio.sleep(1.0)

    def judge(self, tie: float) -> tuple[int, int, float]:
        """Answers that differ → how many by near-ties, how many are wrong, and the largest gap of all."""
        ties, wrong, largest = 0, 0, 0.0
        for (index, ids), count in self.differing.items():
            gap = worst_gap(self.engine, self.prompts[index].ids, list(ids))
            largest = max(largest, gap)
            ties, wrong = (ties + count, wrong) if gap <= tie else (ties, wrong + count)
        return ties, wrong, largest


Row = tuple[str, str, str, bool | None]
"""what, value, bar, whether it is kept (None: there is none)"""


def line(times: list[float], values: list[float]) -> tuple[float, float]:
    """(rise a minute, rise in all) of a line through the last two thirds of the samples."""
    cut = times[-1] / 3
    kept = [(at, value) for at, value in zip(times, values, strict=True) if at >= cut]
    at, value = np.array(kept).T
    slope = float(np.polyfit(at, value, 1)[0]) if len(kept) > 2 else float("nan")
    return slope * 60, slope * float(at[-1] - at[0])


def memory_rows(samples: list[Sample], flat: float) -> Iterator[Row]:
    columns: dict[str, list[tuple[float, float]]] = {}
    for sample in samples:
        for name, found in sample.processes.items():
            columns.setdefault(f"memory of {name}", []).append((sample.at, found.memory))
        if sample.device is not None:
            columns.setdefault("memory of the device", []).append((sample.at, sample.device))
    for name, pairs in columns.items():
        times, values = map(list, zip(*pairs, strict=True))
        slope, rise = line(times, values)
        text = f"{values[0]:,.0f} → {values[-1]:,.0f} MiB; {slope:+.2f} MiB/min, {rise:+.1f} in the fit"
        yield name, text, f"≤ {flat:g} in the fit", rise <= flat
    for what in ("threads", "files"):
        for name in samples[0].processes:
            values = [getattr(s.processes[name], what) for s in samples if name in s.processes]
            third = values[: max(1, len(values) // 3)]
            few = max(third) + 2
            yield f"{what} of {name}", f"{max(third)} → {values[-1]}", f"≤ {few}", values[-1] <= few


def load_rows(soak: Soak, before: dict[str, Any], after: dict[str, Any], seconds: float) -> Iterator[Row]:
    def grown(name: str) -> int:
        return int(after[name] - before[name])

    counts = soak.counts
    yield "requests", f"{counts['opened']:,} in {seconds:.0f} s", "", None
    yield "output tokens", f"{grown('generation_tokens_total'):,}", "", None
    pressure = [s.pressure for s in soak.samples if s.pressure == s.pressure]
    middle = statistics.median(pressure) if pressure else 0.0
    yield "need of open requests ÷ KV capacity, median", f"{middle:.2f}", "≥ 2.5", middle >= 2.5
    running, queued = ([getattr(s, what) for s in soak.samples] for what in ("running", "queued"))
    yield "running, waiting: mean", f"{statistics.mean(running):.0f}, {statistics.mean(queued):.0f}", "", None
    retracted = grown("num_retracted_requests_total")
    yield "retractions", f"{retracted:,}", "> 0", retracted > 0
    cached, prompt = grown("cached_tokens_total"), grown("prompt_tokens_total")
    yield "prompt tokens from the cache", f"{100 * cached / max(1, prompt):.0f} %", "> 0", cached > 0
    yield "tokens evicted", f"{grown('evicted_tokens_total'):,}", "> 0", grown("evicted_tokens_total") > 0
    for name in SHORT:
        yield name, f"{counts[name]:,}", "> 0", counts[name] > 0
    yield "pauses: all pages back, flushed, all rows used", f"{counts['flushes']}", "> 0", counts["flushes"] > 0
    failed = sum(soak.failures.values())
    yield "requests that failed", f"{failed}", "0", not failed
    yield "finished, sampled ones too", f"{counts['finished']:,}", "> 0", counts["finished"] > 0


def text_rows(soak: Soak, tie: float) -> Iterator[Row]:
    ties, wrong, largest = soak.judge(tie)
    compared = soak.counts["equal"] + ties + wrong
    yield "greedy texts compared with the quiet engine's", f"{compared:,}", "> 0", compared > 0
    yield "… token for token equal", f"{soak.counts['equal']:,}", "", None
    share = f"{ties} (largest gap {largest:.1e})" if largest else f"{ties}"
    yield f"… on another side of a near-tie (≤ {tie:g})", share, "≤ 2 %", ties <= 0.02 * compared
    yield "… wrong", f"{wrong}", "0", not wrong


def after_rows(pids: list[int], threads: set[threading.Thread], folder: str, device: float | None) -> Iterator[Row]:
    """What is left behind a second after the engine was shut down."""
    time.sleep(1.0)
    alive = [pid for pid in pids if usage(pid) is not None]
    yield "after shutdown: processes", f"{len(alive)} of {len(pids)}", "0", not alive
    names = sorted(thread.name for thread in set(threading.enumerate()) - threads)
    yield "after shutdown: threads", ", ".join(names) or "0", "0", not names
    left = os.listdir(folder)
    yield "after shutdown: files of the ring", f"{len(left)}", "0", not left
    if device is not None:
        more = (device_memory() or 0.0) - device
        yield "after shutdown: memory of the device", f"{more:+.0f} MiB", "≤ 64 MiB", more <= 64


def soak(args: argparse.Namespace, folder: str) -> tuple[list[Row], list[str]]:
    """The whole run. → its rows and the problems found"""
    size = SIZES[args.device]
    tie = args.tie if args.tie is not None else 1e-3 if args.dtype == "float32" else 0.5
    more = {name: json.loads(value) for name, _, value in (item.partition("=") for item in args.set)}
    model = {"model_path": args.model}
    if args.model == "tiny":
        Path(folder, "tiny").mkdir()
        Path(folder, "tiny", "config.json").write_text(json.dumps(TINY | {"hidden_act": "silu"}))
        model = {"model_path": f"{folder}/tiny", "load_format": "dummy", "skip_tokenizer_init": True}
    ring = Path(folder, "ring")
    ring.mkdir()
    tempfile.tempdir = str(ring)  # where the ring's sockets go
    device, threads = device_memory(), set(threading.enumerate())
    options = {
        "device": args.device,
        "dtype": args.dtype,
        "max_total_tokens": size.capacity,
        "max_running_requests": size.rows,
        "context_length": size.context,
        "chunked_prefill_size": size.chunk,
        "schedule_conservativeness": 0.05,
        **model,
        **more,
    }
    began = time.monotonic()
    with Engine(**options) as engine:
        ready = time.monotonic()
        prompts = pool(engine, size, random.Random(args.seed))
        sampling = {"temperature": 0, "max_new_tokens": size.new[1], "ignore_eos": True}
        for prompt in prompts:
            prompt.answer = alone(engine, prompt.ids, sampling)["output_ids"]
        quiet = time.monotonic()
        print(f"[ready in {ready - began:.1f} s, quiet answers {quiet - ready:.1f} s]", file=sys.stderr, flush=True)
        flush(engine)
        run = Soak(engine, size, prompts, args.pressure, args.seed + 1)
        before = engine.get_server_info()
        loaded = time.monotonic()
        asyncio.run(run.run(60 * args.minutes, args.pause or size.pause))
        seconds = time.monotonic() - loaded
        after = engine.get_server_info()
        rows = [*load_rows(run, before, after, seconds), *text_rows(run, tie)]
        rows += memory_rows(run.samples, args.flat)
        pids = engine.get_all_child_pids()
        rows.insert(0, ("device, dtype", f"{engine.hub.info['device']}, {args.dtype}", "", None))
    rows += after_rows(pids, threads, str(ring), device)
    failures = [f"{count} × {text}" for text, count in run.failures.most_common(5)]
    return rows, [*run.problems, *failures]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--device", choices=list(SIZES), default="cuda")
    parser.add_argument("--model", default="default", help="as --model-path; or tiny: random weights, made here")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--pressure", type=float, default=3.0, help="open requests' need by the KV capacity")
    parser.add_argument("--pause", type=float, help="seconds between two counts (60 on a GPU, 15 on a CPU)")
    parser.add_argument("--tie", type=float, help="largest gap of a near-tie (1e-3; 0.5 when not in float32)")
    parser.add_argument("--flat", type=float, default=16.0, help="MiB that memory may rise in the fit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="engine options, JSON values")
    parser.add_argument("--out", type=Path, help="append the table to this file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows, problems = soak(args, folder)
        tempfile.tempdir = None
    verdicts = {True: "pass", False: "FAIL", None: ""}
    lines = [environment("soak"), "| what | value | bar | |", "|---|---|---|---|"]
    lines += [f"| {what} | {value} | {bar} | {verdicts[kept]} |" for what, value, bar, kept in rows]
    lines += ["", f"Leaks, wrong lengths and failures: {len(problems) or 'none'}"]
    lines += [f"- {problem}" for problem in problems[:20]]
    text = "\n".join(lines)
    print(text)
    if args.out:
        with args.out.open("a") as file:
            file.write(f"\n## Soak\n{text}\n")
    return int(bool(problems) or any(kept is False for *_, kept in rows))


if __name__ == "__main__":
    sys.exit(main())
