"""Requests with grammars through the scheduler and the hash-chain executor: whatever the settings and whatever
happens beside them, they say what one token after the other says."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlang.grammar.errors import GrammarFailure
from radixlang.messages import GrammarSpec
from radixlang.sampling_params import SamplingParams
from radixlang.scheduler import SchedulerLimits
from radixlang.scheduler.constraints import Constraints
from radixlang.scheduler.slots import AutomatonSlots
from tests.scheduler.driver import EOS, Driver, Outcome, random_program
from tests.scheduler.test_random import never_learn, random_limits
from tests.scheduler.toy_grammar import ToyGrammar, ToyManager, ToyState


@pytest.fixture(autouse=True, scope="module")
def drafts_in_any_company() -> Iterator[None]:
    """Whatever runs beside: the more turns a text takes, the more can go wrong."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("radixlang.scheduler.drafts.DRAFTING", 1000)
        yield


def run(seed: int, page_size: int, depth: int, jump: bool, requests: int = 24) -> Driver:
    rng = random.Random(seed)
    limits = random_limits(rng, page_size, rng.choice(["fcfs", "lpm", "priority"]))
    faults = rng.random() < 0.25
    driver = Driver(
        limits,
        depth,
        jump=jump,
        poison=28 if faults else -7,
        curse=27 if faults and rng.random() < 0.3 else -8,
        broken=frozenset(rng.sample(range(100), 4)) if faults else frozenset(),
    )
    if limits.conservativeness == 0:
        never_learn(driver.scheduler.ratio)
    longest = rng.choice([8, limits.context_length // 2])
    random_program(driver, rng, requests, longest, rng.choice([0.0, 0.05, 0.2]), bound=rng.choice([0.4, 1.0]))
    return driver


def test_grammars_do_not_depend_on_anything() -> None:
    seen: Counter[str] = Counter()
    for seed in range(48):
        seen += run(seed, (1, 4, 16)[seed % 3], min(seed % 4, 1), seed % 9 > 0).seen
    for what in (
        "bound stop", "bound length", "grammar failed", "vetoes", "taken back", "retracted", "abandoned", "forced",
        "drafted", "missed", "pending, bound", "landing, bound", "surplus, running", "surplus, waiting",
        "abort RUNNING", "abort WAITING",
    ):  # fmt: skip
        assert seen[what] > 0, f"no program exercised {what!r}: {seen}"


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 40), st.sampled_from([1, 2, 4, 16]), st.integers(0, 1), st.booleans())
def test_grammars_with_drawn_seeds(seed: int, page_size: int, depth: int, jump: bool) -> None:
    run(seed, page_size, depth, jump, requests=8)


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [1, 2, 4, 16])
def test_many_more_programs(page_size: int) -> None:
    for seed in range(1000, 3000):
        run(seed, page_size, seed % 2, seed % 5 > 0)


# ---- one by one ----

LIMITS = SchedulerLimits(
    num_pages=65, page_size=4, context_length=64, max_running_requests=8, mixed=True, eos_ids=(EOS,)
)
PROMPT = [7, 8, 9, 10, 11]


def script(*places: list[int]) -> GrammarSpec:
    return GrammarSpec("script", json.dumps(places))


def ask(
    grammar: GrammarSpec, depth: int = 1, jump: bool = True, driver: Driver | None = None, **params: Any
) -> tuple[Outcome, Driver]:
    """The outcome of one request, judged, and the driver."""
    driver = driver or Driver(LIMITS, depth, jump=jump)
    sampling = SamplingParams(**{"max_new_tokens": 20, "temperature": 0.0, **params})
    outcome = driver.add("r", PROMPT, sampling=sampling, grammar=grammar)
    driver.finish()
    driver.judge_all()
    return outcome, driver


FORCED = [[5], [6], [12], [13], [14]]


@pytest.mark.parametrize("depth", [0, 1])
def test_a_forced_text_needs_two_draws_at_most(depth: int) -> None:
    outcome, driver = ask(script(*FORCED), depth)
    assert outcome.tokens == [5, 6, 12, 13, 14]
    assert outcome.finish == {"type": "stop", "matched": EOS}, "the end is known without a draw"
    assert driver.steps == 1 + depth, "the answer is there after the prompt; the step behind it is surplus"
    assert driver.constraints.counters()["grammar_forced_tokens_total"] == 4


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("jump", [False, True])
def test_the_limit_cuts_a_forced_text(depth: int, jump: bool) -> None:
    for most in (0, 1, 2, 3, 5):
        outcome, _ = ask(script(*FORCED), depth, jump, max_new_tokens=most)
        assert outcome.tokens == [5, 6, 12, 13, 14][:most]
        reason = {"type": "stop", "matched": EOS} if most == 5 else {"type": "length", "length": most}
        assert outcome.finish == reason


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("jump", [False, True])
def test_a_stop_token_ends_a_forced_text(depth: int, jump: bool) -> None:
    for stop, until in ((5, 1), (6, 2), (13, 4)):
        outcome, _ = ask(script(*FORCED), depth, jump, stop_token_ids=(stop,))
        assert outcome.tokens == [5, 6, 12, 13, 14][:until]
        assert outcome.finish == {"type": "stop", "matched": stop}


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("jump", [False, True])
def test_a_constraint_goes_before_min_new_tokens_and_ignore_eos(depth: int, jump: bool) -> None:
    for params in ({"min_new_tokens": 9}, {"ignore_eos": True}, {"min_new_tokens": 4, "stop_token_ids": (5,)}):
        outcome, _ = ask(script([5], [6, 12]), depth, jump, **params)
        assert outcome.finish["type"] == "stop", "the text can only end, and says so"
        assert len(outcome.tokens) == (1 if "stop_token_ids" in params else 2)
    loop = [[5, 6, EOS]] * 12
    for params in ({"min_new_tokens": 12}, {"ignore_eos": True}):
        outcome, _ = ask(script(*loop), depth, jump, **params)
        assert len(outcome.tokens) == 12, "where it may go on, it does"
    outcome, _ = ask(script(*loop), depth, jump, min_new_tokens=6, stop_token_ids=(6,))
    assert EOS not in outcome.tokens[:5]
    assert 6 not in outcome.tokens[:5]


