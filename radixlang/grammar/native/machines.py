"""What an expression and a list of choices have in common: places in a text, and what may follow them.

A place is a number or a tuple, equal where the same may follow. Machines never change and are shared by all texts
and threads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from radixlang.grammar.grammar import Mask
from radixlang.grammar.native.dfa import DEAD, Dfa
from radixlang.grammar.native.plain import PlainTokens
from radixlang.grammar.native.trie import TokenTrie, TokenTries, walker

SMALL = 64
"""automata with fewer states are not searched for states with equal masks"""


class Machine(Protocol):
    """One constraint over one vocabulary."""

    start: Any

    @property
    def nbytes(self) -> int: ...

    def read(self, place: Any, data: bytes) -> Any:
        """The place after some bytes; None where they may not stand."""
        ...

    def accepts(self, place: Any) -> bool:
        """The text may end here."""
        ...

    def only_end(self, place: Any) -> bool:
        """Nothing may follow."""
        ...

    def forced(self, place: Any) -> bytes:
        """The bytes that must follow, up to the first choice."""
        ...

    def tokens(self, place: Any) -> Mask:
        """The tokens that may follow, without ends; not to be written to."""
        ...

    def key(self, place: Any) -> Hashable:
        """Places with equal ones have the same tokens. May become another by `tokens`, once."""
        ...

    def forget(self) -> None:
        """Drop what was kept to make masks faster."""
        ...


class Expression:
    """A regular expression, or a few choices; places are the states of its automaton."""

    def __init__(self, dfa: Dfa, tries: TokenTries, words: int, plain: PlainTokens | None = None) -> None:
        """`plain`: makes the first masks inside of strings faster."""
        self.start = 0
        self.dfa = dfa
        self._tries = tries
        self._words = words
        self._next = memoryview(dfa.table.reshape(-1).data)
        self._accepts = dfa.accepts.tolist()
        self._leads_on = (dfa.table != DEAD).any(1).tolist()
        self._alike = _alike(dfa, tries.short.longest)
        self._short: dict[int, Mask] = {}
        self._plain = plain
        self._allowed = plain.allowed(dfa.table) if plain else [None] * len(dfa)

    @property
    def nbytes(self) -> int:
        return self.dfa.table.nbytes + 4 * self._words * len(self._short)

    def read(self, place: int, data: bytes) -> int | None:
        following = self._next
        for byte in data:
            place = following[place << 8 | byte]
            if place < 0:
                return None
        return place

    def accepts(self, place: int) -> bool:
        return self._accepts[place]

    def only_end(self, place: int) -> bool:
        return not self._leads_on[place]

    def forced(self, place: int) -> bytes:
        out, seen = bytearray(), set()
        while not self._accepts[place] and place not in seen:
            seen.add(place)
            bytes_ = np.flatnonzero(self.dfa.table[place] != DEAD)
            if len(bytes_) != 1:
                break
            out.append(int(bytes_[0]))
            place = self._next[place << 8 | out[-1]]
        return bytes(out)

    def tokens(self, place: int) -> Mask:
        allowed = self._allowed[place]
        if self._plain and allowed is not None:
            mask = allowed.copy()
            walker()(self._plain.others, self.dfa.table, place, mask)
            return mask
        alike = self._alike[place]
        short = self._short.get(alike)
        if short is None:
            short = np.zeros(self._words, np.int32)
            walker()(self._tries.short, self.dfa.table, place, short)
            self._short[alike] = short
        every = short.copy()
        walker()(self._tries.long, self.dfa.table, place, every)
        return short if np.array_equal(every, short) else every

    def key(self, place: int) -> Hashable:
        return place

    def forget(self) -> None:
        self._short = {}


def _alike(dfa: Dfa, longest: int) -> list[int]:
    """A number for each state, equal where the same texts of up to `longest` bytes can be read.

    Long counted repetitions have many such states. Found by hashing: after k rounds two states' hashes are equal
    if they can read the same texts of k bytes.
    """
    states = len(dfa)
    if states < SMALL:
        return list(range(states))
    random = np.random.default_rng()
    columns = dfa.table[:, dfa.bounds]
    factors = random.integers(1, 1 << 63, len(dfa.bounds), np.uint64) * np.uint64(2) + np.uint64(1)
    mark = np.ones(states + 1, np.uint64)
    mark[DEAD] = 0
    known = 1
    for turn in range(longest):
        mixed = (mark[columns] * factors).sum(1)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mark[:-1] = mixed ^ (mixed >> np.uint64(32)) | np.uint64(1)
        if turn % 8 == 7:
            before, known = known, len(np.unique(mark))
            if known in (before, states + 1):  # longer texts tell no more states apart
                break
    return np.unique(mark[:-1], return_inverse=True)[1].tolist()


class Choices:
    """One of many texts. A place is (first, last + 1, length): the texts that may still be meant, as an interval
    of the sorted ones, and how many bytes of them are written."""

    def __init__(self, choices: Iterable[bytes], tries: TokenTries, words: int) -> None:
        """`choices`: at least one."""
        self._sorted = sorted(set(choices))
        self._tries = tries
        self._words = words
        self.start = (0, len(self._sorted), 0)
        self._letters = np.frombuffer(b"".join(self._sorted), np.uint8)
        self._lengths = np.fromiter(map(len, self._sorted), np.int64, len(self._sorted))
        self._starts = np.cumsum(self._lengths) - self._lengths

    @property
    def nbytes(self) -> int:
        return 2 * len(self._letters) + 80 * len(self._sorted)

    def read(self, place: tuple[int, int, int], data: bytes) -> tuple[int, int, int] | None:
        low, high, length = place
        text = self._sorted[low][:length] + data
        low = bisect_left(self._sorted, text, low, high)
        high = bisect_left(self._sorted, text + b"\xff", low, high)  # no byte of UTF-8 is 255
        return (low, high, len(text)) if low < high else None

    def accepts(self, place: tuple[int, int, int]) -> bool:
        return len(self._sorted[place[0]]) == place[2]

    def only_end(self, place: tuple[int, int, int]) -> bool:
        return place[1] - place[0] == 1 and self.accepts(place)

    def forced(self, place: tuple[int, int, int]) -> bytes:
        low, high, length = place
        first, last = self._sorted[low], self._sorted[high - 1]
        end = length
        while end < len(first) and first[end] == last[end]:  # `last` is no shorter where it begins like `first`
            end += 1
        return first[length:end]

    def tokens(self, place: tuple[int, int, int]) -> Mask:
        bits = np.zeros(self._words * 32, np.uint8)
        for trie in self._tries:
            self._look(trie, place, bits)
        return np.packbits(bits, bitorder="little").view(np.int32)

    def _look(self, trie: TokenTrie, place: tuple[int, int, int], bits: npt.NDArray[np.uint8]) -> None:
        """All texts go down the tree together."""
        low, high, length = place
        at = self._starts[low:high] + length
        ends = self._starts[low:high] + self._lengths[low:high]
        nodes = np.zeros(high - low, np.int32)
        while True:
            live = at < ends
            at, ends = at[live], ends[live]
            nodes = trie.child(nodes[live], self._letters[at])
            live = nodes > 0
            if not live.any():
                return
            at, ends, nodes = at[live] + 1, ends[live], nodes[live]
            new = np.ones(len(nodes), np.bool_)
            new[1:] = nodes[1:] != nodes[:-1]
            bits[trie.tokens(nodes[new])] = 1

    def key(self, place: tuple[int, int, int]) -> Hashable:
        return place

    def forget(self) -> None:
        """Nothing is kept."""
