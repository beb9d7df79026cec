"""All tokens as a tree of their bytes, in a few flat arrays, and the walk that makes a mask of it.

The nodes are numbered level by level, and below one parent by their bytes: the children of a node stand side by
side, and so do the children of neighbours. The root is node 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from radixlang.grammar.grammar import Mask
from radixlang.grammar.native.dfa import DEAD
from radixlang.grammar.native.subsets import ACTION, UNKNOWN, Subsets
from radixlang.grammar.vocabulary import Vocabulary

Ints = npt.NDArray[np.int32]
Walk = Callable[["TokenTrie", Ints, int, Mask], None]
StackWalk = Callable[["TokenTrie", Subsets, int, list[int], Mask], int]


class TokenTrie:
    """The tokens of a vocabulary, n nodes; about ten bytes a node."""

    byte: npt.NDArray[np.uint8]
    """[n] the byte that leads to a node; 0 for the root"""
    children: Ints
    """[n + 1] node i's children are children[i] … children[i + 1] - 1"""
    first: Ints
    """[n + 1] the tokens that end in node i are order[first[i] : first[i + 1]]"""
    order: Ints
    """ids of the tokens in the order of their nodes"""

    def __init__(self, vocabulary: Vocabulary, order: Ints) -> None:
        """`order`: the tokens to take, sorted by their bytes."""
        words = [vocabulary.tokens[index] for index in order.tolist()]
        letters = np.frombuffer(b"".join(words), np.uint8)
        lengths = np.fromiter(map(len, words), np.int32, len(words))
        starts = np.cumsum(lengths) - lengths
        byte, children, first, ending = [np.zeros(1, np.uint8)], [], [], []
        alive = np.arange(len(words))
        """the tokens, as places in the order, that are longer than the level is deep"""
        node = np.zeros(len(words), np.int64)
        """their nodes on this level"""
        width, below, ended = 1, 1, 0
        for depth in range(int(lengths.max(initial=0)) + 1):
            ends = lengths[alive] == depth
            # Tokens are sorted, so those that end here stand in the order of their nodes.
            first.append(ended + _before(node[ends], width))
            ending.append(order[alive[ends]])
            ended += int(ends.sum())
            alive, node = alive[~ends], node[~ends]
            letter = letters[starts[alive] + depth]
            new = np.ones(len(alive), np.bool_)
            new[1:] = (node[1:] != node[:-1]) | (letter[1:] != letter[:-1])
            children.append(below + _before(node[new], width))
            byte.append(letter[new])
            node = np.cumsum(new) - 1
            width = int(new.sum())
            below += width
        self.byte = np.concatenate(byte)
        self.children = np.concatenate([*children, [below]]).astype(np.int32)
        self.first = np.concatenate([*first, [ended]]).astype(np.int32)
        self.order = np.concatenate(ending).astype(np.int32)
        self.longest = int(lengths.max(initial=0))
        """bytes of the longest token"""

    def __len__(self) -> int:
        return len(self.byte)

    def child(self, nodes: npt.NDArray[np.integer], letters: npt.NDArray[np.uint8]) -> Ints:
        """For each node the child that a byte leads to; 0 where there is none."""
        low, high = self.children[nodes], self.children[nodes + 1]
        end = high
        while (open_ := low < high).any():  # halving, all at once
            middle = (low + high) >> 1
            less = open_ & (self.byte[np.minimum(middle, len(self) - 1)] < letters)
            low, high = np.where(less, middle + 1, low), np.where(open_ & ~less, middle, high)
        found = (low < end) & (self.byte[np.minimum(low, len(self) - 1)] == letters)
        return np.where(found, low, 0)

    def tokens(self, nodes: npt.NDArray[np.integer]) -> Ints:
        """The tokens that end in the nodes."""
        return self.order[_spread(self.first[nodes], self.first[nodes + 1])[0]]


LONG = 0.004
"""share of the tokens that count as long"""


