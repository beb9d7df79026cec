"""Steps in graphs against the same steps launched kernel by kernel: equal tokens, equal KV pages.

No graph is captured here: what would be captured is called again at every replay. Buffers, packing, padding,
kernels and the choice of shapes are the real ones.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("run by tests/kernels/test_triton_interpreted.py", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed, so there are no graphs")

from radixlang.attention.torch import TorchAttention
from radixlang.attention.triton import TritonAttention
from radixlang.errors import EngineError
from radixlang.executor.graphs import Ran, StepGraphs
from radixlang.executor.launch import DeviceExecutor
from radixlang.executor.shapes import Shape, decode_shapes, prompt_shapes, tree_shapes
from radixlang.executor.step_blocks import COUNT
from radixlang.forward import current
from radixlang.kernels import tuning
from radixlang.plan import RowSetup, StepPlan
from radixlang.sampling.columns import RowColumns
from radixlang.sampling_params import RowSampling
from tests.executor.tiny import BOMB_TOKEN, NAN_TOKEN, NONE, Host, Row, TinyModel, make_executor, wish

ROWS = 8


class Model(TinyModel):
    """Gives the wanted tokens alone if `takes`; never draws the tokens that misbehave."""

    def __init__(self, takes: bool) -> None:
        super().__init__()
        self.takes = takes

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        hidden, wanted = super().__call__(input_ids, positions), current().batch.wanted
        return hidden[wanted] if self.takes and wanted is not None else hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = super().logits(hidden)
        logits[:, [NAN_TOKEN, BOMB_TOKEN]] = -1e9
        return logits

    scores = logits


def executor(takes: bool, page_size: int, attention: Any) -> DeviceExecutor:
    """Keeps its page table and what comes home apart from the host's, like a GPU's; nothing may read the sink."""
    made = make_executor(Model(takes), page_size, pages=2000, rows=ROWS + 1, attention=attention)
    made.table._shared = False
    made.table.pages = made.table.pages.clone()
    made.platform.home = torch.clone  # type: ignore[method-assign]
    made.sampling.columns = RowColumns(ROWS + 1, made.platform)
    for k, v in made.pool.layers:
        k[0], v[0] = torch.nan, torch.nan
    return made


class Counter:
    """A recorder: replays by calling again, and counts."""

    def __init__(self) -> None:
        self.replays = 0

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            self.replays += 1
            step()

        return replay


def with_graphs(made: DeviceExecutor, shapes: list[Shape], gated: Any = None) -> Counter:
    counter = Counter()
    with torch.inference_mode():
        parts = made.model, made.pool, made.table, made.attention, made.sampling
        graphs = StepGraphs(*parts, shapes, gated=gated)
        graphs.capture(counter, lambda done, total: None)
    made.graphs = graphs
    return counter


def results(made: DeviceExecutor, plans: list[StepPlan]) -> list[list[int]]:
    """Tokens of all steps; each step is launched before the last one's result is read."""
    tickets = [made.launch(plan) for plan in plans]
    found = [made.result(ticket) for ticket in tickets]
    assert not any(result.failed for result in found)
    return [result.tokens.tolist() for result in found]


def compare(plans: list[StepPlan], page_size: int, attention: Any, takes: bool, shapes: list[Shape]) -> int:
    """Run the plans both ways → the number of steps that were replays."""
    plain, graphed = executor(takes, page_size, attention), executor(takes, page_size, attention)
    counter = with_graphs(graphed, shapes)
    assert results(graphed, plans) == results(plain, plans)
    for mine, theirs in zip(graphed.pool.layers, plain.pool.layers, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a[1:], b[1:], rtol=1e-4, atol=1e-5, equal_nan=True)
    assert torch.equal(graphed.table.next_token[1:], plain.table.next_token[1:])
    assert torch.equal(graphed.table.pages, plain.table.pages)
    assert np.array_equal(graphed.table.host_pages, graphed.table.pages.numpy())
    plain.close()
    graphed.close()
    return counter.replays


