"""Leaping over calm steps changes nothing: every time and every hit is that of planning each step."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from radixlang.bench.workloads import Text, content
from radixlang.scheduler import SchedulerLimits
from radixlang.simulate.cost import CostModel
from radixlang.simulate.replica import Done, Job, Replica

COST = CostModel(0.01, 0.012, 2e-5, 1e-9, 1e-4, 1e-8)


def limits(**fields: object) -> SchedulerLimits:
    values = {"num_pages": 60, "page_size": 4, "context_length": 200, "max_running_requests": 6}
    return SchedulerLimits(**(values | {"chunked_prefill_size": 24, "vocab_size": 500} | fields))  # type: ignore[arg-type]


def jobs(seed: int, count: int = 60) -> list[Job]:
    """Bursts and pauses; prompts that share prefixes with each other and with answers."""
    draw = random.Random(seed)
    now, out = 0.0, []
    for id in range(count):
        now += draw.choice([0.0, 0.0, 0.005, 0.05, 1.0])
        prompt = [Text(draw.randrange(3), draw.randrange(1, 30)), Text(100 + id, draw.randrange(1, 8))]
        if out and draw.random() < 0.4:
            before = draw.choice(out)
            said = content([Text(before.key, before.output, len(before.prompt))], 500)
            tokens = np.concatenate([before.prompt, said, content(prompt[1:], 500)])[:120]
        else:
            tokens = content(prompt, 500)
        out.append(Job(id, now, tokens, draw.choice([1, 2, 9, 40, 70]), 1000 + id))
    return out


def run(replica: Replica, work: list[Job], window: float = math.inf) -> list[Done]:
    """All at once, or in windows of time."""
    if window == math.inf:
        for job in work:
            replica.send(job)
        return replica.run(math.inf)
    done: list[Done] = []
    end, left = window, list(work)
    while left or replica.next_time is not None:
        while left and left[0].arrival < end:
            replica.send(left.pop(0))
        done += replica.run(end)
        end += window
    return done


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("pages", [50, 500])
def test_leaps_are_exact(overlap: bool, mixed: bool, pages: int) -> None:
    retracted = evicted = 0
    for seed in range(3):
        policy = ("fcfs", "lpm")[seed % 2]
        order = ("lru", "cost")[(seed + mixed) % 2]
        few = limits(mixed=mixed, num_pages=pages, policy=policy, conservativeness=0.3, eviction=order)
        exact, leaping = (Replica(few, COST, overlap, exact=e) for e in (True, False))
        work = jobs(seed)
        expected = run(exact, work)
        assert run(leaping, work) == expected
        assert sorted(done.id for done in expected) == list(range(len(work)))
        assert vars(leaping.scheduler.totals) == vars(exact.scheduler.totals)
        assert leaping.steps == exact.steps
        assert leaping.busy == pytest.approx(exact.busy)
        leaping.scheduler.check()
        retracted += exact.scheduler.totals.num_retracted_requests
        evicted += exact.scheduler.pages.evicted_tokens
    if pages == 50:
        assert retracted, "no run was short of memory"
    if pages < 500:
        assert evicted


def test_a_shared_prefix_takes_the_fewest_steps() -> None:
    """Prompts that come at once are computed in full chunks, the shared part once; then all decode together."""
    rows, shared, own, new = 64, 128, 16, 24
    big = limits(num_pages=2000, max_running_requests=rows, chunked_prefill_size=256)
    replica = Replica(big, COST)
    prompts = [content([Text(1, shared), Text(2 + id, own)], 500) for id in range(rows)]
    for fewest in (-(-(shared + rows * own) // 256) + new - 1, new):  # cold; warm, with one token to compute each
        before = replica.steps
        for id, prompt in enumerate(prompts):
            replica.send(Job(id, replica.time, prompt, new, 100 + id))
        assert len(replica.run(math.inf)) == rows
        assert replica.steps - before == fewest


def test_windows_change_nothing() -> None:
    work = jobs(7)
    whole, parts = Replica(limits(), COST), Replica(limits(), COST)
    expected = run(whole, work)
    got = run(parts, work, window=0.13)
    assert [(d.id, d.cached_tokens) for d in got] == [(d.id, d.cached_tokens) for d in expected]
    assert np.allclose([d.ended for d in got], [d.ended for d in expected])


def test_most_steps_are_leapt_over(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica(limits(num_pages=500), COST)
    planned = 0
    schedule = replica.scheduler.schedule

    def counted(now: float) -> object:
        nonlocal planned
        planned += 1
        return schedule(now)

    monkeypatch.setattr(replica.scheduler, "schedule", counted)
    run(replica, [Job(i, 0.0, content([Text(i, 20)], 500), 100, 50 + i) for i in range(4)])
    assert replica.steps >= 100
    assert planned <= 8


def test_one_request_costs_what_the_model_says() -> None:
    replica = Replica(limits(num_pages=500, chunked_prefill_size=512), COST)
    (done,) = run(replica, [Job(0, 2.0, content([Text(1, 50)], 500), 11, 7)])
    prompt = COST.prompt_step + 50 * COST.prompt_token + 50 * 51 // 2 * COST.prompt_pair
    decode = 10 * (COST.decode_step + COST.row) + sum(range(50, 60)) * COST.context
    assert done.first == pytest.approx(2.0 + prompt)
    assert done.ended == pytest.approx(2.0 + prompt + decode)
    assert replica.busy == pytest.approx(prompt + decode)


def test_an_answer_is_found_by_who_repeats_it() -> None:
    replica = Replica(limits(num_pages=500), COST)
    prompt = content([Text(1, 16)], 500)
    said = content([Text(9, 17, 16)], 500)
    follow_up = np.concatenate([prompt, said, content([Text(2, 5)], 500)])
    done = run(replica, [Job(0, 0.0, prompt, 17, 9), Job(1, 50.0, follow_up, 2, 10)])
    assert done[1].cached_tokens == 32  # of 16 + 17, all but the last token said, in whole pages
