"""Attention over paged keys and values on the CPU, reading the page table directly.

`decode` for rows with one new token, `extend` for any mixture. The cache is `[pages, page_size, kv_heads, D]`
and already holds the new tokens. Float32 caches with D a multiple of sixteen run compiled kernels, everything
else plain torch. A row's result does not depend on the other rows.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from radixlang.kernels.cpu import available, pool, reference

if available():
    from radixlang.kernels.cpu import paged


def _compiled(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> bool:
    kinds = {q.dtype, k_cache.dtype, v_cache.dtype}
    layout = k_cache.stride() == v_cache.stride() and k_cache.stride(3) == 1 and q.stride(2) == 1
    return available() and kinds == {torch.float32} and q.shape[2] % 16 == 0 and layout


def _task(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    rows: int,
    lengths: int,
    count: int,
    out: torch.Tensor,
    scale: float,
    window: int,
    softcap: float,
) -> np.ndarray:
    """`rows` and `lengths` are addresses of `count` int32."""
    page, token, head, _ = k_cache.stride()
    heads, size = q.shape[1:]
    floats = np.array([scale, 0, softcap, 0], np.float32).view(np.int64)
    task = np.zeros(paged.TASK, np.int64)
    task[paged.Q : paged.WINDOW + 2] = (
        q.data_ptr(), q.stride(0) * 4, q.stride(1) * 4, k_cache.data_ptr(), v_cache.data_ptr(), page * 4,
        token * 4, head * 4, page_table.data_ptr(), page_table.stride(0) * 4, rows, lengths,
        out.data_ptr(), count * heads, heads, k_cache.shape[2], size, k_cache.shape[1], floats[0],
        window, floats[1],
    )  # fmt: skip
    return task


def decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> torch.Tensor:
    """One query a row: q `[B, H, D]` → `[B, H, D]`.

    `page_table` int32 `[table rows, pages]`, `rows` int32 `[B]` index it, `lengths` int32 `[B]` count the row's
    tokens with the new one (0: a padded row, zeros come out). `window` w > 0: only the last w keys are seen.
    """
    if not _compiled(q, k_cache, v_cache):
        starts = torch.arange(q.shape[0] + 1, dtype=torch.int32)
        live = lengths.clamp(min=1)
        out = reference.extend(q, k_cache, v_cache, page_table, rows, starts, live, scale, window, softcap)
        return out.masked_fill_((lengths == 0)[:, None, None], 0.0)
    out = pool.empty(*q.shape)
    if q.shape[0]:
        at, count = (rows.data_ptr(), lengths.data_ptr()), q.shape[0]
        _decode(
            _task(q, k_cache, v_cache, page_table, *at, count, out, scale, window, softcap), page_table.shape[1]
        )
    return out


def _decode(task: np.ndarray, pages: int) -> None:
    threads = pool.threads()
    # As long as a row may become, for a recording outlives these lengths.
    floats = pages * int(task[paged.PAGE_SIZE]) + 16
    scratch = pool.empty(threads, floats)
    task[paged.SCRATCH], task[paged.SCRATCH_STRIDE] = scratch.data_ptr(), floats * 4
    task[paged.CHUNKS] = chunks = min(int(task[paged.ITEMS]), 16 * threads)
    pool.run((paged.decode(), task, chunks))


def extend(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    rows: torch.Tensor,
    query_starts: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    singles: bool = True,
) -> torch.Tensor:
    """Causal attention of ragged rows: q `[T, H, D]` → `[T, H, D]`.

    Row i's queries are tokens `query_starts[i] … query_starts[i+1]-1`, the last of its `lengths[i]` tokens; the
    rest as in `decode`. Rows with a single new token go through `decode`, so they get the same bits as there; with
    `singles` off they are treated like all others, and get the bits they would have as a part of those.
    """
    if not _compiled(q, k_cache, v_cache):
        return reference.extend(
            q, k_cache, v_cache, page_table, rows, query_starts, lengths, scale, window, softcap
        )
    starts = query_starts.numpy().astype(np.int64)
    counts = np.diff(starts)
    single = (counts == 1) & singles
    if single.all():
        return decode(q, k_cache, v_cache, page_table, rows, lengths, scale, window, softcap)
    out = pool.empty(*q.shape)
    # Not with torch: what is noted in a recording must not be computed while it is made.
    host_rows, host_lengths = rows.numpy(), lengths.numpy()
    for kind in (single, ~single):
        at = np.flatnonzero(kind)
        if not at.size:
            continue
        mine = pool.keep(np.stack([host_rows[at], host_lengths[at]]).astype(np.int32, copy=False))
        where = (mine.ctypes.data, mine.ctypes.data + mine.strides[0], len(at))
        task = _task(q, k_cache, v_cache, page_table, *where, out, scale, window, softcap)
        if kind is single:
            tokens = pool.keep(starts[at])
            task[paged.TOKENS] = tokens.ctypes.data
            _decode(task, page_table.shape[1])
        else:
            _extend_long(task, starts[at], counts[at], mine[1].astype(np.int64), q.shape[1], q.shape[2])
    return out


@lru_cache(maxsize=4)
def _blocks(starts: bytes, counts: bytes, lengths: bytes) -> np.ndarray:
    """Blocks of queries as `paged.extend` wants them, of int64 arrays: the same for all layers of a step."""
    rows = zip(*(np.frombuffer(numbers, np.int64).tolist() for numbers in (starts, counts, lengths)), strict=True)
    blocks = [
        (row, start + i, min(paged.QUERIES, count - i), length - count + i + 1)
        for row, (start, count, length) in enumerate(rows)
        for i in range(0, count, paged.QUERIES)
    ]
    # The longest first: they take the most time, and threads share what is left.
    return np.array(sorted(blocks, key=lambda block: -block[3]), np.int64)


def _extend_long(
    task: np.ndarray, starts: np.ndarray, counts: np.ndarray, lengths: np.ndarray, heads: int, size: int
) -> None:
    """Pack the rows' keys and values into panels, then multiply them with blocks of queries."""
    threads, groups = pool.threads(), int(task[paged.G])
    padded = (lengths + paged.KEYS - 1) // paged.KEYS * paged.KEYS
    sizes = padded * groups * 2 * size
    areas = pool.empty(int(sizes.sum()))
    table = pool.keep(np.zeros((len(lengths) + 1, 3), np.int64))
    table[:-1, 0] = areas.data_ptr() + 4 * (np.cumsum(sizes) - sizes)
    table[:-1, 1] = padded
    table[1:, 2] = np.cumsum(padded // paged.KEYS * groups)
    task[paged.BLOCKS] = table.ctypes.data
    pool.run((paged.pack_keys(), task, int(table[-1, 2])))

    listed = pool.keep(_blocks(starts.tobytes(), counts.tobytes(), lengths.tobytes()))
    line = int(padded.max())
    scratch = pool.empty(threads, paged.QUERIES * (line + 16))
    task[paged.PACKED_AT] = listed.ctypes.data
    task[[paged.SCRATCH, paged.SCRATCH_STRIDE]] = scratch.data_ptr(), scratch.stride(0) * 4
    pool.run((paged.extend(), task, len(listed) * heads))
