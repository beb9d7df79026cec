"""Recorded steps: the same bits as running the layers, for every number of rows, or not used at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from radixlang.forward import ForwardBatch, ForwardContext, forwarding
from radixlang.kernels.cpu import available

if not available():
    pytest.skip("numba is not installed", allow_module_level=True)

from radixlang.kernels.cpu.linear import pack
from radixlang.layers.cpu_ops import CpuOps

HIDDEN = 64


def batch_of(tokens: int, max_query: int = 1) -> ForwardBatch:
    return ForwardBatch(
        input_ids=torch.zeros(tokens, dtype=torch.int64),
        positions=torch.arange(tokens),
        slots=torch.arange(tokens),
        rows=torch.arange(tokens, dtype=torch.int32),
        query_starts=torch.arange(tokens + 1, dtype=torch.int32),
        lengths=torch.ones(tokens, dtype=torch.int32),
        page_table=PAGES,
        page_size=1,
        max_query=max_query,
        max_length=1,
    )


PAGES = torch.zeros(64, 1, dtype=torch.int32)
KV = [(torch.zeros(1, 1, 1, 16), torch.zeros(1, 1, 1, 16))]


class Body:
    """Two linear layers with a norm and a residual; counts how often it is called."""

    def __init__(self, ops: CpuOps, torch_between: bool) -> None:
        self.ops, self.torch_between, self.calls = ops, torch_between, 0
        self.up, self.down = (pack(torch.randn(HIDDEN, HIDDEN)) for _ in range(2))
        self.weight = torch.rand(HIDDEN)

    def __call__(self, stream: torch.Tensor, rotations: list[Any], batch: ForwardBatch) -> torch.Tensor:
        self.calls += 1
        x = self.ops.rms_norm(stream, self.weight, 1e-5)
        x = self.down(self.up(x).reshape(x.shape))
        if self.torch_between:
            x = x * 2
        x, stream = self.ops.add_rms_norm(x, stream, self.weight, 1e-5)
        return self.up(x)


def run(ops: CpuOps, body: Body, x: torch.Tensor, max_query: int = 1) -> torch.Tensor:
    batch = batch_of(x.shape[0], max_query)
    context: Any = ForwardContext(batch, None, None, KV)  # type: ignore[arg-type]
    with forwarding(context):
        return ops.run_layers(body, x.clone(), [None], batch).clone()


def test_a_replay_gives_the_same_bits() -> None:
    ops = CpuOps()
    body = Body(ops, torch_between=False)
    for tokens in (1, 5, 33, 5, 1, 33):
        x = torch.randn(tokens, HIDDEN)
        assert torch.equal(run(ops, body, x), body(x.clone(), [None], batch_of(tokens)))
    assert body.calls == 3 + 6  # one recording for each number of rows, and the six direct calls


def test_what_torch_computes_cannot_be_recorded() -> None:
    ops = CpuOps()
    body = Body(ops, torch_between=True)
    for _ in range(3):
        x = torch.randn(4, HIDDEN)
        assert torch.equal(run(ops, body, x), body(x.clone(), [None], batch_of(4)))
    assert body.calls == 1 + 3 + 3


def test_prompts_are_noted_each_time_with_the_same_bits() -> None:
    ops = CpuOps()
    body = Body(ops, torch_between=False)
    for tokens in (4, 40, 4):
        x = torch.randn(tokens, HIDDEN)
        assert torch.equal(run(ops, body, x, max_query=4), body(x.clone(), [None], batch_of(tokens)))
    assert body.calls == 3 + 3


def test_a_prompt_that_torch_computes_runs_as_written() -> None:
    ops = CpuOps()
    body = Body(ops, torch_between=True)
    for _ in range(2):
        x = torch.randn(4, HIDDEN)
        assert torch.equal(run(ops, body, x, max_query=4), body(x.clone(), [None], batch_of(4)))
    assert body.calls == 1 + 2 + 2


@pytest.mark.parametrize("inference", [False, True])
def test_a_copy_that_calls_itself_a_view_is_seen(inference: bool) -> None:
    """40 outputs are padded inside the kernel: from two rows on they are copied out by torch."""
    ops = CpuOps()
    narrow, wide = pack(torch.randn(40, HIDDEN)), pack(torch.randn(HIDDEN, 40))

    def body(stream: torch.Tensor, rotations: list[Any], batch: ForwardBatch) -> torch.Tensor:
        return wide(narrow(stream))

    with torch.inference_mode(inference):
        for tokens in (1, 4, 4, 1, 4):
            for queries in (1, 4):
                x = torch.randn(tokens, HIDDEN)
                want = body(x.clone(), [None], batch_of(tokens))
                assert torch.equal(run(ops, body, x, max_query=queries), want)  # type: ignore[arg-type]
