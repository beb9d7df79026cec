"""The scheduler's promises one by one, driven with the hash-chain executor: grants, prompts, figures."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import pytest

from radixlang.messages import Generate, pack_ids
from radixlang.plan import FROM_TABLE
from radixlang.sampling_params import SamplingParams
from radixlang.scheduler import Scheduler, SchedulerLimits
from radixlang.scheduler.arrivals import mixed_seed
from tests.scheduler.driver import EOS
from tests.scheduler.small import LIMITS, OVERLAP, driver, endless, finished

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
    late = run.add("b", list(range(40)), embed=True)
    run.step()
    assert run.plans[-1].starts.tolist() == [39]
    assert run.plans[-1].pools.tolist() == [True]
    assert run.plans[-1].samples.tolist() == [False]
    finished(run)
    assert [meta.cached_tokens for meta in late.metas] == [39]
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
    names = ("kv_available_tokens", "kv_evictable_tokens", "kv_used_tokens")
    assert [gauges[name] for name in names] == [240, 0, 16]
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
    assert scheduler.totals.num_refused_requests == 1
    scheduler.check()
