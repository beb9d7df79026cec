"""`radixlang simulate`: its tables, its check against a record, its complaints."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from radixlang.bench import prefix
from radixlang.bench.play import Figures
from radixlang.cli import simulate
from radixlang.errors import ConfigError
from radixlang.scheduler import SchedulerLimits
from radixlang.simulate.cluster import Cluster, Simulation
from radixlang.simulate.cost import CostModel, EngineModel

LIMITS = SchedulerLimits(
    num_pages=4000, page_size=16, context_length=4096, max_running_requests=32, vocab_size=5000
)
MODEL = EngineModel(LIMITS, CostModel(0.01, 0.012, 2e-5, 1e-9, 1e-4, 1e-8), device="made up")


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    file = tmp_path / "costs.json"
    MODEL.write(file)
    return file


def facts_of(argv: list[str], tmp_path: Path) -> dict[str, dict]:
    out = tmp_path / "out.json"
    scale = [] if "--trace" in argv else ["--scale", "0.2"]
    assert simulate.run([*argv, *scale, "--json", str(out), "--processes", "1"]) == 0
    return json.loads(out.read_text())["facts"]


def test_every_combination_gets_a_row(costs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--costs", str(costs), "--workload", "rag,agent", "--sessions", "6", "--rate", "20"]
    argv += ["--replicas", "1,3", "--router", "random,cache-aware", "--baseline"]
    facts = facts_of(argv, tmp_path)
    assert len(facts) == 2 * 2 * 2 * 2
    assert facts["agent, 1, random, off"]["cached_tokens"] == 0
    assert facts["agent, 1, random, lru"]["hit_rate"] > 0.5
    assert facts["agent, 1, random, lru"]["best_hit_rate"] >= facts["agent, 1, random, lru"]["hit_rate"]
    assert facts["agent, 3, random, lru"]["best_hit_rate"] is None
    text = capsys.readouterr().out
    assert "device virtual: made up" in text
    assert "| agent | 3 | cache-aware | lru |" in text


def test_the_engine_can_be_changed(costs: Path, tmp_path: Path) -> None:
    argv = ["--costs", str(costs), "--workload", "long-document", "--sessions", "8"]
    plenty = facts_of(argv, tmp_path)["long-document, 1, round-robin, lru"]
    short = facts_of([*argv, "--max-total-tokens", "4000"], tmp_path)["long-document, 1, round-robin, lru"]
    assert short["hit_rate"] < plenty["hit_rate"]
    assert short["prompt_tokens"] == plenty["prompt_tokens"]
    orders = facts_of([*argv, "--memory-share", "0.4", "--policy", "lru,mru"], tmp_path)
    assert len(orders) == 2
    assert facts_of([*argv, "--exact"], tmp_path)["long-document, 1, round-robin, lru"] == plenty


def test_a_trace_is_played(costs: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [{"timestamp": 100 * i, "input_length": 600, "output_length": 5, "hash_ids": [1, i]} for i in range(9)]
    trace.write_text("\n".join(map(json.dumps, lines)))
    facts = facts_of(["--costs", str(costs), "--trace", str(trace)], tmp_path)
    assert facts["trace, 1, round-robin, lru"]["cached_tokens"] == 8 * 512
    assert facts["trace, 1, round-robin, lru"]["requests"] == 9


def test_a_record_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A record made by the simulator itself: two workloads, each predicted from the steps of the other."""
    load = prefix.Settings(("chat", "rag"), sessions=6, scale=0.2, concurrency=3)
    runs = []
    for workload in load.workloads:
        simulation = Simulation(MODEL, load.play(workload), Cluster(exact=True, best=False))
        steps = logged(simulation)
        simulation.run()
        figures = Figures.of(simulation.answered, possible=False).facts()
        run = {"workload": workload, "cache": "lru", "figures": figures, "steps": steps}
        runs.append(run | {"limits": dataclasses.asdict(LIMITS)})
    record = {"kind": "steps", "limits": dataclasses.asdict(LIMITS), "overlap": True, "device": "made up"}
    file, costs = tmp_path / "steps.json", tmp_path / "costs.json"
    file.write_text(json.dumps(record | {"settings": load.plain(), "runs": runs}))
    out = tmp_path / "out.json"
    assert simulate.run(["--validate", str(file), "--json", str(out)]) == 0
    for fact in json.loads(out.read_text())["facts"].values():
        assert fact["hit_rate_points"] == 0
        assert fact["throughput_ratio"] == pytest.approx(1, rel=0.01)
    assert "Hit rates differ by 0.0 points at most" in capsys.readouterr().out
    assert simulate.run(["--costs", str(file), "--save-costs", str(costs), "--validate", str(file)]) == 0
    assert EngineModel.read(costs).cost.prompt_token == pytest.approx(MODEL.cost.prompt_token, rel=1e-3)


def logged(simulation: Simulation) -> list[list[float]]:
    """The steps of the one replica, written down as they are costed."""
    steps: list[list[float]] = []
    own = simulation._fleets._own
    assert own is not None
    replica = own.replica(0)

    class Writing:
        def seconds(self, work: tuple[int, ...]) -> float:
            steps.append([*work, MODEL.cost.seconds(work)])
            return steps[-1][-1]

    replica._cost = Writing()  # type: ignore[assignment]
    return steps


