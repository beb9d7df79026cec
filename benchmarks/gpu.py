"""What the engine does on one GPU, beside other engines' figures on the same card and the physical floor.

    python benchmarks/gpu.py [--models llama qwen] [--sections start latency throughput …] [--out FILE]

Random weights in bfloat16 of the Llama-3.1-8B and Qwen3-0.6B shapes, random prompts, temperature 0, end tokens
ignored. Peers (vLLM 0.26.0, SGLang 0.5.16) were measured on one H200 with their offline APIs; the floor is bytes
at 4.20 TB/s and operations at 786 TFLOP/s of that card. One markdown table is printed.

Sections: start (time to ready), latency (batch 1), step (decode steps by batch), throughput, prefill, ttft,
admission (cached prompts), host (host work a step at 256 rows), executor (bare steps, no scheduler),
overlap (steps and the device's idle share with overlap and without); and, only when named, loop (step, without
client and detokenizer), changes (bare decode steps with penalties and masks), profile (kernels and their times).

`--device cpu --models tiny --sections ttft overlap` runs the same code anywhere, at small sizes.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_models import MODELS, options_of, prompts

from radixlang.bench import step as bench_step
from radixlang.bench.report import percentiles, random_prompts
from radixlang.bench.steps import StepLog, Work
from radixlang.channel import LocalChannel, ZmqReceiver, ZmqSender
from radixlang.config import Config
from radixlang.engine.build import build_engine
from radixlang.engine.recorder import StepRecorder
from radixlang.llm import Engine
from radixlang.messages import FromEngine, Generate, pack_ids
from radixlang.plan import FROM_TABLE, RowSetup, StepPlan
from radixlang.sampling_params import RowSampling, SamplingParams

STEPS = (8, 32, 64, 128, 256)
PROMPTS = (16, 128, 512, 1024, 2048)
FLOOR_PEERS: dict[str, dict[str, tuple[float, float, float]]] = {
    "llama": {
        "batch 1, ms a token": (3.58, 4.845, 4.692),
        "step at batch 8, ms": (3.85, 5.20, 5.16),
        "step at batch 32, ms": (4.66, 6.29, 6.18),
        "step at batch 64, ms": (5.75, 7.59, 7.58),
        "step at batch 128, ms": (7.92, 10.55, 10.61),
        "step at batch 256, ms": (13.6, 17.98, 17.35),
        "256 × 1,024 / 256, tok/s": (7860, 6172, 6191),
        "prefill 16 × 8,192, tok/s": (48800, 38101, 38565),
        "first token, 1 × 1,024, ms": (18.5, 30.3, 29.4),
        "256 cached prompts, 1 token, s": (0, 0.50, 0.16),
        "start to ready, s": (0, 63, 59),
    },
    "qwen": {
        "batch 1, ms a token": (0.29, 2.36, 1.68),
        "step at batch 8, ms": (0.52, 2.47, 1.80),
        "step at batch 32, ms": (1.24, 2.41, 2.63),
        "step at batch 64, ms": (2.19, 3.5, 3.78),
        "step at batch 128, ms": (4.09, 6.3, 6.13),
        "step at batch 256, ms": (7.99, 10.4, 10.44),
        "256 × 1,024 / 256, tok/s": (26400, 19897, 19141),
        "prefill 16 × 8,192, tok/s": (432000, 264440, 273386),
        "first token, 1 × 1,024, ms": (1.3, 18.2, 14.0),
    },
    "tiny": {},
}
THROUGH = ("latency", "step", "throughput", "prefill", "ttft", "admission")
"""sections that share one engine"""
SECTIONS = ("start", *THROUGH, "host", "executor", "overlap")
NAMED = ("loop", "changes", "profile")

Rows = dict[str, str | float]


class Bench:
    """One engine and the tests that go through its Python API."""

    def __init__(self, model: str, where: Path, **more: Any) -> None:
        self.vocabulary = MODELS[model]["vocab_size"]
        begin = time.perf_counter()
        self.engine = Engine(**options_of(model, where, **more))
        self.ready = time.perf_counter() - begin
        self.seconds(4, 64, 4)

    def seconds(self, rows: int, length: int, new: int, ids: list[list[int]] | None = None) -> float:
        ids = ids or prompts(rows, length, self.vocabulary)
        sampling = {"temperature": 0, "max_new_tokens": new, "ignore_eos": True}
        begin = time.perf_counter()
        answers = self.engine.generate(input_ids=ids, sampling_params=sampling)
        took = time.perf_counter() - begin
        assert all(len(answer["output_ids"]) == new for answer in answers)
        return took

    def latency(self) -> Rows:
        self.seconds(1, 128, 32)
        times = [self.seconds(1, 128, 257) - self.seconds(1, 128, 1) for _ in range(3)]
        return {"batch 1, ms a token": statistics.median(times) / 256 * 1e3}

    def step(self) -> Rows:
        """The difference of two runs over the same cached prompts, 16 and 144 tokens long."""
        out: Rows = {}
        for rows in STEPS:
            ids = prompts(rows, 1024, self.vocabulary)
            self.seconds(rows, 1024, 2, ids)
            self.seconds(rows, 1024, 2, ids)
            pairs = [[self.seconds(rows, 1024, new, ids) for new in (16, 144)] for _ in range(3)]
            gaps = [long - short for short, long in pairs]
            out[f"step at batch {rows}, ms"] = statistics.median(gaps) / 128 * 1e3
            self.engine.flush_cache()
        return out

    def throughput(self) -> Rows:
        self.seconds(256, 1024, 2)
        took = self.seconds(256, 1024, 256)
        self.engine.flush_cache()
        return {"256 × 1,024 / 256, tok/s": 256 * 256 / took}

    def prefill(self) -> Rows:
        self.seconds(2, 8192, 1)
        self.engine.flush_cache()
        took = self.seconds(16, 8192, 1)
        self.engine.flush_cache()
        return {"prefill 16 × 8,192, tok/s": 16 * 8192 / took}

    def ttft(self) -> Rows:
        out: Rows = {}
        for length in (128, 1024):
            times = [self.seconds(1, length, 1) for _ in range(10)]
            out[f"first token, 1 × {length:,}, ms"] = statistics.median(times[2:]) * 1e3
        return out

    def admission(self) -> Rows:
        ids = prompts(256, 1024, self.vocabulary)
        self.seconds(256, 1024, 1, ids)
        times = [self.seconds(256, 1024, 1, ids) for _ in range(3)]
        self.engine.flush_cache()
        return {"256 cached prompts, 1 token, s": statistics.median(times)}


def host(model: str, where: Path, **more: Any) -> Rows:
    """Host work of a turn of the engine's loop at 256 running rows: the turn without the wait for the device.

    As in the engine's process, what is sent goes through a socket, and no garbage is collected in between."""
    to_engine, socket = LocalChannel(), f"ipc://{where}/host"
    back = ZmqReceiver(socket, FromEngine)
    config = Config.from_flat(**options_of(model, where, **more)).resolve()
    loop = build_engine(config, to_engine, ZmqSender(socket), lambda *_: None, own_process=True)
    wait = 0.0
    inner = loop.executor.result

    def result(ticket: Any) -> Any:
        nonlocal wait
        begin = time.perf_counter()
        if ticket.forward._event is not None:
            ticket.forward._event.synchronize()
        wait = time.perf_counter() - begin
        return inner(ticket)

    loop.executor.result = result  # type: ignore[method-assign]
    for i, ids in enumerate(prompts(256, 64, MODELS[model]["vocab_size"])):
        sampling = SamplingParams(temperature=0.0, max_new_tokens=700, ignore_eos=True)
        to_engine.send(Generate(str(i), pack_ids(ids), sampling))
    for _ in range(100):
        loop.turn()
        back.receive(0)
    works, waits = [], []
    for _ in range(400):
        begin = time.perf_counter()
        loop.turn()
        works.append((time.perf_counter() - begin - wait) * 1e3)
        waits.append(wait * 1e3)
        back.receive(0)
    while not loop.scheduler.idle:
        loop.turn()
        back.receive(0)
    loop.executor.close()
    loop.sender.close()
    back.close()
    starved = sum(w < 0.005 for w in waits) / len(waits)
    works.sort()
    return {
        "host work a step at 256 rows, ms: median": statistics.median(works),
        "… p99": works[int(len(works) * 0.99)],
        "… steps whose result was there before it was asked for": starved,
    }


