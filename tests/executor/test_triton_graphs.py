"""Steps in decode graphs give what steps outside give: penalties, masks, padding.

The graphs here only call Python again; what CUDA makes of them is tested on a GPU, in test_gpu_masks.py.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("run by tests/kernels/test_triton_interpreted.py", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed, so there are no graphs")

from radixlang.errors import EngineError
from radixlang.executor.graphs import StepGraphs
from radixlang.executor.launch import DeviceExecutor
from radixlang.executor.shapes import decode_shapes
from radixlang.plan import StepPlan
from radixlang.sampling.batch import SamplingBatch
from radixlang.sampling_params import RowSampling
from tests.executor.tiny import NAN_TOKEN, Host, Row, TinyModel, make_executor

VOCAB = 97
ROWS = 9


def an_executor(with_graphs: bool) -> DeviceExecutor:
    model = TinyModel(VOCAB)
    model.scores = model.logits  # type: ignore[attr-defined]
    executor = make_executor(model, rows=ROWS)
    executor.sampling = SamplingBatch(ROWS, VOCAB, executor.platform, by_kernels=True)
    if with_graphs:
        ladder = StepGraphs(
            executor.model, executor.pool, executor.table, executor.attention, executor.sampling, decode_shapes(8)
        )
        ladder.capture(lambda step: step, lambda done, of: None)  # called again where a graph would be launched
        executor.graphs = ladder
    return executor


SAMPLINGS = [
    RowSampling(temperature=0.0),
    RowSampling(temperature=0.9, seed=5, frequency_penalty=1.0, repetition_penalty=1.3),
    RowSampling(temperature=0.0, presence_penalty=50.0),
    RowSampling(temperature=1.2, seed=9, top_p=0.9, logit_bias={7: 5.0, 96: -3.0}),
    RowSampling(temperature=0.0, min_new_tokens=5, end_ids=(40, 41), logit_bias={40: 60.0}),
]
PROMPTS = [[5, 6, 7, 8], [20, 21], [33, 34, 35], [50], [60, 61, 62]]


def masks_of(step: int, count: int) -> np.ndarray:
    rng = np.random.default_rng(step)
    return rng.integers(-(1 << 31), 1 << 31, (count, -(-VOCAB // 32))).astype(np.int32)


def run(executor: DeviceExecutor, masked: list[int], steps: int = 7) -> tuple[list[list[int]], list[StepPlan]]:
    """All rows from their prompts on; the rows `masked` (indexes) have a new mask at every step."""
    host = Host(4)
    rows = [
        Row(i + 1, list(prompt), sampling)
        for i, (prompt, sampling) in enumerate(zip(PROMPTS, SAMPLINGS, strict=True))
    ]
    plans = []
    index = np.array(masked, np.int32)
    for step in range(steps):
        grants = [(row, len(row.tokens) - row.computed if step == 0 else 1) for row in rows]
        # The tokens stay on the device, as they do in the engine's loop.
        plan = host.plan(grants, masked=index)
        plans.append(plan)
        ticket = executor.launch(plan)
        masks = masks_of(step, len(masked)) if masked else None
        executor.sample(ticket, masks)
        result = executor.result(ticket)
        assert result.failed == {}
        for b, (row, token) in enumerate(zip(rows, result.tokens.tolist(), strict=True)):
            if b in masked:
                bits = masks_of(step, len(masked))[masked.index(b)].view(np.uint32)
                assert bits[token // 32] >> (token % 32) & 1
            row.out.append(token)
    executor.close()
    return [row.out for row in rows], plans


@pytest.mark.parametrize("masked", [[], [1], [3, 0], [0, 1, 2, 3, 4]], ids=str)
def test_graphs_and_launches_draw_the_same(masked: list[int]) -> None:
    captured = an_executor(True)
    with_graphs, plans = run(captured, masked)
    assert captured.graphs is not None
    assert [captured.graphs.find(plan) is not None for plan in plans] == [False] + [True] * 6
    without, _ = run(an_executor(False), masked)
    assert with_graphs == without
    assert len(set(with_graphs[2])) == 7 or masked, "the presence penalty was seen"
    assert with_graphs[4][5:] == [40, 40] or masked
    assert 40 not in with_graphs[4][:5]


def test_bad_rows_of_a_graph_are_named() -> None:
    """A row of NaN and one whose mask forbids everything fail; the third, masked too, does not."""
    executor = an_executor(True)
    host = Host(4)
    rows = [Row(1, [5, NAN_TOKEN]), Row(2, [20, 21]), Row(3, [22, 23])]
    executor.result(executor.launch(host.plan([(row, 2) for row in rows])))
    plan = host.plan([(row, 1) for row in rows], masked=np.array([1, 2], np.int32))
    ticket = executor.launch(plan)
    assert ticket.forward is not None
    ticket.forward.wait()
    assert ticket.graphs is executor.graphs
    masks = np.zeros((2, 4), np.int32)
    masks[1, 1] = 1
    executor.sample(ticket, masks)
    result = executor.result(ticket)
    assert sorted(result.failed) == [0, 1]
    assert result.tokens[2] == 32
    executor.close()


def test_masks_come_before_the_next_launch() -> None:
    executor = an_executor(True)
    host = Host(4)
    row, other = Row(1, [5, 6]), Row(2, [7, 8])
    executor.result(executor.launch(host.plan([(row, 2), (other, 2)])))
    late = executor.launch(host.plan([(row, 1)], masked=np.array([0], np.int32)))
    executor.result(executor.launch(host.plan([(other, 1)])))
    executor.sample(late, np.full((1, 4), -1, np.int32))
    with pytest.raises(EngineError, match="before the next step"):
        executor.result(late)
    short = executor.launch(host.plan([(other, 1)], masked=np.array([0], np.int32)))
    executor.sample(short, None)
    with pytest.raises(EngineError, match="needs 1 mask rows"):
        executor.result(short)
    executor.close()
