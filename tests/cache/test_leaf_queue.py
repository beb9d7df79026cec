"""The queue of leaves against a sorted list."""

from __future__ import annotations

import random

from radixlang.cache.leaf_queue import RUN, Entry, LeafQueue


def drained(queue: LeafQueue[str]) -> list[Entry[str]]:
    out = []
    while (entry := queue.first()) is not None:
        out.append(entry)
        queue.pop()
    assert len(queue) == 0
    return out


def test_smallest_key_first_and_the_older_of_equals() -> None:
    queue: LeafQueue[str] = LeafQueue()
    for key, item in ((3, "a"), (1, "b"), (3, "c"), (2, "d")):
        queue.push(key, item)
    assert [entry[2] for entry in drained(queue)] == ["b", "d", "a", "c"]


def test_many_entries_in_and_out() -> None:
    rng = random.Random(5)
    queue: LeafQueue[int] = LeafQueue()
    model: list[Entry[int]] = []
    for step in range(6 * RUN):
        entry = queue.push(rng.choice([step, rng.randrange(100), -step]), step)
        model.append(entry)
        if rng.random() < 0.3:
            first = min(model)
            assert queue.first() is first
            model.remove(first)
            queue.pop()
        assert len(queue) == len(model)
    assert sorted(queue.entries()) == sorted(model)
    queue.keep(lambda entry: entry[2] % 3 == 0)
    kept = sorted(entry for entry in model if entry[2] % 3 == 0)
    assert len(queue) == len(kept)
    assert drained(queue) == kept  # type: ignore[arg-type]
