"""What tree attention is told of a step: which rows share which part of their prefixes, as int32 numbers.

    packed, R rows:  number of items [1] | items [I, 6] | order [R] | begins [R] | used [R]

The rows of a step are put into an order in which those that share a prefix are neighbours. An item is a part of
the prefix of some neighbours: `first` (in that order) and how many rows, the `row` of the page table that tells
the pages, the `slot` of its result in each of these rows, and the keys `start` to `end`. By row of the batch:
`begins`, the keys that are in items and that the row need not read, and `used`, the slots that hold results for
it. Imports neither torch nor Triton: the host's planner lays it out as well.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ITEM = 6
"""numbers of an item: first, rows, row, slot, start, end"""
SLOTS = 16
"""most items that a row's prefix may be in"""


def capacity(rows: int) -> int:
    """Most items of a step of `rows` rows."""
    return 3 * rows + 64


def tree_size(rows: int) -> int:
    """int32 of the packed form."""
    return 1 + ITEM * capacity(rows) + 3 * rows


def tree_sections(packed: Any, rows: int) -> tuple[Any, ...]:
    """(number, items, order, begins, used): flat views of a packed tensor or array."""
    sizes = (1, ITEM * capacity(rows), rows, rows, rows)
    return tuple(packed[end - size : end] for size, end in zip(sizes, itertools.accumulate(sizes), strict=True))


@dataclass(frozen=True)
class TreeWork:
    """The five parts on the device; padding is zero."""

    number: torch.Tensor
    items: torch.Tensor
    order: torch.Tensor
    begins: torch.Tensor
    used: torch.Tensor
