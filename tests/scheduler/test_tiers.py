"""Random programs with tiers below the device: answers stay what they are, and no page is lost."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from radixlang.cache.tiers import WRITE_POLICIES
from radixlang.scheduler import POLICIES, SchedulerLimits
from radixlang.scheduler.lower_tiers import PREFETCH_POLICIES
from tests.scheduler.driver import random_program
from tests.scheduler.test_random import Optimist, random_limits
from tests.scheduler.tiered import TieredDriver


def run(seed: int, kept: dict[bytes, np.ndarray] | None, policy: str, requests: int = 24) -> TieredDriver:
    rng = random.Random(seed)
    limits = random_limits(rng, rng.choice([1, 1, 4, 16]), rng.choice(POLICIES.names()))
    limits = replace(limits, radix_cache=True, prefetch=rng.choice(PREFETCH_POLICIES))
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
        driver.scheduler._ratio = Optimist(0.0)
    longest = rng.choice([8, limits.context_length // 2])
    random_program(driver, rng, requests, longest, rng.choice([0.0, 0.05, 0.2]))
    driver.seen["stored"] += driver.tiers.stored_pages
    driver.seen["loaded"] += driver.tiers.loaded_pages
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


@pytest.mark.parametrize("policy", WRITE_POLICIES)
@pytest.mark.parametrize("storage", [False, True])
def test_answers_do_not_depend_on_tiers(policy: str, storage: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(40):
        kept: dict[bytes, np.ndarray] | None = {} if storage else None
        for _ in range(1 + storage):  # the second time is a restart: what was written is there
            seen += run(seed, kept, policy, requests=20).seen
    wanted = ["stored", "loaded", "evicted", "retracted", "abandoned", "from host"]
    if storage:
        wanted += ["read", "written", "from storage"]
    for what in wanted:
        assert seen[what] > 0, f"no program exercised {what!r}: {seen}"
