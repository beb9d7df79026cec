"""The recording platform: parts of submitted work, waiting, and the steps of a real executor."""

from __future__ import annotations

import time

import pytest
import torch

from radixlang.platforms.cpu import CpuPlatform
from radixlang.platforms.recording import RecordingPlatform
from tests.executor.tiny import Host, Row, TinyModel, make_executor


def test_parts_waiting_and_periods() -> None:
    platform = RecordingPlatform(CpuPlatform())

    def work() -> str:
        time.sleep(0.02)
        platform.mark("copy")
        time.sleep(0.03)
        platform.mark("forward")
        return "done"

    began = time.perf_counter()
    pending = platform.submit(work)
    first = platform.last
    again = platform.submit(work)
    assert pending.wait() == again.wait() == "done"
    whole = time.perf_counter() - began
    assert first is not None
    assert platform.last is not None
    spans = first.spans()
    assert list(spans) == ["copy", "forward", "rest"]
    # No bound that a busy machine could break: parts that do not overlap are no longer than the whole.
    assert spans["copy"] >= 0.02
    assert spans["forward"] >= 0.03
    assert spans["rest"] >= 0
    second = first.until_end_of(platform.last)
    assert second >= 0.05
    assert sum(spans.values()) + second <= whole
    assert 0 < platform.waited <= whole
    assert platform.device == torch.device("cpu")
    platform.close()


def test_errors_pass_through() -> None:
    platform = RecordingPlatform(CpuPlatform())
    with pytest.raises(ZeroDivisionError):
        platform.submit(lambda: 1 / 0).wait()
    platform.close()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_stamps_of_a_device(device: str) -> None:
    from radixlang.platforms import find_platform

    platform = RecordingPlatform(find_platform(device))
    x = torch.ones(512, 512, device=device)

    def work() -> None:
        for _ in range(20):
            x @ x
        platform.mark("forward")

    pending = [platform.submit(work) for _ in range(3)]
    last = platform.last
    for one in pending:
        one.wait()
    assert last is not None
    assert 0 < last.spans()["forward"] < 5
    platform.close()


def test_the_executor_marks_its_parts() -> None:
    executor = make_executor(TinyModel())
    platform = executor.platform = RecordingPlatform(executor.platform)  # type: ignore[assignment]
    host = Host(4)
    row = Row(1, [5, 6, 7])
    executor.result(executor.launch(host.plan([(row, 3)])))
    assert list(platform.last.spans()) == ["copy", "forward", "sample", "rest"]
    executor.result(executor.launch(host.plan([(Row(2, [5, 6, 7]), 2)])))
    assert list(platform.last.spans()) == ["copy", "forward", "sample", "rest"]
    executor.close()
