"""What the scheduler refuses, aborts and survives, driven with the hash-chain executor."""

from __future__ import annotations

import re
from typing import Any

import pytest

from radixlang.sampling_params import SamplingParams
from tests.scheduler.small import OVERLAP, driver, endless, finished

# ---- refusals, aborts, faults ----


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"prompt": []}, 400, "no tokens"),
        ({"prompt": [1] * 300}, 400, "300 tokens.*256"),
        ({"prompt": [1] * 120, "max_new_tokens": 9}, 400, "120 tokens.*129.*128"),
        ({"prompt": [1] * 130, "max_new_tokens": None}, 400, "130 tokens.*128"),
        ({"prompt": [1, 99]}, 400, "vocabulary of 29"),
        ({"prompt": [1, -1]}, 400, "vocabulary of 29"),
        ({"prompt": [1, 2], "return_logprob": True, "logprob_start_len": 3}, 400, "logprob_start_len is 3"),
    ],
)
def test_refusals(fields: dict[str, Any], status: int, words: str) -> None:
    run = driver(vocab_size=29)
    if fields.get("max_new_tokens", 1) is None:
        fields = {key: value for key, value in fields.items() if key != "max_new_tokens"}
        fields["sampling"] = SamplingParams(max_new_tokens=None)
    outcome = run.add("a", **fields)
    assert outcome.failed is not None
    assert outcome.failed.status == status
    assert re.search(words, outcome.failed.message)
    assert run.scheduler.idle


def test_queue_limit_turns_away_only_new_arrivals() -> None:
    run = driver(num_pages=13, conservativeness=0.0, max_queued_requests=2)
    for name in "abc":
        run.add(name, [ord(name) % 20, 1, 2], sampling=endless(20))
        run.step()
    while not run.scheduler.totals.num_retracted_requests:
        run.step()
    assert run.add("d", [1, 2], sampling=endless(2)).failed is None
    assert run.add("e", [1, 3], sampling=endless(2)).failed is None
    refused = run.add("f", [1, 4], sampling=endless(2)).failed
    assert refused is not None
    assert refused.status == 503
    assert "2 requests" in refused.message
    finished(run)
    # The metric is about load: what can never be served is not counted with it.
    assert getattr(run.add("g", list(range(20)) * 50, sampling=endless(2)).failed, "status", None) == 400
    assert run.scheduler.totals.num_refused_requests == 1
    assert all(run.outcomes[name].finish for name in "abcde")


def test_nothing_is_left_of_a_request_that_could_not_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    run = driver()
    with monkeypatch.context() as patch:
        patch.setattr(type(run.scheduler.lower), "arrived", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run.add("bad", [1, 2, 3])
    assert run.scheduler.idle
    assert len(run.scheduler.queue) == 0
    del run.outcomes["bad"]
    run.add("good", [1, 2, 3])
    run.finish()
    run.judge_all()


def test_same_id_twice_is_refused() -> None:
    run = driver()
    run.add("a", [1, 2])
    assert run.scheduler.add(run.outcomes["a"].message, 1.0).status == 400
    finished(run)


@OVERLAP
def test_aborts_at_every_moment(depth: int) -> None:
    """Each program aborts `a` after k turns of the loop, with and without a message."""
    for turns in range(14):
        run = driver(depth, num_pages=14, conservativeness=0.0)
        for name in "ab":
            run.add(name, [ord(name) % 20] * 20, sampling=endless(9))
        run.add("c", [ord("a") % 20] * 20 + [5], sampling=endless(9))
        for _ in range(turns):
            run.step()
        ended = run.outcomes["a"].ended
        run.abort("a", "Stop." if turns % 2 else None)
        assert run.scheduler.request("a") is None
        run.scheduler.check()
        finished(run)
        assert ended or run.outcomes["a"].aborted
        pages = run.scheduler.pages
        assert pages.pool.available + pages.tree.total + sum(map(len, pages._retired)) == 13
    run.abort("a")
    assert run.scheduler.abort("nobody", "x") is None


def test_abort_message_has_its_status() -> None:
    run = driver()
    run.add("a", [1, 2])
    failed = run.scheduler.abort("a", "Enough.")
    assert (failed.rid, failed.status, failed.message) == ("a", 499, "Enough.")
    assert run.scheduler.totals.num_aborted_requests == 1


@OVERLAP
def test_bad_numbers_fail_one_request_alone_and_leave_no_cache(depth: int) -> None:
    run = driver(depth, poison=28)
    bad = run.add("bad", [*range(20), 28, 1], sampling=endless(5))
    good = run.add("good", [*range(20), 27], sampling=endless(5))
    run.finish()
    assert bad.failed is not None
    assert bad.failed.status == 500
    assert bad.tokens == []
    run.judge(good)
    assert good.finish is not None
    run = driver(depth, poison=28)
    run.add("bad", [*range(20), 28, 1], sampling=endless(5))
    run.finish()
    assert run.scheduler.pages.tree.total == 0


@OVERLAP
def test_step_that_raises_once_costs_nobody_the_answer(depth: int) -> None:
    run = driver(depth, broken=frozenset({2, 9}), chunked_prefill_size=8, mixed=True)
    run.add("a", list(range(10)), sampling=endless(9), return_logprob=True, logprob_start_len=1)
    run.add("b", list(range(9, 0, -1)), sampling=endless(9), return_logprob=True, logprob_start_len=0)
    finished(run)
    assert run.seen["abandoned"] == 2
    assert all(outcome.finish for outcome in run.outcomes.values())
    again = run.add("c", list(range(10)), sampling=endless(9))
    finished(run)
    assert again.metas[0].cached_tokens == 9


@OVERLAP
def test_request_that_makes_steps_raise_fails_alone(depth: int) -> None:
    run = driver(depth, curse=26)
    for name in "abcd":
        run.add(name, [1, 2, 3, ord(name) % 20, 26 if name == "c" else 25], sampling=endless(6))
    for _ in range(30):
        run.step()
    run.finish()
    bad = run.outcomes.pop("c")
    assert bad.failed is not None
    assert bad.failed.status == 500
    assert "broke" in bad.failed.message
    run.judge_all()
    assert all(outcome.finish or 26 in outcome.tokens for outcome in run.outcomes.values())
    assert sum(outcome.finish is not None for outcome in run.outcomes.values()) > 0


def test_suspects_run_alone_until_they_are_cleared() -> None:
    run = driver(depth=1, broken=frozenset({1}))
    for name in "abc":
        run.add(name, [ord(name) % 20] * 5, sampling=endless(30))
    run.step()
    run.step()
    run.add("d", [1, 2], sampling=endless(30))
    while not run.seen["abandoned"]:
        run.step()
    sizes = []
    while len(sizes) < 3:
        run.step()
        if run.plans[-1].step == 3 + len(sizes):
            sizes.append((run.plans[-1].size, run.plans[-1].tokens > 1))
    assert sizes == [(1, True)] * 3
    run.abort("a")
    finished(run)
