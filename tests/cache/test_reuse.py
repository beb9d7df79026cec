"""What the order `cost` learns, and what that is worth."""

from __future__ import annotations

import random

import numpy as np

from radixlang.cache import PagePool, make_cache
from radixlang.cache.reuse import GHOSTS, Reuse

SIZE = 16


def lose(reuse: Reuse, size: int, count: int = 1, place: int = 0) -> None:
    """So many runs that were never hit are evicted, each from a place of its own."""
    for start in range(place, place + count):
        reuse.lost(0, 0, "", start, bytes(size))


def test_credit_is_taken_where_odds_are_bad_and_less_where_computing_is_dear() -> None:
    reuse = Reuse()
    assert reuse.credit(0, 64, 0) == 0
    for _ in range(200):
        reuse.used(1, 4096, 10)
    lose(reuse, 256, 200)
    assert reuse.credit(1, 4096, 0) == 0
    shallow, deep = reuse.credit(0, 256, 0), reuse.credit(0, 256, 50_000)
    assert shallow < deep < 0
    assert reuse.credit(0, 8192, 0) == 0  # another kind of run
    for _ in range(200):
        reuse.used(0, 256, 10)
    assert reuse.credit(0, 256, 0) == 0


def test_counts_fade() -> None:
    reuse = Reuse()
    lose(reuse, 256, 20_000)
    for _ in range(20_000):
        reuse.used(3, 4096, 100)
    before = reuse.credit(0, 256, 0)
    for _ in range(5000):
        reuse.used(0, 256, 100)
        lose(reuse, 256)
    assert before < reuse.credit(0, 256, 0) == 0


def test_what_returns_was_used_again() -> None:
    """Runs that are evicted and come back are no worse than runs that stay, be they joined to one or not."""
    early, late = Reuse(), Reuse()
    for reuse in (early, late):
        reuse.used(2, 1 << 20, 50)
        lose(reuse, 256, 200)
        lose(reuse, 1024, 200, place=10_000)
    for start in range(200):
        early.returned("", start, bytes(256), 50)
        early.returned("", 10_000 + start, bytes(1024), 50)
        late.returned("other", start, bytes(256), 50)  # not the same, though the tokens are
    assert early.credit(0, 256, 0) == early.credit(0, 1024, 0) == 0
    assert late.credit(0, 256, 0) < 0 > late.credit(0, 1024, 0)

    joined = Reuse()
    lose(joined, 256, 50)
    joined.lost(1, 0, "", 0, bytes(256))
    joined.lost(0, 0, "", 64, bytes(4096))
    alone = joined.credit(0, 4096, 0)
    joined.returned("", 0, bytes(256 + 4096 + 64), 10)
    assert joined._ghosts.keys().isdisjoint({hash(("", 0, bytes(64))), hash(("", 64, bytes(64)))})
    assert joined.credit(0, 4096, 0) >= alone


def test_ghosts_are_bounded() -> None:
    reuse = Reuse()
    lose(reuse, 256, 3 * GHOSTS)
    assert len(reuse._ghosts) + len(reuse._older) <= 2 * GHOSTS
    uses = sum(reuse._uses)
    for start in range(3 * GHOSTS):
        reuse.returned("", start, bytes(256), 1)
    assert GHOSTS <= sum(reuse._uses) - uses <= 2 * GHOSTS


def hit_rate(order: str, prompts: list[np.ndarray], pages: int) -> float:
    """Prompts one after another through a tree and a pool of `pages`."""
    tree, pool, hit = make_cache(SIZE, order), PagePool(pages + 1), 0
    for prompt in prompts:
        match = tree.match_prefix(prompt)
        tree.lock(match.node)
        tree.hit(match.node)
        hit += match.tokens
        need = len(prompt) // SIZE - len(match.pages)
        if need > pool.available:
            pool.free(tree.evict(need - pool.available))
        own = pool.alloc(need)
        assert own is not None
        tree.insert(prompt, np.concatenate([match.pages, own]))
        tree.unlock(match.node)
    tree.check()
    return hit / sum(map(len, prompts))


def test_documents_outlive_the_questions_behind_them() -> None:
    """Few documents and many questions: the order cost keeps what lru loses. In conversations they agree."""
    rng, tokens = random.Random(1), np.random.default_rng(1)

    def text(count: int) -> np.ndarray:
        return tokens.integers(0, 100_000, count, dtype=np.int32)

    documents = [text(rng.randrange(400, 1600)) for _ in range(60)]
    popular = np.random.default_rng(2).zipf(1.3, 1200) % 60
    questions = [np.concatenate([documents[i], text(200)]) for i in popular]
    working_set = (sum(map(len, documents)) + 200 * len(questions)) // SIZE
    assert hit_rate("cost", questions, working_set // 6) > hit_rate("lru", questions, working_set // 6) + 0.02

    talks, turns = [text(300) for _ in range(40)], []
    for _ in range(600):
        talk = rng.randrange(40)
        talks[talk] = np.concatenate([talks[talk], text(rng.randrange(50, 200))])
        if len(talks[talk]) > 3000:
            talks[talk] = text(300)
        turns.append(talks[talk])
    assert hit_rate("cost", turns, 2000) >= hit_rate("lru", turns, 2000) - 0.001