@pytest.mark.parametrize("depth", [0, 1])
def test_a_draft_that_holds_spares_a_step(depth: int) -> None:
    """The model takes one of two tokens behind a jump: it is the draft of one script and not of the other."""
    steps = {}
    for pair in ([6, 12], [12, 6]):
        outcome, driver = ask(script([5], [7], [8], pair, [13, 14], [15]), depth)
        plain, _ = ask(script([5], [7], [8], pair, [13, 14], [15]), depth, jump=False)
        assert (outcome.tokens, outcome.finish) == (plain.tokens, plain.finish)
        held = outcome.tokens[3] == pair[0]
        counters = driver.constraints.counters()
        assert counters["grammar_missed_drafts_total"] >= (not held)
        assert counters["grammar_drafted_tokens_total"] >= 1
        steps[held] = driver.steps
    assert steps[True] < steps[False]


def test_no_row_is_lent_that_others_need() -> None:
    limits = replace(LIMITS, max_running_requests=1)
    outcome, driver = ask(script([5], [7], [6, 12], [13, 14]), 0, driver=Driver(limits, 0))
    assert len(outcome.tokens) == 4
    assert driver.constraints.counters()["grammar_drafted_tokens_total"] == 0


def test_draws_use_the_noise_of_their_position() -> None:
    places = [[5], [6], [12], [13, 14, 15, 16, 17, 18], [5], [6], [13, 14, 15, 16, 17, 18]] * 2
    for seed in range(8):
        params: dict[str, Any] = {"temperature": 1.0, "sampling_seed": seed, "frequency_penalty": 0.5}
        answers = [ask(script(*places), d, j, **params)[0].tokens for d in (0, 1) for j in (False, True)]
        assert answers.count(answers[0]) == 4


def test_log_probabilities_take_one_draw_a_token() -> None:
    driver = Driver(LIMITS, 1)
    outcome = driver.add("r", PROMPT, grammar=script(*FORCED), return_logprob=True)
    driver.finish()
    assert len(outcome.output_logprobs) == 5
    assert driver.constraints.counters()["grammar_forced_tokens_total"] == 0


@pytest.mark.parametrize(("kind", "status"), [("wrong", 400), ("panics", 500)])
def test_what_does_not_compile_fails_alone(kind: str, status: int) -> None:
    driver = Driver(LIMITS, 1)
    other = driver.add("other", PROMPT)
    outcome, _ = ask(GrammarSpec(kind, "0"), driver=driver)
    assert outcome.failed is not None
    assert (outcome.failed.status, outcome.failed.constraint) == (status, True)
    assert other.finish is not None


def test_a_failure_is_told_at_once() -> None:
    """The last request of an engine that would sleep now."""
    seed = next(s for s in range(99) if ask(GrammarSpec("breaks", str(s)), 0)[0].failed is not None)
    driver = Driver(LIMITS, 0)
    outcome = driver.add("r", PROMPT, max_new_tokens=20, grammar=GrammarSpec("breaks", str(seed)))
    while not driver.scheduler.idle:
        driver.step()
    assert outcome.failed is not None
    assert outcome.failed.message == "The constraint failed: RuntimeError: a toy breaks"
    assert outcome.failed.constraint


