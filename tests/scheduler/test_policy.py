"""Queue orders and their bounds on starvation."""

from __future__ import annotations

import random
import time
from copy import copy
from dataclasses import replace

import numpy as np
import pytest

from radixlang.cache import make_cache
from radixlang.errors import ConfigError
from radixlang.messages import Generate, pack_ids
from radixlang.plan import Ints
from radixlang.sampling_params import SamplingParams
from radixlang.scheduler import POLICIES, Request, SchedulerLimits
from radixlang.scheduler.arrivals import Arrivals
from radixlang.scheduler.policy import AGING, PATIENCE, dfs_weight, fcfs, lpm, priority
from radixlang.scheduler.queue import MAX_PRIORITY, WaitingQueue
from tests.scheduler.driver import Driver

LIMITS = SchedulerLimits(num_pages=1000, page_size=1, context_length=500, max_running_requests=4)
ARRIVALS = Arrivals(LIMITS)
TREE = make_cache(1)


def request(rid: str, tokens: list[int] | None = None, priority: int = 0) -> Request:
    message = Generate(rid, pack_ids(tokens or [1]), SamplingParams(), priority=priority)
    return ARRIVALS.request(message, 1.0)


def rids(order: object) -> str:
    return "".join(item.rid for item in order)  # type: ignore[attr-defined]


def test_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="fcfs, lpm, dfs-weight, priority"):
        POLICIES.get("lifo")


def test_fcfs_over_priorities_and_retracted_first() -> None:
    queue = WaitingQueue()
    for rid, level in (("a", 0), ("b", 3), ("c", -1), ("d", 3)):
        queue.add(request(rid, priority=level))
    back = next(item for item in queue if item.rid == "c")
    queue.remove(back)
    back.retractions = 1
    queue.put_back(back)
    assert rids(fcfs(queue, TREE)) == "cabd"
    assert (len(queue), queue.new) == (4, 3)
    queue.remove(back)
    assert rids(queue) == "abd"


def test_lpm_prefers_what_is_cached() -> None:
    tree = make_cache(1)
    prefix: Ints = request("x", list(range(10))).tokens.view()
    tree.insert(prefix, prefix + 1)
    queue = WaitingQueue()
    queue.add(request("a", [50, 51]))
    queue.add(request("b", [0, 1, 2, 60]))
    queue.add(request("c", [0, 1, 2, 3, 4, 5, 61]))
    queue.add(request("d", [0, 1, 2, 62]))
    assert rids(lpm(queue, tree)) == "cbda"


def test_dfs_weight_goes_branch_by_branch_and_to_the_heavier_first() -> None:
    tree = make_cache(1)
    for tokens in ([0, 1, 2], [0, 1, 3], [9, 8]):
        prefix = np.array(tokens, np.int32)
        tree.insert(prefix, prefix + 1)
    queue = WaitingQueue()
    prompts = {"a": [9, 8, 7], "b": [0, 1, 3, 60], "c": [5, 50], "d": [0, 1, 2, 61], "e": [6, 51]}
    for rid, tokens in (prompts | {"f": [0, 1, 3, 62], "g": [5, 50, 1], "h": [0, 1]}).items():
        queue.add(request(rid, tokens))
    # Below 0, 1: three requests under 3 and 2, then the one that ends there; c and g share what nobody cached.
    assert rids(dfs_weight(queue, tree)) == "bfdhacge"


def test_priority_is_higher_first_then_first_come() -> None:
    queue = WaitingQueue()
    for rid, level in (("a", 0), ("b", 3), ("c", 1), ("d", 3), ("e", 0)):
        queue.add(request(rid, priority=level))
    assert rids(priority(queue, TREE)) == "bdcae"


@pytest.mark.parametrize("name", POLICIES.names())
def test_nobody_starves(name: str) -> None:
    """A stream of favoured arrivals (cached, or of higher priority) against one that is not."""
    tree = make_cache(1)
    prefix: Ints = request("x", list(range(10))).tokens.view()
    tree.insert(prefix, prefix + 1)
    queue, order = WaitingQueue(), POLICIES.get(name)
    for _ in range(5):
        queue.add(request("ahead", [99], priority=1))
    poor = request("poor", [99, 98], priority=0)
    queue.add(poor)
    passed = 0
    while True:
        queue.add(request("rich", [0, 1, 2, 3, 4, 5, 6, 7], priority=1))
        first = next(iter(order(queue, tree)))
        queue.remove(first)
        if first is poor:
            break
        passed += first.serial > poor.serial
        assert passed < 1000
    bound = {"fcfs": 0, "lpm": 5 + PATIENCE, "dfs-weight": 5 + PATIENCE, "priority": AGING}[name]
    assert passed <= bound
    assert (passed > 0) == (name != "fcfs")