def traffic(seed: int, page_size: int, steps: int, longest: int = 60, most: int = ROWS) -> list[StepPlan]:
    """Random steps: rows decode, some in the middle of their prompts, in any order; new ones take over rows."""
    random = np.random.default_rng(seed)
    host = Host(page_size)
    rows: dict[int, Row] = {}
    plans = []

    def newcomer(number: int) -> Row:
        tokens = random.integers(3, 97, random.integers(1, longest)).tolist()
        drawn = RowSampling(temperature=1.0, seed=int(random.integers(1000)))
        return Row(number, tokens, drawn if random.random() < 0.4 else RowSampling())

    while len(plans) < steps:
        for number in range(1, most + 1):
            if number not in rows or (random.random() < 0.05 and rows[number].tokens[-1] == -1):
                rows[number] = newcomer(number)
        chosen = random.permutation(list(rows))[: random.integers(1, most + 1)]
        if random.random() < 0.3:  # nothing but decoding, where there is any
            chosen = [n for n in chosen if len(rows[n].tokens) - rows[n].computed == 1] or chosen
        grants = []
        for number in chosen:
            left = len(rows[number].tokens) - rows[number].computed
            grants.append((rows[number], min(left, int(random.integers(1, 30)))))
        plans.append(host.plan(grants))
    return plans


@pytest.mark.parametrize(("page_size", "takes"), [(1, False), (16, True)])
def test_random_traffic(page_size: int, takes: bool) -> None:
    shapes = [Shape(2, 2), Shape(ROWS, ROWS), Shape(16, 3), Shape(48, ROWS), Shape(160, ROWS)]
    replays = compare(traffic(page_size, page_size, 16), page_size, TorchAttention, takes, shapes)
    assert replays >= 12, "only steps too large, and single tokens that draw nothing, may be launched otherwise"


def test_steps_with_prompts_go_through_gates() -> None:
    """And others do not: a row that decodes has used its pages before."""
    made = executor(True, 4, TorchAttention)
    taken: list[int] = []

    class Gated(list[Any]):
        def __getitem__(self, layer: Any) -> Any:
            taken.append(layer)
            return super().__getitem__(layer)

    with_graphs(made, [Shape(2, 2), Shape(16, 2)], Gated(made.pool.layers))
    host, row, seen = Host(4), Row(1, [5, 6, 7]), []
    for plan in (host.plan([(row, 3)]), host.plan([(row, 1)]), host.plan([(Row(2, [8, 9]), 2), (row, 1)])):
        taken.clear()
        results(made, [plan])
        seen.append(list(taken))
    assert seen == [[0, 1], [], [0, 1]]
    made.close()


def test_random_traffic_with_triton_attention() -> None:
    """Which must cope with padded rows and tokens, and with bounds in place of a step's own numbers."""
    plans = traffic(3, 4, steps=4, longest=30, most=3)
    assert compare(plans, 4, TritonAttention, True, [Shape(3, 3), Shape(16, 3), Shape(64, 3)]) >= 3


