"""Random programs with tiers below the device: answers stay what they are, and no page is lost."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from radixlang.cache.tiers import WRITE_POLICIES
from radixlang.plan import LoadPages
from radixlang.scheduler import POLICIES, SchedulerLimits
from radixlang.scheduler.lower_tiers import PREFETCH_POLICIES
from radixlang.server.metrics import ENGINE_COUNTERS, ENGINE_GAUGES
from tests.scheduler.driver import random_program
from tests.scheduler.test_random import never_learn, random_limits
from tests.scheduler.tiered import TieredDriver


def run(seed: int, kept: dict[bytes, np.ndarray] | None, policy: str, requests: int = 24) -> TieredDriver:
    rng = random.Random(seed)
    limits = random_limits(rng, rng.choice([1, 1, 4, 16]), rng.choice(POLICIES.names()))
    limits = replace(limits, radix_cache=True, prefetch=rng.choice(PREFETCH_POLICIES), least_load=3 * (seed % 4))
    limits = replace(limits, hidden_load=(0.0, 1.0, np.inf)[seed % 3])
    faults = rng.random() < 0.25
    driver = TieredDriver(
        limits,
        rng.choice([0, 1, 1, 2]),
        slots=rng.choice([1, 8, *(limits.usable_pages * share for share in (1, 3, 3))]),
        kept=kept,
        seed=seed,
        policy=policy,
        poison=28 if faults else -7,
        curse=27 if faults and rng.random() < 0.3 else -8,
        broken=frozenset(rng.sample(range(100), 4)) if faults else frozenset(),
    )
    if limits.conservativeness == 0:
        never_learn(driver.scheduler.ratio)
    longest = rng.choice([8, limits.context_length // 2])
    random_program(driver, rng, requests, longest, rng.choice([0.0, 0.05, 0.2]))
    driver.seen["stored"] += driver.tiers.stored_pages
    driver.seen["loaded"] += driver.tiers.loaded_pages
    driver.seen["layered"] += driver.executor.copies.layered
    driver.seen["not layered"] += driver.executor.copies.loads - driver.executor.copies.layered
    driver.seen["read"] += driver.tiers.read_pages
    driver.seen["written"] += driver.tiers.written_pages
    for outcome in driver.outcomes.values():
        for meta in outcome.metas:
            assert 0 <= meta.cached_host + meta.cached_storage <= meta.cached_tokens
            driver.seen["from host"] += meta.cached_host
            driver.seen["from storage"] += meta.cached_storage
    return driver


def test_onlookers_are_told_what_is_in_host_memory_too() -> None:
    limits = SchedulerLimits(num_pages=41, page_size=2, context_length=100, max_running_requests=4)
    driver = TieredDriver(limits, 1, slots=64, kept=None, seed=0, policy="write_through")
    driver.add("a", [1, 2, 3, 4, 5, 6], max_new_tokens=4)
    driver.finish()
    runs = driver.scheduler.cache_tree(limit=50)["runs"]
    assert any(runs["copied"])
    assert not runs["copied"][0]  # the root


def test_every_figure_of_the_metrics_page_is_told() -> None:
    limits = SchedulerLimits(num_pages=41, page_size=2, context_length=100, max_running_requests=4)
    stats = TieredDriver(limits, 1, slots=64, kept=None, seed=0, policy="write_through").scheduler.stats(2.0)
    assert stats.gauges.keys() >= ENGINE_GAUGES.keys()
    assert stats.counters.keys() >= {f"{name}_total" for name in ENGINE_COUNTERS}


@pytest.mark.parametrize("policy", WRITE_POLICIES)
@pytest.mark.parametrize(
    ("storage", "seeds"),
    [(False, range(40)), (True, range(26, 40)), pytest.param(True, range(40), marks=pytest.mark.slow)],
    ids=["memory", "storage", "storage, more"],
)
def test_answers_do_not_depend_on_tiers(policy: str, storage: bool, seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        kept: dict[bytes, np.ndarray] | None = {} if storage else None
        for _ in range(1 + storage):  # the second time is a restart: what was written is there
            seen += run(seed, kept, policy, requests=20).seen
    wanted = ["stored", "loaded", "layered", "not layered", "evicted", "retracted", "abandoned", "from host"]
    if storage:
        wanted += ["read", "written", "from storage"]
    for what in wanted:
        assert seen[what] > 0, f"no program exercised {what!r}: {seen}"


class Same(random.Random):
    """A chance that is always the same."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def random(self) -> float:
        return self.value


