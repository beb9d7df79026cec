"""Random programs through the scheduler and the hash-chain executor: every answer equals the request's own."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlang.cache import EVICTIONS
from radixlang.scheduler import POLICIES, SchedulerLimits
from radixlang.scheduler.expected import NewTokenRatio
from tests.scheduler.driver import EOS, Driver, random_program


def random_limits(rng: random.Random, page_size: int, policy: str) -> SchedulerLimits:
    """Small machines: from a pool that hardly holds one request to one that holds all."""
    context = rng.choice([40, 64])
    tokens = rng.choice([context // 2 + 4, context + 8, context + 8, context + 24, 2 * context, 6 * context])
    return SchedulerLimits(
        num_pages=1 + -(-tokens // page_size),
        page_size=page_size,
        context_length=context,
        max_running_requests=1 if rng.random() < 0.05 else rng.choice([3, 8]),
        chunked_prefill_size=1 if rng.random() < 0.05 else rng.choice([-1, 5, 16, 64]),
        max_prefill_tokens=rng.choice([12, 40, 1000]),
        mixed=rng.random() < 0.4,
        max_prefill_steps=rng.choice([1, 2, 16]),
        prefill_max_requests=rng.choice([None, None, 1, 3]),
        eos_ids=(EOS,),
        policy=policy,
        preemption_threshold=rng.choice([None, 1, 10]) if policy == "priority" else None,
        max_pinned_fraction=rng.choice([0.0, 0.3, 1.0]),
        low_values_first=rng.random() < 0.2,
        eviction=rng.choice(EVICTIONS.names()),
        radix_cache=rng.random() < 0.85,
        conservativeness=rng.choice([0.0, 0.0, 1.0]),
    )


def never_learn(ratio: NewTokenRatio) -> None:
    """Nor expect that requests need room for their answers: retractions without end."""
    ratio.retracted = lambda rows: None  # type: ignore[method-assign]


def run(seed: int, page_size: int, policy: str, depth: int, requests: int = 24) -> Driver:
    rng = random.Random(seed)
    limits = random_limits(rng, page_size, policy)
    faults = rng.random() < 0.2
    driver = Driver(
        limits,
        depth,
        poison=28 if faults else -7,
        curse=27 if faults and rng.random() < 0.3 else -8,
        broken=frozenset(rng.sample(range(100), 4)) if faults else frozenset(),
    )
    if limits.conservativeness == 0:
        never_learn(driver.scheduler.ratio)
    random_program(
        driver, rng, requests, rng.choice([8, limits.context_length // 2]), rng.choice([0.0, 0.05, 0.2])
    )
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
    """In 1,500 steps each; the second half asserts that the programs went where it hurts."""
    seen = many(page_size, policy, 1500)
    exercised = ("retracted", "evicted", "cached", "pending", "pinned", "abandoned", "abort RUNNING")
    for what in (*exercised, "abort WAITING", *(["copied behind"] if page_size > 1 else [])):
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
