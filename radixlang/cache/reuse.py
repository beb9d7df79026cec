"""How likely a cached run is used again, learnt from what the tree sees; the order `cost` lives by it.

Suppose that of the runs of a kind a share p will be used again, each after a random time of mean T, and that the
others never are. The longer a run has not been used, the likelier it is one of the others: after a time t the odds
that it is used again are p / (1 - p) · exp(-t / T). A page is best given up where the expected gain, odds times
the cost of computing it again, is least: that is where t - T · ln(odds · cost) is largest. So runs go least
recently used first, but each counts as used T · ln(odds · cost) later than it was: its `credit`.

Odds are counted by kind: how often a run was hit, and how long it is. That tells documents from the questions
behind them, and the end of a conversation, which the next turn reads, from that of an answer that nobody reads.
A run that is evicted counts as never used again, until it returns: then it counts as used again after all. Without
that, what is evicted early looks the worse, the more of it is evicted. Counting stays coarse, so credit is only
taken away, and only where the odds are clearly bad (`DOUBT`). Where all kinds are used again, the order is lru.

The constants say how fast to learn and how far to trust it, and matter little: of the workloads of
`benchmarks/simulate.py --sections grid` only `rag` notices a weight of 1/2 or 4, by a point or less.

Related: hit density (LHD, Beckmann et al. 2018) for learning odds by class, GreedyDual-Size-Frequency (Cherkasova
1998) for a value that stays valid while time passes, ARC (Megiddo and Modha 2003) for remembering what was
evicted. Must not know nodes or pages.
"""

from __future__ import annotations

import math

from radixlang.cache.node import ID_BYTES

HITS = 3
"""kinds by hits: none, one, more"""
SIZES = 20
"""kinds by length: each is four times as long as the one before"""
PRIOR = 8.0
"""uses and losses that every kind begins with"""
MEMORY = 4096.0
"""uses and losses of a kind after which what it has seen so far counts half"""
PATIENCE = 2 * 10**5
"""the same for times between two uses: tree uses, summed up"""
GHOSTS = 16384
"""evicted runs that are remembered at least, and at most twice as many (about 7 MB)"""
NAME = 64
"""bytes of a run's beginning that a ghost is known by, with its place"""
DOUBT = math.e
"""odds are taken to be so many times better than counted: one time constant T in a run's favour"""
WEIGHT = 2.0
"""credit in units of T · ln(odds · cost): more than 1, since `PRIOR` and `DOUBT` make bad odds look better"""
ATTENTION = 32768
"""tokens before a run from which attending to them costs as much as all else about a token (models of 8B)"""


def _kind(hits: int, size: int) -> int:
    return (hits if hits < HITS else HITS - 1) * SIZES + (size.bit_length() >> 1)


class Reuse:
    """Uses and losses by kind of run; a run's `size` is in bytes, times are counts of tree uses."""

    def __init__(self) -> None:
        self._uses = [PRIOR] * (HITS * SIZES)
        self._losses = [PRIOR] * (HITS * SIZES)
        self._idle = 1.0
        self._idle_squared = 0.0
        self._ghosts: dict[int, tuple[int, int, int]] = {}
        """kind, size and time of last use of evicted runs"""
        self._older: dict[int, tuple[int, int, int]] = {}
        """those before them, as many; forgotten all at once"""

    def used(self, hits: int, size: int, idle: int) -> None:
        """A run was used again, `idle` after it was used before; it had been hit `hits` times."""
        self._use(_kind(hits, size), idle)

    def _use(self, kind: int, idle: int) -> None:
        self._uses[kind] += 1
        self._idle += idle
        self._idle_squared += idle * idle

    def lost(self, hits: int, time: int, namespace: str, start: int, data: bytes) -> None:
        """A run was evicted: `data`, with `start` tokens before it, last used at `time`."""
        size = len(data)
        kind = _kind(hits, size)
        self._ghosts[hash((namespace, start, data[:NAME]))] = kind, size, time
        if len(self._ghosts) == GHOSTS:
            self._ghosts, self._older = {}, self._ghosts
        self._losses[kind] += 1
        if self._losses[kind] + self._uses[kind] > MEMORY:
            self._losses[kind] /= 2
            self._uses[kind] /= 2
        if self._idle > PATIENCE:
            self._idle /= 2
            self._idle_squared /= 2

    def returned(self, namespace: str, start: int, data: bytes, now: int) -> None:
        """`data` came into the tree, with `start` tokens before it: if these are runs that were evicted, they were
        used again."""
        at, ghosts, older = 0, self._ghosts, self._older
        while True:
            name = hash((namespace, start, data[at : at + NAME]))
            ghost = ghosts.pop(name, None) or older.pop(name, None)
            if ghost is None:
                return
            kind, size, time = ghost
            self._losses[kind] = max(1.0, self._losses[kind] - 1)
            self._use(kind, now - time)
            at += size
            start += size // ID_BYTES

    def credit(self, hits: int, size: int, start: int) -> float:
        """How much later a run counts as used than it was (0 or less), with `start` tokens before it."""
        kind = _kind(hits, size)
        odds = DOUBT * self._uses[kind] / self._losses[kind] * (1 + start / ATTENTION)
        # T weights times by themselves, so that the many short ones of what all share do not hide the others.
        return WEIGHT * self._idle_squared / self._idle * math.log(odds) if odds < 1 else 0.0