SLOW, SOON = 0.9, 0.2
"""a copy that ends when it is awaited, or with the next turn"""
NEVER, NOW = 0.5, 0.95
"""storage that does not answer, or does at once"""


def waiting_driver(**more: Any) -> TieredDriver:
    """Twenty tokens of a prompt are in host memory and in storage."""
    limits = SchedulerLimits(num_pages=17, page_size=4, context_length=64, max_running_requests=4, **more)
    driver = TieredDriver(limits, 1, slots=32, kept={}, seed=0)
    driver.executor.copies.rng = Same(SOON)
    driver.tiers.threads.rng = Same(NOW)
    driver.add("first", PROMPT, max_new_tokens=1)
    driver.finish()
    while driver.tiers.threads.jobs:
        driver.tiers.poll()
    assert driver.tiers.stored_pages == driver.tiers.written_pages == len(PROMPT) // 4
    driver.scheduler.pages.flush()  # the device's tree only
    return driver


PROMPT = [*range(1, 22)]


def others_decode(driver: TieredDriver) -> None:
    """As if there were something to compute while pages are loaded."""
    driver.scheduler.lower._can_decode = lambda: True


@pytest.mark.parametrize("message", [None, "Enough."])
def test_aborted_while_its_pages_are_loaded(message: str | None) -> None:
    driver = waiting_driver()
    others_decode(driver)
    copies, pages = driver.executor.copies, driver.scheduler.pages
    copies.rng = Same(SLOW)
    driver.add("a", PROMPT)
    driver.step()
    (fetch,) = driver.scheduler.lower.fetches
    assert driver.scheduler.lower.to_come(lambda request: 9) == 9 - len(PROMPT) // 4
    driver.abort("a", message)
    assert driver.scheduler.rids() == []
    assert driver.scheduler.totals.num_aborted_requests == 1
    assert driver.scheduler.lower.to_come(lambda request: 9) == 0
    driver.scheduler.check()
    # The copy is under way: its pages come back when it has ended, by themselves, and are in the tree then.
    assert pages.available == 16 - len(fetch.load)
    assert not driver.scheduler.idle
    copies.rng = Same(SOON)
    driver.step()  # processes the step that began it
    driver.step()
    assert driver.scheduler.idle
    assert pages.available == 16
    assert pages.tree.total == len(fetch.load)
    driver.scheduler.check()
    driver.abort("a")
    assert driver.scheduler.totals.num_late_aborts == 1


def test_pages_come_with_the_first_step() -> None:
    """Nothing else is to be computed: the request is admitted at once, and so is who shares its prefix."""
    driver = waiting_driver(hidden_load=1.0)
    driver.executor.copies.rng = Same(SLOW)
    driver.add("a", PROMPT, max_new_tokens=1)
    driver.add("b", [*PROMPT[:17], 5], max_new_tokens=1)
    driver.step()
    (plan,) = driver.plans[-1:]
    (load,) = [transfer for transfer in plan.transfers if isinstance(transfer, LoadPages)]
    assert plan.loads
    assert (load.layered, len(load.pages)) == (True, 5)
    assert plan.starts.tolist() == [20, 16]
    assert not driver.scheduler.lower.fetches
    driver.scheduler.check()
    held = driver.tiers.host._held
    assert len(held) == 5  # the slots are read until the copy has ended
    driver.executor.copies.rng = Same(SOON)
    driver.finish()
    driver.judge_all()
    assert not held
    assert driver.outcomes["a"].metas[0].cached_host == 20
    assert driver.outcomes["b"].metas[0].cached_host == 0  # the device had them then


def test_aborted_while_its_step_loads_its_pages() -> None:
    driver = waiting_driver(hidden_load=1.0)
    copies, pages = driver.executor.copies, driver.scheduler.pages
    copies.rng = Same(SLOW)
    driver.add("a", PROMPT)
    driver.step()
    driver.abort("a")
    driver.scheduler.check()
    assert pages.available == 16  # at once: later plans run behind the step
    driver.add("b", [*range(40, 85)])  # takes and writes them
    copies.rng = Same(SOON)
    driver.finish()
    driver.judge_all()
    assert driver.scheduler.idle


class Failing(random.Random):
    """Copies fail."""

    def random(self) -> float:
        return 0.98


