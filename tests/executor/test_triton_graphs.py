"""Steps in decode graphs give what steps outside give: penalties, masks, padding.

The graphs here only call Python again; what CUDA makes of them is tested on a GPU, in test_gpu_masks.py.
"""

from __future__ import annotations

import os
from dataclasses import replace

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
from radixlang.plan import LoadAutomaton, LoadTokens, StepPlan
from radixlang.sampling.automata import Automata
from radixlang.sampling.batch import SamplingBatch
from radixlang.sampling_params import RowSampling
from tests.executor.tiny import NAN_TOKEN, Host, Row, TinyModel, make_executor

VOCAB = 97
ROWS = 9


def an_executor(with_graphs: bool, slots: int = 0) -> DeviceExecutor:
    model = TinyModel(VOCAB)
    model.scores = model.logits  # type: ignore[attr-defined]
    executor = make_executor(model, rows=ROWS)
    automata = Automata(ROWS, VOCAB, executor.platform, slots) if slots else None
    if automata is not None:
        automata._kernels = True
    executor.sampling = SamplingBatch(ROWS, VOCAB, executor.platform, by_kernels=True, automata=automata)
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


@pytest.mark.parametrize("with_graphs", [True, False])
def test_automata_mask_and_step_in_graphs_and_outside(with_graphs: bool) -> None:
    """A row that follows an automaton, one that the host masks, one free; then others take over their rows."""
    executor, host = an_executor(with_graphs, slots=2), Host(4)
    end = VOCAB - 1
    tokens = [b"%02d" % i for i in range(end)] + [b""]
    load = LoadTokens(
        np.frombuffer(bytearray().join(tokens), np.uint8),
        np.cumsum([0, *map(len, tokens)]).astype(np.int32),
    )

    def automaton(slot: int, *numbers: int) -> LoadAutomaton:
        """These numbers, one after the other."""
        states = 2 * len(numbers) + 2
        following = np.full((states, 256), -1, np.int16)
        masks = np.zeros((len(numbers) + 1, -(-VOCAB // 32)), np.int32)
        rows = np.full(states, len(numbers), np.int32)
        for i, number in enumerate(numbers):
            following[2 * i, tokens[number][0]] = 2 * i + 1
            following[2 * i + 1, tokens[number][1]] = 2 * i + 2
            masks[i, number // 32] = 1 << number % 32
            rows[2 * i] = i
        masks[-1, end // 32] = 1 << end % 32
        return LoadAutomaton(slot, following.ravel(), rows, masks.ravel())

    def steps(rows: list[Row], first: StepPlan, masked: np.ndarray, count: int) -> list[list[int]]:
        """→ the indexes of rows that have ended at each step"""
        ended = []
        for step in range(count):
            plan = first if step == 0 else host.plan([(row, 1) for row in rows], masked=masked)
            ticket = executor.launch(plan)
            executor.sample(ticket, np.full((len(masked), 4), 1 << 7, np.int32))  # 7, 39 and 71
            result = executor.result(ticket)
            assert not result.failed
            for row, token in zip(rows, result.tokens.tolist(), strict=True):
                row.out.append(token)
            ended.append(result.ended.tolist())
        return ended

    a, b, c = (Row(i + 1, [5 + i, 6 + i]) for i in range(3))
    plan = host.plan([(a, 2), (b, 2), (c, 2)], masked=np.array([1], np.int32))
    setups = (replace(plan.setups[0], automaton=(1, 0)), *plan.setups[1:])
    plan = replace(plan, setups=setups, actions=(load, automaton(1, 50, 51, 52)))
    assert steps([a, b, c], plan, plan.masked, 4) == [[], [], [0], [0]]
    assert a.out == [50, 51, 52, end]
    assert {7, 39, 71} >= set(b.out)

    # Row 1 goes to one without an automaton, row 3 to one that comes back in the middle of its text.
    d, e = Row(1, [20, 21]), Row(3, [22, 23, 33])
    plan = host.plan([(d, 2), (e, 3)])
    setups = (plan.setups[0], replace(plan.setups[1], automaton=(0, 2)))
    plan = replace(plan, setups=setups, actions=(automaton(0, 33, 34),))
    assert steps([d, e], plan, plan.masked, 2) == [[1], [1]]
    assert e.out == [34, end]
    assert d.out == TinyModel(VOCAB).greedy([20, 21], 2)
    executor.close()


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
