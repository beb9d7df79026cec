"""`bench prefix` on a tiny model and on a server with a fake engine."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from radixlang.bench import prefix
from radixlang.bench.prefix_http import _Player, measure_server
from radixlang.bench.steps import Work
from radixlang.cli import bench
from radixlang.config import Config
from radixlang.errors import ConfigError, EngineError
from tests.server.fakes import FakeEngine, live

SMALL = {"scale": 0.03, "concurrency": 3}


def test_cache_on_and_off(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record, out = tmp_path / "steps.json", tmp_path / "out.json"
    argv = ["prefix", "--model", str(tiny), "--skip-tokenizer-init", "--threads", "1", "--page-size", "4"]
    argv += ["--workload", "chat,self-consistency", "--sessions", "3", "--scale", "0.03", "--concurrency", "2"]
    assert bench.run([*argv, "--max-total-tokens", "4096", "--record", str(record), "--json", str(out)]) == 0
    assert "| chat | lru |" in capsys.readouterr().out
    facts = json.loads(out.read_text())["facts"]
    for workload in ("chat", "self-consistency"):
        on, off = facts[f"{workload}, lru"], facts[f"{workload}, off"]
        assert off["cached_tokens"] == 0
        assert on["prompt_tokens"] == off["prompt_tokens"]
        # Texts are so short here that pages which the same step writes, and cannot copy, are felt.
        assert 0.9 * on["possible_tokens"] <= on["cached_tokens"] <= on["prompt_tokens"]
        assert on["hit_rate"] > 0.5
        assert on["working_set_tokens"] < on["prompt_tokens"]
    data = json.loads(record.read_text())
    assert data["columns"] == [*Work._fields, "seconds"]
    assert [run["cache"] for run in data["runs"]] == ["lru", "off", "lru", "off"]
    for run in data["runs"]:
        steps, figures = run["steps"], run["figures"]
        computed = sum(step[0] + step[2] for step in steps)
        # Every token but the cached ones is computed once; of each answer the last never is.
        expected = (
            figures["prompt_tokens"] + figures["output_tokens"] - figures["requests"] - figures["cached_tokens"]
        )
        assert computed == expected
        assert all(step[-1] > 0 for step in steps)
        assert sum(step[-1] for step in steps) <= 1.05 * figures["seconds"]


def test_orders_with_little_memory(tiny: Path) -> None:
    options = {"model_path": str(tiny), "skip_tokenizer_init": True, "num_threads": 1, "page_size": 4}
    config = Config.from_flat(**options, max_total_tokens=4096, log_level="error").resolve()
    settings = prefix.Settings(
        ("chat",), sessions=6, memory_share=0.5, policies=("lru", "fifo"), baseline=False, **SMALL
    )
    report = prefix.measure(config, settings, lambda *_: None)
    names = [row[1] for row in report.tables[0].rows]
    assert [name.partition(",")[0] for name in names] == ["lru", "fifo"]
    tokens = {int(name.partition(", ")[2].split()[0].replace(",", "")) for name in names}
    (limited,) = tokens
    full = report.facts[f"chat, {names[0]}"]["working_set_tokens"]
    assert limited == pytest.approx(full / 2, rel=0.1)
    with pytest.raises(ConfigError, match="--memory-share 1 of chat"):
        prefix.measure(
            Config.from_flat(**options, max_total_tokens=256, log_level="error").resolve(),
            prefix.Settings(("chat",), sessions=20, memory_share=1.0, **SMALL),
            lambda *_: None,
        )


def test_a_server_is_played_to() -> None:
    engine = FakeEngine(delay=0.001)
    engine.cached = 7
    with live(engine=engine) as server:
        settings = prefix.Settings(("agent",), sessions=2, **SMALL)
        report = measure_server(server.base, None, 200, settings)
        sent = engine.received
    (row,) = report.tables[0].rows
    assert row[0] == "agent"
    facts = report.facts["agent"]
    assert facts["requests"] == len(sent) >= 6
    assert facts["cached_tokens"] == 7 * len(sent)
    assert facts["prompt_tokens"] == sum(len(message.input_ids) // 4 for message in sent)
    # The second request of a session repeats the first, its answer included.
    longer = [m.input_ids for m in sent if m.input_ids.startswith(sent[0].input_ids)]
    assert len(longer) >= 3
    with pytest.raises(ConfigError, match="is a server running there"):
        measure_server("http://127.0.0.1:9", None, 200, settings)


@pytest.mark.parametrize("cumulative", [False, True])
def test_an_answer_that_repeats_a_token_is_read_whole(cumulative: bool) -> None:
    class Repeating:
        async def events(self, path: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
            for made in range(1, body["sampling_params"]["max_new_tokens"] + 1):
                chunk = {"output_ids": [5] * (made if cumulative else 1), "meta_info": {"completion_tokens": made}}
                yield json.dumps(chunk).encode()

    settings = prefix.Settings(("few-shot",), sessions=3, scale=0.5, concurrency=3)
    player = _Player(Repeating(), settings.play("few-shot"), 200, 16)  # type: ignore[arg-type]
    assert len(asyncio.run(player.run())) == 3


def test_a_server_that_refuses_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    settings = prefix.Settings(("self-consistency",), sessions=2, **SMALL)
    with live(engine=FakeEngine()) as server, pytest.raises(EngineError, match="outside the vocabulary"):
        measure_server(server.base, None, 1 << 30, settings)
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_what_cannot_be_run_is_said_before_anything_loads(tmp_path: Path) -> None:
    for argv, words in (
        (["--workload", "chat,x"], "'x' is not known"),
        (["--policy", "best"], "Unknown eviction order 'best'"),
        (["--memory-share", "0"], "above 0"),
        (["--think", "-1"], "from 0 to 1000000"),
        (["--record", str(tmp_path / "no" / "x")], "its folder does not exist"),
        (["--rate", "1e-300"], "--rate: must be at least 0.000001, or inf"),
        (["--prompt-seed", "x"], "--prompt-seed: must be a whole number, got 'x'"),
        (["--scale", "x"], "--scale: must be a number, got 'x'"),
        (
            ["--base-url", "http://x"],
            "--model-path needs an engine, .* --base-url, which is measured as it was started",
        ),
        (["--vocab-size", "9"], "--vocab-size needs --base-url"),
        (["--disable-radix-cache"], "--disable-radix-cache must be left out"),
        (["--cache-dir", "x"], "--cache-dir needs a server"),
        (["--tp-size", "2"], "runs one rank"),
    ):
        with pytest.raises(ConfigError, match=words):
            bench.run(["prefix", "--model", str(tmp_path), "--load-format", "dummy", *argv])
