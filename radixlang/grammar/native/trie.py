"""All tokens as a tree of their bytes, level by level in arrays, so that a mask is a few array operations.

level d: nodes whose path has d + 1 bytes; the children of a node stand together on the next level,
         and so do the tokens that end in it in `order`
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from radixlang.grammar.vocabulary import Vocabulary

Ints = npt.NDArray[np.int32]


class Level(NamedTuple):
    """The nodes of one depth, n of them."""

    byte: Ints
    """[n] the byte that leads here"""
    children: Ints
    """[n + 1] node i's children are nodes children[i] … children[i + 1] - 1 of the next level"""
    tokens: Ints
    """[n, 2] order[tokens[i, 0] : tokens[i, 1]] are the tokens that end here"""


class TokenTrie:
    """The tokens of a vocabulary. About 15 bytes a node."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.order = vocabulary.order
        words = [vocabulary.tokens[index] for index in self.order.tolist()]
        lengths = np.array([len(word) for word in words], np.int32)
        self.levels: list[Level] = []
        alive = np.arange(len(words))
        """tokens, in order, that are longer than the level is deep"""
        group = np.zeros(len(words), np.int64)
        """for each of them the node of the level above"""
        above = 1
        depth = 0
        self.roots = 0
        while len(alive):
            byte = np.array([words[i][depth] for i in alive.tolist()], np.int32)
            new = np.ones(len(alive), np.bool_)
            new[1:] = (group[1:] != group[:-1]) | (byte[1:] != byte[:-1])
            node = np.cumsum(new) - 1
            starts = np.flatnonzero(new)
            count = len(starts)
            per_parent = np.bincount(group[starts], minlength=above)
            offsets = np.concatenate([[0], np.cumsum(per_parent)]).astype(np.int32)
            if self.levels:
                self.levels[-1] = self.levels[-1]._replace(children=offsets)
            else:
                self.roots = count
            ends = lengths[alive] == depth + 1
            tokens = np.zeros((count, 2), np.int32)
            ending = np.flatnonzero(ends)
            # Tokens that end in a node come before those that go on from it, side by side.
            tokens[node[ending[::-1]], 0] = alive[ending[::-1]]
            tokens[node[ending], 1] = alive[ending] + 1
            self.levels.append(Level(byte[starts], np.zeros(count + 1, np.int32), tokens))
            above = count
            alive, group = alive[~ends], node[~ends]
            depth += 1

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for level in self.levels for part in level)


def spread(low: Ints, high: Ints) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The numbers of all intervals [low, high) one after the other, and for each number its interval's index."""
    counts = (high - low).astype(np.int64)
    of = np.repeat(np.arange(len(low)), counts)
    firsts = np.cumsum(counts) - counts
    return np.arange(len(of)) - firsts[of] + low[of], of
