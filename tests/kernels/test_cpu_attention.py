"""Paged attention kernels against the plain torch twin and against a dense softmax written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from radixlang.kernels.cpu import attention, reference

CASES = [
    # heads, kv heads, head size, page size, rows of (new tokens, length), window, soft cap
    (9, 3, 64, 16, [(1, 65)], 0, 0.0),
    (4, 2, 16, 1, [(1, 5), (3, 7), (9, 9), (1, 1)], 0, 0.0),
    (4, 1, 48, 7, [(1, 5), (30, 77), (9, 9), (1, 100)], 20, 0.0),
    (4, 4, 80, 16, [(1, 5), (30, 77), (9, 9), (1, 100)], 20, 5.0),
    (2, 1, 128, 64, [(5, 130), (64, 64)], 0, 30.0),
    (8, 1, 256, 128, [(33, 70), (1, 300)], 33, 0.0),
    (2, 2, 24, 16, [(1, 20), (5, 9)], 0, 0.0),  # a head size the kernels leave to torch
]


def _setup(
    heads: int, kv_heads: int, size: int, page_size: int, rows: list[tuple[int, int]]
) -> dict[str, torch.Tensor]:
    """Pages in random places, rows in random slots of the table, queries a strided view."""
    generator = torch.Generator().manual_seed(heads * size + page_size)
    needed = [-(-length // page_size) for _, length in rows]
    total = sum(needed) + 1
    pages = torch.randperm(total - 1, generator=generator) + 1
    table = torch.zeros(len(rows) + 2, max(needed) + 1, dtype=torch.int32)
    index = torch.randperm(len(rows) + 2, generator=generator)[: len(rows)].int()
    for row, mine in zip(index.tolist(), pages.split(needed), strict=True):
        table[row, : len(mine)] = mine.int()
    starts = torch.tensor(np.cumsum([0] + [count for count, _ in rows]), dtype=torch.int32)
    k, v = torch.randn(2, total, page_size, kv_heads, size, generator=generator)
    q = torch.randn(int(starts[-1]), heads + 2, size, generator=generator)[:, 1:-1] * 2
    lengths = torch.tensor([length for _, length in rows], dtype=torch.int32)
    batch = {"page_table": table, "rows": index, "query_starts": starts, "lengths": lengths}
    return {"q": q, "k_cache": k, "v_cache": v, **batch}


def _written_out(case: dict[str, torch.Tensor], scale: float, window: int, softcap: float) -> torch.Tensor:
    q, out = case["q"].double(), []
    starts, group = case["query_starts"].tolist(), case["q"].shape[1] // case["k_cache"].shape[2]
    for i, (row, length) in enumerate(zip(case["rows"].tolist(), case["lengths"].tolist(), strict=True)):
        k, v = (
            reference.gather(case[c], case["page_table"], row, length).double() for c in ("k_cache", "v_cache")
        )
        for t in range(starts[i], starts[i + 1]):
            at = length - starts[i + 1] + t
            first = max(0, at - window + 1) if window else 0
            for head in range(q.shape[1]):
                keys, values = k[first : at + 1, head // group], v[first : at + 1, head // group]
                scores = keys @ q[t, head] * scale
                scores = torch.tanh(scores / softcap) * softcap if softcap else scores
                out.append(torch.softmax(scores, 0) @ values)
    return torch.stack(out).view_as(q).float()


@pytest.mark.parametrize("case", CASES)
def test_extend_equals_twin_and_written_out(case: tuple) -> None:
    *sizes, window, softcap = case
    arguments = _setup(*sizes)
    scale = 1 / math.sqrt(sizes[2])
    result = attention.extend(**arguments, scale=scale, window=window, softcap=softcap)
    twin = reference.extend(**arguments, scale=scale, window=window, softcap=softcap)
    torch.testing.assert_close(result, twin, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(result, _written_out(arguments, scale, window, softcap), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_a_row_alone_gives_the_same_bits(case: tuple) -> None:
    *sizes, window, softcap = case
    arguments = _setup(*sizes)
    result = attention.extend(**arguments, scale=0.2, window=window, softcap=softcap)
    starts = arguments["query_starts"].tolist()
    for i in range(len(starts) - 1):
        alone = dict(arguments)
        alone["q"] = arguments["q"][starts[i] : starts[i + 1]]
        alone["rows"], alone["lengths"] = arguments["rows"][i : i + 1], arguments["lengths"][i : i + 1]
        alone["query_starts"] = torch.tensor([0, starts[i + 1] - starts[i]], dtype=torch.int32)
        single = attention.extend(**alone, scale=0.2, window=window, softcap=softcap)
        assert torch.equal(single, result[starts[i] : starts[i + 1]])


@pytest.mark.parametrize("size", [24, 32])
def test_decode_gives_zeros_for_padded_rows(size: int) -> None:
    arguments = _setup(4, 2, size, 4, [(1, 9), (1, 3)])
    del arguments["query_starts"]
    full = attention.decode(**arguments, scale=0.3)
    arguments["lengths"][0] = 0
    padded = attention.decode(**arguments, scale=0.3)
    assert torch.equal(padded[1], full[1])
    assert padded[0].eq(0).all()


def test_large_scores_do_not_overflow() -> None:
    arguments = _setup(2, 1, 32, 4, [(1, 40), (20, 20)])
    arguments["q"] = arguments["q"] * 300
    result = attention.extend(**arguments, scale=1.0)
    torch.testing.assert_close(result, _written_out(arguments, 1.0, 0, 0.0), rtol=1e-3, atol=1e-3)


def test_bfloat16_cache_runs_in_torch() -> None:
    arguments = _setup(4, 2, 32, 4, [(1, 9), (7, 11)])
    for name in ("k_cache", "v_cache"):
        arguments[name] = arguments[name].bfloat16()
    result = attention.extend(**arguments, scale=0.2)
    for name in ("k_cache", "v_cache"):
        arguments[name] = arguments[name].float()
    torch.testing.assert_close(result, attention.extend(**arguments, scale=0.2), rtol=1e-4, atol=1e-5)
