"""In which order waiting requests are tried. A policy yields them lazily, most urgent first; admission stops at
the first that does not fit, so a large request cannot be starved by small ones behind it.

Bounds, with `ahead` = requests that waited when this one arrived (aborts count as departures):

- fcfs: no later arrival is admitted first.
- lpm, dfs-weight: a request is overdue once `PATIENCE` later arrivals have left the queue before it for certain,
  and overdue requests go first, in order of arrival. So at most `ahead + PATIENCE` later arrivals, plus those of
  the step in which it becomes overdue, are admitted before it.
- priority: a request goes before one that is k levels higher if at least `k * AGING` others arrived between
  them. So at most `k * AGING` later arrivals are admitted first, k being the distance to the highest level in
  use. Levels are clamped to ± `queue.MAX_PRIORITY`, which makes the bound finite.

Retracted requests come first, under priority by their own priority and arrival. Requests of one queue that share a
prefix which nobody has computed yet need no order of their own: the first one's pages are in the tree before the
next is tried, in the same step. A policy must not change the queue or the tree.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import TypeAlias

from radixlang.cache import RadixTree, TreeNode
from radixlang.registry import Registry
from radixlang.scheduler.queue import WaitingQueue, level
from radixlang.scheduler.request import Request

Policy: TypeAlias = Callable[[WaitingQueue, RadixTree], Iterator[Request]]

POLICIES: Registry[Policy] = Registry(
    "schedule policy",
    "policy",
    {
        name: f"radixlang.scheduler.policy:{name.replace('-', '_')}"
        for name in ("fcfs", "lpm", "dfs-weight", "priority")
    },
)

PATIENCE = 64
WINDOW = 128
"""lpm, dfs-weight and admission's look ahead match at most this many requests a step against the tree"""
AGING = 64


def fcfs(queue: WaitingQueue, tree: RadixTree) -> Iterator[Request]:
    """First come, first served."""
    return iter(queue)


def lpm(queue: WaitingQueue, tree: RadixTree) -> Iterator[Request]:
    """Longest cached prefix first among the `WINDOW` longest-waiting, then first come first served."""
    return _by_tree(queue, lambda window: _longest_first(window, tree))


def dfs_weight(queue: WaitingQueue, tree: RadixTree) -> Iterator[Request]:
    """Branch by branch of the tree among the `WINDOW` longest-waiting, the branch with most of them first; then
    first come first served. What a branch's requests share is used by all of them before it may be evicted."""
    return _by_tree(queue, lambda window: _branch_by_branch(window, tree))


def _by_tree(queue: WaitingQueue, order: Callable[[list[Request]], list[Request]]) -> Iterator[Request]:
    """Overdue requests, then a window of the others in the given order, then the rest."""
    yield from queue.retracted
    line = queue.by_arrival()
    for request in line:
        if queue.departures < request.serial + PATIENCE:
            line = chain((request,), line)
            break
        yield request
    yield from order(list(islice(line, WINDOW)))
    yield from line


def _longest_first(window: list[Request], tree: RadixTree) -> list[Request]:
    matched = {request.serial: tree.match_length(request.tokens.view(), request.namespace) for request in window}
    return sorted(window, key=lambda request: (-matched[request.serial], request.serial))


def _branch_by_branch(window: list[Request], tree: RadixTree) -> list[Request]:
    paths = {request.serial: tree.path(request.tokens.view(), request.namespace)[0] for request in window}
    weights = Counter(node for path in paths.values() for node in path)
    # Below the tree's last node a branch goes on with the page that follows, which is not cached.
    first: dict[tuple[TreeNode | None, bytes], int] = {}
    places: dict[int, list[tuple[int, int]]] = {}
    for request in window:
        path = paths[request.serial]
        end = path[-1].end if path else 0
        follows = (path[-1] if path else None, request.tokens.view()[end : end + tree.page_size].tobytes())
        place = [(-weights[node], node.created) for node in path]
        places[request.serial] = [*place, (0, first.setdefault(follows, request.serial)), (0, request.serial)]
    return sorted(window, key=lambda request: places[request.serial])


def aged(request: Request) -> int:
    """The request's place in line under `priority`: each level is worth a lead of `AGING` arrivals."""
    return request.serial - AGING * level(request)


def priority(queue: WaitingQueue, tree: RadixTree) -> Iterator[Request]:
    """Higher priority first, first come first served within one; waiting makes up for priority."""
    retracted = sorted(queue.retracted, key=aged)
    return heapq.merge(retracted, queue.merged(aged), key=aged) if retracted else queue.merged(aged)
