"""Random programs through the scheduler and the hash-chain executor: every answer equals the request's own."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlang.cache import EVICTIONS
from radixlang.scheduler import POLICIES, SchedulerLimits
from tests.scheduler.driver import EOS, Driver, random_program


def random_limits(rng: random.Random, page_size: int, policy: str) -> SchedulerLimits:
    """Small machines: from a pool that hardly holds one request to one that holds all."""
    context = rng.choice([40, 64])
    tokens = rng.choice([context // 2 + 4, context, 2 * context, 6 * context])
    return SchedulerLimits(
        num_pages=1 + -(-tokens // page_size),
        page_size=page_size,
        context_length=context,
        max_running_requests=rng.choice([1, 3, 8]),
        chunked_prefill_size=rng.choice([-1, 1, 5, 16, 64]),
        max_prefill_tokens=rng.choice([8, 32, 1000]),
        eos_ids=(EOS,),
        policy=policy,
        eviction=rng.choice(EVICTIONS.names()),
        radix_cache=rng.random() < 0.85,
        conservativeness=rng.choice([0.1, 1.0]),
    )


def run(seed: int, page_size: int, policy: str, depth: int, requests: int = 14) -> Driver:
    rng = random.Random(seed)
    limits = random_limits(rng, page_size, policy)
    driver = Driver(limits, depth)
    random_program(driver, rng, requests, limits.context_length // 2, rng.choice([0.0, 0.05, 0.2]))
    return driver


def many(page_size: int, policy: str, steps: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    seed = 0
    while seen["steps"] < steps:
        driver = run(seed, page_size, policy, depth=(0, 1, 1, 2)[seed % 4])
        seen += driver.seen
        seen["steps"] += driver.steps
        seed += 1
    return seen


@pytest.mark.parametrize("policy", POLICIES.names())
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_answers_do_not_depend_on_anything(page_size: int, policy: str) -> None:
    """9 times 2,400 steps. The second half asserts that the programs went where it hurts."""
    seen = many(page_size, policy, 2400)
    for what in ("retracted", "evicted", "cached", "pending", "landing", "abort RUNNING", "abort WAITING"):
        assert seen[what] > 0, f"no program exercised {what!r}: {seen}"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 40), st.sampled_from([1, 4, 16]), st.sampled_from(POLICIES.names()), st.integers(0, 2))
def test_answers_with_drawn_seeds(seed: int, page_size: int, policy: str, depth: int) -> None:
    run(seed, page_size, policy, depth, requests=8)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES.names())
@pytest.mark.parametrize("page_size", [1, 2, 4, 16])
def test_many_more_steps(page_size: int, policy: str) -> None:
    many(page_size, policy, 25_000)
