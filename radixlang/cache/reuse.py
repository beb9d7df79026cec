"""How likely a cached run is used again, learnt from what the tree sees; the order `cost` lives by it.

Suppose that of the runs used k times a share p_k will be used again, each after a random time of mean T, and that
the others never are. The longer a run has not been used, the likelier it is one of the others: after a time t the
odds that it is used again are p_k / (1 - p_k) · exp(-t / T). A page is best given up where the expected gain, odds
times the cost of computing it again, is least: that is where t - T · ln(odds · cost) is largest. So runs go least
recently used first, but each counts as used `credit` = T · ln(odds · cost) later than it was. Shares and T are
counted as the tree runs. With nothing learnt, all credits are alike: lru.

Related: hit density (LHD, Beckmann et al. 2018) for learning odds by class, GreedyDual-Size-Frequency (Cherkasova
1998) for a value that stays valid while time passes. Must not know nodes or pages.
"""

from __future__ import annotations

import math

MOST_HITS = 7
"""runs hit this often or more are one class"""
PRIOR = 8.0
"""uses and losses that every class begins with"""
MEMORY = 4096.0
"""uses or losses after which what a class has seen so far counts half"""
SLOWNESS = 256
"""hits over which the mean time between two of them is taken"""
ATTENTION = 32768
"""tokens before a run from which attending to them costs as much as everything else about a token; an 8B model"""


class Reuse:
    """Counts by class; a class is how often a run has been hit."""

    def __init__(self) -> None:
        self.uses = [PRIOR] * (MOST_HITS + 1)
        """by hits before (`MOST_HITS` stands for more, too): runs that were used once more"""
        self.losses = [PRIOR] * (MOST_HITS + 1)
        """by hits before: runs that were evicted"""
        self._interval = 0.0

    def used(self, interval: float) -> None:
        """Runs, which `uses` has counted, were used again after a mean of `interval` tree uses."""
        self._interval += (interval - self._interval) / SLOWNESS

    def lost(self, hits: int) -> None:
        """A run was evicted."""
        kind = hits if hits < MOST_HITS else MOST_HITS
        self.losses[kind] += 1
        if self.losses[kind] + self.uses[kind] > MEMORY:
            self.losses[kind] /= 2
            self.uses[kind] /= 2

    def credit(self, hits: int, start: int) -> float:
        """How many tree uses later a run counts as used that has been hit `hits` times, with `start` tokens
        before it."""
        kind = hits if hits < MOST_HITS else MOST_HITS
        return self._interval * math.log(self.uses[kind] / self.losses[kind] * (1 + start / ATTENTION))
