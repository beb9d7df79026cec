"""What a decode step's kernels read, made from one packed copy of the host's numbers.

    packed int32:  rows [B] | positions [B] | slots [B] | drawn [B] | page-table entries (row, index, page) [B]

One program writes everything: the host then launches one thing and copies one thing. Must not know plans.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixlang.kernels.tuning import next_power_of_2

COLUMNS = 7
"""int32 a row of the packed copy"""
MAX_ROWS = 512
"""one compiled kernel serves all sizes up to this"""


@triton.jit(do_not_specialize=["table_stride", "size"])
def _decode_inputs_kernel(
    packed_ptr,
    next_ptr,
    table_ptr,
    ids_ptr,
    positions_ptr,
    slots_ptr,
    rows_ptr,
    lengths_ptr,
    drawn_ptr,
    table_stride,
    size,
    BLOCK: tl.constexpr,
):
    b = tl.arange(0, BLOCK)
    there = b < size
    rows = tl.load(packed_ptr + b, mask=there, other=0)
    positions = tl.load(packed_ptr + size + b, mask=there, other=0)
    slots = tl.load(packed_ptr + 2 * size + b, mask=there, other=0)
    drawn = tl.load(packed_ptr + 3 * size + b, mask=there, other=0)
    entries = packed_ptr + 4 * size + 3 * b
    entry_row = tl.load(entries, mask=there, other=0)
    entry_index = tl.load(entries + 1, mask=there, other=0)
    page = tl.load(entries + 2, mask=there, other=0)
    # a padded entry writes page 0 for the sink's row, where it is anyway
    tl.store(table_ptr + entry_row.to(tl.int64) * table_stride + entry_index, page, mask=there)
    tl.store(ids_ptr + b, tl.load(next_ptr + rows, mask=there, other=0), mask=there)
    tl.store(positions_ptr + b, positions.to(tl.int64), mask=there)
    tl.store(slots_ptr + b, slots.to(tl.int64), mask=there)
    tl.store(rows_ptr + b, rows, mask=there)
    tl.store(lengths_ptr + b, tl.where(rows > 0, positions + 1, 0), mask=there)
    tl.store(drawn_ptr + b, drawn, mask=there)


def decode_inputs(
    packed: torch.Tensor,
    next_token: torch.Tensor,
    page_table: torch.Tensor,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    drawn: torch.Tensor,
) -> None:
    """Unpack `packed` [7 B] into the six B-vectors (the first three int64, the others int32).

    Each row's token is next_token[row] (int64); page-table entries are written. A row 0 is padding: length 0.
    """
    size = rows.shape[0]
    _decode_inputs_kernel[(1,)](
        packed,
        next_token,
        page_table,
        input_ids,
        positions,
        slots,
        rows,
        lengths,
        drawn,
        page_table.stride(0),
        size,
        BLOCK=max(MAX_ROWS, next_power_of_2(size)),
        num_warps=4,
    )
