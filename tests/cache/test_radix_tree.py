"""The radix tree against an obvious model: a dictionary from every whole-page prefix to its last page."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlang.cache import EVICTIONS, Foresight, NullTree, RadixTree, TreeNode, make_cache
from radixlang.cache.radix_tree import common_prefix
from radixlang.errors import ConfigError


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


class Slow:
    """Prefix (a tuple of tokens, whole pages) → page, per namespace."""

    def __init__(self, page_size: int) -> None:
        self.size = page_size
        self.pages: dict[tuple[str, tuple[int, ...]], int] = {}

    def match(self, tokens: list[int], namespace: str) -> list[int]:
        found = []
        for end in range(self.size, len(tokens) + 1, self.size):
            page = self.pages.get((namespace, tuple(tokens[:end])))
            if page is None:
                break
            found.append(page)
        return found

    def insert(self, tokens: list[int], pages: list[int], namespace: str) -> int:
        present = len(self.match(tokens, namespace))
        for index in range(present, len(tokens) // self.size):
            self.pages[namespace, tuple(tokens[: (index + 1) * self.size])] = pages[index]
        return present * self.size

    def drop(self, pages: list[int]) -> None:
        gone = set(pages)
        self.pages = {key: page for key, page in self.pages.items() if page not in gone}


def test_common_prefix() -> None:
    assert common_prefix(ints(), ints(1)) == 0
    assert common_prefix(ints(1, 2), ints(1, 2, 3)) == 2
    assert common_prefix(ints(1, 2, 4), ints(1, 2, 3)) == 2
    assert common_prefix(ints(9, 2, 4), ints(1, 2, 4)) == 0


def test_split_keeps_the_node_where_a_lock_ends() -> None:
    tree = make_cache(2)
    node = tree.insert(ints(1, 2, 3, 4, 5, 6), ints(11, 12, 13)).node
    tree.lock(node)
    match = tree.match_prefix(ints(1, 2, 3, 4, 9, 9))
    assert match.pages.tolist() == [11, 12]
    assert match.tokens == 4
    assert match.node is node.parent
    assert (tree.total, tree.locked, tree.evictable) == (3, 3, 0)
    tree.unlock(node)
    assert tree.locked == 0
    tree.check()


def test_match_is_cut_to_whole_pages() -> None:
    tree = make_cache(4)
    tree.insert(np.arange(10, dtype=np.int32), ints(5, 6, 7))
    assert tree.total == 2
    assert tree.match_prefix(np.arange(7, dtype=np.int32)).pages.tolist() == [5]
    assert tree.match_prefix(np.arange(3, dtype=np.int32)).tokens == 0


def test_insert_tells_duplicates_and_the_pages_to_use() -> None:
    tree = make_cache(1)
    tree.insert(ints(1, 2, 3), ints(11, 12, 13))
    done = tree.insert(ints(1, 2, 7, 8), ints(21, 22, 27, 28))
    assert (done.present, done.stored) == (2, 4)
    assert done.pages.tolist() == [11, 12, 27, 28]
    assert tree.match_prefix(ints(1, 2, 7, 8)).node is done.node


def test_path_changes_nothing_and_tells_where_a_match_would_end() -> None:
    tree = make_cache(2)
    node = tree.insert(ints(1, 2, 3, 4, 5, 6), ints(11, 12, 13)).node
    assert tree.path(ints(1, 2, 3, 4, 9, 9)) == ([node], 4)
    assert tree.path(ints(1, 2, 3)) == ([node], 2)
    assert tree.path(ints(9, 9)) == ([], 0)
    assert tree.path(ints(1, 2), "other") == ([], 0)
    assert (node.start, node.end, node.tokens.tolist()) == (0, 6, [1, 2, 3, 4, 5, 6])
    upper = tree.match_prefix(ints(1, 2)).node
    assert tree.path(ints(1, 2, 3, 4, 5, 6)) == ([upper, node], 6)
    assert (upper.end, node.start, node.end) == (2, 2, 6)


def test_namespaces_share_nothing_and_vanish_when_empty() -> None:
    tree = make_cache(1)
    tree.insert(ints(1, 2), ints(11, 12), "a")
    assert tree.match_prefix(ints(1, 2), "b").tokens == 0
    assert tree.match_prefix(ints(1, 2), "a").tokens == 2
    match = tree.match_prefix(ints(1, 2), "b")
    tree.lock(match.node)
    tree.unlock(match.node)
    assert sorted(tree.evict(5).tolist()) == [11, 12]
    assert tree.roots() == []


def test_eviction_cuts_the_end_of_a_long_run_and_spares_locks() -> None:
    tree = make_cache(1)
    tree.insert(np.arange(8, dtype=np.int32), np.arange(1, 9, dtype=np.int32))
    assert tree.evict(3).tolist() == [6, 7, 8]
    assert tree.match_length(np.arange(8, dtype=np.int32)) == 5
    match = tree.match_prefix(np.arange(2, dtype=np.int32))
    tree.lock(match.node)
    assert sorted(tree.evict(99).tolist()) == [3, 4, 5]
    assert tree.evict(1).tolist() == []
    tree.unlock(match.node)
    assert tree.evict(1).tolist() == [2]
    tree.check()


def test_part_of_a_page_is_found_in_the_tree_and_where_one_is_lent() -> None:
    tree = make_cache(4)
    node = tree.insert(np.arange(4, dtype=np.int32), ints(1)).node
    tree.insert(np.arange(8, dtype=np.int32), ints(1, 2))
    part = tree.part_page(node, ints(4, 5, 9, 9))
    assert part is not None
    assert (part.tokens, part.page, part.node) == (2, 2, next(iter(node.children.values())))
    assert tree.part_page(node, ints(4, 9, 9, 9)) is None  # less than half a page
    part = tree.part_page(node, ints(4))  # but all there is
    assert part is not None
    assert part.tokens == 1
    tree.lock(node)
    clock = tree.clock
    tree.lend(node, ints(4, 9, 9), 3)
    tree.lend(node, ints(4, 9, 9), 5)  # the same once more
    part = tree.part_page(node, ints(4, 9, 9, 9))
    assert part is not None
    assert (part.tokens, part.page, part.since, part.node) == (3, 3, clock + 1, None)
    tree.take_back(node, 5)
    assert tree.part_page(node, ints(4, 9, 9, 9)) is not None
    tree.take_back(node, 3)
    assert tree.part_page(node, ints(4, 9, 9, 9)) is None
    tree.unlock(node)
    tree.check()


ORDERS = {
    "lru": "cab",  # c used longest ago
    "mru": "bac",
    "fifo": "abc",
    "filo": "cba",
    "lfu": "cba",
    "slru": "cab",
    "priority": "cab",
    "cost": "cab",
}


@pytest.mark.parametrize("name", EVICTIONS.names())
def test_orders(name: str) -> None:
    """a: made first, 2 hits, priority 1; b: 1 hit, used last, priority 2; c: made last, no hit, priority 0."""
    tree = make_cache(1, name)
    runs = {"a": ints(1), "b": ints(2), "c": ints(3)}
    for priority, run in zip((1, 2, 0), runs.values(), strict=True):
        tree.insert(run, run * 10, priority=priority)
    for key in "aab":
        node = tree.match_prefix(runs[key]).node
        tree.lock(node)
        tree.hit(node)
        tree.unlock(node)
    names = {int(run[0]) * 10: key for key, run in runs.items()}
    assert "".join(names[int(tree.evict(1)[0])] for _ in runs) == ORDERS[name]


def test_unknown_order_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="lru"):
        make_cache(1, "lur")


def test_forget_removes_up_to_the_next_lock_or_branch() -> None:
    tree = make_cache(1)
    tree.insert(ints(1, 2, 3), ints(11, 12, 13))
    tree.insert(ints(1, 2, 9), ints(11, 12, 19))
    long = tree.insert(ints(1, 2, 3, 4), ints(11, 12, 13, 14)).node
    assert sorted(tree.forget(long).tolist()) == [13, 14]
    node = tree.match_prefix(ints(1, 2, 9)).node
    tree.lock(node)
    assert tree.forget(node).tolist() == []
    tree.unlock(node)
    assert sorted(tree.forget(node).tolist()) == [11, 12, 19]
    assert tree.roots() == []
    tree.check()


def test_null_tree_keeps_nothing() -> None:
    tree = make_cache(1, enabled=False)
    assert isinstance(tree, NullTree)
    done = tree.insert(ints(1, 2), ints(11, 12))
    assert (done.present, done.stored) == (0, 0)
    match = tree.match_prefix(ints(1, 2))
    assert match.tokens == tree.match_length(ints(1, 2)) == 0
    tree.lock(match.node)
    tree.unlock(match.node)
    assert tree.evict(3).tolist() == tree.flush().tolist() == []
    tree.check()


def test_queue_of_leaves_stays_small_under_repeated_use() -> None:
    tree = make_cache(1)
    tree.insert(ints(1, 2), ints(11, 12))
    for _ in range(5000):
        tree.match_prefix(ints(1, 2))
    assert len(tree._leaves) < 100


def run_program(seed: int, steps: int, page_size: int, order: str) -> None:
    """Random inserts, matches, locks, evictions and flushes; every answer is compared with the slow model."""
    rng = random.Random(seed)
    tree: RadixTree = make_cache(page_size, order)
    foresight = Foresight(tree)
    slow = Slow(page_size)
    next_page = 1
    locks: list[tuple[TreeNode, list[int], list[int], str, Callable[[TreeNode], None]]] = []

    def prompt() -> list[int]:
        base = [rng.randrange(3) for _ in range(rng.randrange(10 * page_size))]
        return [0] * rng.randrange(3 * page_size) + base

    for _ in range(steps):
        action = rng.random()
        namespace = rng.choice(["", "x"])
        tokens = prompt()
        array = np.array(tokens, np.int32)
        if action < 0.35:
            count = len(tokens) // page_size
            pages = list(range(next_page, next_page + count))
            next_page += count
            expected = slow.insert(tokens, pages, namespace)
            done = tree.insert(array, np.array(pages, np.int32), namespace, rng.randrange(3))
            assert (done.present, done.stored) == (expected, count * page_size)
            assert done.pages.tolist() == slow.match(tokens, namespace)
        elif action < 0.7:
            expected_pages = slow.match(tokens, namespace)
            assert tree.match_length(array, namespace) == len(expected_pages) * page_size
            match = tree.match_prefix(array, namespace)
            assert match.pages.tolist() == expected_pages
            assert match.tokens == len(expected_pages) * page_size
            if rng.random() < 0.5:
                tree.lock(match.node)
                tree.hit(match.node)
                locks.append((match.node, expected_pages, tokens, namespace, tree.unlock))
            elif rng.random() < 0.2:
                tree.pin(match.node)
                locks.append((match.node, expected_pages, tokens, namespace, tree.unpin))
        elif action < 0.82 and locks:
            node, *_, undo = locks.pop(rng.randrange(len(locks)))
            undo(node)
        elif action < 0.87:
            foresight.look([(np.array(prompt(), np.int32), "") for _ in range(rng.randrange(4))], rng.randrange(9))
        elif action < 0.97:
            wanted = rng.randrange(1, 12)
            evictable = tree.evictable
            pages = tree.evict(wanted).tolist()
            assert len(pages) == min(wanted, evictable)
            assert set(pages) <= set(slow.pages.values())
            slow.drop(pages)
        elif not locks:
            assert sorted(tree.flush().tolist()) == sorted(slow.pages.values())
            slow.pages.clear()
        locked, pinned = set(), set()
        for node, pages, tokens, namespace, undo in locks:
            assert slow.match(tokens, namespace)[: len(pages)] == pages, "a locked page was evicted"
            assert node.locks > 0
            locked.update(pages)
            pinned.update(pages if undo == tree.unpin else ())
        assert tree.total == len(slow.pages)
        assert (tree.locked, tree.pinned) == (len(locked), len(pinned))
        tree.check()
    assert sorted(tree.pages().tolist()) == sorted(slow.pages.values())
    for node, *_, undo in locks:
        undo(node)
    assert sorted(tree.evict(1 << 30).tolist()) == sorted(slow.pages.values())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from([1, 4, 16]), st.sampled_from(EVICTIONS.names()))
def test_random_programs(seed: int, page_size: int, order: str) -> None:
    run_program(seed, 60, page_size, order)


@pytest.mark.slow
@pytest.mark.parametrize("order", EVICTIONS.names())
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_long_random_programs(page_size: int, order: str) -> None:
    for seed in range(10):
        run_program(seed, 400, page_size, order)


def test_least_recently_used_pages_go_first_in_random_use() -> None:
    """With single-page leaves the order of eviction is exactly the order of last use."""
    rng = random.Random(4)
    tree = make_cache(1)
    used = list(range(40))
    for token in used:
        tree.insert(ints(token), ints(token + 1))
    for _ in range(300):
        token = rng.randrange(40)
        node = tree.match_prefix(ints(token)).node
        if rng.random() < 0.5:
            tree.lock(node)
            tree.unlock(node)
        used.remove(token)
        used.append(token)
    assert [int(tree.evict(1)[0]) - 1 for _ in range(40)] == used