def test_extreme_priorities_are_clamped() -> None:
    queue = WaitingQueue()
    poor = request("poor", priority=-(10**9))
    queue.add(poor)
    first, passed = None, -1
    rich = request("rich", priority=10**9)
    while first is not poor:
        passed += 1
        queue.add(copy(rich))
        first = next(iter(priority(queue, TREE)))
        queue.remove(first)
    assert passed == pytest.approx(2 * MAX_PRIORITY * AGING, abs=2)


def test_long_queues_are_read_lazily() -> None:
    queue = WaitingQueue()
    for k in range(20_000):
        queue.add(request("r", [k % 500], priority=k % 7))
    for name in POLICIES.names():
        order = POLICIES.get(name)
        start = time.thread_time()
        assert next(iter(order(queue, TREE))).rid == "r"
        # A scan or a sort of the queue would take ten times as long; this is no measurement.
        assert time.thread_time() - start < 0.1


def test_queue_counts_departures_of_aborted_requests() -> None:
    queue = WaitingQueue()
    items = [request(str(k)) for k in range(5)]
    for item in items:
        queue.add(item)
    for item in random.Random(1).sample(items, 3):
        queue.remove(item)
    assert (queue.arrivals, queue.departures, len(queue)) == (5, 3, 2)


def test_high_priority_starts_first_in_the_scheduler() -> None:
    limits = SchedulerLimits(
        num_pages=200, page_size=1, context_length=100, max_running_requests=1, policy="priority"
    )
    run = Driver(limits, depth=1)
    for rid, level in (("a", 0), ("b", 1), ("c", 5), ("d", 5)):
        run.add(rid, [1, 2], max_new_tokens=2, priority=level)
    run.finish()
    run.judge_all()
    started = sorted(run.outcomes, key=lambda rid: run.outcomes[rid].started_step)
    assert started == ["c", "d", "b", "a"]


def preempting(**changes: object) -> Driver:
    limits = SchedulerLimits(
        num_pages=200,
        page_size=1,
        context_length=100,
        max_running_requests=2,
        policy="priority",
        preemption_threshold=10,
    )
    return Driver(replace(limits, **changes), depth=1)  # type: ignore[arg-type]


def running(run: Driver) -> set[str]:
    return {request.rid for request in run.scheduler.rows.running.values()}


def test_urgent_request_takes_the_row_of_the_least_urgent_one() -> None:
    run = preempting()
    for rid, level in (("a", 3), ("b", 0)):
        run.add(rid, [1, 2], max_new_tokens=20, priority=level)
    for _ in range(3):
        run.step()
    run.add("near", [1, 2], max_new_tokens=20, priority=9)
    run.step()
    assert running(run) == {"a", "b"}
    run.add("urgent", [1, 2, 3], max_new_tokens=20, priority=10)
    run.step()
    assert running(run) == {"a", "urgent"}
    run.finish()
    run.judge_all()
    assert run.outcomes["b"].metas[-1].num_retractions == 1
    assert run.scheduler.totals.num_retracted_requests == 1


def test_urgent_request_takes_the_memory_of_others() -> None:
    run = preempting(num_pages=61, max_running_requests=8)
    for index in range(4):
        run.add(f"r{index}", [index, 2], max_new_tokens=12)
    for _ in range(3):
        run.step()
    run.add("urgent", list(range(10, 60)), max_new_tokens=2, priority=20)
    run.step()
    assert "urgent" in running(run)
    run.finish()
    run.judge_all()


def test_low_values_first_turns_the_order_round() -> None:
    run = preempting(max_running_requests=1, low_values_first=True)
    for rid, level in (("a", 0), ("b", 5), ("c", -30)):
        run.add(rid, [1, 2], max_new_tokens=2, priority=level)
    run.finish()
    run.judge_all()
    assert sorted(run.outcomes, key=lambda rid: run.outcomes[rid].started_step) == ["c", "a", "b"]
