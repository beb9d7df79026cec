"""Where requests are, as onlookers are told."""

from __future__ import annotations

from dataclasses import replace

from radixlang.messages import GrammarSpec
from radixlang.scheduler import SchedulerLimits
from tests.scheduler.driver import Driver

LIMITS = SchedulerLimits(num_pages=41, page_size=2, context_length=100, max_running_requests=2)


def test_running_and_waiting_requests_are_told_apart() -> None:
    run = Driver(LIMITS, depth=0)
    for rid in ("a", "b", "c"):
        run.add(rid, [1, 2, 3, 4], max_new_tokens=6)
    for _ in range(3):
        run.step()
    view = run.scheduler.overview(limit=8)
    assert (view["num_running"], view["num_waiting"]) == (2, 1)
    assert [one["rid"] for one in view["running"]] == ["a", "b"]
    first, (waiting,) = view["running"][0], view["waiting"]
    assert (first["prompt_tokens"], first["limit"], first["constrained"]) == (4, 10, False)
    assert 4 < first["tokens"] <= 10
    assert first["cached_tokens"] == 0
    assert first["computed_tokens"] >= 4
    assert (waiting["rid"], waiting["tokens"], waiting["waits"]) == ("c", 4, [])
    assert len(run.scheduler.overview(limit=1)["running"]) == 1
    run.finish()
    assert run.scheduler.overview(limit=8)["num_running"] == 0
    assert run.scheduler.cache_tree(limit=8)["nodes"] > 0


def test_a_request_is_constrained_before_its_constraint_is_compiled() -> None:
    run = Driver(LIMITS, depth=0)
    run.add("a", [1, 2, 3, 4], grammar=GrammarSpec("script", "[[5], [6]]"))
    (waiting,) = run.scheduler.overview(limit=8)["waiting"]
    assert (waiting["waits"], waiting["constrained"]) == (["grammar"], True)
    run.finish()


def test_priorities_are_those_that_clients_sent() -> None:
    run = Driver(replace(LIMITS, policy="priority", low_values_first=True), depth=0)
    for rid, priority in (("a", 3), ("b", 2), ("c", -1)):
        run.add(rid, [1, 2, 3, 4], max_new_tokens=6, priority=priority)
    run.step()
    view = run.scheduler.overview(limit=8)
    assert {one["rid"]: one["priority"] for one in view["running"] + view["waiting"]} == {"a": 3, "b": 2, "c": -1}
