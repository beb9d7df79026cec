"""The cost-aware order where memory is short and requests wait: well above lru where that can be."""

from __future__ import annotations

import dataclasses

import pytest

from radixlang.bench.play import Figures
from radixlang.bench.prefix import Settings, short_of_memory
from radixlang.scheduler import SchedulerLimits
from radixlang.simulate.cluster import Cluster, Simulation
from radixlang.simulate.cost import CostModel, EngineModel

LIMITS = SchedulerLimits(
    num_pages=1 << 20, page_size=16, context_length=4096, max_running_requests=64, vocab_size=500
)
MODEL = EngineModel(LIMITS, CostModel(0.006, 0.007, 2e-5, 1e-10, 1.5e-5, 2.5e-9))


def hit_rate(order: str, workload: str, load: Settings) -> float:
    """With memory for a third of the working set."""
    pages = short_of_memory(load, workload, LIMITS, 1 / 3)
    limits = dataclasses.replace(LIMITS, num_pages=pages + 1, eviction=order)
    simulation = Simulation(dataclasses.replace(MODEL, limits=limits), load.play(workload), Cluster(best=False))
    simulation.run()
    return Figures.of(simulation.answered, False).hit_rate


@pytest.mark.parametrize(("workload", "points"), [("chat", 3), ("agent", 1), ("rag", 1)])
def test_cost_is_above_lru(workload: str, points: float) -> None:
    load = Settings(sessions=60, scale=0.5, concurrency=40)
    assert 100 * (hit_rate("cost", workload, load) - hit_rate("lru", workload, load)) >= points
