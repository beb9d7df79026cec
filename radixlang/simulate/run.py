"""`radixlang simulate`: tables over cluster sizes, routers and eviction orders, and the check against a record.

Must not know the command line.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radixlang.bench import prefix
from radixlang.bench.play import Figures, Play
from radixlang.bench.report import Cell, Report, Table
from radixlang.bench.workloads import Session, read_trace
from radixlang.errors import ConfigError
from radixlang.scheduler import POLICIES, SchedulerLimits
from radixlang.simulate.cluster import Cluster, Load, Simulation
from radixlang.simulate.cost import TOO_FEW, CostModel, EngineModel, check_limits, read_json
from radixlang.simulate.router import ROUTERS


@dataclass(frozen=True)
class Settings:
    """Every combination of `replicas`, `routers` and eviction orders, on every workload or on a trace."""

    load: prefix.Settings = field(default_factory=prefix.Settings)
    """workloads, sessions, lengths, rate, thinking, eviction orders, memory"""
    trace: Path | None = None
    """play this file instead of the workloads"""
    replicas: tuple[int, ...] = (1,)
    routers: tuple[str, ...] = ("round-robin",)
    limits: dict[str, Any] = field(default_factory=dict)
    """fields of `SchedulerLimits` that need not be the recorded engine's"""
    window: float = 0.1
    processes: int = 1
    exact: bool = False

    def check(self) -> None:
        """Find what cannot be run.

        Raises:
            ConfigError: a name that is not known.
        """
        self.load.check()
        for name in self.routers:
            ROUTERS.get(name)
        if "policy" in self.limits:
            POLICIES.get(self.limits["policy"])


def simulate(model: EngineModel, settings: Settings) -> Report:
    """Play everything in virtual time and report.

    Raises:
        ConfigError: unknown names, or requests that the engine cannot take.
    """
    s = settings
    s.check()
    limits = dataclasses.replace(model.limits, **s.limits)
    check_limits(limits)
    columns = ["workload", "replicas", "router", "cache", *Figures.COLUMNS, "busy %", "busiest ÷ mean"]
    table, facts, began = Table(_title(s), columns), {}, time.perf_counter()
    for workload in ("trace",) if s.trace is not None else s.load.workloads:
        for replicas, router in itertools.product(s.replicas, s.routers):
            for name, some in _arms(s, workload, limits):
                cluster = Cluster(replicas, router, s.window, s.processes, s.exact, best=replicas == 1)
                simulation = Simulation(dataclasses.replace(model, limits=some), _play(s, workload), cluster)
                loads = simulation.run()
                if not simulation.answered:
                    raise ConfigError(f"There is no request in {s.trace or workload}.")
                figures = Figures.of(simulation.answered, cluster.best)
                table.rows.append([workload, replicas, router, name, *figures.cells(), *_busy(loads, figures)])
                facts[f"{workload}, {replicas}, {router}, {name}"] = figures.facts()
    notes = [f"Simulated in {time.perf_counter() - began:.1f} s. Times and rates are of virtual time."]
    values = {**dataclasses.asdict(s), "load": s.load.plain(), "trace": None if s.trace is None else str(s.trace)}
    return Report("simulate", f"virtual: {model.device}", values, [table], notes, facts, of_client=True)


def _title(s: Settings) -> str:
    if s.trace is not None:
        return str(s.trace)
    rate = f"{s.load.rate:g} sessions/s" if math.isfinite(s.load.rate) else f"{s.load.concurrency} at a time"
    return f"{s.load.sessions:,} sessions, lengths × {s.load.scale:g}, {rate}, seed {s.load.prompt_seed}"


def _play(s: Settings, workload: str) -> Play:
    if s.trace is None:
        return s.load.play(workload)
    sessions: Iterator[Session] = read_trace(s.trace)
    return Play(sessions if s.load.sessions is None else itertools.islice(sessions, s.load.sessions))


