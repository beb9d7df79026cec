"""Masks and penalties in real CUDA graphs: the same tokens as outside, exact in bfloat16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from radixlang.config import Config
from radixlang.executor.build import build_executor
from radixlang.executor.shapes import Shape
from radixlang.sampling_params import RowSampling
from tests.executor.tiny import Host, Row

pytestmark = pytest.mark.gpu

SAMPLINGS = [
    RowSampling(temperature=0.0),
    RowSampling(temperature=0.0, presence_penalty=50.0),
    RowSampling(temperature=0.9, seed=5, frequency_penalty=1.0, repetition_penalty=1.3),
    RowSampling(temperature=0.8, seed=9, top_p=0.9, logit_bias={7: 5.0, 96: -3.0}),
    RowSampling(temperature=0.0, min_new_tokens=9, end_ids=(40, 41), logit_bias={40: 500.0}),
    RowSampling(temperature=1.0, seed=3, top_k=50),
    RowSampling(temperature=1.0, seed=4, min_p=0.05, repetition_penalty=0.9),
    RowSampling(temperature=0.0, repetition_penalty=1.5),
]
STEPS = 16


def build(path: Path, dtype: str, graphs: bool) -> Any:
    options = {"device": "cuda", "dtype": dtype, "max_total_tokens": 4000, "max_running_requests": 8}
    config = Config.from_flat(model_path=str(path), disable_cuda_graph=not graphs, **options)
    return build_executor(config.resolve(), lambda *_: None)[0]


def masks_of(step: int, count: int, vocab: int) -> np.ndarray:
    return np.random.default_rng(step).integers(-(1 << 31), 1 << 31, (count, -(-vocab // 32))).astype(np.int32)


def run(executor: Any, masked: list[int]) -> list[list[int]]:
    """All rows from their prompts on, as the engine does it; the rows `masked` have a new mask at every step."""
    vocab, host, index = executor.spec.vocab_size, Host(executor.pool.page_size), np.array(masked, np.int32)
    prompts = [list(range(1000 + 50 * i, 1005 + 60 * i)) for i in range(len(SAMPLINGS))]
    rows = [Row(i + 1, prompt, one) for i, (prompt, one) in enumerate(zip(prompts, SAMPLINGS, strict=True))]
    tickets = []
    for step in range(STEPS):
        plan = host.plan([(row, len(row.tokens) - row.computed if step == 0 else 1) for row in rows], masked=index)
        if step and executor.graphs is not None:
            assert executor.graphs.find(plan) is not None
        tickets.append(executor.launch(plan))
        executor.sample(tickets[-1], masks_of(step, len(masked), vocab) if masked else None)
    for step, ticket in enumerate(tickets):
        result = executor.result(ticket)
        assert result.failed == {}
        for b, (row, token) in enumerate(zip(rows, result.tokens.tolist(), strict=True)):
            row.out.append(token)
            if b in masked:
                bits = masks_of(step, len(masked), vocab)[masked.index(b)].view(np.uint32)
                assert bits[token // 32] >> (token % 32) & 1, f"row {b}, step {step}"
    return [row.out for row in rows]


@pytest.mark.parametrize("masked", [[], [2], [7, 0, 3], list(range(8))], ids=str)
def test_graphs_and_launches_draw_the_same(smollm2_path: Path, masked: list[int]) -> None:
    outs = []
    for graphs in (True, False):
        executor = build(smollm2_path, "float32", graphs)
        outs.append(run(executor, masked))
        executor.close()
    assert sum(a == b for a, b in zip(*outs, strict=True)) >= len(SAMPLINGS) - 1, (
        "one close call may fall otherwise"
    )
    assert len(set(outs[0][1])) == STEPS, "what was drawn once is never drawn again"
    assert 40 not in outs[0][4][:9]
    if 4 not in masked:
        assert set(outs[0][4][9:]) == {40}


@pytest.mark.parametrize("masked", [[], [0, 1, 2, 3, 4, 5, 6, 7]], ids=str)
def test_changed_logits_of_a_bfloat16_graph_are_exact(smollm2_path: Path, masked: list[int]) -> None:
    """The last step's changed logits follow from what the graph left and from the counts before the last token."""
    from radixlang.kernels import reference

    executor = build(smollm2_path, "bfloat16", True)
    outs = run(executor, masked)
    scores = executor.graphs._scores[Shape(8, 8)]
    assert scores.dtype == torch.bfloat16
    for b, (sampling, out) in enumerate(zip(SAMPLINGS, outs, strict=True)):
        buffer = executor.sampling.edits._of.get(b + 1)
        assert (buffer is None) == (b in (0, 5))
        if buffer is None:
            continue
        words = buffer.words.clone()
        words[out[-1]] -= 1
        expected = reference.edit(
            scores[b],
            words,
            buffer.bias if buffer.biased else None,
            frequency=sampling.frequency_penalty,
            presence=sampling.presence_penalty,
            repetition=sampling.repetition_penalty,
        )
        torch.testing.assert_close(buffer.values, expected, atol=1e-4, rtol=1e-5)
        if sampling.temperature == 0:
            assert out[-1] == int(buffer.values.argmax())
    executor.close()


def test_a_lent_view_owns_nothing() -> None:
    from radixlang.executor.graphs import lent

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        tensor = torch.randn((6, 40), device="cuda").to(dtype)[:, :33]
        view = lent(tensor)
        assert view.data_ptr() == tensor.data_ptr()
        assert view.stride() == tensor.stride()
        assert torch.equal(view, tensor)
        tensor[2, 3] = 7
        assert float(view[2, 3]) == 7
    before = torch.cuda.memory_allocated()
    large = torch.zeros(1 << 24, device="cuda")
    view = lent(large)
    del large
    assert torch.cuda.memory_allocated() == before
