"""What the loop tells others while it has nothing to do; a fake executor, no model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from radixlang.channel import LocalChannel
from radixlang.engine import loop as module
from radixlang.engine.loop import EngineLoop
from radixlang.errors import EngineDeadError, EngineError
from radixlang.messages import Abort, Control, Drain, Generate, PinWish, Stats, Tokens, pack_ids
from radixlang.plan import StepPlan, StepResult
from radixlang.sampling_params import SamplingParams
from radixlang.scheduler.limits import SchedulerLimits
from radixlang.scheduler.scheduler import Scheduler
from tests.fakes import FakeExecutor

LIMITS = SchedulerLimits(
    num_pages=40, page_size=4, context_length=100, max_running_requests=4, vocab_size=29, random_seed=1
)


def test_an_idle_engine_shows_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_WAIT", 0.0)
    inbox, outbox, now = LocalChannel(), LocalChannel(), [0.0]
    executor = FakeExecutor(40, 4, 5, 100)
    loop = EngineLoop(executor, Scheduler(LIMITS), inbox, outbox, {}, clock=lambda: now[0])

    def told(message: Any = None) -> dict[str, float] | None:
        """Gauges of the last snapshot of some turns, the first of which gets the message."""
        if message is not None:
            inbox.send(message)
        for _ in range(8):
            loop.turn()
        seen = [message for message in outbox.receive(0) if isinstance(message, Stats)]
        return seen[-1].gauges if seen else None

    sampling = SamplingParams(max_new_tokens=0, temperature=0.0)
    for rid, first in (("a", 3), ("b", 5)):
        gauges = told(Generate(rid, pack_ids([first] * 9), sampling, pin=PinWish(rid, 60)))
    assert gauges is not None
    assert gauges["kv_pinned_tokens"] == 16
    assert told() is None
    assert told(Control(1, "pins")) is None
    for change, left in ((Control(2, "unpin", {"names": ["a"]}), 8), (None, 0)):
        gauges = told(change)
        assert gauges is not None
        assert gauges["kv_pinned_tokens"] == left
        now[0] += 100  # the other one's time is over
    gauges = told(Control(3, "flush_cache"))
    assert gauges is not None
    assert gauges["kv_evictable_tokens"] == 0
    assert told() is None


def test_a_progress_line_is_written_once_however_long_nothing_follows_its_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler, inbox = Scheduler(LIMITS), LocalChannel()
    loop = EngineLoop(FakeExecutor(40, 4, 5, 100), scheduler, inbox, LocalChannel(), {}, log_interval=2)
    lines: list[int] = []
    monkeypatch.setattr(module.log, "info", lambda _, step, *rest: lines.append(step))
    for rid in ("goes", "waits"):
        sampling = SamplingParams(max_new_tokens=2, temperature=0.0, ignore_eos=True)
        assert scheduler.add(Generate(rid, pack_ids([3] * 5), sampling), 0.0) is None
    waiting = scheduler.request("waits")
    assert waiting is not None
    waiting.waits["a constraint that takes long"] = None
    for _ in range(12):
        loop.turn()
    assert scheduler.rids() == ["waits"]
    assert lines == [2]


class Broken(FakeExecutor):
    def launch(self, plan: StepPlan) -> Any:
        raise EngineDeadError("the device is gone")


def test_an_engine_that_dies_says_so_before_it_waits_for_anything() -> None:
    class Slow(Scheduler):
        def close(self) -> None:
            raise AssertionError("a compilation, or a write to a slow disk, is waited for")

    inbox = LocalChannel()
    loop = EngineLoop(Broken(40, 4, 5, 100), Slow(LIMITS), inbox, LocalChannel(), {})
    inbox.send(Generate("a", pack_ids([3] * 5), SamplingParams(max_new_tokens=2)))
    with pytest.raises(EngineDeadError, match="the device is gone"):
        loop.run()


def test_a_device_that_dies_behind_a_failed_step_ends_the_engine() -> None:
    class Dying(FakeExecutor):
        def result(self, ticket: Any) -> StepResult:
            if ticket == 1:
                raise EngineError("refused")
            if ticket == 2:
                raise EngineDeadError("the device is gone")
            return super().result(ticket)

    inbox = LocalChannel()
    loop = EngineLoop(Dying(40, 4, 5, 100), Scheduler(LIMITS), inbox, LocalChannel(), {})
    inbox.send(Generate("a", pack_ids([3] * 5), SamplingParams(max_new_tokens=9, ignore_eos=True)))
    inbox.send(Drain())
    with pytest.raises(EngineDeadError, match="the device is gone"):
        loop.run()


def test_a_burst_of_requests_is_read_beside_its_first_steps() -> None:
    limits = replace(LIMITS, num_pages=4000, max_running_requests=400)
    inbox, outbox, scheduler = LocalChannel(), LocalChannel(), Scheduler(limits)
    loop = EngineLoop(FakeExecutor(4000, 4, 401, 100), scheduler, inbox, outbox, {}, clock=lambda: 1.0)
    sampling = SamplingParams(max_new_tokens=9, temperature=0.0, ignore_eos=True)
    inbox.send_all([Generate(f"r{i}", pack_ids([3] * 5), sampling) for i in range(400)])
    inbox.send(Drain())
    known, waiting = [], []
    for _ in range(4):
        loop.turn()
        known.append(len(scheduler.rids()))
        waiting += [
            message.gauges["num_queue_reqs"] for message in outbox.receive(0) if isinstance(message, Stats)
        ]
    assert known == [32, 160, 288, 400]
    assert waiting[0] == 400 - 32  # those that nobody has read yet wait too
    loop.run()
    told = [message for message in outbox.receive(0) if isinstance(message, Tokens)]
    ended = [rid for message in told for rid, finish in zip(message.rids, message.finishes, strict=True) if finish]
    assert sorted(ended) == sorted(f"r{i}" for i in range(400))


class Slow(FakeExecutor):
    """Its steps take two seconds of `now`."""

    now = 0.0

    def result(self, ticket: Any) -> StepResult:
        self.now += 2.0
        return super().result(ticket)


def test_what_is_behind_a_burst_does_not_wait_for_several_slow_steps() -> None:
    limits = replace(LIMITS, num_pages=4000, max_running_requests=400)
    inbox, scheduler, executor = LocalChannel(), Scheduler(limits), Slow(4000, 4, 401, 100)
    loop = EngineLoop(executor, scheduler, inbox, LocalChannel(), {}, clock=lambda: executor.now)
    sampling = SamplingParams(max_new_tokens=9, temperature=0.0, ignore_eos=True)
    inbox.send_all([Generate(f"r{i}", pack_ids([3] * 5), sampling) for i in range(2000)])
    inbox.send_all([Abort(f"r{i}") for i in range(2000)])
    for left in (32, 160, 0):
        loop.turn()
        assert len(scheduler.rids()) == left