@pytest.mark.parametrize("company", [False, True])
def test_a_load_that_fails_with_its_step_is_not_tried_again(company: bool) -> None:
    driver = waiting_driver(hidden_load=1.0)
    driver.executor.copies.rng = Failing()
    driver.add("a", PROMPT)
    if company:
        driver.add("b", [*PROMPT[:17], 5])
    driver.finish()
    driver.judge_all()
    assert driver.seen["abandoned"] == 1
    for rid in "ab" if company else "a":
        assert driver.outcomes[rid].finish is not None  # computed after all, and right


@pytest.mark.parametrize(("hidden", "layered"), [(19.0, False), (20.0, True), (np.inf, True)])
def test_rows_decode_while_a_load_would_stop_them(hidden: float, layered: bool) -> None:
    """Twenty tokens to load, one to compute."""
    driver = waiting_driver(hidden_load=hidden)
    others_decode(driver)
    driver.add("a", PROMPT)
    driver.step()
    assert bool(driver.scheduler.lower.fetches) != layered
    assert driver.plans[-1].loads == layered
    driver.finish()
    driver.judge_all()
    assert driver.outcomes["a"].metas[0].cached_host == 20


@pytest.mark.parametrize(("chunk", "layered"), [(9, False), (10, True)])
def test_a_load_that_takes_longer_than_any_step_is_waited_for(chunk: int, layered: bool) -> None:
    driver = waiting_driver(hidden_load=2.0, chunked_prefill_size=chunk)
    driver.add("a", PROMPT)
    driver.step()
    assert driver.plans[-1].loads == layered
    driver.finish()
    driver.judge_all()


def test_one_load_at_a_time_where_nothing_hides_it() -> None:
    driver = waiting_driver(hidden_load=1.0)
    other = [*range(60, 81)]
    driver.add("other", other, max_new_tokens=1)
    driver.finish()
    driver.scheduler.pages.flush()
    driver.add("a", PROMPT)
    driver.add("b", other)
    driver.step()
    assert driver.plans[-1].loads
    assert [fetch.request.rid for fetch in driver.scheduler.lower.fetches] == ["b"]
    driver.finish()
    driver.judge_all()
    assert driver.outcomes["b"].metas[0].cached_host == 20


def test_aborted_while_storage_is_asked() -> None:
    driver = waiting_driver()
    driver.tiers.host.clear()
    threads = driver.tiers.threads
    threads.rng = Same(NEVER)
    driver.add("a", PROMPT)
    driver.add("b", PROMPT)
    driver.step()
    assert all("storage" in driver.scheduler.request(rid).waits for rid in "ab")
    (find,) = threads.jobs  # b waits for what a reads
    driver.abort("a")
    assert driver.scheduler.rids() == ["b"]
    assert not find[1].vain
    driver.abort("b")
    assert driver.scheduler.rids() == []
    assert driver.scheduler.totals.num_aborted_requests == 2
    assert driver.scheduler.idle
    driver.add("c", PROMPT)
    threads.rng = Same(NOW)
    driver.finish()
    driver.judge_all()
    assert driver.outcomes["c"].metas[0].cached_storage == len(PROMPT) // 4 * 4


def test_aborted_while_it_waits_for_host_memory() -> None:
    """Reads that wait for slots behind others' are given up at once, and those that need them go on alone."""
    driver = waiting_driver()
    driver.tiers.host.clear()
    taken = driver.tiers.host.reserve(28)
    driver.tiers._slots_read += len(taken)
    driver.tiers._unwritten += 1  # somebody will give slots back
    for rid in "ab":
        driver.add(rid, PROMPT)
    driver.scheduler.lower.begin(1.0)
    assert len(driver.tiers._hungry) == 1
    driver.abort("a")
    assert not driver.tiers._hungry
    assert [kind for kind, *_ in driver.tiers.threads.jobs] == ["find"]
    driver.tiers.host.free(taken)
    driver.tiers._slots_read -= len(taken)
    driver.tiers._unwritten -= 1
    driver.finish()
    driver.judge_all()
    assert driver.outcomes["b"].metas[0].cached_storage == len(PROMPT) // 4 * 4


@pytest.mark.parametrize(("least", "loaded"), [(20, True), (21, False)])
def test_few_tokens_are_computed_and_not_waited_for(least: int, loaded: bool) -> None:
    driver = waiting_driver(least_load=least)
    for where in ("host", "storage"):
        driver.add(where, PROMPT)
        assert bool(driver.scheduler.request(where).waits) == (loaded and where == "storage")
        driver.finish()
        (meta,) = driver.outcomes[where].metas[:1]
        assert getattr(meta, f"cached_{where}") == (20 if loaded else 0)
        driver.scheduler.pages.flush()
        driver.tiers.host.clear()
    driver.judge_all()