class TokenTries(NamedTuple):
    """Almost all tokens are short, and places far from the end of a repetition differ in long ones only."""

    short: TokenTrie
    long: TokenTrie

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> TokenTries:
        order = vocabulary.order
        lengths = vocabulary.lengths[order]
        short = lengths <= (np.quantile(lengths, 1 - LONG) if len(order) else 0)
        return cls(TokenTrie(vocabulary, order[short]), TokenTrie(vocabulary, order[~short]))

    def writable(self) -> npt.NDArray[np.bool_]:
        """[256] the bytes that occur in tokens."""
        found = [np.bincount(trie.byte[1:], minlength=256) for trie in self]
        return found[0] + found[1] > 0


def _before(nodes: npt.NDArray[np.integer], width: int) -> npt.NDArray[np.int64]:
    """[width] how many of the (sorted) nodes come before each."""
    counts = np.bincount(nodes, minlength=width)
    return np.cumsum(counts) - counts


def _spread(low: Ints, high: Ints) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The numbers of all intervals [low, high) one after the other, and for each number its interval's index."""
    counts: npt.NDArray[np.int64] = (high - low).astype(np.int64)
    of = np.repeat(np.arange(len(low)), counts)
    firsts = np.cumsum(counts) - counts
    return (np.arange(len(of)) - firsts[of] + low[of]).astype(np.int64), of


def walk_levels(trie: TokenTrie, table: Ints, state: int, out: Mask) -> None:
    """Set the bits of the tokens all of whose bytes can be read from a state. `table` int32 [states, 256] holds
    the next state for each byte, -1 for none; `out` [words]. Level by level, in numpy."""
    nodes, of = np.arange(trie.children[0], trie.children[1]), np.full(1, state, np.int32)
    came = np.repeat(of, len(nodes))
    bits = np.zeros(len(out) * 32, np.uint8)
    while len(nodes):
        now = table[came, trie.byte[nodes]]
        live = now >= 0
        nodes, now = nodes[live], now[live]
        bits[trie.tokens(nodes)] = 1
        nodes, parent = _spread(trie.children[nodes], trie.children[nodes + 1])
        came = now[parent]
    out |= np.packbits(bits, bitorder="little").view(np.int32)


def walk_stacks(trie: TokenTrie, subsets: Subsets, state: int, frames: list[int], out: Mask) -> int:
    """`walk_levels` for an automaton with a stack → how many of the frames some token returned through. `frames`:
    those on the stack, the last the topmost, as many as a token has bytes."""
    used = 0
    bits = np.zeros(len(out) * 32, np.uint8)
    frame, below = np.array([*frames, 0], np.int32)[:-1], np.arange(-1, len(frames) - 1)
    nodes = np.arange(trie.children[0], trie.children[1])
    came, top = np.full(len(nodes), state), np.full(len(nodes), len(frames) - 1)
    while len(nodes):
        for one in np.unique(came).tolist():
            if subsets.table[one, 0] == UNKNOWN:
                subsets.expand(one)
        now = subsets.table[came, trie.byte[nodes]]
        acting = np.flatnonzero(now <= ACTION)
        if len(acting):
            what = subsets.actions[ACTION - now[acting]]
            opens = what[:, 0] != DEAD
            calling, back = acting[opens], acting[~opens]
            frame, below = np.append(frame, what[opens, 0]), np.append(below, top[calling])
            now[calling], top[calling] = what[opens, 1], np.arange(len(frame) - len(calling), len(frame))
            reached = top[back]
            if len(reached):
                used = max(used, len(frames) - int(reached.min()))
            now[back] = [
                subsets.back(int(frame[one]), int(slots))
                for one, slots in zip(reached, what[~opens, 1], strict=True)
            ]
            top[back] = below[reached]
        live = now >= 0
        nodes, now, top = nodes[live], now[live], top[live]
        bits[trie.tokens(nodes)] = 1
        nodes, parent = _spread(trie.children[nodes], trie.children[nodes + 1])
        came, top = now[parent], top[parent]
    out |= np.packbits(bits, bitorder="little").view(np.int32)
    return used


@cache
def stack_walker() -> StackWalk:
    """`walk_stacks`, or its compiled twin where numba is installed."""
    if find_spec("numba") is None:
        return walk_stacks
    from radixlang.grammar.native.walk import stack_walk

    return stack_walk


@cache
def walker() -> Walk:
    """`walk_levels`, or its compiled twin where numba is installed."""
    if find_spec("numba") is None:
        return walk_levels
    from radixlang.grammar.native.walk import walk

    return walk
