"""Throughput, latency and the parts of a step, on a tiny model."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from radixlang.bench import latency, offline, step, throughput
from radixlang.bench.offline import Answered, Trace
from radixlang.cli import bench
from radixlang.config import Config
from radixlang.engine.recorder import HOST_PARTS, Turn
from radixlang.errors import ConfigError, RequestError
from radixlang.llm import Engine


@pytest.fixture(scope="module")
def engine(tiny: Path) -> Iterator[Engine]:
    with Engine(str(tiny), inline=True, skip_tokenizer_init=True, num_threads=1) as running:
        yield running


def cells(report, table: int = 0) -> list[dict]:
    return [dict(zip(report.tables[table].columns, row, strict=True)) for row in report.tables[table].rows]


def test_throughput_counts_what_was_made(engine: Engine) -> None:
    settings = throughput.Settings(num_prompts=5, input_len=40, output_len=6, runs=2, warmup=1)
    report = throughput.measure(engine, settings)
    first, second = cells(report)
    assert first["output tok/s"] == pytest.approx(5 * 6 / first["s"])
    assert first["total tok/s"] == pytest.approx(5 * 46 / first["s"])
    assert first["requests/s"] == pytest.approx(5 / first["s"])
    assert first["cached prompt tokens"] == second["cached prompt tokens"] == 0
    assert report.settings["num_prompts"] == 5


def test_throughput_with_a_warm_cache_and_a_shared_prefix(engine: Engine) -> None:
    settings = throughput.Settings(
        num_prompts=3, input_len=48, output_len=2, shared_len=32, runs=2, keep_cache=True, warmup=0
    )
    first, second = cells(throughput.measure(engine, settings))
    assert second["cached prompt tokens"] == 3 * 47  # all but the last token
    assert first["cached prompt tokens"] < second["cached prompt tokens"]
    with pytest.raises(ConfigError, match="--shared-len"):
        throughput.measure(engine, throughput.Settings(input_len=8, shared_len=9))


def test_a_request_that_cannot_fit_is_refused(engine: Engine) -> None:
    words = "--input-len 200 and --output-len 100 are more than the context length of 256 tokens"
    with pytest.raises(ConfigError, match=words):
        throughput.measure(engine, throughput.Settings(num_prompts=1, input_len=200, output_len=100))
    with pytest.raises(ConfigError, match=words):
        latency.measure(engine, latency.Settings(batch_sizes=(1,), input_len=200, output_len=100))


def test_latency_of_every_batch_size(engine: Engine) -> None:
    settings = latency.Settings(batch_sizes=(1, 3), input_len=20, output_len=5, runs=2)
    one, three = cells(latency.measure(engine, settings))
    assert (one["batch"], three["batch"]) == ("1", "3")
    for row, size in ((one, 1), (three, 3)):
        assert 0 < row["TTFT ms"] <= row["all first tokens ms"]
        assert row["prefill tok/s"] == pytest.approx(1000 * size * 20 / row["all first tokens ms"])
        assert row["decode tok/s"] == pytest.approx(1000 * size / row["ms per decode step"])
    single = cells(latency.measure(engine, latency.Settings(batch_sizes=(1,), input_len=20, output_len=1, runs=1)))
    assert single[0]["ms per decode step"] is None


def test_times_of_a_batch() -> None:
    answers = [Answered(10.0, 10.0 + first, 13.0 + late, 8, 0, 5) for first, late in ((1, 0), (2, 0.5), (5, 1))]
    assert latency.times_of(answers) == latency.Run(ttft=2.0, prefill=5.0, step=(14 - 15) / 4)


def test_trace_of_a_run(engine: Engine, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    settings = throughput.Settings(num_prompts=2, input_len=8, output_len=40, trace=Trace(str(folder), 4))
    report = throughput.measure(engine, settings)
    (file,) = folder.iterdir()
    assert str(file) in report.notes[0]
    few = trace_events(file)
    assert few
    # A run that ends before the steps do is written as well.
    settings = throughput.Settings(num_prompts=2, input_len=8, output_len=3, trace=Trace(str(folder), 1000))
    throughput.measure(engine, settings)
    assert len(list(folder.iterdir())) == 2


def trace_events(path: Path) -> list[dict]:
    with gzip.open(path) as file:
        return [event for event in json.load(file)["traceEvents"] if event.get("cat") == "cpu_op"]


def test_profile_of_an_engine(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="Unknown argument 'folder'"):
        engine.start_profile(folder="x")
    with pytest.raises(RequestError, match="No profile is running"):
        engine.stop_profile()
    started = engine.start_profile(output_dir=str(tmp_path), num_steps=None)
    with pytest.raises(RequestError, match="running already"):
        engine.start_profile()
    offline.answer(engine, [[5, 6, 7]], 4)
    assert not list(tmp_path.glob("*.gz"))
    assert engine.stop_profile() == {"path": started["path"]}
    assert any("index_put" in event["name"] for event in trace_events(Path(started["path"]))), "no KV was written"
    assert len(offline.answer(engine, [[5, 6, 7]], 4)) == 1


# ---- the parts of a step ----


class Spans:
    """A submission on a made-up device."""

    def __init__(self, end: float, **spans: float) -> None:
        self.end, self._spans = end, spans

    def spans(self) -> dict[str, float]:
        return self._spans

    def until_end_of(self, later: Spans) -> float:
        return later.end - self.end


def turn(rows: int, tokens: int, number: int) -> Turn:
    out = Turn(0.0, rows=rows, tokens=tokens, seconds=0.010)
    out.spans.update(wait=0.007, plan=0.001)
    out.device = Spans(number * 0.010, copy=0.001, forward=0.008, sample=0.0005)
    return out


def test_only_whole_decode_steps_count() -> None:
    turns = [
        turn(2, 40, 0),
        turn(3, 41, 1),
        *(turn(3, 3, i) for i in range(2, 12)),
        turn(2, 2, 12),
        turn(0, 0, 13),
    ]
    measured = step.steady(turns, 3)
    assert len(measured.turn) == 10 - 1 - step.SETTLE
    assert measured.turn == [0.010] * 5
    assert measured.host == pytest.approx([0.003] * 5)
    assert measured.parts["plan"] == [0.001] * 5
    assert measured.idle == pytest.approx(0.15)
    rows = {row[0]: row[1] for row in step._rows([measured])}
    assert rows["whole step"] == "10.000 / 10.000"
    assert rows["– the rest"] == "2.000 / 2.000"
    assert rows["device: forward"] == "8.000 / 8.000"
    assert rows["device idle"] == "15.0 %"


@pytest.mark.parametrize("overlap", [True, False])
def test_step_on_a_real_engine(
    tiny: Path, tmp_path: Path, overlap: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["step", "--model-path", str(tiny), "--skip-tokenizer-init", "--threads", "1", "--batch-sizes", "1,3"]
    argv += ["--input-len", "10", "--steps", "12", "--json", str(tmp_path / "out.json")]
    assert bench.run(argv + ([] if overlap else ["--disable-overlap-schedule"])) == 0
    text = capsys.readouterr().out
    assert ("overlap on" if overlap else "overlap off") in text
    for name in (
        "take messages",
        "plan",
        "wait for the device",
        "device: copy",
        "device: forward",
        "device: sample",
    ):
        assert f"{name} |" in text
    facts = json.loads((tmp_path / "out.json").read_text())["facts"]
    for size in (1, 3):
        figures = facts[f"batch_{size}"]
        assert 8 <= figures["samples"] <= 14
        assert set(HOST_PARTS) <= set(figures)
        assert 0 < figures["device_forward"]["p50"] < figures["step"]["p99"]
        assert 0 <= figures["device_idle"] < 1
        assert figures["host"]["p50"] <= figures["step"]["p50"]
        assert all(figures[part]["p50"] >= 0 for part in HOST_PARTS)


def test_step_says_what_does_not_fit(tiny: Path) -> None:
    base = {"model_path": str(tiny), "skip_tokenizer_init": True, "num_threads": 1, "log_level": "error"}
    for more, settings, words in (
        (
            {"max_running_requests": 2},
            {"batch_sizes": (3,), "input_len": 8, "steps": 5},
            "--max-running-requests 3",
        ),
        ({}, {"batch_sizes": (1,), "input_len": 250, "steps": 50}, "context holds 256"),
        ({"tp_size": 2}, {"batch_sizes": (1,), "input_len": 8, "steps": 5}, "runs one rank"),
        ({"max_total_tokens": 128}, {"batch_sizes": (8,), "input_len": 20, "steps": 5}, "tokens of KV"),
    ):
        config = Config.from_flat(**base, **more).resolve()
        with pytest.raises(ConfigError, match=words):
            step.measure(config, step.Settings(**settings), lambda *_: None)


# ---- the command ----


def test_command_line_errors(tmp_path: Path) -> None:
    for argv, words in (
        ([], "takes one of"),
        (["nothing"], "got 'nothing'"),
        (["step", "--batch-sizes", "1,0"], "at least 1"),
        (["serving", "--request-rate", "0"], "at least 0.000001, or inf"),
        (["throughput", "--json", str(tmp_path / "no" / "x.json")], "its folder does not exist"),
        (["throughput", "--json", str(tmp_path)], "it is a folder"),
        (["prefix", "--record", str(tmp_path / "no" / "x")], "--record .* its folder does not exist"),
        (["latency", "--profile", "/proc/no"], "--profile /proc/no cannot be written to"),
        (["latency", "--profile-steps", "3"], "--profile-steps has no effect without --profile"),
        (["serving", "--text", "--vocab-size", "9"], "--vocab-size has no effect with --text"),
        (["step", "--temperature", "nan"], "must be 0 or more"),
        (
            ["serving", "--base-url", "notaurl"],
            "--base-url 'notaurl' is no URL of a server; one looks like http://",
        ),
        (
            ["prefix", "--base-url", "notaurl"],
            "--base-url 'notaurl' is no URL of a server; one looks like http://",
        ),
        (["serving", "--vocab-size", str(2**31)], "--vocab-size: must be at most 2147483647"),
        (["latency", "--batch-sizes", "1,99999999999"], "--batch-sizes: must be at most 2147483647"),
        (["latency", "--base-url", "x"], "Unknown flag --base-url"),
    ):
        with pytest.raises(ConfigError, match=words):
            bench.run(argv)


def test_engine_flags_and_defaults(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["throughput", "--model", str(tiny), "--skip-tokenizer-init", "--threads", "1", "--inline"]
    assert (
        bench.run([*argv, "--num-prompts", "2", "--input-len", "9", "--output-len", "3", "--page-size", "4"]) == 0
    )
    out = capsys.readouterr().out
    assert "**2 × 9 in / 3 out**" in out
    assert "device cpu" in out


def test_help_does_not_load_torch() -> None:
    code = (
        "import sys\nfrom radixlang.cli import bench\n"
        "try: bench.run(['--help'])\nexcept SystemExit: pass\n"
        "from radixlang.bench import latency, serving, step, throughput\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
