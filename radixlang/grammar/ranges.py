"""Sets of characters as ranges of code points. Must not know what they are for."""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]
"""code points, inclusive, ascending and apart"""
LAST = 0x10FFFF
"""of all code points"""


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All that is in any of the ranges, which may overlap and stand in any order."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return tuple(out)


def without(ranges: Ranges, others: Ranges) -> Ranges:
    """What `ranges` have and `others` do not, both in order and apart."""
    out, j = [], 0
    for low, high in ranges:
        while j and others[j - 1][1] >= low:
            j -= 1
        while j < len(others) and others[j][0] <= high:
            if others[j][0] > low:
                out.append((low, others[j][0] - 1))
            low = max(low, others[j][1] + 1)
            j += 1
        if low <= high:
            out.append((low, high))
    return tuple(out)


def invert(ranges: Ranges) -> Ranges:
    """All other code points: what lies before, between and behind."""
    out, at = [], 0
    for low, high in ranges:
        if low > at:
            out.append((at, low - 1))
        at = high + 1
    if at <= LAST:
        out.append((at, LAST))
    return tuple(out)
