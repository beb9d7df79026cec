"""What the simulator promises: hit rates of the seven workloads, eviction orders, and a million requests.

    python benchmarks/simulate.py [--sections best orders million] [--requests 1000000 --replicas 1000]
    python benchmarks/simulate.py --sections grid --seeds 5      # a quarter of an hour of one core

No model is needed: step times are those of `--costs` (a record of `radixlang bench prefix`, or a file of
`radixlang simulate --save-costs`) or else made up, about an 8B model's on one H200. Hit rates hardly depend on
them. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
from common import environment

from radixlang.bench.play import Figures, Play
from radixlang.bench.prefix import Settings, short_of_memory
from radixlang.bench.workloads import WORKLOADS, Maker
from radixlang.cache import EVICTIONS
from radixlang.scheduler import SchedulerLimits
from radixlang.simulate.cluster import Cluster, Simulation
from radixlang.simulate.cost import CostModel, EngineModel

MADE_UP = EngineModel(
    SchedulerLimits(
        num_pages=25_001, page_size=16, context_length=16_384, max_running_requests=256, vocab_size=32_000
    ),
    CostModel(0.006, 0.007, 2e-5, 1e-10, 1.5e-5, 2.5e-9),
)
#: sessions of each workload: enough for the documents of `rag` to be known, few enough for minutes
SESSIONS = {"few-shot": 500, "rag": 2000, "tree-of-thought": 100}
#: new conversations a second and engine in the section `million`: about two requests a second
RATE = 0.36
#: the section `grid`: sessions at a time, and one over memory as a share of the working set
CONCURRENCY, SHARES = (4, 16, 64, 256), (6, 3, 2)
#: points of hit rate by which orders differ for no reason: another page evicted is another course of events
TIE = 0.1


class Bars:
    """Prints rows with pass or FAIL and remembers whether one failed."""

    def __init__(self) -> None:
        self.failed = False

    def say(self, passed: bool, *cells: str) -> None:
        self.failed |= not passed
        print("| " + " | ".join([*cells, "pass" if passed else "FAIL"]) + " |", flush=True)


def head(*columns: str) -> None:
    print("\n| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")


def figures(model: EngineModel, play: Play, limits: SchedulerLimits, best: bool) -> Figures:
    """One engine plays it all."""
    simulation = Simulation(dataclasses.replace(model, limits=limits), play, Cluster(best=best))
    simulation.run()
    return Figures.of(simulation.answered, best)


def best(model: EngineModel, bars: Bars) -> None:
    """Hit rates with enough memory, beside the best possible ones."""
    head("workload", "requests", "hit rate %", "best %", "of best, bar 97 %", "")
    for workload in WORKLOADS:
        load = Settings(sessions=SESSIONS.get(workload, 200), scale=1.0, concurrency=64)
        plenty = dataclasses.replace(model.limits, num_pages=400_000)
        f = figures(model, load.play(workload), plenty, True)
        assert f.best is not None
        assert f.of_best is not None
        passed = f.of_best >= 0.97 and (workload != "rag" or f.hit_rate >= 0.94)
        shares = [f"{100 * share:.1f}" for share in (f.hit_rate, f.best, f.of_best)]
        bars.say(passed, workload, f"{f.requests:,}", *shares)


def orders(model: EngineModel, bars: Bars) -> None:
    """Eviction orders with memory for a third of the working set; the bar: the cost-aware one is not below lru."""
    names = [name for name in ("lru", "cost", "lfu", "slru") if name in EVICTIONS]
    for concurrency in (16, 64):
        head("workload", "sessions at a time", "tokens of KV", *(f"{name} %" for name in names), "")
        for workload in WORKLOADS:
            load = Settings(sessions=SESSIONS.get(workload, 200) // 2, scale=1.0, concurrency=concurrency)
            roomy = dataclasses.replace(model.limits, num_pages=1 << 30)
            pages = short_of_memory(load, workload, roomy, 1 / 3)
            rates = {}
            for name in names:
                limits = dataclasses.replace(model.limits, num_pages=pages + 1, eviction=name)
                rates[name] = figures(model, load.play(workload), limits, False).hit_rate
            passed = rates.get("cost", 0.0) >= rates["lru"] if "cost" in rates else True
            shown = [f"{100 * rate:.2f}" for rate in rates.values()]
            bars.say(passed, workload, str(concurrency), f"{pages * model.limits.page_size:,}", *shown)


def grid(model: EngineModel, bars: Bars, seeds: int, workloads: list[str]) -> None:
    """The cost-aware order beside lru: with ample and scarce memory, few and many sessions, pauses and none. Means
    over seeds; the bar: nowhere below lru by more than `TIE` points."""
    columns = ["pauses", "workload", "sessions at a time", "memory"]
    head(*columns, "lru %", "cost %", "points (least, most)", "seconds of lru's", "")
    for think, workload, concurrency, share in itertools.product((0, 1), workloads, CONCURRENCY, SHARES):
        found = []
        for seed in range(seeds):
            count = SESSIONS.get(workload, 200) // 2
            load = Settings(sessions=count, scale=1.0, concurrency=concurrency, think=think, prompt_seed=seed)
            pages = short_of_memory(
                load, workload, dataclasses.replace(model.limits, num_pages=1 << 30), 1 / share
            )
            limits = dataclasses.replace(model.limits, num_pages=pages + 1)
            for order in ("lru", "cost"):
                f = figures(model, load.play(workload), dataclasses.replace(limits, eviction=order), False)
                found.append((100 * f.hit_rate, f.seconds))
        rates, seconds = np.array(found).reshape(seeds, 2, 2).transpose(2, 1, 0)
        points = rates[1] - rates[0]
        shown = [f"{rate:.2f}" for rate in rates.mean(axis=1)]
        shown += [f"{points.mean():+.2f} ({points.min():+.2f}, {points.max():+.2f})"]
        shown += [f"{seconds[1].sum() / seconds[0].sum():.3f}"]
        where = ["people's" if think else "none", workload, str(concurrency), f"1/{share}"]
        bars.say(bool(points.mean() > -TIE), *where, *shown)


def million(model: EngineModel, bars: Bars, requests: int, replicas: int, processes: int, window: float) -> None:
    """Many requests on many engines; the bar is ten minutes for a million."""
    sessions = WORKLOADS["chat"](Maker(seed=0, rate=RATE * replicas))
    count = requests * 2 // 11  # a conversation has 5.5 requests on average
    cluster = Cluster(replicas, "cache-aware", window, processes, best=False)
    began = time.perf_counter()
    simulation = Simulation(model, Play(islice(sessions, count)), cluster)
    simulation.run()
    seconds = time.perf_counter() - began
    f = Figures.of(simulation.answered, False)
    head("requests", "engines", "processes", "virtual s", "hit rate %", "s, bar 5 + 600 a million", "")
    cells = [f"{f.requests:,}", str(replicas), str(processes), f"{f.seconds:,.0f}", f"{100 * f.hit_rate:.1f}"]
    bars.say(seconds <= 5 + 600 * f.requests / 1e6, *cells, f"{seconds:.0f}")


def main() -> None:
    """Run the sections."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", nargs="+", default=["best", "orders", "million"])
    parser.add_argument("--costs", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS))
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--window", type=float, default=1.0)
    args = parser.parse_args()
    model = EngineModel.read(args.costs) if args.costs else MADE_UP
    print(environment("simulate"))
    bars = Bars()
    if "best" in args.sections:
        best(model, bars)
    if "orders" in args.sections:
        orders(model, bars)
    if "grid" in args.sections:
        grid(model, bars, args.seeds, args.workloads)
    if "million" in args.sections:
        million(model, bars, args.requests, args.replicas, args.processes, args.window)
    sys.exit(bars.failed)


if __name__ == "__main__":
    main()