def _arms(s: Settings, workload: str, limits: SchedulerLimits) -> Iterator[tuple[str, SchedulerLimits]]:
    """Names and limits of one replica's engine."""
    share = s.load.memory_share
    if share is not None and s.trace is not None:
        raise ConfigError("--memory-share needs a workload; for a trace say --max-total-tokens.")
    for order in s.load.policies or (limits.eviction,):
        some, name = dataclasses.replace(limits, eviction=order), order
        if share is not None:
            plenty = dataclasses.replace(limits, num_pages=1 << 30)
            pages = prefix.short_of_memory(s.load, workload, plenty, share)
            name = f"{order}, {pages * limits.page_size:,} tokens"
            some = dataclasses.replace(some, num_pages=pages + 1)
        yield name, some
    if s.load.baseline:
        yield "off", dataclasses.replace(limits, radix_cache=False)


def _busy(loads: list[Load], figures: Figures) -> list[Cell]:
    """How busy replicas are on average, and the busiest."""
    busy = [load.busy for load in loads]
    mean = sum(busy) / len(busy)
    return [f"{100 * mean / figures.seconds:.0f}", max(busy) / mean if mean else None]


# ---- is it true? ----


def validate(path: Path, model: EngineModel | None, exact: bool = False) -> Report:
    """Play the runs of a record (`radixlang bench prefix --record`) again in virtual time, beside the measured.

    Without a `model` a run is predicted from the steps of the other workloads' runs, if there are any.

    Raises:
        ConfigError: the file is no record, or holds too few steps.
    """
    data = read_json(path, "--validate")
    if not isinstance(data, dict) or data.get("kind") != "steps":
        raise ConfigError(f"--validate {path} is no record of `radixlang bench prefix --record`.")
    recorded = EngineModel.read(path, "--validate")
    load = prefix.Settings.of_plain(data["settings"])
    columns = ["workload", "cache", "", "hit rate %", "total tok/s", "requests/s", "TTFT ms p50", "p90"]
    table, facts = Table(f"Measured and simulated: {path.name}", columns), {}
    for run in data["runs"]:
        workload, name, measured = run["workload"], run["cache"], run["figures"]
        limits = SchedulerLimits(**{**run["limits"], "eos_ids": tuple(run["limits"]["eos_ids"])})
        others = [step for other in data["runs"] if other["workload"] != workload for step in other["steps"]]
        cost = model.cost if model is not None else CostModel.fit(others) if others else recorded.cost
        if not cost.takes_time:
            raise ConfigError(f"--validate {path}, workloads beside {workload}: {TOO_FEW}")
        engine = EngineModel(limits, cost, recorded.overlap, recorded.device)
        simulation = Simulation(engine, load.play(workload), Cluster(exact=exact, best=False))
        simulation.run()
        predicted = Figures.of(simulation.answered, possible=False).facts()
        for title, figures in (("measured", measured), ("simulated", predicted)):
            ttft = [1000 * value for value in figures["ttft"][:2]]
            speeds = [figures["total_tokens_per_second"], figures["requests_per_second"]]
            table.rows.append([workload, name, title, f"{100 * figures['hit_rate']:.1f}", *speeds, *ttft])
        facts[f"{workload}, {name}"] = {
            "hit_rate_points": 100 * (predicted["hit_rate"] - measured["hit_rate"]),
            "throughput_ratio": predicted["total_tokens_per_second"] / measured["total_tokens_per_second"],
        }
    worst_points = max(abs(f["hit_rate_points"]) for f in facts.values())
    worst = max((f["throughput_ratio"] for f in facts.values()), key=lambda ratio: abs(math.log(ratio)))
    notes = [
        f"Hit rates differ by {worst_points:.1f} points at most; simulated throughput is {worst:.2f} × the "
        "measured one where it is furthest off."
    ]
    return Report("simulate: validation", recorded.device, {}, [table], notes, facts, of_client=True)
