"""The manager's threads: who waits for what, and what is kept."""

from __future__ import annotations

import threading
import time

import pytest

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.manager import GrammarManager, key_of
from radixlang.grammar.vocabulary import Vocabulary
from radixlang.messages import GrammarSpec


class Slow:
    """An engine whose compilations wait for `go`; texts say what becomes of them."""

    nbytes = 5000

    def __init__(self, vocabulary: Vocabulary, limits: object) -> None:
        self.go = threading.Event()
        self.begun: list[str] = []

    def supports(self, spec: GrammarSpec) -> str | None:
        return None

    def compile(self, spec: GrammarSpec) -> Slow:
        self.begun.append(spec.text)
        assert self.go.wait(10)
        if spec.text == "panic":
            raise BaseException("a library gives up")
        if spec.text.startswith("wrong"):
            raise GrammarError("it is wrong", param="regex")
        return self


@pytest.fixture
def manager():
    made = []

    def vocabulary() -> Vocabulary:
        made.append(threading.current_thread().name)
        time.sleep(0.05)
        return Vocabulary([b"a", b"b", b""], [2], lambda text: [])

    manager = GrammarManager(vocabulary, "llguidance", cache_bytes=12_000)
    engine = manager._engines["llguidance"] = Slow(None, None)  # type: ignore[arg-type]
    manager.slow, manager.made = engine, made  # type: ignore[attr-defined]
    yield manager
    engine.go.set()
    manager.close()


def spec(text: str) -> GrammarSpec:
    return GrammarSpec("regex", text)


def test_a_compilation_is_shared_and_the_vocabulary_made_once(manager):
    futures = [manager.get(spec(text)) for text in ("a", "b", "a", "a")]
    assert futures[0] is futures[2] is futures[3]
    assert manager.hits == 2
    manager.slow.go.set()
    for future in futures:
        future.result(10)
    assert len(manager.made) == 1, "both workers wanted it at the same time"
    assert len(manager.take_times()) == 2
    assert manager.take_times() == []


def test_what_nobody_waits_for_does_not_begin(manager):
    running = [manager.get(spec(text)) for text in ("a", "b")]
    while len(manager.slow.begun) < 2:
        time.sleep(0.001)
    late = manager.get(spec("c"))
    manager.drop(spec("c"), late)
    manager.drop(spec("a"), running[0])  # has begun: is finished and kept
    assert late.cancelled()
    assert manager.get(spec("a")) is running[0]
    manager.slow.go.set()
    assert manager.get(spec("c")).result(10).inner is manager.slow, "it may be asked for again"
    assert sorted(manager.slow.begun) == ["a", "b", "c"]


def test_dropping_makes_room_and_takes_nothing_from_others(manager):
    """In a cache that is full: the one that is dropped is the oldest that is done, and goes at once."""
    manager.slow.go.set()
    old = manager.get(spec("old"))
    old.result(10)
    manager.slow.go.clear()
    begun = [manager.get(spec(text)) for text in ("x", "y")]
    while len(manager.slow.begun) < 3:
        time.sleep(0.001)
    late = manager.get(spec("late"))
    manager.get(spec("last"))
    manager._cache_bytes = 0
    manager.drop(spec("late"), late)
    assert late.cancelled()
    assert key_of(spec("late")) not in manager._known
    again = manager.get(spec("late"))
    manager.drop(spec("late"), late)  # told twice, of what is no longer there
    assert not again.cancelled(), "it is somebody else's"
    manager.slow.go.set()
    assert again.result(10).inner is manager.slow
    assert [future.result(10).inner for future in begun] == [manager.slow] * 2


def test_failures_keep_nothing_alive(manager):
    manager.slow.go.set()
    error = manager.get(spec("wrong")).exception(10)
    assert isinstance(error, GrammarError)
    assert "it is wrong" in str(error)
    deadline = time.monotonic() + 5
    while error.__traceback__ is not None and time.monotonic() < deadline:
        time.sleep(0.001)
    assert error.__traceback__ is error.__context__ is error.__cause__ is None


def test_panics_are_failures_that_are_not_kept(manager):
    """Whatever broke may be whole again, for example when memory was short."""
    manager.slow.go.set()
    error = manager.get(spec("panic")).exception(10)
    assert isinstance(error, GrammarError)
    assert "regex could not be compiled: a library gives up" in str(error)
    assert key_of(spec("panic")) not in manager._known
    manager.slow.compile = lambda _spec: manager.slow
    assert manager.get(spec("panic")).result(10).inner is manager.slow


def test_the_cache_is_limited_in_bytes(manager):
    manager.slow.go.set()
    for text in "abcdef":
        manager.get(spec(text)).result(10)
    deadline = time.monotonic() + 5
    while len(manager._known) > 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert len(manager._known) == 2


def test_short_constraints_do_not_wait_for_long_ones(manager):
    for number in range(3):
        manager.get(spec(f"{number}" * 20_000))
    manager.get(spec("short"))
    deadline = time.monotonic() + 5
    while "short" not in manager.slow.begun and time.monotonic() < deadline:
        time.sleep(0.001)
    assert "short" in manager.slow.begun
    assert len(manager.slow.begun) <= 2, "long ones are compiled one by one"


def test_expressions_are_measured_before_they_are_read(manager):
    error = manager.get(spec("a|" * 60_000)).exception(10)
    assert str(error).startswith("regex is too large: it has 120,000 characters, and at most 100,000 can be held")
    assert error.param == "regex"
    assert manager.slow.begun == []