def test_rows_that_share_a_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read at once in graphs of tree attention; a layer with a window, rows that pad the step, rows that come and
    go, and steps in which too little is shared, are as ever."""
    monkeypatch.setattr(tuning, "TREE_LEAST_MIB", 0)
    host = Host(4)
    first = Row(1, list(range(3, 38)))
    rows = [first, *(Row(n, [*first.tokens[:32], 50 + n], pages=[*range(1, 9)], computed=32) for n in (2, 3, 4))]
    plans = [host.plan([(first, 35)]), host.plan([(row, 1) for row in rows[1:]])]
    for _ in range(2):
        plans.append(host.plan([(row, 1) for row in rows]))
    plans.append(host.plan([(row, 1) for row in rows[:2]]))
    rows[2] = Row(3, [80, 81, 82])
    plans += [host.plan([(rows[2], 3)]), host.plan([(row, 1) for row in rows])]
    used: list[bool] = []
    run = StepGraphs.run

    def watched(self: StepGraphs, plan: StepPlan) -> Ran | None:
        ran = run(self, plan)
        used.append(ran is not None and self._last is not None and self._last[1].tree)
        return ran

    monkeypatch.setattr(StepGraphs, "run", watched)
    shapes = [Shape(5, 5), *tree_shapes(5)]
    assert compare(plans, 4, TritonAttention, True, shapes) == 4
    assert used == [False, False, True, True, False, False, True]


@pytest.mark.parametrize(
    ("page_size", "attention"), [(1, TorchAttention), (4, TorchAttention), (4, TritonAttention)]
)
def test_rows_that_bring_few_tokens_are_spread(
    page_size: int, attention: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over decode steps, unless too much would be read again; a row's tokens read one another, chunks draw
    nothing, and what the host knows may stand alone. Not over steps whose rows write keys while others read."""
    tile, kernels = tuning.decode_tile, attention is TritonAttention

    def split(chip: Any, *, batch: int, **more: Any) -> tuning.DecodeTile:
        return dataclasses.replace(tile(chip, batch=batch, **more), projected=batch == 2)

    monkeypatch.setattr(tuning, "decode_tile", split)
    host = Host(page_size)
    rows = [Row(n, list(range(3 + n, 30 + n))) for n in range(1, 6)]
    plans = [host.plan([(row, 27) for row in rows])]
    random, counts = np.random.default_rng(page_size), []
    for _ in range(2 if kernels else 6):
        for row in rows[:2]:  # a grammar lets some tokens follow the one that was drawn
            row.tokens += random.integers(3, 97, random.integers(1, 3)).tolist()
        grants = [(row, len(row.tokens) - row.computed) for row in rows]
        again = RowSetup(rows[0].row, RowSampling(temperature=1.0, seed=5), NONE, NONE, len(counts) + 2)
        plans.append(host.plan([grants[i] for i in random.permutation(5)], setups=(again,)))
        counts.append(plans[-1].tokens)
    rows[0].tokens += [40, 41, 42, 43]
    plans.append(host.plan([(rows[0], 1), (rows[1], 1)]))
    plans.append(host.plan([(rows[1], 1), (rows[0], 1)]))  # of those the host knows
    rows[2].tokens += list(range(50, 65))
    plans.append(host.plan([(rows[2], 16), (rows[3], 1)]))  # its cache would be read sixteen times
    used: list[tuple[bool, bool]] = []
    ran: list[int] = []
    run = StepGraphs.run

    def watched(self: StepGraphs, plan: StepPlan) -> Ran | None:
        shape = self.find(plan)
        used.append((shape is not None and shape.decodes, plan.tokens > plan.size))
        ran.append(0 if shape is None else shape.rows)
        return run(self, plan)

    monkeypatch.setattr(StepGraphs, "run", watched)
    shapes = [Shape(2, 2), Shape(8, 8), Shape(16, 16), Shape(20, 5), Shape(160, 5)]
    assert compare(plans, page_size, attention, True, shapes) == len(plans)
    assert max(counts) <= 16
    assert used == [(False, True), *[(True, True)] * len(counts), (True, False), (True, False), (False, True)]
    assert ran[-3:-1] == ([8, 8] if kernels else [2, 2])


def test_steps_too_large_for_any_shape() -> None:
    """Graphs and the ordinary path take turns on the same rows."""
    shapes = [Shape(2, 2), Shape(16, 3)]
    replays = compare(traffic(7, 4, 10), 4, TorchAttention, True, shapes)
    assert 0 < replays < 10


