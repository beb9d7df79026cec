"""Steps whose rows bring a few tokens each, as decode steps: every token stands as a row of its own.

Where a grammar leaves some rows no choice, their tokens come several at once, beside the one token of all others.
Attention for rows of any length costs such a step more than reading a few rows' caches again. Must not know
tensors or graphs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radixlang.executor.inputs import Layout
from radixlang.executor.shapes import Shape
from radixlang.kernels.step_inputs import sections
from radixlang.plan import FROM_TABLE, Ints, StepPlan

MOST = 16
"""tokens of one row"""
AGAIN = 2
"""times as much may be read from the cache"""


def spreads(plan: StepPlan) -> bool:
    """Whether a plan that has more tokens than rows, or tokens that the host knows, is better spread. Rows that
    are new to the device are not: their pages may still be on their way."""
    counts = plan.counts
    begins = bool((plan.new_pages.reshape(-1, 3)[:, 1] == 0).any())
    if begins or counts.max() > MOST:
        return False
    lengths = plan.starts.astype(np.int64) + counts
    return bool((counts * lengths).sum() <= AGAIN * lengths.sum())


def fill_spread(
    numbers: Ints, plan: StepPlan, layout: Layout, before: npt.NDArray[np.int64], shape: Shape
) -> None:
    """Write the packed numbers (see `kernels.step_inputs`) of a checked plan that `shape`, a decode step, holds.
    The tokens behind which the plan's rows draw come first, in order, and draw; the others draw for the sink.
    `before` [S]: what the drawing rows had drawn."""
    tokens = plan.tokens
    numbers.fill(0)
    rows, starts, lengths, wanted, drawing, drawn, ids, positions, slots, pages = sections(
        numbers, shape.tokens, shape.rows
    )
    last = layout.ends[layout.sampling]
    others = np.ones(tokens, np.bool_)
    others[last] = False
    order = np.concatenate([last, np.flatnonzero(others)])
    of = plan.rows[layout.of[order]]
    token_ids = plan.token_ids[order]
    rows[:tokens] = of
    starts[:] = np.arange(len(starts))
    lengths[:tokens] = layout.positions[order] + 1
    np.minimum(starts[: shape.rows], tokens - 1, out=wanted)
    drawing[: len(last)] = of[: len(last)]
    drawn[: len(last)] = before
    drawn[(np.cumsum(plan.samples) - 1)[plan.masked]] = -1
    ids[:tokens] = np.where(token_ids == FROM_TABLE, -of, token_ids)
    positions[:tokens] = layout.positions[order]
    slots[:tokens] = layout.slots[order]
    entries = plan.new_pages.reshape(-1, 3)[: shape.tokens]
    pages[: entries.size] = entries.ravel()
