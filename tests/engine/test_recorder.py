"""The recorder between the loop and what it calls: times go to the right part, nothing else changes."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from radixlang.channel import LocalChannel
from radixlang.engine.loop import EngineLoop
from radixlang.engine.recorder import StepRecorder
from radixlang.messages import Control, Drain, Generate, Reply, Tokens, pack_ids
from radixlang.sampling_params import SamplingParams
from radixlang.scheduler.limits import SchedulerLimits
from radixlang.scheduler.scheduler import Scheduler
from tests.fakes import FakeExecutor


def run_loop(**options: Any) -> tuple[EngineLoop, list[Any]]:
    """A loop over the fake executor that has served two requests and drained."""
    limits = SchedulerLimits(
        num_pages=40, page_size=4, context_length=100, max_running_requests=4, chunked_prefill_size=8,
        max_prefill_tokens=64, eos_ids=(), vocab_size=29, random_seed=1,
    )  # fmt: skip
    inbox, outbox = LocalChannel(), LocalChannel()
    loop = EngineLoop(
        FakeExecutor(40, 4, 5, 100), Scheduler(limits), inbox, outbox, {}, clock=lambda: 0.0, **options
    )
    for rid, prompt in (("a", [3, 4, 5]), ("b", [7] * 11)):
        inbox.send(Generate(rid, pack_ids(prompt), SamplingParams(max_new_tokens=6, temperature=0.0)))
    inbox.send(Drain())
    loop.run()
    return loop, outbox.receive(0)


def tokens(messages: list[Any]) -> list[tuple[list[str], bytes]]:
    return [(message.rids, message.ids) for message in messages if isinstance(message, Tokens)]


@pytest.mark.parametrize("overlap", [True, False])
def test_a_recorded_loop_does_the_same(overlap: bool) -> None:
    recorder = StepRecorder()
    _, plain = run_loop(overlap=overlap)
    _, recorded = run_loop(overlap=overlap, recorder=recorder)
    assert tokens(plain) == tokens(recorded)
    assert sum(len(ids) for _, ids in tokens(plain)) == 4 * 12
    turns = recorder.take()
    assert recorder.take() == []
    launched = [turn for turn in turns if turn.rows]
    assert any(turn.rows == turn.tokens == 2 for turn in launched)
    assert sum(turn.tokens for turn in launched) >= 14 + 2 * 4  # the last turn is never closed
    for turn in turns[1:]:
        assert sum(turn.spans.values()) <= turn.seconds
        assert ("launch" in turn.spans) == bool(turn.rows)


def test_each_part_gets_its_own_time() -> None:
    recorder = StepRecorder(SimpleNamespace(waited=0.0, last="submission"))

    def slow(milliseconds: int, waits: bool = False) -> Any:
        def call(*_: Any) -> Any:
            time.sleep(milliseconds / 1000)
            if waits:
                recorder.device.waited += milliseconds / 2000
            return milliseconds

        return call

    scheduler = SimpleNamespace(
        add=slow(3), abort=slow(1), schedule=slow(4), take_messages=slow(2), process=slow(8), idle=True
    )
    executor = SimpleNamespace(launch=slow(6), result=slow(20, waits=True), sample=slow(1))
    around = recorder.around(
        executor, scheduler, SimpleNamespace(receive=slow(2)), SimpleNamespace(send=slow(5), send_all=slow(5))
    )
    timed_executor, timed_scheduler, receiver, sender = around
    assert timed_scheduler.idle is True
    assert receiver.receive(0) == 2
    timed_scheduler.add(None, 0.0)
    timed_scheduler.schedule(0.0)
    timed_scheduler.take_messages()
    timed_executor.launch(SimpleNamespace(size=3, tokens=9))
    timed_executor.result(None)
    timed_scheduler.process(None, None)
    sender.send(None)
    receiver.receive(0)
    turn = recorder.take()[-1]
    wanted = {"messages": 5, "plan": 6, "launch": 6, "wait": 10, "result": 10, "process": 8, "send": 5}
    got = {part: 1000 * seconds for part, seconds in turn.spans.items()}
    assert got.keys() == wanted.keys()
    assert all(wanted[part] - 0.01 <= got[part] < wanted[part] + 20 for part in wanted)
    assert (turn.rows, turn.tokens, turn.device) == (3, 9, "submission")
    assert turn.host == pytest.approx(turn.seconds - turn.spans["wait"])


def test_profile_controls_reach_the_profile() -> None:
    class Fake:
        asked: tuple[Any, ...] = ()
        seen = 0

        def start(self, steps: int, **options: Any) -> dict[str, Any]:
            self.asked = (steps, options)
            return {"path": "x"}

        def launched(self, steps: int) -> None:
            self.seen = steps

    for profile, ok, status in ((Fake(), True, 500), (None, False, 400)):
        loop, _ = run_loop(profile=profile)
        loop._on_control(Control(1, "start_profile", {"num_steps": 3}))
        (reply,) = loop._answers
        assert isinstance(reply, Reply)
        assert (reply.ok, reply.status) == (ok, status)
        if profile is not None:
            assert profile.asked == (profile.seen, {"num_steps": 3})
            assert profile.seen > 6
