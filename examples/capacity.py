"""How many engines does a load need for nine of ten first tokens to come in time? Simulated, from recorded steps.

radixlang bench prefix --workload chat --record steps.json
python examples/capacity.py steps.json --rate 5 --ttft 2
"""

import argparse
from itertools import islice
from pathlib import Path

from radixlang.bench.play import Figures, Play
from radixlang.bench.workloads import WORKLOADS, Maker
from radixlang.simulate.cluster import Cluster, Simulation
from radixlang.simulate.cost import EngineModel


def first_tokens(model: EngineModel, replicas: int, rate: float, sessions: int) -> float:
    """Seconds in which nine of ten first tokens come."""
    load = WORKLOADS["chat"](Maker(seed=0, rate=rate))
    simulation = Simulation(model, Play(islice(load, sessions)), Cluster(replicas, "cache-aware", best=False))
    simulation.run()
    return Figures.of(simulation.answered, possible=False).ttft[1] or 0.0


def main() -> None:
    """Double the cluster until it is fast enough."""
    parser = argparse.ArgumentParser()
    parser.add_argument("costs", type=Path)
    parser.add_argument("--rate", type=float, default=1.0, help="new conversations a second")
    parser.add_argument("--ttft", type=float, default=1.0, help="seconds")
    parser.add_argument("--sessions", type=int, default=200)
    args = parser.parse_args()
    model = EngineModel.read(args.costs)
    for replicas in (1, 2, 4, 8, 16, 32, 64):
        seconds = first_tokens(model, replicas, args.rate, args.sessions)
        print(f"{replicas:3} engines: {seconds:.3f} s")
        if seconds <= args.ttft:
            return


if __name__ == "__main__":
    main()