GAP = 5.0
"""µs without a kernel that count as the host's fault in a trace; between kernels of one graph is about one"""


def overlap(model: str, where: Path, **more: Any) -> Rows:
    """Decode steps with overlap and without: how long they are, what the host does in them, and how long the
    device is idle: by events at the ends of steps, as in `radixlang bench step`, and by the kernels in a trace."""
    out: Rows = {}
    for word, off in (("on", False), ("off", True)):
        out |= steps_of(model, word, options_of(model, where, disable_overlap_schedule=off, **more))
        free()  # the other engine wants the memory
    return out


def steps_of(model: str, word: str, options: dict[str, Any]) -> Rows:
    """The rows of one engine; `word` says how its overlap is."""
    sizes, length, steps = ((256, 32), 1024, 120) if options["device"] == "cuda" else ((8, 4), 64, 40)
    recorder, to_engine, back = StepRecorder(), LocalChannel(), LocalChannel()
    config = Config.from_flat(**options).resolve()
    loop = build_engine(config, to_engine, back, lambda *_: None, recorder, own_process=True)
    out: Rows = {}
    for size in sizes:
        ids = random_prompts(size, length, MODELS[model]["vocab_size"], [0, size])
        bench_step.run_batch(loop, to_engine, back, ids, steps, bench_step.Settings())
        seen = bench_step.steady(recorder.take(), size)
        name = f"at batch {size}, overlap {word}"
        out[f"step {name}, ms"] = statistics.median(seen.turn) * 1e3
        middle, high = percentiles([1000 * seconds for seconds in seen.host], (50, 99))
        out[f"… host work {name}, ms: median"], out[f"… host work {name}, ms: p99"] = middle, high
        out[f"… device idle {name}, % by events"] = 100 * seen.idle
        if options["device"] == "cuda":
            idle, gaps = traced_idle(loop, to_engine, back, recorder, ids)
            out[f"… device idle {name}, % in a trace, gaps of {GAP:g} µs and more"] = gaps
            out[f"… device idle {name}, % in a trace, every gap"] = idle
    loop.executor.close()
    return out


