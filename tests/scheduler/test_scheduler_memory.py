"""What the scheduler does with the cache, and with too little memory, driven with the hash-chain executor."""

from __future__ import annotations

import re

import pytest

from radixlang.plan import Flush
from radixlang.sampling_params import SamplingParams
from radixlang.scheduler.request import State
from tests.scheduler.small import OVERLAP, driver, endless, finished

# ---- the cache ----


@OVERLAP
def test_first_tokens_of_a_cached_page_are_copied(depth: int) -> None:
    run = driver(depth, page_size=8)
    run.add("a", list(range(24)), sampling=endless(1))
    finished(run)
    again = run.add("b", list(range(24)), sampling=endless(1))
    run.step()
    plan = run.plans[-1]
    (copy,) = plan.actions
    assert plan.counts.tolist() == [1]
    assert plan.starts.tolist() == [23]
    assert copy.target.tolist() == [plan.new_pages[-1, 2]]
    assert copy.source.tolist() != copy.target.tolist()
    finished(run)
    assert again.metas[0].cached_tokens == 23
    half = run.add("c", [*range(20), 1, 1], sampling=endless(1))
    less = run.add("d", [*range(19), 1, 1], sampling=endless(1))
    finished(run)
    assert (half.metas[0].cached_tokens, less.metas[0].cached_tokens) == (20, 16)


@OVERLAP
@pytest.mark.parametrize("length", [24, 27, 3])
def test_same_prompt_in_the_same_step_costs_one_token(depth: int, length: int) -> None:
    """Its last page is copied behind the step, and the row goes on there in the next one."""
    run = driver(depth, chunked_prefill_size=64)
    for name in "abc":
        run.add(name, list(range(length)), sampling=endless(6))
    other = run.add("other", [*range(length - 1), 28], sampling=endless(6))
    run.step()
    plan, last = run.plans[-1], (length - 1) // 4
    assert plan.counts.tolist() == [length, 1, 1, length - 4 * last]
    assert plan.actions == ()
    assert plan.copies is not None
    pages = {(row, index): page for row, index, page in plan.new_pages.tolist()}
    assert plan.copies.source.tolist() == [pages[int(row), last] for row in plan.rows[:2]]
    run.step()
    changed = {(row, index): page for row, index, page in run.plans[-1].new_pages.tolist()}
    mended = [changed.get((int(row), last)) for row in plan.rows[1:3]]
    # A page that is full by now is the tree's, and stays with all.
    assert mended == ([pages[int(plan.rows[0]), last]] * 2 if length == 24 else plan.copies.target.tolist())
    finished(run)
    run.judge(other)


@OVERLAP
def test_first_tokens_of_a_running_prompts_last_page_are_copied(depth: int) -> None:
    run = driver(depth, page_size=8)
    first = run.add("a", list(range(22)), sampling=endless(20))
    run.step()
    run.step()
    run.add("b", list(range(22)), sampling=endless(2))
    run.add("c", [*range(20), 1, 1, 1], sampling=endless(2))
    run.add("d", [*range(19), 1, 1, 1], sampling=endless(2), namespace="x")
    finished(run)
    assert [run.outcomes[name].metas[0].cached_tokens for name in "bcd"] == [21, 20, 0]
    assert first.finish is not None
    late = run.add("e", [*range(17), 1, 1, 1, 1], sampling=endless(2))  # less than half a page
    finished(run)
    assert late.metas[0].cached_tokens == 16


@OVERLAP
@pytest.mark.parametrize("gone", ["a", "b"])
def test_page_shared_for_a_step_outlives_either_request(depth: int, gone: str) -> None:
    run = driver(depth, chunked_prefill_size=64, num_pages=12)
    for name in "abc":
        run.add(name, list(range(11)), sampling=endless(6))
    run.step()
    assert run.plans[-1].counts.tolist() == [11, 1, 1]
    run.abort(gone)
    run.add("new", list(range(28, 12, -1)), sampling=endless(4))  # takes what has come free
    finished(run)
    assert sum(outcome.finish is not None for outcome in run.outcomes.values()) == 3


@OVERLAP
def test_copied_page_may_not_cost_the_request_its_room(depth: int) -> None:
    run = driver(depth, num_pages=7, page_size=4)
    run.add("a", list(range(24)), sampling=endless(1))
    finished(run)
    assert run.scheduler.pages.pool.available == 0
    again = run.add("b", list(range(23)), sampling=endless(2))
    finished(run)
    assert again.finish is not None


