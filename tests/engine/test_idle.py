"""When an engine's own process collects garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from radixlang.engine.idle import BUSY_INTERVAL, IDLE_INTERVAL, Collector


class Knot:
    """Freed by a pass only."""

    alive = 0

    def __init__(self) -> None:
        self.me = self
        Knot.alive += 1

    def __del__(self) -> None:
        Knot.alive -= 1


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_garbage_waits_for_an_idle_engine_but_not_for_ever() -> None:
    now = 0.0
    collector = Collector(lambda: now)
    assert not gc.isenabled()
    Knot()
    now += BUSY_INTERVAL - 1
    collector.turn(idle=False)
    assert Knot.alive == 1
    now += 1
    collector.turn(idle=False)
    assert Knot.alive == 0
    Knot()
    now += IDLE_INTERVAL / 2
    collector.turn(idle=True)
    assert Knot.alive == 1
    now += IDLE_INTERVAL
    collector.turn(idle=True)
    assert Knot.alive == 0
