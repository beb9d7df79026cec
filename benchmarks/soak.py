"""Minutes of hard use: more requests than memory, aborts, retractions, flushes; and every greedy text checked.

    python benchmarks/soak.py [--minutes 10] [--device cuda] [--model default] [--out FILE]

A real `Engine` (a ring of processes) gets as many open requests as would fill `--pressure` times its KV memory:
prompts of random lengths over shared heads, answers of random lengths, some sampled or with log-probabilities, and
some that are cut short in each of the ways a user has: a cancelled wait, a stream that is left, `abort_request`.
Every `--pause` seconds the load ends (every second time by aborting all), pages, rows and streams are counted, and
the prefix cache is flushed. Every second period is greedy throughout, so that most decode steps are CUDA graphs.

**What counts as a wrong text.** Beforehand the same engine answers each prompt of the pool alone, its cache
emptied each time. Every greedy answer of the run, those ended by `abort_request` too, must be the beginning of
that text, token for token. One that is not goes back to the quiet engine, alone: given the prompt and the answer,
it must find no token of the answer less likely than its own best by more than `--tie` (log-probabilities); such an
answer took another side of a near-tie, any other is wrong. In float32 (the default) near-ties are 1e-3.

**Memory.** The own memory of every process is sampled each second, the card's every five; a line is fitted to the
last two thirds of the run, and what it rises in that time must stay below `--flat` MiB. In runs of less than some
minutes that still holds the warming-up.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import TINY, environment
from processes import device_memory, usage
from soak_load import SHORT, SIZES, Sample, Soak, alone, flush, pool

from radixlang.errors import EngineDeadError
from radixlang.llm import Engine

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
    # The others had ended before their readers knew: their last tokens were on the way, and the longer the busier
    # the machine is.
    sent, ended, late = counts["aborts sent"], grown("num_aborted_requests_total"), grown("num_late_aborts_total")
    yield "aborts sent to the engine", f"{sent:,}", "> 0", sent > 0
    yield "… requests ended by them", f"{ended:,}", f"≥ {sent / 2:,.0f}", 2 * ended >= sent
    yield "… requests that had ended already", f"{late:,}", f"{sent - ended:,}", ended + late == sent
    if "storage_failures_total" in after:
        for what, name in (
            ("tokens copied to host memory", "hicache_backup_tokens_total"),
            ("tokens written to storage", "backuped_tokens_total"),
            ("tokens read from storage", "prefetched_tokens_total"),
            ("tokens loaded from host memory", "load_back_tokens_total"),
        ):
            yield what, f"{grown(name):,}", "> 0", grown(name) > 0
        failures = grown("storage_failures_total")
        yield "failures of the storage", f"{failures}", "0", not failures
    yield "pauses: all pages back, flushed, all rows used", f"{counts['flushes']}", "> 0", counts["flushes"] > 0
    yield "… all pages back at the latest after", f"{1000 * soak.slowest:.0f} ms", "≤ 1,000 ms", soak.slowest <= 1
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


def after_rows(
    pids: list[int], threads: set[threading.Thread], folder: str, device: float | None
) -> Iterator[Row]:
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
        spans = f"ready in {ready - began:.1f} s, quiet answers {quiet - ready:.1f} s"
        print(f"[{spans}]", file=sys.stderr, flush=True)
        flush(engine)
        run = Soak(engine, size, prompts, args.pressure, args.seed + 1)
        before = engine.get_server_info()
        loaded = time.monotonic()
        try:
            asyncio.run(run.run(60 * args.minutes, args.pause or size.pause))
            seconds = time.monotonic() - loaded
            after = engine.get_server_info()
            rows: list[Row] = [*load_rows(run, before, after, seconds), *text_rows(run, tie)]
            rows += memory_rows(run.samples, args.flat)
        except EngineDeadError as error:
            rows = [("the engine", str(error), "lives", False)]
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
