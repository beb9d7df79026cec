"""The CPU platform: order, exceptions, facts. The accelerator's with a GPU."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from radixlang.errors import ConfigError
from radixlang.platforms import find_platform
from radixlang.platforms.cpu import CpuPlatform, cpu_facts


def test_work_runs_in_order_on_one_other_thread() -> None:
    platform = CpuPlatform()
    gate, seen, threads = threading.Event(), [], set()

    def work(i: int) -> int:
        gate.wait(5)
        threads.add(threading.get_ident())
        seen.append(i)
        return i * i

    pending = [platform.submit(lambda i=i: work(i)) for i in range(5)]
    assert seen == []
    gate.set()
    assert [p.wait() for p in reversed(pending)] == [16, 9, 4, 1, 0]
    assert seen == [0, 1, 2, 3, 4]
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    platform.close()


def test_an_exception_comes_out_of_wait_and_work_goes_on() -> None:
    platform = CpuPlatform()
    failing = platform.submit(lambda: 1 // 0)
    fine = platform.submit(lambda: 7)
    with pytest.raises(ZeroDivisionError):
        failing.wait()
    assert fine.wait() == 7
    platform.close()


def test_close_waits_for_what_is_submitted() -> None:
    platform = CpuPlatform()
    done = []
    platform.submit(lambda: (time.sleep(0.05), done.append(1)))
    platform.close()
    assert done == [1]


def test_memory_and_description() -> None:
    platform = find_platform("cpu")
    assert 0 < platform.free_memory() <= platform.total_memory()
    assert "threads" in platform.describe()
    assert platform.default_dtype("bfloat16") is torch.float32
    array = np.arange(4)
    assert platform.home(platform.upload(array)).tolist() == [0, 1, 2, 3]


def test_a_small_container_counts_instead_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixlang.platforms.cpu._cgroup_limit", lambda: (1000, 400))
    platform = CpuPlatform()
    assert platform.total_memory() == 1000
    assert platform.free_memory() == 600


def test_threads_are_set() -> None:
    before = torch.get_num_threads()
    try:
        platform = CpuPlatform(1)
        assert platform.submit(torch.get_num_threads).wait() == 1
        platform.close()
    finally:
        torch.set_num_threads(before)


def test_facts_agree_with_torch() -> None:
    facts = cpu_facts()
    capability = torch.backends.cpu.get_cpu_capability()
    if capability == "AVX512":
        assert facts.avx512
    if capability in ("AVX2", "AVX512"):
        assert facts.avx2
    assert not facts.bf16 or facts.avx512


def test_an_absent_device_is_named() -> None:
    missing = "xpu" if torch.cuda.is_available() else "cuda"
    with pytest.raises(ConfigError, match=f"--device {missing}"):
        find_platform(missing)


def test_events_are_used_again_when_they_have_been_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from radixlang.platforms.accelerator import AcceleratorPlatform

    log: list[str] = []

    class Event:
        made = 0

        def __init__(self, device: torch.device) -> None:
            Event.made += 1
            self.name = str(Event.made)

        def record(self, stream: None) -> None:
            log.append("record " + self.name)

        def synchronize(self) -> None:
            log.append("wait " + self.name)

    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda: None)
    platform = AcceleratorPlatform("cpu")
    first, second = platform.submit(lambda: 1), platform.submit(lambda: 2)
    with pytest.raises(ZeroDivisionError):
        platform.submit(lambda: 1 // 0).wait()
    assert (first.wait(), first.wait()) == (1, 1)
    assert platform.submit(lambda: 3).wait() == 3
    assert second.wait() == 2
    assert log == ["record 1", "record 2", "wait 1", "record 1", "wait 1", "wait 2"]


@pytest.mark.gpu
def test_accelerator_copies_and_waits() -> None:
    platform = find_platform("auto")
    array = np.arange(100_000, dtype=np.int64)
    pending = platform.submit(lambda: platform.home(platform.upload(array) * 2))
    assert torch.equal(pending.wait(), torch.from_numpy(array * 2))
    failing = platform.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failing.wait()
    assert 0 < platform.free_memory() <= platform.total_memory()
    assert platform.default_dtype("bfloat16") is torch.bfloat16
    platform.close()