@pytest.mark.parametrize("method", ["ready", "filling"])
def test_a_mask_that_cannot_be_begun_fails_one_request(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(*_: Any) -> Any:
        raise BaseException("a panic")

    driver = Driver(LIMITS, 1)
    bound = driver.add("a", PROMPT, grammar=script([5, 6], [7, 8]))
    other = driver.add("b", PROMPT, max_new_tokens=4)
    monkeypatch.setattr(ToyState, "ready", lambda self: None)
    monkeypatch.setattr(ToyState, method, panic)
    driver.finish()
    assert bound.failed is not None
    assert bound.failed.message == "The constraint failed: BaseException: a panic"
    assert other.finish is not None


@pytest.mark.parametrize("jump", [False, True])
def test_a_state_that_cannot_say_whether_it_is_finished_fails_one_request(
    jump: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(state: ToyState) -> bool:
        raise GrammarFailure("Too many states.")

    monkeypatch.setattr(ToyState, "finished", property(full))
    monkeypatch.setattr(ToyState, "ready", lambda self: None if len(self._text) < 2 else full(self))
    driver = Driver(LIMITS, 1, jump=jump)
    bound = driver.add("a", PROMPT, grammar=script([5, 6], [7, 8], [5, 6], [7, 8]))
    short = driver.add("b", PROMPT, grammar=script([5, 6], [7, 8], [5, 6]), max_new_tokens=2)
    other = driver.add("c", PROMPT, max_new_tokens=4)
    driver.finish()
    assert bound.failed is not None
    assert bound.failed.message == "Too many states."
    assert short.finish == {"type": "length", "length": 2}
    assert other.finish is not None


def test_tokens_that_the_host_cannot_read_again_fail_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device has followed them, and has no room for the request's automaton when it comes back."""

    def panic(state: ToyState, token: int) -> bool:
        raise BaseException("a panic")

    constraints = Constraints(ToyManager(), slots=1)  # type: ignore[arg-type]
    monkeypatch.setattr(AutomatonSlots, "enter", lambda self, request: False)
    monkeypatch.setattr(ToyState, "accept", panic)
    grammar = ToyGrammar(script([5], [6])).start()
    request = SimpleNamespace(
        rid="r", table=object(), grammar=grammar, output=lambda: np.array([5]), least=0, ignores_eos=False
    )
    constraints.enter(request)  # type: ignore[arg-type]
    _, failed = constraints.masks([(request, grammar, 1)])  # type: ignore[list-item]
    assert [(one.rid, why) for one, why, _ in failed] == [("r", "The constraint failed: BaseException: a panic")]


def test_an_abort_calls_the_compilation_off() -> None:
    driver = Driver(LIMITS, 1)
    for rid in "ab":
        driver.add(rid, PROMPT, grammar=script([5]))
    driver.abort("a", "Enough.")
    assert driver.grammars.dropped == 1
    assert driver.scheduler.stats(2.0).gauges["num_grammar_queue_reqs"] == 1
    driver.finish()
    assert driver.outcomes["b"].tokens == [5]
    counters = driver.scheduler.stats(3.0).counters
    assert (counters["num_grammar_total"], counters["num_grammar_aborted_total"]) == (2, 1)


def test_a_compilation_that_takes_too_long_is_the_queue_time_out() -> None:
    driver = Driver(replace(LIMITS, queue_timeout=0.5), 1)
    driver.grammars.work = lambda: None  # type: ignore[method-assign]
    outcome = driver.add("r", PROMPT, grammar=script([5]))
    for _ in range(60):
        driver.step()
    assert outcome.failed is not None
    assert (outcome.failed.status, outcome.failed.constraint) == (503, False)
    assert driver.scheduler.idle
    assert driver.constraints.waiting == 0


def test_jumps_share_steps_with_decoding_rows() -> None:
    """Without mixed steps, too: a jump is no prompt, and a step of prompts alone does not come of it."""
    driver = Driver(replace(LIMITS, mixed=False), 1)
    free = driver.add("free", PROMPT, sampling=SamplingParams(max_new_tokens=30, temperature=0.0, ignore_eos=True))
    places = [[5, 6], [12], [13], [14]] * 8
    bound = driver.add("bound", PROMPT, max_new_tokens=32, grammar=script(*places))
    driver.finish()
    driver.judge_all()
    assert len(free.tokens) == 30
    assert len(bound.tokens) == 32
    assert driver.steps <= 3 + 30, "the free row got a token in every step but those of the two prompts"


@pytest.mark.parametrize("company", [2, 5])
def test_a_jump_beyond_all_memory_does_not_stop_the_others_when_a_step_raises(company: int) -> None:
    limits = replace(LIMITS, num_pages=7, conservativeness=0.0)
    driver = Driver(limits, 1, broken=frozenset({3}))
    sampling = SamplingParams(max_new_tokens=60, temperature=0.0)
    long = driver.add("r", PROMPT[:2], sampling=sampling, grammar=script(*[[5 + i % 9] for i in range(50)]))
    for _ in range(3):
        driver.step()
    other = driver.add("b", [1, 2, 3], max_new_tokens=company)
    driver.finish()
    assert driver.seen["abandoned"] == 1
    assert long.failed is not None
    assert "the KV cache holds only 24" in long.failed.message
    assert other.finish is not None


def test_masks_of_many_requests() -> None:
    driver = Driver(replace(LIMITS, num_pages=400, max_running_requests=32), 1)
    outcomes = [driver.add(f"r{i}", [*PROMPT, i % 29], grammar=GrammarSpec("plain", str(i))) for i in range(32)]
    driver.finish()
    driver.judge_all()
    assert all(outcome.finish for outcome in outcomes)


def test_grammars_end_with_the_scheduler() -> None:
    driver = Driver(LIMITS, 1)
    driver.scheduler.close()
    assert driver.grammars.closed
