"""Finds out which rows of a decode step share which parts of their prefixes, and plans the reading of them once.

Rows share KV where their entries of the page table are equal, and a page lies at one place of the prefix tree:
rows with the same page at an index have the same pages before it. Rows sorted by their pages are therefore the
leaves of the tree in order, the common lengths of neighbours say where its nodes are, and a node's rows lie side
by side. All of this is array arithmetic, done when the rows of a step change; while they only go on, the plan
holds.

Must not import torch, nor know requests or the tree itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from radixlang.kernels.tree_work import ITEM, SLOTS, capacity, tree_sections
from radixlang.plan import Ints

if TYPE_CHECKING:
    from radixlang.kernels.tuning import TreeTile

MAX_LEVELS = 8
"""most nodes on the way to a row that are read by themselves; at most `SLOTS`"""
ROUNDS = (1, 1.5, 2, 3, 4)
"""items for each program, about, that are tried"""
ITEM_KEYS = 64
"""keys that a program could sweep in the time it takes to begin an item, or to go on from its result"""
PARTIAL_BYTES = 4
"""of a number of a row's result in a slot"""

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True)
class KvShape:
    """Sizes of one layer's keys and values on the device."""

    heads: int
    kv_heads: int
    head_dim: int
    element_size: int
    page_size: int


@dataclass(frozen=True)
class TreePlan:
    """The numbers of `kernels.tree_work`, for B rows; all int32."""

    items: Ints
    """[I, 6]"""
    order: Ints
    """[B]"""
    begins: Ints
    """[B]"""
    used: Ints
    """[B]"""

    def write(self, packed: Ints, rows: int) -> None:
        """Into the packed form of `rows` ≥ B rows, which is zero."""
        number, items, order, begins, used = tree_sections(packed, rows)
        number[0] = len(self.items)
        items[: self.items.size] = self.items.ravel()
        order[: len(self.order)] = self.order
        begins[: len(self.begins)] = self.begins
        used[: len(self.used)] = self.used


@dataclass(frozen=True)
class _Parts:
    """Parts of prefixes that are worth reading by themselves, a level after the other: rows `first` to `end` in
    tree order share the grains `start` to `stop`, and what comes before `start` is in the parts around it."""

    first: Longs
    end: Longs
    start: Longs
    stop: Longs
    done: Longs
    """[B] grains of each row that are in parts"""
    gain: float
    """key reads that they save, less what they cost"""


@dataclass(frozen=True)
class _Cut:
    """Parts cut into items: each into how many, and of what length at most, in grains."""

    length: Longs
    items: Longs
    time: float
    """in which programs sweep them, in grains"""