def test_a_chunk_draws_nothing_and_a_cached_prefix_brings_many_pages() -> None:
    host = Host(1)
    first = Row(1, list(range(3, 73)))
    plans = [host.plan([(first, 40)]), host.plan([(first, 30)])]
    second = Row(2, [*range(3, 63), 90, 91, 92], pages=first.pages[:60], computed=60)
    plans += [host.plan([(first, 1), (second, 3)]), host.plan([(second, 1), (first, 1)])]
    assert plans[0].samples.tolist() == [False]
    assert len(plans[2].new_pages) > 16
    assert compare(plans, 1, TorchAttention, True, [Shape(2, 2), Shape(16, 2), Shape(48, 2)]) == 4


def test_steps_that_are_under_way_share_no_host_memory() -> None:
    """A step that is refused takes no block, so that the device reads what the host has filled; a result that was
    left until others came home in its place is refused."""
    made = executor(True, 4, TorchAttention)
    with_graphs(made, prompt_shapes(16, ROWS) + decode_shapes(ROWS))
    host, row = Host(4), Row(1, [5, 6, 7])
    tickets = [made.launch(host.plan([(row, count)])) for count in (3, 1, 1)]
    for ticket in tickets:
        assert ticket.forward is not None
        ticket.forward.wait()
    made.result(tickets[0])
    assert made.graphs is not None
    blocks = made.graphs.blocks
    free = blocks.free()
    lent = [ticket.ran.block for ticket in tickets if ticket.ran is not None]
    assert len({id(block) for block in [*lent, free]}) == 3
    bad = host.plan([(Row(2, [8, 9]), 2)])
    bad.starts[:] = 10**6
    with pytest.raises(EngineError):
        made.result(made.launch(bad))
    assert blocks.free() is free
    made.result(tickets[1])
    for _ in range(COUNT):
        made.result(made.launch(host.plan([(row, 1)])))
    assert blocks.turn.tolist() == [(3 + COUNT) % COUNT, 0]
    with pytest.raises(EngineError, match="asked for too late"):
        made.result(tickets[2])
    made.close()


def test_unusable_numbers_are_told_row_by_row() -> None:
    made = executor(True, 4, TorchAttention)
    counter = with_graphs(made, prompt_shapes(16, ROWS))
    host = Host(4)
    good, bad = Row(1, [5, 6, 7]), Row(2, [8, NAN_TOKEN])
    result = made.result(made.launch(host.plan([(good, 3), (bad, 2)])))
    assert list(result.failed) == [1]
    assert counter.replays == 1
    made.close()


def test_what_a_graph_cannot_do_is_left_to_the_ordinary_path() -> None:
    made = executor(True, 4, TorchAttention)
    with_graphs(made, [*decode_shapes(2), Shape(16, 2), Shape(16, 8), Shape(32, 2)])
    graphs, host = made.graphs, Host(4)
    assert graphs is not None

    def shape(*counts: int, sampling: RowSampling = RowSampling(), known: int = 0, **extra: Any) -> Shape | None:
        """Of a step of prompts; `known` more tokens than are granted."""
        grants = [(Row(i + 1, [5] * (count + known), sampling), count) for i, count in enumerate(counts)]
        plan = host.plan(grants, **extra)
        for setup in plan.setups:
            made.sampling.setup(setup)
        return graphs.find(plan)

    assert shape(1) == Shape(16, 2), "the token may be in the prefix of another row: decode steps take no prompts"
    assert shape(1, known=3) == Shape(16, 2)
    assert shape(4, known=3) == Shape(16, 2)
    assert shape(16) == Shape(16, 2)
    assert shape(2, 2, 2) == Shape(16, 8)
    assert shape(17) == Shape(32, 2)
    assert shape(17, 1, 1) is None
    assert shape(33) is None
    assert shape(4, logprobs=(wish(0, output=True),)) is None
    assert shape(4, masked=np.array([0], np.int32)) == Shape(16, 2)
    assert shape(4, pools=np.array([True])) is None
    assert shape(4, sampling=RowSampling(presence_penalty=0.5)) == Shape(16, 2)
    made.close()
