"""Which replica gets a request: what a router can know when it decides, and no more.

That is the prompt, how many of its own requests each replica has not answered, and what it sent where before.
Must not look into replicas.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np

from radixlang.registry import Registry

ROUTERS: Registry[type[Router]] = Registry(
    "router",
    "router",
    {
        "random": "radixlang.simulate.router:Random",
        "round-robin": "radixlang.simulate.router:RoundRobin",
        "least-loaded": "radixlang.simulate.router:LeastLoaded",
        "cache-aware": "radixlang.simulate.router:CacheAware",
    },
)


class Router(Protocol):
    """`capacity` is the tokens that one replica's cache holds."""

    def __init__(self, replicas: int, capacity: int, seed: int) -> None: ...

    def choose(self, pieces: Sequence[tuple[Hashable, int]], loads: np.ndarray) -> int:
        """The replica for a prompt of `pieces` (name, tokens), when the replicas have `loads` requests each."""
        ...


class Random:
    """Any replica."""

    def __init__(self, replicas: int, capacity: int, seed: int) -> None:
        self._replicas = replicas
        self._random = np.random.default_rng(seed)

    def choose(self, pieces: Sequence[tuple[Hashable, int]], loads: np.ndarray) -> int:
        return int(self._random.integers(self._replicas))


class RoundRobin:
    """One after the other."""

    def __init__(self, replicas: int, capacity: int, seed: int) -> None:
        self._replicas = replicas
        self._turn = -1

    def choose(self, pieces: Sequence[tuple[Hashable, int]], loads: np.ndarray) -> int:
        self._turn = (self._turn + 1) % self._replicas
        return self._turn


class LeastLoaded:
    """The replica with the fewest requests; among equals any, so that an idle cluster is used evenly."""

    def __init__(self, replicas: int, capacity: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def choose(self, pieces: Sequence[tuple[Hashable, int]], loads: np.ndarray) -> int:
        (idle,) = (loads == loads.min()).nonzero()
        return int(idle[self._random.integers(len(idle))])


class CacheAware:
    """The replica that was sent the longest prefix of the prompt, unless that is short or the replica has far
    more to do than the others; then the least loaded one. What was sent long ago is forgotten, as the replicas
    forget it."""

    SHARE = 0.3
    """a prefix counts from this share of the prompt on"""
    AHEAD = 8
    """requests that a replica may have beyond `TIMES` the least loaded one's"""
    TIMES = 1.5

    def __init__(self, replicas: int, capacity: int, seed: int) -> None:
        self._least = LeastLoaded(replicas, capacity, seed)
        self._room = replicas * capacity
        self._sent: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """prefix → (replica, tokens of its last piece), the one used last at the end"""

    def choose(self, pieces: Sequence[tuple[Hashable, int]], loads: np.ndarray) -> int:
        chain, prefixes, matched, total, owner = 0, [], 0, 0, None
        for name, tokens in pieces:
            chain = hash((chain, name, tokens))
            prefixes.append((chain, tokens))
            total += tokens
            known = self._sent.get(chain)
            if known is not None:
                owner = known[0]
                matched += tokens
        bound = self.TIMES * float(loads.min()) + self.AHEAD
        if owner is None or matched < self.SHARE * total or loads[owner] > bound:
            owner = self._least.choose(pieces, loads)
        self._note(prefixes, owner)
        return owner

    def _note(self, prefixes: list[tuple[int, int]], replica: int) -> None:
        for chain, tokens in reversed(prefixes):  # the end of a prompt is forgotten before its beginning
            before = self._sent.pop(chain, None)
            if before is None:
                self._room -= tokens
            self._sent[chain] = (replica, tokens)
        while self._room < 0:
            _, (_, tokens) = self._sent.popitem(last=False)
            self._room += tokens
