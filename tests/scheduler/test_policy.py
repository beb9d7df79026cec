"""Queue orders and their bounds on starvation."""

from __future__ import annotations

import random
import time
from copy import copy

import pytest

from radixlang.cache import make_cache
from radixlang.errors import ConfigError
from radixlang.messages import Generate, pack_ids
from radixlang.plan import Ints
from radixlang.sampling_params import SamplingParams
from radixlang.scheduler import POLICIES, Request, SchedulerLimits
from radixlang.scheduler.arrivals import Arrivals
from radixlang.scheduler.policy import AGING, PATIENCE, fcfs, lpm, priority
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
    with pytest.raises(ConfigError, match="fcfs, lpm, priority"):
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
    bound = {"fcfs": 0, "lpm": 5 + PATIENCE, "priority": AGING}[name]
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
        start = time.perf_counter()
        assert next(iter(order(queue, TREE))).rid == "r"
        # A scan or a sort of the queue would take ten times as long; this is no measurement.
        assert time.perf_counter() - start < 0.1


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
