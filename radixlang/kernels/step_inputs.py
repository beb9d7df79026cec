"""What the kernels of a step in a graph read, made from one packed copy of the host's numbers.

    packed int32, R rows and one for padding, T tokens:
        rows [R + 1] | query starts [R + 2] | lengths [R + 1]
        wanted tokens [R] | rows that draw [R] | drawn before [R]
        token ids [T] | positions [T] | write slots [T] | page-table entries (row, index, page) [T]

The parts that are read as they are need no unpacking; the others are written by one kernel: the host then launches
one thing and copies one thing. Must not know plans.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import triton
import triton.language as tl

from radixlang.kernels import chain
from radixlang.kernels.chain import begin

BLOCK = 512


def packed_size(tokens: int, rows: int) -> int:
    """int32 of the packed copy."""
    return 6 * rows + 4 + 6 * tokens


def sections(packed: Any, tokens: int, rows: int) -> tuple[Any, ...]:
    """The ten parts of a packed copy, views of a tensor or of an array."""
    sizes = (rows + 1, rows + 2, rows + 1, rows, rows, rows, tokens, tokens, tokens, 3 * tokens)
    return tuple(packed[end - size : end] for size, end in zip(sizes, itertools.accumulate(sizes), strict=True))


@triton.jit(do_not_specialize=["packed_wanted_ptr", "packed_ids_ptr", "table_stride", "tokens", "rows"])
def _step_inputs_kernel(
    packed_wanted_ptr,
    packed_ids_ptr,
    next_ptr,
    table_ptr,
    ids_ptr,
    positions_ptr,
    slots_ptr,
    wanted_ptr,
    table_stride,
    tokens,
    rows,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    begin(CHAINED)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < tokens
    ids = tl.load(packed_ids_ptr + i, mask=there, other=0)
    positions = tl.load(packed_ids_ptr + tokens + i, mask=there, other=0)
    slots = tl.load(packed_ids_ptr + 2 * tokens + i, mask=there, other=0)
    entries = packed_ids_ptr + 3 * tokens + 3 * i
    entry_row = tl.load(entries, mask=there, other=0)
    entry_index = tl.load(entries + 1, mask=there, other=0)
    page = tl.load(entries + 2, mask=there, other=0)
    # a padded entry writes page 0 for the sink's row, where it is anyway
    tl.store(table_ptr + entry_row.to(tl.int64) * table_stride + entry_index, page, mask=there)
    waiting = tl.load(next_ptr + tl.maximum(-ids, 0), mask=there & (ids < 0), other=0)
    tl.store(ids_ptr + i, tl.where(ids < 0, waiting, ids.to(tl.int64)), mask=there)
    tl.store(positions_ptr + i, positions.to(tl.int64), mask=there)
    tl.store(slots_ptr + i, slots.to(tl.int64), mask=there)
    asked = i < rows
    wanted = tl.load(packed_wanted_ptr + i, mask=asked, other=0)
    tl.store(wanted_ptr + i, wanted.to(tl.int64), mask=asked)


def step_inputs(
    packed: torch.Tensor,
    next_token: torch.Tensor,
    page_table: torch.Tensor,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    wanted: torch.Tensor,
) -> None:
    """Unpack `packed` into three [T] and `wanted` [R ≤ T], all int64, and write its page-table entries.

    A token id -r stands for next_token[r] (int64), the token that row r of the table waits for. All-zero entries
    are padding.
    """
    tokens, rows = input_ids.shape[0], wanted.shape[0]
    parts = sections(packed, tokens, rows)
    _step_inputs_kernel[(triton.cdiv(tokens, BLOCK),)](
        parts[3],
        parts[6],
        next_token,
        page_table,
        input_ids,
        positions,
        slots,
        wanted,
        page_table.stride(0),
        tokens,
        rows,
        BLOCK=BLOCK,
        num_warps=4,
        **chain.options(),
    )