@OVERLAP
def test_samples_of_one_prompt_share_it_within_one_step(depth: int) -> None:
    run = driver(depth, chunked_prefill_size=64)
    for index in range(4):
        params = SamplingParams(max_new_tokens=4, sampling_seed=7)
        run.add(f"s{index}", list(range(25)), sampling=params, sample_index=index)
    run.step()
    assert run.plans[-1].counts.tolist() == [25, 1, 1, 1]
    finished(run)
    assert [o.metas[0].cached_tokens for o in run.outcomes.values()] == [0, 24, 24, 24]
    assert len({tuple(o.tokens) for o in run.outcomes.values()}) > 1


@OVERLAP
@pytest.mark.parametrize(
    ("page_size", "policy", "chunk", "length"),
    [(1, "fcfs", 700, 1000), (16, "lpm", 2048, 1000), (64, "dfs-weight", -1, 1024), (128, "fcfs", 1010, 1003)],
)
def test_prompts_that_arrive_together_are_computed_once(
    depth: int, page_size: int, policy: str, chunk: int, length: int
) -> None:
    """64 identical prompts: one is computed, and the last token of the others."""
    run = driver(
        depth,
        page_size=page_size,
        num_pages=1 + 20_000 // page_size,
        context_length=1100,
        max_running_requests=64,
        chunked_prefill_size=chunk,
        policy=policy,
    )
    for index in range(64):
        run.add(f"s{index}", [token % 97 for token in range(length)], sampling=endless(2))
    finished(run)
    computed = sum(length - outcome.metas[0].cached_tokens for outcome in run.outcomes.values())
    assert computed == length + 63


@OVERLAP
def test_next_turn_finds_prompt_and_answer(depth: int) -> None:
    run = driver(depth)
    first = run.add("a", list(range(17)), sampling=endless(10))
    finished(run)
    second = run.add("b", list(range(17)) + first.tokens + [5, 6], sampling=endless(2))
    finished(run)
    assert second.metas[0].cached_tokens == 24  # 26 computed, in whole pages of 4


def test_namespaces_share_nothing() -> None:
    run = driver()
    run.add("a", list(range(17)), sampling=endless(1), namespace="x")
    finished(run)
    other = run.add("b", list(range(17)), sampling=endless(1), namespace="y")
    same = run.add("c", list(range(17)), sampling=endless(1), namespace="x")
    finished(run)
    assert (other.metas[0].cached_tokens, same.metas[0].cached_tokens) == (0, 16)


def test_one_prompt_token_is_always_computed() -> None:
    run = driver(page_size=1)
    run.add("a", [1, 2, 3, 4], sampling=endless(1))
    finished(run)
    again = run.add("b", [1, 2, 3, 4], sampling=endless(1))
    finished(run)
    assert again.metas[0].cached_tokens == 3


@OVERLAP
def test_prompt_logprobs_cap_the_match_and_duplicates_are_given_back(depth: int) -> None:
    run = driver(depth)
    run.add("a", list(range(25)), sampling=endless(1))
    finished(run)
    again = run.add(
        "b", list(range(25)), sampling=endless(6), return_logprob=True, logprob_start_len=10, top_logprobs_num=2
    )
    finished(run)
    assert again.metas[0].cached_tokens == 10  # 8 in whole pages, 2 in a copied one
    assert run.scheduler.pages.tree.total == 7  # 30 tokens computed


def test_disabled_cache_matches_nothing_and_loses_nothing() -> None:
    run = driver(radix_cache=False)
    for name in "ab":
        run.add(name, list(range(25)), sampling=endless(3))
        finished(run)
        assert run.outcomes[name].metas[0].cached_tokens == 0
    assert run.scheduler.pages.pool.available == 64


def test_flush_waits_for_requests_and_tells_the_device() -> None:
    run = driver()
    run.add("a", list(range(25)), sampling=endless(3))
    assert not run.scheduler.flush()
    run.step()
    assert not run.scheduler.flush()
    finished(run)
    assert run.scheduler.flush()
    assert run.scheduler.pages.pool.available == 64
    run.add("b", list(range(25)), sampling=endless(3))
    run.step()
    assert run.plans[-1].actions == (Flush(),)
    finished(run)
    assert run.outcomes["b"].metas[0].cached_tokens == 0


# ---- short memory ----