def test_complaints(costs: Path, tmp_path: Path) -> None:
    with_costs = ["--costs", str(costs)]
    nothing = tmp_path / "empty.jsonl"
    nothing.touch()
    for argv, words in (
        ([], "--costs is required"),
        (["--costs", str(tmp_path / "none")], "cannot be read"),
        ([*with_costs, "--router", "best"], "Unknown router 'best'"),
        ([*with_costs, "--schedule-policy", "best"], "Unknown schedule policy"),
        ([*with_costs, "--policy", "best"], "Unknown eviction order"),
        ([*with_costs, "--workload", "best"], "'best' is not known"),
        ([*with_costs, "--replicas", "0"], "at least 1"),
        ([*with_costs, "--trace", str(nothing)], "There is no request in"),
        ([*with_costs, "--trace", str(nothing), "--memory-share", "0.5"], "needs a workload"),
        ([*with_costs, "--memory-share", "0.5", "--max-total-tokens", "500"], "--max-total-tokens must be left"),
        ([*with_costs, "--validate", str(costs)], "is no record"),
        (["--validate", str(costs), "--save-costs", str(tmp_path / "x")], "--save-costs needs --costs"),
        ([*with_costs, "--json", str(tmp_path / "no" / "x")], "its folder does not exist"),
        ([*with_costs, "--json", str(tmp_path)], "--json .* cannot be written: it is a folder"),
        (
            [*with_costs, "--context-length", "100"],
            r"length is 100\); lower --scale, raise --context-length",
        ),
        ([*with_costs, "--trace", str(nothing), "--rate", "5"], "--rate must be left out with --trace"),
        (["--validate", str(costs), "--policy", "lru"], "--policy must be left out with --validate"),
        ([*with_costs, "--window", "1e-300"], "--window: must be from 0.001 to 1000000 seconds"),
        (["--validate", str(tmp_path / "none")], "--validate .*none cannot be read"),
        ([*with_costs, "--replicas", "1,x"], "--replicas: must be whole numbers separated by commas"),
        ([*with_costs, "--scale", "inf"], "--scale: must be above 0 and at most 1000"),
        ([*with_costs, "--prompt-seed", "-1"], "--prompt-seed: must be at least 0"),
        ([*with_costs, "--max-total-tokens", "1"], "--max-total-tokens must be .*, got 0 in whole pages of 16"),
        ([*with_costs, "--max-total-tokens", "9" * 30], "--max-total-tokens: must be at most 2147483647"),
        ([*with_costs, "--page-size", "1000"], "--page-size must be between 1 and 128, got 1,000."),
        ([*with_costs, "--max-running-requests", "9" * 9], "--max-running-requests must be between 1 and"),
    ):
        with pytest.raises(ConfigError, match=words):
            simulate.run(argv)


@pytest.mark.parametrize(
    ("group", "field", "value", "words"),
    [
        ("cost", "decode_step", -1.0, "decode_step must be a number of seconds from 0 on, got -1"),
        ("cost", "decode_step", float("nan"), "decode_step must be a number of seconds"),
        ("cost", "row", float("inf"), "row must be a number of seconds"),
        ("cost", "row", "x", "holds a value that cannot be: Expected `float`, got `str`"),
        ("cost", "rows", 1.0, "is neither a record"),
        ("limits", "page_size", 0, "--page-size must be between 1 and 128"),
        ("limits", "page_size", "16", "holds a value that cannot be: Expected `int`"),
        ("limits", "pagesize", 16, "is neither a record"),
        ("limits", "max_running_requests", 0, "--max-running-requests must be between 1 and"),
    ],
)
def test_costs_that_were_edited_badly(costs: Path, group: str, field: str, value: object, words: str) -> None:
    data = json.loads(costs.read_text())
    data[group][field] = value
    costs.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=words):
        simulate.run(["--costs", str(costs), "--workload", "few-shot", "--sessions", "2"])


def test_a_step_takes_time(costs: Path) -> None:
    data = json.loads(costs.read_text())
    data["cost"] = dict.fromkeys(data["cost"], 0.0)
    costs.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match="a step must take some time"):
        simulate.run(["--costs", str(costs), "--workload", "few-shot", "--sessions", "2"])


def test_a_record_of_too_few_steps_says_so(tmp_path: Path) -> None:
    """They are fitted by a step that takes no time, which is no fault of whoever has edited costs."""
    load = prefix.Settings(("rag", "chat"), sessions=2, scale=0.2, concurrency=1).plain()
    figures = Figures(1, 1.0, 8, 0, 0, 1, [], []).facts()
    good = [[64 * n, 64 * n, 0, 0, 0.01 + 1e-5 * n] for n in range(1, 9)]
    good += [[0, 0, n, 64 * n, 0.01 + 1e-4 * n] for n in range(1, 9)]
    few = [[131, 4356, 0, 0, 0.0045], [131, 4356, 0, 0, 0.0046]]

    def record(rag: list[list[float]], chat: list[list[float]]) -> list[str]:
        limits = dataclasses.asdict(LIMITS)
        runs = [
            {"workload": name, "cache": "lru", "figures": figures, "limits": limits, "steps": steps}
            for name, steps in (("rag", rag), ("chat", chat))
        ]
        facts = {"kind": "steps", "limits": limits, "overlap": True, "device": "made up", "settings": load}
        file = tmp_path / "steps.json"
        file.write_text(json.dumps({**facts, "runs": runs}))
        return [str(file)]

    for flag, more in (("--costs", ["--workload", "rag"]), ("--validate", [])):
        with pytest.raises(ConfigError, match=f"{flag} .*: too few steps, .*--sessions"):
            simulate.run([flag, *record(few, []), *more])
    with pytest.raises(ConfigError, match=r"--validate .*, workloads beside chat: too few steps"):
        simulate.run(["--validate", *record(few, good)])


def test_it_starts_without_torch() -> None:
    code = (
        "import sys\nfrom radixlang.cli import simulate\nfrom radixlang.simulate import run\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
