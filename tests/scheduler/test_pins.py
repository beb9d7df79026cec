"""Pins: what they keep, for how long, and when they give way."""

from __future__ import annotations

import dataclasses

import numpy as np

from radixlang.cache import RadixTree, make_cache
from radixlang.messages import PinWish
from radixlang.scheduler import SchedulerLimits
from radixlang.scheduler.pins import Pins
from tests.scheduler.driver import Driver, Outcome

LIMITS = SchedulerLimits(
    num_pages=41, page_size=2, context_length=100, max_running_requests=4, max_pinned_fraction=0.5
)


def driver(**changes: object) -> Driver:
    return Driver(dataclasses.replace(LIMITS, **changes), depth=1)  # type: ignore[arg-type]


def serve(run: Driver, rid: str, prompt: list[int], name: str, seconds: float = 9.0, new: int = 0) -> Outcome:
    outcome = run.add(rid, prompt, max_new_tokens=new, pin=PinWish(name, seconds))
    run.finish()
    run.judge_all()
    run.scheduler.check()
    return outcome


def tree_of(*runs: list[int]) -> RadixTree:
    tree, page = make_cache(1), 1
    for tokens in runs:
        tree.insert(np.array(tokens, np.int32), np.arange(page, page + len(tokens), dtype=np.int32))
        page += len(tokens)
    return tree


def end(tree: RadixTree, *tokens: int) -> object:
    return tree.match_prefix(np.array(tokens, np.int32)).node


def test_pinned_prompt_outlives_everything_else_in_the_cache() -> None:
    run = driver()
    serve(run, "p", list(range(20)), "keep")
    for index in range(6):
        run.add(f"r{index}", [30 + index] * 40, max_new_tokens=10)
        run.finish()
    (pin,) = run.scheduler.pins()
    assert (pin["id"], pin["tokens"], pin["branches"]) == ("keep", 20, 1)
    again = run.add("q", [*range(20), 1], max_new_tokens=1)
    run.finish()
    run.judge_all()
    assert again.metas[0].cached_tokens == 20
    assert run.scheduler.unpin(["keep", "unknown"]) == 1
    assert run.scheduler.pins() == []
    run.scheduler.check()
    assert run.scheduler.pages.tree.locked == 0


def test_answers_of_a_program_are_pinned_and_its_branches_share() -> None:
    run = driver()
    first = serve(run, "a", list(range(8)), "program", new=5)  # the last token is never computed
    assert run.scheduler.pins("program")[0]["tokens"] == 12
    turn = [*range(8), *first.tokens]
    serve(run, "b", [*turn, 3, 3, 3], "program")  # a turn further
    serve(run, "c", [*turn, 4, 4, 4], "program")  # and a fork of it
    (pin,) = run.scheduler.pins("program")
    assert (pin["tokens"], pin["branches"]) == (20, 2)
    assert run.scheduler.pins("other") == []


def test_request_that_nobody_waits_for_pins_nothing() -> None:
    run = driver()
    run.add("a", list(range(8)), max_new_tokens=20, pin=PinWish("gone", 9.0))
    for _ in range(4):
        run.step()
    run.abort("a")
    run.finish()
    assert run.scheduler.pins() == []
    run.scheduler.check()


def test_deadline_ends_a_pin_and_every_call_puts_it_off() -> None:
    run = driver()
    serve(run, "a", list(range(8)), "p", 1.0)
    run.now += 0.9
    serve(run, "b", list(range(8)), "p", 1.0)
    run.now += 0.9
    run.step()
    assert len(run.scheduler.pins()) == 1
    run.now += 0.2
    run.step()
    assert run.scheduler.pins() == []


def test_running_request_takes_memory_from_pins_the_oldest_first() -> None:
    run = driver(max_pinned_fraction=1.0)
    for index, name in enumerate(("old", "middle", "new")):
        serve(run, name, [index] * 26, name)
    large = run.add("large", list(range(31)) * 2, max_new_tokens=1)  # 31 of 40 pages; the pins hold 39
    run.finish()
    run.judge_all()
    assert large.finish is not None
    assert [pin["id"] for pin in run.scheduler.pins()] == []
    serve(run, "old", [1] * 26, "old")
    serve(run, "new", [2] * 26, "new")
    run.add("grows", [3] * 20, max_new_tokens=14)
    run.finish()
    run.judge_all()
    assert [pin["id"] for pin in run.scheduler.pins()] == ["new"]
    assert run.scheduler.totals.num_retracted_requests == 0


def test_new_pin_takes_the_share_of_the_oldest_and_one_beyond_the_share_is_not_kept() -> None:
    run = driver()
    for index in range(3):
        serve(run, f"r{index}", [index] * 16, f"p{index}")  # 8 of 20 pages each
    assert [pin["id"] for pin in run.scheduler.pins()] == ["p1", "p2"]
    serve(run, "large", list(range(42)), "large")
    assert [pin["id"] for pin in run.scheduler.pins()] == ["p1", "p2"]
    assert run.scheduler.flush()
    assert run.scheduler.pins() == []


def test_program_beyond_the_share_loses_its_oldest_branches() -> None:
    tree = tree_of([1, 2, 3, 4], [1, 2, 5, 6], [1, 2, 7, 8])
    pins = Pins(tree, 6)
    for branch in ([1, 2, 3, 4], [1, 2, 5, 6], [1, 2, 7, 8]):
        pins.keep("p", end(tree, *branch), 1.0)  # type: ignore[arg-type]
    assert (tree.pinned, pins.locks) == (6, 2)
    tree.check()
    assert sorted(tree.evict(9).tolist()) == [3, 4]
    pins.clear()
    assert (tree.pinned, tree.locked) == (0, 0)
    tree.check()


def test_nothing_is_pinned_of_less_than_a_page_or_without_a_cache() -> None:
    run = driver()
    serve(run, "short", [1], "p")
    run.scheduler.check()
    assert run.scheduler.pins() == []
    assert run.scheduler.pages.tree.roots() == []
    off = driver(radix_cache=False)
    serve(off, "a", [1, 2, 3, 4], "p")
    assert off.scheduler.pins() == []
