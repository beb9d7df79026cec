"""Traces: when they begin and end, what is in them, and what is refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from radixlang.errors import RequestError
from radixlang.executor import profile as module
from radixlang.executor.profile import Profile
from radixlang.platforms.cpu import CpuPlatform


@pytest.fixture
def platform() -> Iterator[CpuPlatform]:
    made = CpuPlatform()
    yield made
    made.close()


def compute(platform: CpuPlatform) -> None:
    platform.submit(lambda: torch.ones(4, 4) @ torch.ones(4, 4)).wait()


def names(path: Path) -> dict[str, set[int]]:
    """Operation → threads."""
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    out: dict[str, set[int]] = {}
    for event in events:
        if event.get("cat") == "cpu_op":
            out.setdefault(event["name"], set()).add(event["tid"])
    return out


def test_a_trace_has_the_stream_s_thread_and_the_caller_s(platform: CpuPlatform, tmp_path: Path) -> None:
    profile = Profile(platform)
    path = Path(profile.start(0, str(tmp_path / "a" / "b"))["path"])
    assert path.parent == tmp_path / "a" / "b"
    compute(platform)
    torch.zeros(3).sin()
    assert not list(path.parent.iterdir()), "half a trace is visible"
    assert profile.stop() == {"path": str(path)}
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    found = names(path)
    assert found["aten::mm"].isdisjoint(found["aten::sin"])


def test_it_ends_after_so_many_steps(platform: CpuPlatform, tmp_path: Path) -> None:
    profile = Profile(platform)
    profile.launched(5)
    path = Path(profile.start(7, str(tmp_path), num_steps=2)["path"])
    profile.launched(7)
    profile.launched(8)
    assert not path.exists()
    profile.launched(9)
    assert path.exists()
    profile.launched(10)
    with pytest.raises(RequestError, match="No profile is running"):
        profile.stop()
    second = Path(profile.start(10, str(tmp_path), num_steps=1)["path"])
    assert second != path
    profile.launched(11)
    assert second.exists()


def test_shapes_are_recorded_when_asked(platform: CpuPlatform, tmp_path: Path) -> None:
    profile = Profile(platform)
    for asked in (False, True):
        profile.start(0, str(tmp_path), record_shapes=asked, activities=["CPU"])
        compute(platform)
        with gzip.open(profile.stop()["path"]) as file:
            assert ("Input Dims" in file.read().decode()) is asked


def test_a_folder_may_be_relative_and_an_activity_named_twice(
    platform: CpuPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    profile = Profile(platform)
    path = profile.start(0, "here", activities=["CPU", "GPU", "CPU"])["path"]
    assert Path(path).parent == tmp_path / "here"
    assert profile.stop() == {"path": path}
    assert Path(path).exists()


def test_what_is_refused(platform: CpuPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = Profile(platform)
    (tmp_path / "file").write_text("")
    for arguments, words in (
        ({"activities": ["MEM"]}, "CPU and GPU, got 'MEM'"),
        ({"activities": []}, "got none"),
        ({"activities": ["GPU"]}, "GPU alone, but this engine runs on cpu"),
        ({"num_steps": 0}, "num_steps must be at least 1"),
        ({"output_dir": str(tmp_path / "file" / "x")}, "cannot be written to"),
        ({"output_dir": str(tmp_path / "a\0b")}, "cannot be written to: embedded null byte"),
    ):
        with pytest.raises(RequestError, match=words):
            profile.start(0, **arguments)
    monkeypatch.setattr(module, "default_folder", lambda: tmp_path / "default")
    path = profile.start(0)["path"]
    assert path.startswith(str(tmp_path / "default"))
    with pytest.raises(RequestError, match="running already"):
        profile.start(0)
    profile.stop()


def test_a_trace_that_cannot_be_written_does_not_end_the_engine(platform: CpuPlatform, tmp_path: Path) -> None:
    profile = Profile(platform)
    folder = tmp_path / "gone"
    profile.start(0, str(folder), num_steps=1)
    folder.rmdir()
    profile.launched(1)
    profile.start(1, str(folder))
    profile.stop()
