"""A plan becomes a `ForwardBatch`: index arithmetic in numpy, one copy to the device.

The arithmetic, per row b:

    positions: starts[b] … starts[b] + counts[b] - 1
    slot:      pages[row, position // page_size] * page_size + position % page_size
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from radixlang.errors import EngineError
from radixlang.forward import ForwardBatch
from radixlang.memory.request_table import RequestTable
from radixlang.plan import FROM_TABLE, Ints, StepPlan
from radixlang.platforms import Platform


@dataclass(frozen=True)
class Layout:
    """A plan's tokens and rows in numbers, on the host."""

    of: npt.NDArray[np.int64]
    """[T] plan index of each token's row"""
    query_starts: Ints
    """[B + 1] prefix sums of the rows' tokens"""
    lengths: Ints
    """[B] tokens of each row, the granted ones included"""
    positions: Ints
    """[T]"""
    slots: Ints
    """[T] where each token's K and V go"""
    ends: Ints
    """[B] index into T of each row's last token"""
    sampling: npt.NDArray[np.int64]
    """[S] plan indexes of the rows that sample"""


@dataclass(frozen=True)
class Inputs:
    """The batch, and what the steps after the forward pass need of the plan."""

    batch: ForwardBatch
    query_starts: Ints
    """[B + 1] as in the batch, for the host"""
    sample_rows: Ints
    """[S] table rows that sample"""
    sample_ends: torch.Tensor
    """[S] int64 indexes into T, on the device"""


def check(plan: StepPlan, table: RequestTable, page_size: int) -> None:
    """Refuse a plan that cannot be laid out.

    Raises:
        EngineError: it names a row, page index or position that the table does not have, or miscounts its tokens.
    """
    if plan.size == 0 or plan.counts.min() < 1 or plan.counts.sum() != plan.tokens:
        counts = plan.counts.tolist()
        raise EngineError(f"Plan of step {plan.step} grants {counts} tokens but brings {plan.tokens}.")
    longest = int((plan.starts + plan.counts).max())
    capacity = table.host_pages.shape[1] * page_size
    if longest > capacity or plan.rows.min() < 1 or plan.rows.max() >= table.rows:
        raise EngineError(
            f"Plan of step {plan.step} needs rows up to {plan.rows.max()} and {longest} tokens a row; "
            f"the request table has rows 1 to {table.rows - 1} of {capacity} tokens."
        )


def lay_out(plan: StepPlan, table: RequestTable, page_size: int) -> Layout:
    """Enter the new pages of a checked plan into the host's table (on a CPU also the device's) and lay it out."""
    entries = plan.new_pages.reshape(-1, 3)
    table.host_pages[entries[:, 0], entries[:, 1]] = entries[:, 2]
    query_starts = np.zeros(plan.size + 1, np.int32)
    np.cumsum(plan.counts, out=query_starts[1:])
    of = np.repeat(np.arange(plan.size), plan.counts)
    positions = (np.arange(plan.tokens) - query_starts[of] + plan.starts[of]).astype(np.int32)
    return Layout(
        of=of,
        query_starts=query_starts,
        lengths=(plan.starts + plan.counts).astype(np.int32),
        positions=positions,
        slots=table.host_pages[plan.rows[of], positions // page_size] * page_size + positions % page_size,
        ends=query_starts[1:] - 1,
        sampling=np.flatnonzero(plan.samples),
    )


def build_inputs(plan: StepPlan, table: RequestTable, page_size: int, platform: Platform) -> Inputs:
    """Write the new pages of a checked plan into the table and lay out its tokens."""
    rows, layout = plan.rows, lay_out(plan, table, page_size)
    waiting = np.flatnonzero(plan.token_ids == FROM_TABLE)
    new_pages = plan.new_pages.reshape(-1, 3).astype(np.int32)
    sampling = layout.sampling
    parts = [
        rows, layout.query_starts, layout.lengths, new_pages.ravel(),
        np.concatenate([
            plan.token_ids, layout.positions, layout.slots,
            waiting, rows[layout.of[waiting]], layout.ends[sampling],
        ]),
    ]  # fmt: skip
    packed = platform.upload(np.concatenate(parts, dtype=np.int32, casting="same_kind"))
    *narrow, wide = packed.split([len(part) for part in parts])
    device_rows, device_starts, device_lengths, pages = narrow
    token_ids, position_ids, slot_ids, waiting_at, waiting_rows, sample_ends = wide.long().split(
        [plan.tokens] * 3 + [len(waiting)] * 2 + [len(sampling)]
    )
    table.write(pages.view(-1, 3))
    if len(waiting):
        token_ids[waiting_at] = table.next_token[waiting_rows]
    batch = ForwardBatch(
        input_ids=token_ids,
        positions=position_ids,
        slots=slot_ids,
        rows=device_rows,
        query_starts=device_starts,
        lengths=device_lengths,
        page_table=table.pages,
        page_size=page_size,
        max_query=int(plan.counts.max()),
        max_length=int(layout.lengths.max()),
        # what only the device knows is in no prefix yet
        separate=bool((plan.token_ids == FROM_TABLE).all()),
    )
    return Inputs(batch, layout.query_starts, rows[sampling], sample_ends)
