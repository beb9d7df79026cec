"""`radixlang simulate`: flags of the simulator in `radixlang.simulate`, which knows no command line.

Must not import torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from radixlang.cli.bench import add_workload_flags, count, counts, seconds, share, words
from radixlang.cli.parser import Parser, check_output
from radixlang.errors import ConfigError

if TYPE_CHECKING:
    from radixlang.scheduler import SchedulerLimits
    from radixlang.simulate.run import Settings


def build_parser() -> Parser:
    """The flags of `simulate`."""
    parser = Parser(
        prog="radixlang simulate",
        description="The real scheduler and the real cache in virtual time: how workloads or a trace would run on "
        "a cluster of engines whose step times were recorded by `radixlang bench prefix --record`.",
    )
    parser.add_argument("--costs", type=Path, metavar="FILE", help="a record of steps, or a file of --save-costs")
    parser.add_argument("--save-costs", type=Path, metavar="FILE", help="write the fitted costs there")
    parser.add_argument(
        "--validate", type=Path, metavar="FILE", help="play a record's runs again and compare, nothing else"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there as well")
    load = parser.add_argument_group("Load")
    add_workload_flags(parser, "256", "1", "64; no limit with --rate", "1")
    load.add_argument("--trace", type=Path, metavar="FILE", help="play this trace (JSON lines) instead")
    cluster = parser.add_argument_group("Cluster")
    cluster.add_argument("--replicas", type=counts, default=(1,), help="engines, separated by commas (1)")
    cluster.add_argument(
        "--router",
        type=words,
        default=("round-robin",),
        metavar="NAMES",
        help="random, round-robin, least-loaded, cache-aware; separated by commas (round-robin)",
    )
    cluster.add_argument("--window", type=seconds, default=0.1, help="seconds until routers hear answers (0.1)")
    engine = parser.add_argument_group("Engine (where it differs from the recorded one)")
    engine.add_argument("--policy", type=words, default=(), metavar="NAMES", help="eviction orders to compare")
    engine.add_argument("--memory-share", type=share, help="KV memory as a share of each workload's working set")
    engine.add_argument("--max-total-tokens", type=count, metavar="TOKENS", help="KV memory of an engine")
    engine.add_argument("--context-length", type=count, metavar="TOKENS", help="longest prompt plus answer")
    engine.add_argument("--page-size", type=count, metavar="TOKENS", help="tokens of a KV page")
    engine.add_argument("--max-running-requests", type=count, metavar="N", help="most requests that run at once")
    engine.add_argument("--schedule-policy", metavar="NAME", help="order of the waiting queue")
    engine.add_argument("--baseline", action="store_true", help="simulate engines without a cache as well")
    parser.add_argument("--exact", action="store_true", help="plan every step by itself: the same figures, slower")
    parser.add_argument(
        "--processes", type=count, default=os.cpu_count() or 1, metavar="N", help="that replicas are spread over"
    )
    return parser


def run(argv: Sequence[str]) -> int:
    """Simulate and print."""
    parser = build_parser()
    args = parser.parse(argv)
    _check_given(parser.given(argv))
    for name in ("json", "save_costs"):
        if getattr(args, name) is not None:
            check_output(f"--{name.replace('_', '-')}", getattr(args, name))
    if args.costs is None and args.validate is None:
        raise ConfigError("--costs is required: a file that `radixlang bench prefix --record FILE` has written.")
    from radixlang.simulate.cost import EngineModel
    from radixlang.simulate.run import simulate, validate

    model = EngineModel.read(args.costs) if args.costs is not None else None
    if args.save_costs is not None:
        if model is None:
            raise ConfigError("--save-costs needs --costs with a record of steps.")
        model.write(args.save_costs)
    if args.validate is not None:
        report = validate(args.validate, model, args.exact)
    else:
        assert model is not None
        try:
            report = simulate(model, settings_of(args, model.limits))
        except MemoryError:
            raise ConfigError(
                "The simulated engines do not fit into this machine's memory; lower --replicas, "
                "--max-running-requests, --context-length or --scale."
            ) from None
    print(report.markdown())
    if args.json is not None:
        report.write(args.json)
        print(f"\nAll figures: {args.json}", file=sys.stderr)
    return 0


#: what the check of a record goes by; it has its own load and engine
_OF_VALIDATION = frozenset(("--validate", "--costs", "--save-costs", "--json", "--exact"))
#: what a trace says itself
_IN_TRACE = frozenset(("--workload", "--scale", "--concurrency", "--rate", "--think", "--prompt-seed"))


def _check_given(given: list[str]) -> None:
    """Refuse what would have no effect."""
    for flag in given:
        if "--validate" in given and flag not in _OF_VALIDATION:
            raise ConfigError(f"{flag} must be left out with --validate, which plays the record's own runs again.")
        if "--trace" in given and flag in _IN_TRACE:
            raise ConfigError(f"{flag} must be left out with --trace, which holds prompts, lengths and times.")
    if {"--memory-share", "--max-total-tokens"} <= set(given):
        raise ConfigError("--max-total-tokens must be left out with --memory-share, which says how much there is.")


def settings_of(args: argparse.Namespace, limits: SchedulerLimits) -> Settings:
    """The simulator's settings for the parsed flags; `limits` are the recorded engine's."""
    from radixlang.bench import prefix
    from radixlang.simulate.run import Settings

    given = {name: getattr(args, name) for name in prefix.Settings.__dataclass_fields__ if hasattr(args, name)}
    given |= {"policies": args.policy, "think": getattr(args, "think", 1.0)}
    if hasattr(args, "workload"):
        given["workloads"] = args.workload
    load = prefix.Settings(**given)
    page_size = args.page_size or limits.page_size
    changes = {
        "page_size": page_size,
        "num_pages": (args.max_total_tokens or limits.capacity) // page_size + 1,
        "context_length": args.context_length or limits.context_length,
        "max_running_requests": args.max_running_requests or limits.max_running_requests,
        "policy": args.schedule_policy or limits.policy,
    }
    return Settings(
        load=load if args.trace is not None else load.filled(True),
        trace=args.trace,
        replicas=args.replicas,
        routers=args.router,
        limits=changes,
        window=args.window,
        processes=args.processes,
        exact=args.exact,
    )
