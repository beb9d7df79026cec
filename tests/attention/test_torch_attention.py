"""The plain-torch backend against a loop over heads and queries; other backends for the same shapes on a CPU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from radixlang.attention import BACKENDS
from radixlang.attention.torch import TorchAttention
from radixlang.forward import ForwardBatch
from radixlang.models.spec import LayerSpec, ModelSpec


@dataclass
class Layer:
    scale: float
    window: int = 0
    softcap: float = 0.0


def spec_of(heads: int, kv_heads: int, dim: int) -> ModelSpec:
    return ModelSpec(
        family="test", architecture="Test", vocab_size=8, hidden_size=heads * dim, intermediate_size=8,
        num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, layers=(LayerSpec(),), context_length=512,
    )  # fmt: skip


@dataclass
class Case:
    batch: ForwardBatch
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    history: list[tuple[torch.Tensor, torch.Tensor]]
    """per row K and V [length, kv_heads, dim]"""


def make(counts: list[int], lengths: list[int], page_size: int, heads: int, kv_heads: int, dim: int) -> Case:
    """Rows on shuffled pages in shuffled table rows; whatever belongs to no row is NaN."""
    generator = torch.Generator().manual_seed(len(counts) + page_size)
    most = max(-(-length // page_size) for length in lengths)
    pages = torch.randperm(len(counts) * most, generator=generator) + 1
    rows = torch.randperm(len(counts), generator=generator) + 1
    table = torch.zeros(len(counts) + 1, most + 2, dtype=torch.int32)
    k = torch.full((len(pages) + 1, page_size, kv_heads, dim), torch.nan)
    v = k.clone()
    k[0], v[0] = 0, 0
    history, used = [], 0
    for b, length in enumerate(lengths):
        mine = pages[used : used + -(-length // page_size)]
        used += len(mine)
        table[rows[b], : len(mine)] = mine.int()
        keys, values = (torch.randn(length, kv_heads, dim, generator=generator) for _ in range(2))
        history.append((keys, values))
        for at in range(length):
            k[mine[at // page_size], at % page_size] = keys[at]
            v[mine[at // page_size], at % page_size] = values[at]
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    total = int(starts[-1])
    empty = torch.zeros(total, dtype=torch.int64)
    batch = ForwardBatch(
        input_ids=empty, positions=empty, slots=empty, rows=rows.int(), query_starts=starts,
        lengths=torch.tensor(lengths).int(), page_table=table, page_size=page_size,
        max_query=max(counts), max_length=max(lengths),
    )  # fmt: skip
    return Case(batch, torch.randn(total, heads, dim, generator=generator), k, v, history)


def naive(case: Case, layer: Layer) -> torch.Tensor:
    out = torch.empty_like(case.q, dtype=torch.float64)
    starts = case.batch.query_starts.tolist()
    groups = case.q.shape[1] // case.k.shape[2]
    for b, (keys, values) in enumerate(case.history):
        new = starts[b + 1] - starts[b]
        for i in range(new):
            at = len(keys) - new + i
            first = max(0, at - layer.window + 1) if layer.window else 0
            for head in range(case.q.shape[1]):
                query = case.q[starts[b] + i, head].double()
                scores = keys[first : at + 1, head // groups].double() @ query * layer.scale
                if layer.softcap:
                    scores = layer.softcap * torch.tanh(scores / layer.softcap)
                out[starts[b] + i, head] = scores.softmax(0) @ values[first : at + 1, head // groups].double()
    return out


SHAPES = [
    ([1, 1, 1], [1, 7, 33], 4, 4, 2),
    ([1], [20], 16, 3, 1),
    ([1, 1], [16, 32], 16, 4, 4),
    ([5, 1, 9, 1], [5, 12, 30, 1], 16, 6, 2),
    ([3, 17], [3, 40], 1, 4, 1),
    ([64], [64], 64, 2, 2),
    ([2, 1, 1], [65, 64, 63], 64, 4, 2),
    ([13], [29], 7, 8, 4),
]


def cpu_backends() -> list[Any]:
    """Names of the table that say they can run here; one that cannot be loaded is a failure of the test below."""
    return ["torch_native", "cpu"]


@pytest.mark.parametrize("name", cpu_backends())
@pytest.mark.parametrize(("counts", "lengths", "page_size", "heads", "kv_heads"), SHAPES)
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (5, 0.0), (0, 3.0), (9, 2.0), (1, 0.0)])
def test_equals_the_loop(
    name: str,
    counts: list[int],
    lengths: list[int],
    page_size: int,
    heads: int,
    kv_heads: int,
    window: int,
    softcap: float,
) -> None:
    dim = 16
    backend: Any = BACKENDS.get(name)
    spec = spec_of(heads, kv_heads, dim)
    reason = backend.supports(spec, "cpu")
    if reason is not None:
        pytest.skip(reason)
    case = make(counts, lengths, page_size, heads, kv_heads, dim)
    layer = Layer(0.3, window, softcap)
    attention = backend(spec, page_size, torch.device("cpu"))
    plan = attention.plan(case.batch)
    got = attention.forward(layer, case.q, case.k, case.v, case.batch, plan)
    assert got.shape == case.q.shape
    torch.testing.assert_close(got.double(), naive(case, layer), atol=2e-6, rtol=1e-5)
    # A plan serves layers of different kinds.
    other = Layer(0.2, window + 2)
    again = attention.forward(other, case.q, case.k, case.v, case.batch, plan)
    torch.testing.assert_close(again.double(), naive(case, other), atol=2e-6, rtol=1e-5)


def test_padded_rows_do_no_harm() -> None:
    case = make([1, 1], [9, 14], 4, 4, 2, 8)
    layer = Layer(1 / math.sqrt(8))
    attention = TorchAttention(spec_of(4, 2, 8), 4, torch.device("cpu"))
    want = attention.forward(layer, case.q, case.k, case.v, case.batch, attention.plan(case.batch))
    b = case.batch
    padded = ForwardBatch(
        b.input_ids, b.positions, b.slots, torch.cat([b.rows, torch.tensor([0])]).int(),
        torch.tensor([0, 1, 2, 3]).int(), torch.cat([b.lengths, torch.tensor([0])]).int(),
        b.page_table, 4, 1, b.max_length,
    )  # fmt: skip
    q = torch.cat([case.q, torch.randn(1, 4, 8)])
    got = attention.forward(layer, q, case.k, case.v, padded, attention.plan(padded))
    assert torch.isfinite(got).all()
    torch.testing.assert_close(got[:2], want, atol=1e-6, rtol=0)


def test_a_row_alone_and_in_company_agree() -> None:
    """Padding to the longest row and the neighbours change a row by rounding at most."""
    case = make([1] * 6, [3, 90, 41, 64, 7, 128], 16, 4, 2, 16)
    layer = Layer(0.25)
    attention = TorchAttention(spec_of(4, 2, 16), 16, torch.device("cpu"))
    together = attention.forward(layer, case.q, case.k, case.v, case.batch, attention.plan(case.batch))
    for b, length in enumerate([3, 90, 41, 64, 7, 128]):
        one = ForwardBatch(
            case.batch.input_ids[:1], case.batch.positions[:1], case.batch.slots[:1], case.batch.rows[b : b + 1],
            torch.tensor([0, 1]).int(), torch.tensor([length]).int(), case.batch.page_table, 16, 1, length,
        )  # fmt: skip
        alone = attention.forward(layer, case.q[b : b + 1], case.k, case.v, one, attention.plan(one))
        torch.testing.assert_close(alone[0], together[b], atol=1e-6, rtol=0)


def test_written_out_scores_are_the_same_in_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make([50, 20], [50, 61], 8, 4, 2, 8)
    layer = Layer(0.5, window=11, softcap=4.0)
    attention = TorchAttention(spec_of(4, 2, 8), 8, torch.device("cpu"))
    monkeypatch.setattr("radixlang.attention.torch.SCORE_BYTES", 4 * 4 * 61 * 3)
    got = attention.forward(layer, case.q, case.k, case.v, case.batch, attention.plan(case.batch))
    torch.testing.assert_close(got.double(), naive(case, layer), atol=2e-6, rtol=1e-5)


def test_low_precision_cache_is_read() -> None:
    case = make([1, 4], [9, 12], 4, 4, 2, 8)
    layer = Layer(0.35)
    attention = TorchAttention(spec_of(4, 2, 8), 4, torch.device("cpu"))
    k, v = case.k.bfloat16(), case.v.bfloat16()
    got = attention.forward(layer, case.q, k, v, case.batch, attention.plan(case.batch))
    torch.testing.assert_close(got.double(), naive(case, layer), atol=3e-2, rtol=3e-2)