def traced_idle(
    loop: Any, to_engine: LocalChannel, back: LocalChannel, recorder: StepRecorder, ids: list[list[int]]
) -> tuple[float, float]:
    """20 decode steps of all prompts (cached by now) under the profiler → % of the time in which no kernel ran: in
    all, and in gaps of `GAP` and more. Copies do not count as work."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    sampling = SamplingParams(temperature=0.0, max_new_tokens=64, ignore_eos=True)
    for i, prompt in enumerate(ids):
        to_engine.send(Generate(f"traced-{i}", pack_ids(prompt), sampling))
    size = len(ids)
    for _ in range(1000):
        loop.turn()
        back.receive(0)
        if [(turn.rows, turn.tokens) for turn in recorder.turns[-8:]] == [(size, size)] * 8:
            break
    else:
        raise RuntimeError(f"the {size} prompts never decoded together")
    with record(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(20):
            loop.turn()
            back.receive(0)
        torch.cuda.synchronize()
    while not loop.scheduler.idle:
        loop.turn()
        back.receive(0)
    recorder.take()
    kernels = sorted(
        (event.time_range.start, event.time_range.end)
        for event in recorded.events()
        if event.device_type == DeviceType.CUDA and not event.name.startswith(("Memcpy", "Memset"))
    )
    return idle_of(kernels)


def idle_of(kernels: list[tuple[float, float]]) -> tuple[float, float]:
    """(begin, end) in µs, by begin → % of the span that no kernel covers: in all, and in gaps ≥ `GAP`."""
    until, gaps = kernels[0][1], []
    for begin, end in kernels:
        gaps.append(max(0.0, begin - until))
        until = max(until, end)
    span = until - kernels[0][0]
    return 100 * sum(gaps) / span, 100 * sum(gap for gap in gaps if gap >= GAP) / span


class Timeline:
    """The engine's loop in this process, with a log of its steps."""

    def __init__(self, model: str, where: Path, **more: Any) -> None:
        self._to_engine, self._back = LocalChannel(), LocalChannel()
        config = Config.from_flat(**options_of(model, where, **more)).resolve()
        self._loop = build_engine(config, self._to_engine, self._back, lambda *_: None, own_process=True)
        self._log = StepLog(self._loop.executor)
        self._loop.executor = self._log  # type: ignore[assignment]

    def steps(self, ids: list[list[int]], new: int) -> list[tuple[Work, float]]:
        """All prompts at once → every step's work and seconds; the first includes taking the prompts in."""
        self._log.steps = []
        sampling = SamplingParams(temperature=0.0, max_new_tokens=new, ignore_eos=True)
        packed = [Generate(str(i), pack_ids(prompt), sampling) for i, prompt in enumerate(ids)]
        self._to_engine.send_all(packed)
        self._log.begin()
        while not self._log.steps or not self._loop.scheduler.idle:
            self._loop.turn()
            self._back.receive(0)
        return self._log.steps

    def flush(self) -> None:
        assert self._loop.scheduler.flush()

    def close(self) -> None:
        self._loop.executor.close()


