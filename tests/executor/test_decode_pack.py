"""The packed numbers of decode steps whose rows go on, against the same numbers made anew for every step."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed, so there are no graphs")

from radixlang.executor.decode_pack import DecodePack
from radixlang.executor.inputs import lay_out
from radixlang.executor.shapes import Shape
from radixlang.kernels.step_inputs import sections
from radixlang.memory.request_table import RequestTable
from radixlang.plan import FROM_TABLE, Flush, StepPlan

PAGES = 8


def first_plan(rows: list[int], starts: list[int]) -> StepPlan:
    size = len(rows)
    return StepPlan(
        step=0,
        rows=np.array(rows, np.int32),
        starts=np.array(starts, np.int32),
        counts=np.ones(size, np.int32),
        token_ids=np.full(size, FROM_TABLE, np.int32),
        samples=np.ones(size, np.bool_),
        pools=np.zeros(size, np.bool_),
        new_pages=np.zeros((0, 3), np.int32),
    )


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_steps_of_rows_that_go_on(page_size: int) -> None:
    rng = np.random.default_rng(page_size)
    table = RequestTable(12, PAGES, torch.device("cpu"))
    table.host_pages[:] = rng.integers(1, 900, table.host_pages.shape)
    plan = first_plan([5, 2, 9], rng.integers(0, 3 * page_size, 3).tolist())
    shape = Shape(4, 4)
    pack = DecodePack(plan, shape, table, page_size)
    for step in range(1, 4 * page_size):
        entries = np.zeros((0, 3), np.int32)
        if step % 3 == 1:  # any entry of one of the rows
            entries = np.array([[9, rng.integers(PAGES), rng.integers(1, 900)]], np.int32)
        masked = np.flatnonzero(rng.random(3) < 0.3).astype(np.int32)
        plan = dataclasses.replace(plan, step=step, starts=plan.starts + 1, new_pages=entries, masked=masked)
        drawn = rng.integers(0, 99, 3)
        assert pack.holds(plan)
        pack.fill(plan, drawn)

        layout = lay_out(plan, table, page_size)
        rows, starts, lengths, wanted, drawing, before, ids, positions, slots, pages = sections(pack.packed, 4, 4)
        assert rows.tolist() == [5, 2, 9, 0, 0]
        assert starts.tolist() == [0, 1, 2, 3, 4, 5]
        assert lengths.tolist() == [*layout.lengths, 0, 0]
        assert wanted.tolist() == [0, 1, 2, 2]
        assert drawing.tolist() == [5, 2, 9, 0]
        assert before.tolist() == [*(-1 if b in masked else drawn[b] for b in range(3)), 0]
        assert ids.tolist() == [-5, -2, -9, 0]
        assert positions.tolist() == [*layout.positions, 0]
        assert slots.tolist() == [*layout.slots, 0]
        assert pages.tolist() == [*entries.ravel(), *[0] * (12 - entries.size)]
        fresh = DecodePack(plan, shape, table, page_size)
        fresh.fill(plan, drawn)
        assert fresh.packed.tolist() == pack.packed.tolist()


def test_any_other_step_is_not_held() -> None:
    table = RequestTable(12, PAGES, torch.device("cpu"))
    plan = first_plan([1, 2], [4, 7])
    pack = DecodePack(plan, Shape(2, 2), table, 4)
    assert pack.holds(plan)
    for change in (
        {"rows": plan.rows.copy()},
        {"counts": plan.counts.copy()},
        {"token_ids": plan.token_ids.copy()},
        {"samples": plan.samples.copy()},
        {"pools": plan.pools.copy()},
        {"actions": (Flush(),)},
        {"starts": np.array([4, 4 * PAGES], np.int32)},
        {"new_pages": np.ones((3, 3), np.int32)},
    ):
        assert not pack.holds(dataclasses.replace(plan, **change)), change