@OVERLAP
def test_retraction_keeps_answers_and_admits_nobody_in_its_step(depth: int) -> None:
    run = driver(depth, num_pages=13, conservativeness=0.0)
    for name in "abc":
        run.add(name, [ord(name) % 20, 1, 2], sampling=endless(20, repetition_penalty=1.1))
    while not run.scheduler.totals.num_retracted_requests:
        if run.steps == 5:
            run.add("d", [7, 7], sampling=endless(2))
        run.step()
    assert run.plans[-1].setups == ()
    victim = next(r for r in map(run.scheduler.request, run.scheduler.rids()) if r.retractions)
    assert victim.rid in "cd"  # the last one admitted
    assert run.scheduler.stats(2.0).gauges["num_retracted_reqs"] == 1
    finished(run)
    assert run.outcomes[victim.rid].metas[-1].num_retractions >= 1
    assert run.scheduler.totals.num_retracted_requests >= 1


def test_lowest_priority_is_retracted_first_under_priority() -> None:
    run = driver(num_pages=13, conservativeness=0.0, policy="priority")
    for name, priority in (("a", 0), ("b", 2), ("c", 1)):
        run.add(name, [ord(name) % 20, 1, 2], sampling=endless(20), priority=priority)
    while not run.scheduler.totals.num_retracted_requests:
        run.step()
    assert run.scheduler.request("a").retractions == 1
    finished(run)


def test_retracted_request_is_set_up_with_its_output() -> None:
    run = driver(num_pages=13, conservativeness=0.0)
    for name in "abc":
        run.add(name, [ord(name) % 20, 1, 2], sampling=endless(20, frequency_penalty=1.0))
    while not run.scheduler.totals.num_retracted_requests:
        run.step()
    victim = next(r for r in map(run.scheduler.request, run.scheduler.rids()) if r.retractions)
    output = victim.output().tolist()
    while victim.state is State.WAITING:
        run.step()
    (setup,) = run.plans[-1].setups
    assert setup.output.tolist() == output
    assert setup.generated == len(output) > 0
    finished(run)


def test_row_whose_work_is_all_launched_gives_its_pages_before_anyone_is_retracted() -> None:
    run = driver(depth=1, num_pages=7, page_size=1, conservativeness=0.0)
    run.add("ends", [1, 2, 3], sampling=endless(2))
    run.add("goes", [4], sampling=endless(5))
    run.step()  # 3 + 1 pages
    run.step()  # one more each: all 6 are taken, "ends" waits for its last token
    plan = run.scheduler.schedule(5.0)
    assert plan is not None
    assert run.scheduler.request("ends").state is State.LANDING
    assert run.scheduler.totals.num_retracted_requests == 0
    run.flights.append((plan, run.executor.launch(plan)))
    finished(run)


@OVERLAP
def test_request_that_cannot_fit_alone_fails_and_names_the_numbers(depth: int) -> None:
    run = driver(depth, num_pages=6)
    outcome = run.add("a", list(range(10)), sampling=endless(50))
    run.finish()
    assert outcome.failed is not None
    assert re.search("grown to 21 tokens.* only 20;", outcome.failed.message)
    run.judge(outcome)
    assert len(outcome.tokens) == 11
    other = run.add("b", list(range(10)), sampling=endless(5))
    finished(run)
    assert other.finish is not None


def test_admission_leaves_room_for_answers_to_come() -> None:
    eager, careful = driver(num_pages=25, conservativeness=0.0), driver(num_pages=25)
    for run in (eager, careful):
        for name in "abcdefgh":
            run.add(name, [ord(name) % 20, 1, 2], sampling=endless(40))
        finished(run)
    few, many = (run.scheduler.totals.num_retracted_requests for run in (careful, eager))
    assert few * 3 <= many
    assert many >= 3


def test_admission_counts_what_running_requests_will_still_need() -> None:
    run = driver(num_pages=22)
    run.add("a", [1, 2, 3], sampling=endless(80))  # 3 + 0.7 * 80 tokens are expected: 15 of 21 pages
    run.step()
    run.add("b", [4] * 14, sampling=endless(20))  # 28 tokens are expected: 7 pages
    run.add("c", [5] * 2, sampling=endless(2))
    run.step()
    assert [run.scheduler.request(rid).state for rid in "abc"] == [State.RUNNING, State.WAITING, State.WAITING]
    finished(run)


def test_ratio_falls_and_rises() -> None:
    run = driver(num_pages=13, max_running_requests=3)
    ratio = run.scheduler.ratio
    ratio.value = 0.0
    for name in "abc":
        run.add(name, [ord(name) % 20, 1, 2], sampling=endless(20))
    while not run.scheduler.totals.num_retracted_requests:
        run.step()
    assert ratio.value >= ratio.start == 0.7
    before = ratio.value
    run.step()
    assert ratio.value < before
    finished(run)
    assert ratio.value == ratio.start
