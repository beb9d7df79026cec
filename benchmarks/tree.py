"""The radix tree at scale: matching, inserting, locking and evicting in a tree of 100,000 runs.

    python benchmarks/tree.py                       # pages of 1, 16 and 64 tokens
    python benchmarks/tree.py --page-sizes 16 --orders lru cost

The tree holds `--nodes` runs of ten pages (a million tokens with pages of one token, 64 million with pages of 64):
conversations of eight turns below a hundred system prompts. A prompt of 100,000 tokens goes into it, as one run
and as the turns of a conversation; then another one that shares nothing. Medians; exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
from common import environment

from radixlang.cache import RadixTree, make_cache
from radixlang.plan import Ints

PROMPT = 100_000
RUN = 10
"""pages of a run"""
TURNS = 8
BARS = {"match": 0.3, "insert": 1.0, "evict": 5.0}
"""milliseconds"""


def timed(work: Callable[[], object]) -> float:
    """Milliseconds of this thread: others may use the processor too."""
    began = time.thread_time()
    work()
    return 1e3 * (time.thread_time() - began)


class Bench:
    """One tree. `pages` of the pool are never handed out twice, as only the tree is measured."""

    def __init__(self, page_size: int, nodes: int, order: str) -> None:
        self.size = page_size
        self.tree: RadixTree = make_cache(page_size, order)
        self._random = np.random.default_rng(1)
        self._page = 1
        rng = random.Random(1)
        while self.tree._nodes < nodes:
            system = self.tokens(RUN * page_size)
            for _ in range(nodes // (100 * TURNS) + 1):
                prompt = system
                for _ in range(TURNS):
                    prompt = np.concatenate([prompt, self.tokens(RUN * page_size)])
                    self.insert(prompt)
                    if rng.random() < 0.1:
                        break

    def tokens(self, count: int) -> Ints:
        return self._random.integers(0, 128_000, count, dtype=np.int32)

    def insert(self, tokens: Ints) -> None:
        self.tree.insert(tokens, self.pages_for(tokens))

    def pages_for(self, tokens: Ints) -> Ints:
        count = len(tokens) // self.size
        self._page += count
        return np.arange(self._page - count, self._page, dtype=np.int32)

    def insertions(self, prompts: list[Ints]) -> float:
        """Median milliseconds."""
        return statistics.median(
            timed(lambda p=prompt, q=self.pages_for(prompt): self.tree.insert(p, q)) for prompt in prompts
        )

    def conversation(self, turns: int) -> Ints:
        """A prompt of 100,000 tokens that is cached as `turns` runs."""
        prompt = self.tokens(PROMPT)
        for turn in range(1, turns + 1):
            self.insert(prompt[: PROMPT * turn // turns])
        return prompt


def rows(bench: Bench, repeats: int) -> Iterator[tuple[str, str, float]]:
    """(bar, what, milliseconds)"""
    tree = bench.tree
    for turns in (1, 50, 500):
        prompt = bench.conversation(turns)
        node = tree.match_prefix(prompt).node
        match = statistics.median(timed(lambda p=prompt: tree.match_prefix(p)) for _ in range(repeats))
        yield "match", f"match 100k tokens in {turns} runs", match
        yield (
            "match",
            "… lock and unlock",
            statistics.median(timed(lambda n=node: (tree.lock(n), tree.unlock(n))) for _ in range(repeats)),
        )
        yield (
            "match",
            "… count a hit",
            statistics.median(timed(lambda n=node: tree.hit(n)) for _ in range(repeats)),
        )
        longer = [np.concatenate([prompt, bench.tokens(RUN * bench.size)]) for _ in range(repeats)]
        yield "insert", "… insert one more turn", bench.insertions(longer)
    fresh = [bench.tokens(PROMPT) for _ in range(repeats)]
    yield "insert", "insert 100k new tokens", bench.insertions(fresh)
    halves = [np.concatenate([p[: PROMPT // 2], bench.tokens(PROMPT // 2)]) for p in fresh]
    yield "insert", "insert where a run must be split", bench.insertions(halves)
    pages = 10_000
    evictions = min(repeats, tree.evictable // (2 * pages))
    yield "evict", "evict 10k pages", statistics.median(timed(lambda: tree.evict(pages)) for _ in range(evictions))
    yield "", "evict 1 page", statistics.median(timed(lambda: tree.evict(1)) for _ in range(100))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page-sizes", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--orders", nargs="+", default=["lru"])
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=21)
    args = parser.parse_args()
    print(environment("tree"))
    print("\n| page size | order | what | ms | bar | |\n| --- | --- | --- | --- | --- | --- |")
    gc.disable()  # an engine collects garbage when it is idle
    missed = False
    for page_size in args.page_sizes:
        for order in args.orders:
            bench = Bench(page_size, args.nodes, order)
            tree = bench.tree
            print(f"| {page_size} | {order} | {tree._nodes:,} runs, {tree.total * page_size:,} tokens | | | |")
            for bar, what, ms in rows(bench, args.repeats):
                ok = not bar or ms < BARS[bar]
                missed |= not ok
                print(f"| | | {what} | {ms:.3f} | {BARS.get(bar, '')} | {'pass' if ok else 'FAIL'} |")
    raise SystemExit(missed)


if __name__ == "__main__":
    main()
