"""Tables, figures and prompts."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from radixlang.bench.report import Report, Table, percentiles, random_prompts, shown
from radixlang.errors import ConfigError


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, "–"),
        ("x", "x"),
        (0, "0"),
        (0.0, "0"),
        (12345, "12,345"),
        (12345.6, "12,346"),
        (123.4, "123"),
        (12.34, "12.3"),
        (1.234, "1.23"),
        (0.01234, "0.0123"),
        (0.000012, "0.0000"),
    ],
)
def test_cells_have_the_digits_that_matter(cell: object, text: str) -> None:
    assert shown(cell) == text  # type: ignore[arg-type]


def test_percentiles() -> None:
    assert percentiles(range(101)) == [50, 90, 99]
    assert percentiles([], (50, 99)) == [None, None]


def test_prompts_are_seeded_and_share_a_head() -> None:
    first = random_prompts(3, 10, 50, 7, shared=4)
    assert first == random_prompts(3, 10, 50, 7, shared=4)
    assert first != random_prompts(3, 10, 50, 8, shared=4)
    assert {len(prompt) for prompt in first} == {10}
    assert len({tuple(prompt[:4]) for prompt in first}) == 1
    assert len({tuple(prompt[4:]) for prompt in first}) == 3
    assert all(0 <= token < 50 for prompt in first for token in prompt)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("--api-key k1 --runs 2", "--api-key … --runs 2"),
        ("--api-key=k1 --runs 2", "--api-key=… --runs 2"),
        ("--ap k1 --admin-api k1", "--ap … --admin-api …"),
        ("--api-key --api-key --runs 2", "--api-key … --runs 2"),
    ],
)
def test_keys_are_in_no_report(monkeypatch: pytest.MonkeyPatch, given: str, shown: str) -> None:
    monkeypatch.setattr("sys.argv", ["radixlang", *given.split()])
    assert shlex.split(Report("x", "", {}, []).environment()["command"]) == ["radixlang", *shown.split()]


def test_markdown_and_json_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["radixlang", "bench", "x", "--json", "a b"])
    report = Report("x", "cpu: fast", {"n": 1}, [Table("times", ["batch", "ms"], [["1", 2.3456]])], ["a note"])
    text = report.markdown()
    assert "| batch | ms |\n| --- | ---: |\n| 1 | 2.35 |" in text
    assert "`radixlang bench x --json 'a b'`" in text
    assert "cpu: fast" in text
    assert text.endswith("a note")
    report.write(tmp_path / "out.json")
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["tables"] == [{"title": "times", "columns": ["batch", "ms"], "rows": [["1", 2.3456]]}]
    assert data["versions"]["radixlang"] in text
    assert data["settings"] == {"n": 1}
    with pytest.raises(ConfigError, match="cannot be written"):
        report.write(tmp_path / "no" / "out.json")
