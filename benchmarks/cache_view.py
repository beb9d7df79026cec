"""What looking at a server costs: the picture of the cache that its engine makes, and its way to the page.

    python benchmarks/cache_view.py                # trees of 5,000 and 100,000 runs

For each tree, shape and order: the time of the engine's thread to make one picture and to pack it. It makes one a
second while a page looks on, and five at most. Medians; exits with 1 if the tree of 5,000 takes more than `BAR`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import msgspec
import numpy as np
from common import environment

from radixlang.cache import RadixTree, make_cache
from radixlang.cache.view import ORDERS, tree_view

BAR = 5.0
"""milliseconds"""
PAGE = 16


def milliseconds(work: Callable[[], object]) -> float:
    """Median of this thread's time: others may use the processor too."""
    times = []
    for _ in range(15):
        began = time.thread_time()
        work()
        times.append(1e3 * (time.thread_time() - began))
    return statistics.median(times)


def tree_of(nodes: int, fan: int) -> RadixTree:
    """A tree in which up to `fan` runs go on from one."""
    rng = np.random.default_rng(1)
    tree = make_cache(PAGE)
    prompts = [np.zeros(0, np.int32)]
    used: dict[int, int] = {}
    page = 1
    while tree.nodes < nodes:
        at = int(rng.integers(len(prompts)))
        if used.get(at, 0) >= fan and at:
            continue
        used[at] = used.get(at, 0) + 1
        tokens = np.concatenate([prompts[at], rng.integers(0, 100_000, 4 * PAGE, dtype=np.int32)])
        count = len(tokens) // PAGE
        done = tree.insert(tokens, np.arange(page, page + count, dtype=np.int32))
        tree.lock(done.node)
        tree.hit(done.node)
        tree.unlock(done.node)
        page += count
        if len(tokens) < 4096:
            prompts.append(tokens)
    return tree


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[5000, 100_000])
    parser.add_argument("--limit", type=int, default=300)
    args = parser.parse_args()
    print(environment("cache_view"))
    failed = False
    for nodes in args.nodes:
        for shape, fan in (("narrow", 8), ("wide", nodes)):
            tree = tree_of(nodes, fan)
            for order in ORDERS:
                view = tree_view(tree, args.limit, order)
                made = milliseconds(lambda tree=tree, order=order: tree_view(tree, args.limit, order))
                packed = msgspec.msgpack.encode(view)
                sent = milliseconds(lambda view=view: msgspec.msgpack.encode(view))
                print(
                    f"{nodes:>7} runs, {shape:6} {order:7} picture {made:6.2f} ms,"
                    f" message {sent:5.2f} ms, {len(packed) / 1024:.0f} KiB",
                    flush=True,
                )
                failed |= nodes <= 5000 and made > BAR
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
