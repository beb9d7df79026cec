"""Replicas behind routers: nothing is lost, the clock is right, and routing matters as it should."""

from __future__ import annotations

import dataclasses
from itertools import islice

import numpy as np
import pytest

from radixlang.bench.play import Asked, Figures, Play
from radixlang.bench.workloads import WORKLOADS, Maker, Text
from radixlang.errors import EngineError
from radixlang.scheduler import SchedulerLimits
from radixlang.simulate.cluster import Cluster, Fleets, Load, Sent, Simulation
from radixlang.simulate.cost import CostModel, EngineModel
from radixlang.simulate.router import ROUTERS

COST = CostModel(0.01, 0.012, 2e-5, 1e-9, 1e-4, 1e-8)


def model(pages: int = 2000) -> EngineModel:
    limits = SchedulerLimits(
        num_pages=pages, page_size=16, context_length=4096, max_running_requests=32, vocab_size=5000
    )
    return EngineModel(limits, COST)


def play_of(name: str = "chat", sessions: int = 12, rate: float = 4.0, scale: float = 0.25) -> Play:
    return Play(islice(WORKLOADS[name](Maker(0, scale, rate)), sessions))


def result(cluster: Cluster, play: Play, pages: int = 2000) -> tuple[list[Asked], list[Load]]:
    simulation = Simulation(model(pages), play, cluster)
    loads = simulation.run()
    assert sum(load.requests for load in loads) == len(simulation.answered)
    return sorted(simulation.answered, key=lambda asked: asked.id), loads


def test_one_replica_is_exact_and_reaches_the_best() -> None:
    answered, (load,) = result(Cluster(), play_of())
    again, _ = result(Cluster(exact=True), play_of())
    assert answered == again
    figures = Figures.of(answered)
    assert figures.of_best is not None
    assert figures.of_best > 0.99
    assert 0 < load.busy < figures.seconds
    for asked in answered:
        assert asked.due < asked.first <= asked.ended


@pytest.mark.parametrize("name", ["few-shot", "rag", "agent"])
def test_a_request_lacks_less_than_a_page_of_the_best(name: str) -> None:
    """Short prompts, some of which arrive together and part within a page: the loss that the docs of the bench
    explain, and no other."""
    lacking = {}
    for size in (1, 16):
        limits = dataclasses.replace(model().limits, num_pages=2000 * 16 // size, page_size=size)
        play = Play(islice(WORKLOADS[name](Maker(0, 0.03)), 24), concurrency=3)
        simulation = Simulation(EngineModel(limits, COST), play, Cluster())
        simulation.run()
        lacking[size] = {asked.possible_tokens - asked.cached_tokens for asked in simulation.answered}
    assert lacking[1] == {0}
    assert min(lacking[16]) == 0
    assert 0 < max(lacking[16]) < 16


def test_windows_of_one_replica_come_close() -> None:
    """Two replicas, one of which gets nothing: the same as one replica, but for follow-ups in the same window."""
    ends = {}
    for replicas, window in ((1, 0.1), (2, 0.01)):
        cluster = Cluster(replicas, "cache-aware", window, best=False)
        answered, _ = result(cluster, play_of(sessions=1))
        ends[replicas] = answered[-1].ended
    assert ends[2] == pytest.approx(ends[1], rel=0.02)


def test_processes_change_nothing() -> None:
    cluster = Cluster(3, "least-loaded", 0.2, best=False)
    alone, _ = result(cluster, play_of(sessions=8))
    two, loads = result(Cluster(3, "least-loaded", 0.2, processes=2, best=False), play_of(sessions=8))
    assert two == alone
    assert len(loads) == 3


@pytest.mark.parametrize("router", ROUTERS.names())
def test_every_router_serves_all(router: str) -> None:
    answered, loads = result(Cluster(4, router, best=False), play_of("agent", 8))
    assert len({asked.id for asked in answered}) == len(answered) >= 24
    if router == "round-robin":
        requests = [load.requests for load in loads]
        assert max(requests) - min(requests) <= 1


def test_a_cache_aware_router_finds_what_others_miss() -> None:
    hits = {}
    for router in ("random", "round-robin", "cache-aware"):
        answered, _ = result(Cluster(4, router, best=False), play_of("long-document", 10, scale=0.1))
        hits[router] = Figures.of(answered, possible=False).hit_rate
    assert hits["cache-aware"] > hits["random"] + 0.2
    assert hits["cache-aware"] > hits["round-robin"] + 0.2


def test_routers_decide_by_what_they_know() -> None:
    loads = np.array([3, 0, 2])
    assert ROUTERS.get("least-loaded")(3, 100, 0).choose([], loads) == 1
    aware = ROUTERS.get("cache-aware")(3, 1000, 0)
    system, question = ("system", 50), ("q", 10)
    assert aware.choose([system, question], loads) == 1
    assert aware.choose([system, ("other", 10)], np.array([0, 5, 0])) == 1  # its prefix is there
    assert aware.choose([system, ("other", 10)], np.array([0, 90, 0])) != 1  # but it has far too much to do
    assert aware.choose([("new", 40)], np.array([4, 4, 1])) == 2
    small = ROUTERS.get("cache-aware")(2, 50, 0)
    assert small.choose([("a", 60)], np.array([0, 1])) == 0
    small.choose([("b", 60)], np.array([1, 0]))
    assert small.choose([("a", 60)], np.array([1, 0])) == 1  # forgotten: there is room for one
    parts = ROUTERS.get("cache-aware")(2, 50, 0)
    assert parts.choose([system, ("long", 40)], np.array([1, 0])) == 1
    parts.choose([("new", 20)], np.array([0, 1]))  # the end of the first prompt is forgotten for it
    assert parts.choose([system, question], np.array([0, 1])) == 1


def test_more_replicas_are_faster() -> None:
    waits = []
    for replicas in (2, 8):
        answered, _ = result(Cluster(replicas, "least-loaded", best=False), play_of("rag", 60, rate=400.0))
        waits.append(Figures.of(answered, possible=False).ttft[1])
    assert waits[1] < waits[0] / 2


def test_idle_replicas_cost_nothing() -> None:
    cluster = Cluster(1_000_000, "cache-aware", best=False)
    simulation = Simulation(model(), play_of(sessions=2), cluster)
    loads = simulation.run()
    assert len(loads) == 1_000_000
    assert 1 <= sum(load.requests > 0 for load in loads) <= 2 * sum(load.requests for load in loads)
    own = simulation._fleets._own
    assert own is not None
    assert set(own._replicas) == {number for number, load in enumerate(loads) if load.requests}
    assert not own._working


def test_a_failure_in_a_process_is_told() -> None:
    fleets = Fleets(model(), Cluster(2, processes=2))
    try:
        too_long = Sent(1, 0, 0.0, (Text(1, 5000),), 4, 7)
        with pytest.raises(EngineError, match="context length"):
            fleets.run(1.0, [too_long])
    finally:
        fleets.close()