def loop(model: str, where: Path, **more: Any) -> Rows:
    """`step` without the processes around the engine: what these cost is the difference of the two."""
    line, out = Timeline(model, where, **more), Rows()
    small = more.get("device") == "cpu"
    for rows in STEPS[:1] if small else STEPS:
        ids = prompts(rows, 64 if small else 1024, MODELS[model]["vocab_size"])
        for _ in range(2):
            line.steps(ids, 2)
        steps = [seconds for _ in range(2) for _, seconds in line.steps(ids, 144)[16:]]
        out[f"step of the loop alone at batch {rows}, ms"] = statistics.mean(steps) * 1e3
        line.flush()
    line.close()
    return out


class Bare:
    """An executor without a scheduler: rows of random KV that decode, and prompts."""

    CONTEXT = 1038
    """mean context of the steps that are measured is then 1,088, as in the table of peers"""

    def __init__(self, model: str, where: Path, **more: Any) -> None:
        from radixlang.executor.build import build_executor

        options = options_of(model, where, max_total_tokens=320_000, **more)
        self.device, self.shape = build_executor(Config.from_flat(**options).resolve(), lambda *_: None)
        for k, v in self.device.pool.layers:
            k.normal_()
            v.normal_()
        self.masks = np.full((512, -(-self.shape.vocab_size // 32)), 0x5A5A5A5A, np.int32)
        self.per_row = -(-(self.CONTEXT + 100) // self.shape.page_size)

    def plan(
        self,
        rows: int,
        starts: int,
        counts: int,
        new: bool,
        sampling: RowSampling = RowSampling(),
        masked: int = 0,
    ) -> StepPlan:
        """`new`: give the rows their pages and parameters; otherwise each takes its token from the table.

        The first `masked` rows wait for masks.
        """
        ids = np.arange(1, rows + 1, dtype=np.int32)
        empty = np.zeros(0, np.int32)
        per_row = max(self.per_row, -(-(starts + counts) // self.shape.page_size))
        pages = [(row, i, 1 + (row - 1) * per_row + i) for row in range(1, rows + 1) for i in range(per_row)]
        tokens = np.full(rows * counts, FROM_TABLE, np.int32)
        if counts > 1:
            tokens = np.random.randint(100, 100_000, rows * counts).astype(np.int32)
        return StepPlan(
            step=0,
            rows=ids,
            starts=np.full(rows, starts, np.int32),
            counts=np.full(rows, counts, np.int32),
            token_ids=tokens,
            samples=np.ones(rows, np.bool_),
            pools=np.zeros(rows, np.bool_),
            new_pages=np.array(pages if new else [], np.int32).reshape(-1, 3),
            setups=tuple(RowSetup(int(row), sampling, empty, empty) for row in ids) if new else (),
            masked=np.arange(masked, dtype=np.int32),
        )

    def run(self, plans: list[StepPlan]) -> tuple[list[float], list[float]]:
        """Launch one ahead; → (ms from result to result, ms of each launch on the host)."""
        tickets: list[Any] = []
        ends, launches = [time.perf_counter()], []
        for plan in plans:
            begin = time.perf_counter()
            tickets.append(self.device.launch(plan))
            if len(plan.masked):
                self.device.sample(tickets[-1], self.masks[: len(plan.masked)])
            launches.append((time.perf_counter() - begin) * 1e3)
            if len(tickets) > 1:
                self.device.result(tickets.pop(0))
            ends.append(time.perf_counter())
        self.device.result(tickets.pop())
        return [(b - a) * 1e3 for a, b in itertools.pairwise(ends)], launches


def executor(model: str, where: Path, **more: Any) -> Rows:
    """Decode steps of the bare executor at a context of 1,088, prompts, and the host's part of their launches."""
    bare = Bare(model, where, **more)
    out: Rows = {}
    for rows in (1, 2, 4, *STEPS):
        bare.run([bare.plan(rows, bare.CONTEXT, 1, True)])
        gaps, launches = bare.run([bare.plan(rows, bare.CONTEXT + i, 1, False) for i in range(1, 81)])
        out[f"bare step at batch {rows}, ms"] = statistics.median(gaps[20:])
        out[f"… its launch on the host at {rows}, ms"] = statistics.median(launches[20:])
    for tokens in PROMPTS:
        bare.run([bare.plan(1, 0, tokens, True)])
        gaps, launches = bare.run([bare.plan(1, 0, tokens, False) for _ in range(30)])
        out[f"bare prompt step of {tokens:,} tokens, ms"] = statistics.median(gaps[10:])
        out[f"… its launch on the host at {tokens:,} tokens, ms"] = statistics.median(launches[10:])
    out["start, parts"] = str(bare.shape.load_spans)
    bare.device.close()
    return out


def changes(model: str, where: Path, **more: Any) -> Rows:
    """Steps of the bare executor whose rows have penalties or wait for masks that are there at once."""
    bare = Bare(model, where, **more)
    top_p = RowSampling(temperature=0.8, top_p=0.9, seed=1)
    penalised = RowSampling(frequency_penalty=0.5, presence_penalty=0.2, repetition_penalty=1.1)
    both = RowSampling(temperature=0.8, top_p=0.9, seed=1, frequency_penalty=0.5)
    out: Rows = {}
    for rows in (1, 32, 256):
        for name, sampling, masked in (
            ("greedy", RowSampling(), 0),
            ("greedy, all rows with penalties", penalised, 0),
            ("greedy, one row masked", RowSampling(), 1),
            ("greedy, all rows masked", RowSampling(), rows),
            ("top-p", top_p, 0),
            ("top-p, all rows with penalties", both, 0),
            ("top-p, all rows masked", top_p, rows),
        ):
            bare.run([bare.plan(rows, bare.CONTEXT, 1, True, sampling, masked)])
            plans = [bare.plan(rows, bare.CONTEXT + i, 1, False, sampling, masked) for i in range(1, 81)]
            gaps, launches = bare.run(plans)
            out[f"batch {rows}, {name}: step, ms"] = statistics.median(gaps[20:])
            out[f"… its launch on the host at {rows}, {name}, ms"] = statistics.median(launches[20:])
    bare.device.close()
    return out


def profile(model: str, where: Path, **more: Any) -> Rows:
    """Where the device's time goes: kernels of decode steps and of a prompt, printed to stderr."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    bare = Bare(model, where, **more)
    cases = [(f"decode {rows}", rows, bare.CONTEXT, 1) for rows in (1, 32, 128, 256)]
    cases += [(f"prompt {rows} × 1,024", rows, 0, 1024) for rows in (1, 8)]
    for name, rows, starts, counts in cases:
        bare.run([bare.plan(rows, starts, counts, True)])
        plans = [bare.plan(rows, starts, counts, False) for _ in range(6)]
        bare.run(plans[:2])
        with record(activities=[ProfilerActivity.CUDA]) as recorded:
            bare.run(plans)
            torch.cuda.synchronize()
        print(f"-- {model} {name}", file=sys.stderr)
        for event in sorted(recorded.key_averages(), key=lambda e: -e.device_time_total)[:16]:
            each, number = event.device_time_total / event.count, event.count / 6
            total = each * number / 1e3
            print(f"{total:8.3f} ms = {number:6.1f} × {each:8.1f} µs  {event.key[:90]}", file=sys.stderr)
    bare.device.close()
    return {}


def start(model: str, where: Path) -> Rows:
    """A fresh process until it is ready, twice with one cache of kernels, which begins empty, whatever ran here
    before: the second finds them compiled."""
    code = (
        "import json, sys, time; begin = time.perf_counter(); from radixlang.llm import Engine\n"
        "imported = time.perf_counter()\n"
        "def main():\n"
        "    engine = Engine(**json.loads(sys.argv[1]))\n"
        "    ready = time.perf_counter()\n"
        "    print(json.dumps([imported - begin, ready - begin, engine.get_server_info()['load_spans']]))\n"
        "    engine.shutdown()\n"
        "if __name__ == '__main__': main()\n"
    )
    out: Rows = {}
    caches = os.environ | {"TRITON_CACHE_DIR": str(where / "kernels")}
    command = [sys.executable, "-c", code, json.dumps(options_of(model, where))]
    for name in ("… the first time here", "start to ready, s"):
        begin = time.perf_counter()
        run = subprocess.run(command, capture_output=True, text=True, env=caches)
        if run.returncode:
            raise RuntimeError(run.stderr[-3000:])
        took = time.perf_counter() - begin
        imported, ready, spans = json.loads(run.stdout.splitlines()[-1])
        out[name] = ready
        out[f"{name}: import, parts, whole process"] = f"{imported:.1f} s; {spans}; {took:.1f} s"
    return out


def free() -> None:
    """Forget the last engine, and let Python collect garbage again where that engine had a process of its own."""
    gc.unfreeze()
    gc.enable()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def measure(model: str, sections: list[str], where: Path, more: dict[str, Any]) -> Rows:
    out: Rows = {}
    if "start" in sections:
        out |= start(model, where)
    through = [s for s in sections if s in THROUGH]
    if through:
        bench = Bench(model, where, **more)
        for section in through:
            method: Callable[[], Rows] = getattr(bench, section)
            begin = time.perf_counter()
            out |= method()
            print(f"[{model} {section}: {time.perf_counter() - begin:.1f} s]", file=sys.stderr, flush=True)
        bench.engine.shutdown()
        del bench
        free()
    for name, function in (
        ("executor", executor),
        ("loop", loop),
        ("changes", changes),
        ("host", host),
        ("overlap", overlap),
        ("profile", profile),
    ):
        if name in sections:
            begin = time.perf_counter()
            out |= function(model, where, **more)
            print(f"[{model} {name}: {time.perf_counter() - begin:.1f} s]", file=sys.stderr, flush=True)
            free()
    return out


def shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 1 else f"{value:.2f}"


def table(results: dict[str, Rows]) -> str:
    lines = ["| model | test | ours | floor | vLLM | SGLang |", "|---|---|---|---|---|---|"]
    for model, rows in results.items():
        for test, value in rows.items():
            others = FLOOR_PEERS[model].get(test, (0, 0, 0))
            cells = [MODELS[model]["name"], test, shown(value)]
            cells += [shown(other) if other else "–" for other in others]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def device_line(device: str) -> str:
    if device != "cuda":
        return f"{device}, torch {torch.__version__}"
    import triton

    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", nargs="+", default=["llama", "qwen"], choices=list(MODELS))
    parser.add_argument("--sections", nargs="+", default=list(SECTIONS), choices=[*SECTIONS, *NAMED])
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="engine options, JSON values")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="append the table to this file")
    args = parser.parse_args()
    more = {name: json.loads(value) for name, _, value in (item.partition("=") for item in args.set)}
    more["device"] = args.device
    random.seed(0)
    results = {}
    with tempfile.TemporaryDirectory() as where:
        for model in args.models:
            results[model] = measure(model, args.sections, Path(where), more)
            print(table({model: results[model]}), flush=True)
    head = f"## {time.strftime('%Y-%m-%d')}: {device_line(args.device)}\n\n`{' '.join(['python', *sys.argv])}`\n\n"
    text = head + table(results) + "\n"
    print(text)
    if args.out:
        with args.out.open("a") as file:
            file.write("\n" + text)


if __name__ == "__main__":
    main()
