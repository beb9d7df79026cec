"""One-shot generation: what is asked of the engine and what is printed."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from radixlang.cli import generate
from radixlang.cli.options import open_engine, sampling_values


class FakeEngine:
    """An engine whose answer is fixed; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.tokenizer = self

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        assert messages == [{"role": "user", "content": "hello"}]
        return [7, 8]

    def generate(self, stream: bool = False, **asked: Any) -> dict[str, Any] | Iterator[dict[str, Any]]:
        self.asked = asked
        states = [{"text": text, "output_ids": [1], "meta_info": {}} for text in ("wor", "world")]
        return iter(states) if stream else states[-1]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr(generate, "open_engine", lambda args: fake)
    return fake


def test_only_the_new_text_is_printed(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["hello", "--max-tokens", "3", "--temperature", "0", "--stop", "a", "--stop", "b", "--seed", "4"]
    assert generate.run(argv) == 0
    assert capsys.readouterr().out == "world\n"
    assert engine.asked["prompt"] == "hello"
    wanted = {"max_new_tokens": 3, "temperature": 0.0, "stop": ["a", "b"], "sampling_seed": 4}
    assert engine.asked["sampling_params"] == wanted


def test_stream_json_chat_and_standard_input(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert generate.run(["hello", "--stream"]) == 0
    assert capsys.readouterr().out == "world\n"
    assert generate.run(["hello", "--json", "--chat"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == "world"
    assert engine.asked["input_ids"] == [7, 8]
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    assert generate.run([]) == 0
    assert engine.asked["prompt"] == "from a pipe"


def test_engine_flags_reach_the_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    seen: dict[str, Any] = {}

    class Llm:
        @staticmethod
        def Engine(**values: Any) -> str:
            seen.update(values)
            return "engine"

    monkeypatch.setitem(__import__("sys").modules, "radixlang.llm", Llm)
    args = generate.build_parser().parse(["x", "--model", str(tmp_path), "--page-size", "4", "--threads", "1"])
    assert open_engine(args) == "engine"
    assert seen == {"inline": True, "model_path": str(tmp_path), "page_size": 4, "num_threads": 1}
    assert sampling_values(args) == {}
