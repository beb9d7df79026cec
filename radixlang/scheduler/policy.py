"""In which order waiting requests are tried. A policy yields them lazily, most urgent first; admission stops at
the first that does not fit, so a large request cannot be starved by small ones behind it.

Bounds, with `ahead` = requests that waited when this one arrived (aborts count as departures):

- fcfs: no later arrival is admitted first.
- lpm: a request is overdue once `PATIENCE` later arrivals have left the queue before it for certain, and
  overdue requests go first, in order of arrival. So at most `ahead + PATIENCE` later arrivals, plus those of the
  step in which it becomes overdue, are admitted before it.
- priority: a request goes before one that is k levels higher if at least `k * AGING` others arrived between
  them. So at most `k * AGING` later arrivals are admitted first, k being the distance to the highest level in
  use. Levels are clamped to ± `queue.MAX_PRIORITY`, which makes the bound finite.

Retracted requests come first under fcfs and lpm, and by their own priority and arrival under priority.
A policy must not change the queue or the tree.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import TypeAlias

from radixlang.cache import RadixTree
from radixlang.registry import Registry
from radixlang.scheduler.queue import WaitingQueue, level
from radixlang.scheduler.request import Request

Policy: TypeAlias = Callable[[WaitingQueue, RadixTree], Iterator[Request]]

POLICIES: Registry[Policy] = Registry(
    "schedule policy",
    "policy",
    {name: f"radixlang.scheduler.policy:{name}" for name in ("fcfs", "lpm", "priority")},
)

PATIENCE = 64
LPM_WINDOW = 128
"""lpm matches at most this many requests a step against the tree"""
AGING = 64


def fcfs(queue: WaitingQueue, tree: RadixTree) -> Iterator[Request]:
    """First come, first served."""
    return iter(queue)


def lpm(queue: WaitingQueue, tree: RadixTree) -> Iterator[Request]:
    """Longest cached prefix first among the `LPM_WINDOW` longest-waiting, then first come first served."""
    yield from queue.retracted
    line = queue.by_arrival()
    for request in line:
        if queue.departures < request.serial + PATIENCE:
            line = chain((request,), line)
            break
        yield request
    window = list(islice(line, LPM_WINDOW))
    matched = {request.serial: tree.match_length(request.tokens.view(), request.namespace) for request in window}
    yield from sorted(window, key=lambda request: (-matched[request.serial], request.serial))
    yield from line


def aged(request: Request) -> int:
    """The request's place in line under `priority`: each level is worth a lead of `AGING` arrivals."""
    return request.serial - AGING * level(request)


def priority(queue: WaitingQueue, tree: RadixTree) -> Iterator[Request]:
    """Higher priority first, first come first served within one; waiting makes up for priority."""
    retracted = sorted(queue.retracted, key=aged)
    return heapq.merge(retracted, queue.merged(aged), key=aged) if retracted else queue.merged(aged)
