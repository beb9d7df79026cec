"""The scheduler's promises one by one, driven with the hash-chain executor."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
from typing import Any

import numpy as np
import pytest

from radixlang.messages import Generate, pack_ids
from radixlang.plan import FROM_TABLE, Flush
from radixlang.sampling_params import SamplingParams
from radixlang.scheduler import Scheduler, SchedulerLimits
from radixlang.scheduler.arrivals import mixed_seed
from radixlang.scheduler.request import State
from tests.scheduler.driver import EOS, Driver

LIMITS = SchedulerLimits(
    num_pages=65, page_size=4, context_length=128, max_running_requests=8, chunked_prefill_size=16, eos_ids=(EOS,)
)
OVERLAP = pytest.mark.parametrize("depth", [0, 1], ids=["plain", "overlap"])


def driver(depth: int = 0, **changes: Any) -> Driver:
    fake = {key: changes.pop(key) for key in ("poison", "curse", "broken") if key in changes}
    return Driver(dataclasses.replace(LIMITS, **changes), depth, **fake)


def endless(count: int, **fields: Any) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, ignore_eos=True, temperature=0.0, **fields)


def finished(run: Driver) -> None:
    run.finish()
    run.judge_all()


# ---- grants ----


@OVERLAP
def test_prompt_is_cut_into_chunks_beside_decoding_rows(depth: int) -> None:
    run = driver(depth, mixed=True)
    run.add("short", [1, 2], sampling=endless(12))
    run.step()
    run.add("long", list(range(40)), sampling=endless(3))
    counts = []
    for _ in range(3):
        run.step()
        counts.append(run.plans[-1].counts.tolist())
    assert counts == [[1, 16], [1, 16], [1, 8]]
    assert run.plans[-1].samples.tolist() == [True, True]
    assert run.plans[-2].samples.tolist() == [True, False]
    finished(run)


def test_chunk_budget_is_shared_by_several_prompts_in_order() -> None:
    run = driver(mixed=True)
    for name in "abc":
        run.add(name, [ord(name) % 20] * 10, sampling=endless(2))
    run.step()
    assert run.plans[-1].counts.tolist() == [10, 6]
    run.step()
    assert run.plans[-1].counts.tolist() == [1, 4, 10]
    finished(run)


def test_without_chunks_a_prompt_is_never_cut_and_the_budget_holds_unless_it_is_alone() -> None:
    run = driver(chunked_prefill_size=-1, max_prefill_tokens=20)
    for name, size in (("a", 12), ("b", 12), ("c", 50), ("d", 2)):
        run.add(name, [ord(name) % 20] * size, sampling=endless(9))
    sizes = []
    for _ in range(4):
        run.step()
        counts = run.plans[-1].counts
        sizes.append(counts[counts > 1].tolist())
    assert sizes == [[12], [12], [50], [2]]
    finished(run)


@OVERLAP
def test_end_by_length_takes_no_surplus_step(depth: int) -> None:
    run = driver(depth)
    run.add("a", [1, 2, 3], sampling=endless(5))
    finished(run)
    assert run.steps == 5
    assert run.outcomes["a"].finish == {"type": "length", "length": 5}


@pytest.mark.parametrize(("depth", "surplus"), [(0, 0), (1, 1), (2, 2)])
def test_end_by_token_is_noticed_a_step_late_under_overlap(depth: int, surplus: int) -> None:
    run = driver(depth)
    prompt = next(
        [k, 9]
        for k in range(29)
        if EOS
        in run.model.answer(
            [k, 9],
            20,
            run.row_sampling(Generate("x", pack_ids([k, 9]), SamplingParams(max_new_tokens=20, temperature=0.0))),
        )[1:]
    )
    run.add("a", prompt, max_new_tokens=20)
    finished(run)
    assert run.outcomes["a"].finish == {"type": "stop", "matched": EOS}
    assert run.outcomes["a"].tokens[-1] == EOS
    assert run.steps == len(run.outcomes["a"].tokens) + surplus


@OVERLAP
def test_no_tokens_wanted_computes_the_prompt_and_ends(depth: int) -> None:
    run = driver(depth)
    run.add("a", list(range(20)), max_new_tokens=0, return_logprob=True, logprob_start_len=0)
    finished(run)
    assert run.outcomes["a"].finish == {"type": "length", "length": 0}
    assert run.steps == 2
    run.add("b", list(range(20)), max_new_tokens=1)
    finished(run)
    assert run.outcomes["b"].metas[0].cached_tokens == 19  # 16 in whole pages, 3 in a copied one


def test_none_fills_the_context_or_the_cache() -> None:
    run = driver(context_length=30)
    run.add("a", [1, 2, 3], sampling=SamplingParams(max_new_tokens=None, ignore_eos=True, temperature=0.0))
    finished(run)
    assert len(run.outcomes["a"].tokens) == 27
    run = driver(num_pages=6)
    run.add("a", [1, 2, 3], sampling=SamplingParams(max_new_tokens=None, ignore_eos=True, temperature=0.0))
    finished(run)
    assert len(run.outcomes["a"].tokens) == 18  # KV for 20 tokens; the last one needs none


def test_decoding_rows_take_tokens_from_the_table() -> None:
    run = driver()
    run.add("a", [1, 2, 3], sampling=endless(3))
    run.step()
    assert run.plans[-1].token_ids.tolist() == [1, 2, 3]
    run.step()
    assert run.plans[-1].token_ids.tolist() == [FROM_TABLE]
    finished(run)


# ---- prompts first ----


@OVERLAP
def test_plans_share_the_arrays_of_rows_that_go_on(depth: int) -> None:
    """The executor knows a step by them that it need not check and lay out anew."""
    run = driver(depth)
    for count in (4, 9, 9):
        run.add(f"r{len(run.scheduler.rids())}", [1, 2, count], sampling=endless(count))
    decodes = []
    while run.step():
        newest = run.plans[-1]
        if (newest.token_ids == FROM_TABLE).all() and not (decodes and newest is decodes[-1]):
            decodes.append(newest)
    same = [after.rows is before.rows for before, after in itertools.pairwise(decodes)]
    equal = [np.array_equal(after.rows, before.rows) for before, after in itertools.pairwise(decodes)]
    assert same == equal
    assert same.count(True) >= 4
    for before, after in itertools.pairwise(decodes):
        if after.rows is before.rows:
            assert after.token_ids is before.token_ids
            assert after.counts is before.counts
            assert after.samples is before.samples
            assert after.pools is before.pools
    run.judge_all()


@OVERLAP
def test_prompts_go_alone_and_decoding_waits_for_the_last_of_them(depth: int) -> None:
    run = driver(depth)
    run.add("a", [1, 2], sampling=endless(9))
    run.step()
    for name in "bcd":
        run.add(name, [ord(name) % 20] * 10, sampling=endless(9))
    counts = []
    for _ in range(3):
        run.step()
        counts.append(run.plans[-1].counts.tolist())
    assert counts == [[10, 6], [4, 10], [1, 1, 1, 1]]
    assert (run.plans[-1].token_ids == FROM_TABLE).all()
    finished(run)


@OVERLAP
def test_prompts_alone_give_way_after_so_many_steps(depth: int) -> None:
    run = driver(depth, max_prefill_steps=2, num_pages=129)
    run.add("a", [1, 2], sampling=endless(9))
    run.step()
    run.add("b", list(range(40)) * 3, sampling=endless(2))
    kinds = []
    for _ in range(8):
        run.step()
        kinds.append(run.plans[-1].counts.tolist())
    assert kinds == [[16], [16], [1], [16], [16], [1], [16], [16]]
    finished(run)


def test_nobody_waits_while_no_row_could_decode() -> None:
    run = driver(max_prefill_steps=1)
    run.add("a", list(range(20)) * 3, sampling=endless(2))
    for _ in range(4):
        run.step()
        assert run.plans[-1].tokens > 1
    finished(run)
    assert run.steps == 5


def test_one_step_admits_so_many_requests() -> None:
    run = driver(prefill_max_requests=2)
    for name in "abcde":
        run.add(name, [ord(name) % 20, 1], sampling=endless(3))
    sizes = []
    for _ in range(4):
        run.step()
        sizes.append(run.plans[-1].counts.tolist())
    assert sizes == [[2, 2], [2, 2], [2], [1] * 5]
    finished(run)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_no_row_starves_whatever_arrives(seed: int, most: int, mixed: bool) -> None:
    """A row that could decode gets its token within `most` steps of prompts, unless memory takes its row."""
    rng = random.Random(seed)
    run = driver(seed % 2, mixed=mixed, max_prefill_steps=most, num_pages=rng.choice([40, 400]), context_length=64)
    waited: dict[tuple[str, int], int] = {}
    alone = 0
    for number in range(400):
        if rng.random() < 0.7:
            prompt = [rng.randrange(29) for _ in range(rng.randint(1, 40))]
            run.add(f"r{number}", prompt, sampling=endless(rng.randint(1, 20)))
        rows = run.scheduler.rows
        able = {
            (request.rid, request.retractions, int(rows.computed[row])): row
            for row, request in run.scheduler.phases.decoding.items()
            if rows.computed[row] < rows.work[row]
        }
        before = run.steps
        run.step()
        if run.steps == before:
            continue
        plan = run.plans[-1]
        prompts = plan.token_ids[np.cumsum(plan.counts) - plan.counts] != FROM_TABLE
        assert mixed or prompts.all() or not prompts.any(), "a mixed step"
        alone += bool(able) and bool(prompts.all())
        granted = set(plan.rows[~prompts].tolist())
        waited = {key: waited.get(key, 0) + 1 for key, row in able.items() if row not in granted}
        running = {(request.rid, request.retractions) for request in rows.running.values()}
        waited = {key: steps for key, steps in waited.items() if key[:2] in running}
        assert max(waited.values(), default=0) <= (0 if mixed else most)
    assert mixed or alone > 20
    for rid in run.scheduler.rids():
        run.abort(rid)
    finished(run)


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
    assert all(run.outcomes[name].finish for name in "abcde")


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


# ---- waits, embeddings, seeds, figures ----


def test_waits_keep_a_request_back_and_nobody_else() -> None:
    run = driver()
    run.add("a", [1, 2], sampling=endless(2))
    run.add("b", [3, 4], sampling=endless(2))
    run.scheduler.request("a").waits["grammar"] = None
    while run.step():
        pass
    assert run.outcomes["b"].finish is not None
    assert run.scheduler.rids() == ["a"]
    run.scheduler.request("a").waits.clear()
    finished(run)


@OVERLAP
def test_embeddings_of_decoders_share_the_cache_and_encoders_compute_whole_prompts(depth: int) -> None:
    run = driver(depth)
    run.add("a", list(range(40)), embed=True)
    run.add("t", list(range(38)), sampling=endless(4))
    finished(run)
    run.add("b", list(range(40)), embed=True)
    run.step()
    assert run.plans[-1].starts.tolist() == [39]
    assert run.plans[-1].pools.tolist() == [True]
    assert run.plans[-1].samples.tolist() == [False]
    finished(run)
    run = driver(depth, encoder=True, max_prefill_tokens=30)
    for name, size in (("a", 40), ("b", 20), ("c", 9)):
        run.add(name, [1] * size, embed=True)
    refused = run.add("g", [1, 2], sampling=endless(2)).failed
    assert refused.status == 400
    sizes = []
    while not run.scheduler.idle:
        run.step()
        if run.plans[-1].step == len(sizes):
            sizes.append(run.plans[-1].counts.tolist())
    assert sizes == [[40], [20, 9]]
    finished(run)


def test_seeds() -> None:
    assert mixed_seed(42, 0) == 42
    assert len({mixed_seed(42, k) for k in range(100)}) == 100
    assert all(0 <= mixed_seed(-5, k) < 1 << 63 for k in range(100))

    def drawn(seed: int) -> list[int]:
        scheduler = Scheduler(dataclasses.replace(LIMITS, random_seed=seed))
        for k in range(3):
            scheduler.add(Generate(f"r{k}", pack_ids([1, 2]), SamplingParams(max_new_tokens=5)), 1.0)
        return [scheduler.request(f"r{k}").sampling.seed for k in range(3)]

    assert drawn(1) == drawn(1)
    assert len({*drawn(1), *drawn(2)}) == 6


def test_figures() -> None:
    run = driver()
    run.add("a", list(range(20)), sampling=endless(3))
    run.add("b", list(range(20)), sampling=endless(3))
    run.step()
    gauges = run.scheduler.stats(2.0).gauges
    assert (gauges["num_running_reqs"], gauges["num_queue_reqs"]) == (1, 1)
    assert gauges["max_total_num_tokens"] == 256
    assert (gauges["page_size"], gauges["num_pages"]) == (4, 64)
    assert gauges["num_used_tokens"] == 16
    assert gauges["token_usage"] == 16 / 256
    run.step()
    run.step()
    assert run.scheduler.stats(2.5).gauges["gen_throughput"] == 0  # the window is a second at least
    assert run.scheduler.stats(4.0).gauges["gen_throughput"] == 4 / 2
    finished(run)
    stats = run.scheduler.stats(4.1)
    assert stats.idle
    assert stats.gauges["num_used_tokens"] == 0
    assert stats.gauges["kv_available_tokens"] + stats.gauges["kv_evictable_tokens"] == 256
    assert stats.gauges["gen_throughput"] == 0
    assert stats.gauges["cache_hit_rate"] == 19 / 20
    assert stats.counters["prompt_tokens_total"] == 40
    assert stats.counters["cached_tokens_total"] == 19
    assert stats.counters["generation_tokens_total"] == 6


def test_plan_arrays_have_the_types_of_the_bridge() -> None:
    run = driver()
    run.add("a", list(range(20)), sampling=endless(3), return_logprob=True, logprob_start_len=2)
    for _ in range(3):
        run.step()
        plan = run.plans[-1]
        for name in ("rows", "starts", "counts", "token_ids", "new_pages"):
            assert getattr(plan, name).dtype == np.int32, name
        assert plan.samples.dtype == plan.pools.dtype == np.bool_
        assert plan.new_pages.shape[1] == 3
        assert all(wish.targets.dtype == np.int32 for wish in plan.logprobs)
    finished(run)


def test_hopeless_request_makes_way_in_the_step_in_which_it_fails() -> None:
    run = driver(num_pages=5, chunked_prefill_size=-1, conservativeness=0.0, max_running_requests=2)
    prompt = list(range(15))
    run.add("a", prompt, sampling=endless(20))
    run.step()
    run.add("b", [*prompt, 9], sampling=endless(1))
    while run.outcomes["a"].failed is None:
        run.step()
    assert run.plans[-1].starts.tolist() == [12]  # `b`, on the pages that `a` left in the tree
    finished(run)
    assert run.outcomes["b"].finish is not None


def test_a_new_arrival_that_waits_too_long_is_refused() -> None:
    limits = SchedulerLimits(
        num_pages=50, page_size=4, context_length=128, max_running_requests=1, queue_timeout=2.0
    )
    scheduler = Scheduler(limits, now=0.0)
    for rid, now in (("a", 0.0), ("b", 1.0)):
        message = Generate(rid, pack_ids([5, 6, 7]), SamplingParams(max_new_tokens=50))
        assert scheduler.add(message, now) is None
        assert scheduler.schedule(now) is not None or rid == "b"
    scheduler.schedule(2.5)
    assert scheduler.take_messages() == []
    scheduler.schedule(3.5)
    (failed,) = scheduler.take_messages()
    assert (failed.rid, failed.status) == ("b", 503)
    assert "waited" in failed.message
    assert scheduler.rids() == ["a"]
    scheduler.check()
