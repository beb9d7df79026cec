"""The queue of leaves against a sorted list."""

from __future__ import annotations

import random

from radixlang.cache.leaf_queue import RUN, Entry, LeafQueue


def drained(queue: LeafQueue[int]) -> list[Entry[int]]:
    out = []
    while (entry := queue.pop()) is not None:
        out.append(entry)
    assert len(queue) == 0
    return out


def test_smallest_key_first_and_the_older_of_equals() -> None:
    queue: LeafQueue[int] = LeafQueue(lambda entry: True)
    for item, key in enumerate((3, 1, 3, 2, 1)):
        queue.push(key, item)
    assert [entry[2] for entry in drained(queue)] == [1, 4, 3, 0, 2]
    assert queue.pop() is None


def test_many_entries_in_and_out() -> None:
    rng = random.Random(5)
    queue: LeafQueue[int] = LeafQueue(lambda entry: True)
    model: list[Entry[int]] = []
    for step in range(6 * RUN):
        entry = queue.push(rng.choice([step, rng.randrange(100), -step]), step)
        model.append(entry)
        if rng.random() < 0.3:
            first = min(model)
            model.remove(first)
            assert queue.pop() is first
        assert len(queue) == len(model)
    assert sorted(queue.entries()) == sorted(model)
    assert drained(queue) == sorted(model)


def test_entries_that_no_longer_count_are_dropped() -> None:
    rng = random.Random(6)
    gone: set[int] = set()
    queue: LeafQueue[int] = LeafQueue(lambda entry: entry[2] not in gone)
    model: dict[int, Entry[int]] = {}
    for step in range(4 * RUN):
        model[step] = queue.push(rng.randrange(100), step)
        if rng.random() < 0.5:
            gone.add(step)
    assert len(queue) == len(queue.entries()) < 2.7 * RUN  # all but the newest ones of those that count
    assert {entry[2] for entry in queue.entries()} >= model.keys() - gone
    queue.tidy()
    assert drained(queue) == sorted(model[step] for step in model.keys() - gone)