class PrefixPlanner:
    """Plans of one executor's decode steps."""

    def __init__(self, tile: TreeTile, kv: KvShape) -> None:
        group = kv.heads // kv.kv_heads
        self._tile = tile
        self._kv = kv
        self._grain = int(np.lcm(kv.page_size, tile.block_n))
        """keys; parts begin and end at multiples of it, so that no tile needs a mask"""
        self._rows_a_tile = tile.block_m // group
        self._units = max(1, tile.programs // kv.kv_heads)
        """items that run at once"""
        key_bytes = 2 * kv.kv_heads * kv.head_dim * kv.element_size
        self._least = tile.least_bytes / key_bytes
        # written and read by programs that wait for it: twice the time that as many bytes of keys would take
        self._slot_cost = 4 * kv.heads * kv.head_dim * PARTIAL_BYTES / key_bytes

    def plan(self, rows: Ints, starts: Ints, pages: Ints) -> TreePlan | None:
        """What `rows` [B] of the host's page table [., .], which compute their token at `starts` [B], shall read
        together; None where it is not worth it. It holds while these rows go on."""
        known = starts // self._grain
        if int(known.sum()) * self._grain < self._least:
            return None
        a_grain = self._grain // self._kv.page_size
        begun = np.flatnonzero(known)
        if len(np.unique(pages[rows[begun], a_grain - 1])) == len(begun):
            return None
        # no two rows share more than the second longest of them
        width = int(np.partition(known, -2)[-2])
        last = pages[:, a_grain - 1 : width * a_grain : a_grain][rows]
        order, common = tree_order(last, known)
        parts = self._parts(common)
        if parts is None or parts.gain < self._least:
            return None
        return self._lay_out(parts, rows, order)

    def _parts(self, common: Longs) -> _Parts | None:
        """The nodes that are worth it, from the root down. What a node that is not would share is read by the
        nodes below it, or by each row for itself."""
        count = len(common) + 1
        heights = np.unique(common[common > 0])
        if len(heights) > MAX_LEVELS:
            heights = heights[np.linspace(0, len(heights) - 1, MAX_LEVELS).round().astype(np.int64)]
            # a prefix may be taken for shorter than it is
            at = np.searchsorted(heights, common, "right")
            common = np.concatenate([[0], heights])[at]
        gaps = np.concatenate([[0], common, [0]])
        done: Longs = np.zeros(count, np.int64)
        found: list[tuple[Longs, Longs, Longs, Longs]] = []
        gain = 0.0
        for height in heights.tolist():
            joined = gaps >= height
            first = np.flatnonzero(~joined[:-1] & joined[1:])
            end = np.flatnonzero(joined[:-1] & ~joined[1:]) + 1
            # a run without a gap of this height is the rows of a node further down
            least = np.minimum.reduceat(gaps, np.stack([first + 1, end], 1).ravel())[::2]
            size, start = end - first, done[first]
            tiles = -(-size // self._rows_a_tile)
            worth = (height - start) * self._grain * (
                size - self._tile.sweep_cost * tiles
            ) - self._slot_cost * size
            takes = (least == height) & (worth > 0)
            if not takes.any():
                continue
            first, end, start = first[takes], end[takes], start[takes]
            found.append((first, end, start, np.full(len(first), height)))
            gain += float(worth[takes].sum())
            done[_spread(first, end, 1, count) > 0] = height
        if not found:
            return None
        first, end, start, stop = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        return _Parts(first, end, start, stop, done, gain)

    def _lay_out(self, parts: _Parts, rows: Ints, order: Longs) -> TreePlan | None:
        """Cut parts into items: by rows, as many as a tile takes, and by keys, as many programs as there are."""
        count = len(rows)
        tiles = -(-(parts.end - parts.first) // self._rows_a_tile)
        for cut in self._cuts(parts.stop - parts.start, tiles):
            slot, used = _slots(parts, cut.items, count)
            each = tiles * cut.items
            if used.max() <= SLOTS and int(each.sum()) <= capacity(count):
                break
        else:
            return None  # parts are too many and too small
        of = np.repeat(np.arange(len(each)), each)
        number = np.arange(len(of)) - np.repeat(np.cumsum(each) - each, each)
        split, tile = number // tiles[of], number % tiles[of]
        first = parts.first[of] + tile * self._rows_a_tile
        start = parts.start[of] + split * cut.length[of]
        stop = np.minimum(start + cut.length[of], parts.stop[of])
        items = np.empty((len(of), ITEM), np.int32)
        items[:, 0] = first
        items[:, 1] = np.minimum(self._rows_a_tile, parts.end[of] - first)
        items[:, 2] = rows[order[parts.first[of]]]
        items[:, 3] = slot[of] + split
        items[:, 4] = start * self._grain
        items[:, 5] = stop * self._grain
        # long ones first: programs that are done early take the short ones
        items = items[np.argsort(start - stop, kind="stable")]
        begins, slots = np.zeros(count, np.int32), np.zeros(count, np.int32)
        begins[order], slots[order] = parts.done * self._grain, used
        return TreePlan(items, order.astype(np.int32), begins, slots)

    def _cuts(self, length: Longs, tiles: Longs) -> list[_Cut]:
        """Ways to cut parts of `length` grains, which so many tiles sweep, the fastest first; the last does
        not."""
        work, least = int((tiles * length).sum()), max(1, self._tile.chunk // self._grain)
        found = []
        for rounds in ROUNDS:
            chunk = max(least, int(-(-work // (self._units * rounds))))
            step = -(-length // -(-length // chunk))
            splits = -(-length // step)
            # programs take turns at the items, the longest first
            turns = -np.sort(-np.repeat(step, tiles * splits))[:: self._units]
            begins = (len(turns) + int(splits.max())) * ITEM_KEYS / self._grain
            found.append(_Cut(step, splits, float(turns.sum()) + begins))
        found.sort(key=lambda cut: cut.time)
        return [*found, _Cut(length, np.ones_like(length), np.inf)]


def tree_order(pages: Ints, known: npt.NDArray[np.integer]) -> tuple[Longs, Longs]:
    """Rows of `pages` [B, W], of which the first `known` [B] count, sorted so that equal beginnings are together →
    (order [B], how many pages each row of that order has in common with the next [B - 1])."""
    count, width = pages.shape
    alone = -1 - np.arange(count, dtype=np.int32)[:, None]
    keys = np.ascontiguousarray(np.where(np.arange(width) < known[:, None], pages, alone))
    # as bytes: any order will do that looks at a row's first pages first
    order = keys.view(np.dtype((np.void, keys.itemsize * width)))[:, 0].argsort(kind="stable")
    keys = keys[order]
    same = np.zeros((count - 1, width + 1), np.bool_)
    np.equal(keys[:-1], keys[1:], out=same[:, :width])
    return order, same.argmin(1)


def _slots(parts: _Parts, splits: Longs, count: int) -> tuple[Longs, Longs]:
    """(first slot of each part [P], slots that each of `count` rows uses), where part p takes `splits[p]`."""
    slot, used = np.zeros(len(splits), np.int64), np.zeros(count, np.int64)
    for level in np.unique(parts.stop):
        at = parts.stop == level
        slot[at] = used[parts.first[at]]
        used += _spread(parts.first[at], parts.end[at], splits[at], count)
    return slot, used


def _spread(first: Longs, end: Longs, value: Longs | int, count: int) -> Longs:
    """[count] of each place the value of the disjoint run `first` … `end` that it lies in, 0 outside."""
    change = np.zeros(count + 1, np.int64)
    change[first] += value
    change[end] -= value
    return np.cumsum(change)[:count]
