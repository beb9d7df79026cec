"""Leader and follower around two executors that are not connected otherwise: both must have seen the same."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from radixlang.channel import LocalChannel
from radixlang.errors import EngineDeadError, EngineError
from radixlang.executor.follower import Leader, follow
from tests.executor.tiny import BOMB_TOKEN, Host, Row, TinyModel, make_executor


class Pair:
    """A leader, and a follower in a thread; `failure` is what the follower ended with."""

    def __init__(self) -> None:
        self.model = TinyModel()
        self.executors = [make_executor(self.model) for _ in range(2)]
        channel = LocalChannel()
        self.leader = Leader(self.executors[0], [channel])
        self.failure: Exception | None = None

        def run() -> None:
            try:
                follow(self.executors[1], channel)
            except Exception as error:
                self.failure = error

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def close(self) -> None:
        self.leader.close()
        self.thread.join(10)
        assert not self.thread.is_alive()
        self.executors[1].close()


@pytest.fixture
def pair():
    pair = Pair()
    yield pair
    pair.close()


def test_the_follower_draws_what_the_leader_draws(pair):
    host, rows = Host(4), [Row(1, [5, 6, 7, 8, 9]), Row(2, [11, 12])]
    tickets = [pair.leader.launch(host.plan([(rows[0], 5), (rows[1], 2)]))]
    for _ in range(6):
        tickets.append(pair.leader.launch(host.plan([(row, 1) for row in rows])))
    drawn = np.stack([pair.leader.result(ticket).tokens for ticket in tickets], 1)
    assert drawn[0].tolist() == pair.model.greedy([5, 6, 7, 8, 9], 7)
    assert drawn[1].tolist() == pair.model.greedy([11, 12], 7)
    pair.close()
    a, b = (executor.table for executor in pair.executors)
    assert a.next_token.tolist() == b.next_token.tolist()
    np.testing.assert_array_equal(a.host_pages, b.host_pages)
    assert pair.failure is None


def test_masks_reach_the_follower(pair):
    host, row = Host(4), Row(1, [5, 6, 7])
    ticket = pair.leader.launch(host.plan([(row, 3)], masked=np.array([0], np.int32)))
    masks = np.zeros((1, 4), np.int32)
    masks[0, 1] = 1 << 8  # token 40 alone
    pair.leader.sample(ticket, masks)
    assert pair.leader.result(ticket).tokens.tolist() == [40]
    pair.close()
    assert [int(executor.table.next_token[1]) for executor in pair.executors] == [40, 40]
    assert pair.failure is None


def test_a_step_that_is_given_up_before_its_masks_holds_nothing_up(pair):
    host, row = Host(4), Row(1, [5, 6, 7])
    bad = pair.leader.launch(host.plan([(Row(100, [5]), 1)]))
    behind = pair.leader.launch(host.plan([(row, 3)], masked=np.array([0], np.int32)))
    for ticket in (bad, behind):
        with pytest.raises(EngineError):
            pair.leader.result(ticket)
    row = Row(1, [5, 6, 7])
    ticket = pair.leader.launch(host.plan([(row, 3)], masked=np.array([0], np.int32)))
    masks = np.zeros((1, 4), np.int32)
    masks[0, 1] = 1 << 8  # token 40 alone
    pair.leader.sample(ticket, masks)
    assert pair.leader.result(ticket).tokens.tolist() == [40]
    pair.close()
    assert [int(executor.table.next_token[1]) for executor in pair.executors] == [40, 40]
    assert pair.failure is None


def test_a_refused_plan_harms_nobody(pair):
    host, row = Host(4), Row(1, [5, 6, 7])
    bad = host.plan([(Row(100, [5]), 1)])
    with pytest.raises(EngineError, match="request table"):
        pair.leader.result(pair.leader.launch(bad))
    ticket = pair.leader.launch(host.plan([(row, 3)]))
    assert pair.leader.result(ticket).tokens.tolist() == pair.model.greedy([5, 6, 7], 1)
    pair.close()
    assert pair.failure is None


def test_a_step_that_fails_midway_ends_both(pair):
    """With nothing behind it: an idle follower looks for itself."""
    ticket = pair.leader.launch(Host(4).plan([(Row(1, [5, BOMB_TOKEN]), 2)]))
    with pytest.raises(EngineDeadError, match="failed on rank 0"):
        pair.leader.result(ticket)
    pair.thread.join(5)
    assert isinstance(pair.failure, RuntimeError)
    assert "bomb" in str(pair.failure)
