"""Tree attention in real CUDA graphs: the same texts as without it, while requests come and go.

Without a GPU the scheduler's steps of the same requests are planned, and the plans are checked.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radixlang.executor.prefixes import KvShape, PrefixPlanner, TreePlan
from radixlang.kernels import tuning
from radixlang.llm import Engine
from radixlang.plan import FROM_TABLE, Ints, StepPlan
from radixlang.sampling_params import SamplingParams
from radixlang.scheduler.limits import SchedulerLimits
from tests.conftest import reference
from tests.executor.test_prefixes import check
from tests.scheduler.driver import Driver

NEW, CONTEXT, POOL, RUNNING = 40, 2048, 30000, 32
PAGE = 16
"""tokens, where options say nothing else"""
OPTIONS: list[dict[str, int]] = [{}, {"page_size": 128}, {"page_size": 1}, {"chunked_prefill_size": 61}]


def prompts() -> list[list[int]]:
    """A system prompt, three documents below it with eight requests each, and six requests of their own. Real
    text, but for the last: the answers to it differ."""
    cases = sorted((case["prompt_ids"] for case in reference("smollm2")["cases"]), key=len)
    other, text = cases[-2:]
    questions = [case for case in cases if len(case) <= 100]
    pick = random.Random(0)
    system, documents = text[:400], [text[400:700], text[700:870], text[870:960]]
    shared = [[*system, *document, *q] for document in documents for q in pick.sample(questions, 8)]
    return [*shared, *(other[200 * i : 230 * i + 100] for i in range(5)), pick.choices(text, k=250)]


def new_tokens(count: int) -> list[int]:
    """All different, so that rows leave the tree one by one."""
    return [NEW - i for i in range(count)]


def judge(plans: list[TreePlan | None]) -> None:
    """Of two turns: the plans do what they are here for."""
    used = [plan for plan in plans if plan is not None]
    assert len(used) > 40, "whenever a row had left, in both turns"
    assert max(int(plan.used.max()) for plan in used) >= 2, "both levels of the tree"
    assert len({len(plan.order) for plan in used}) > 15, "of ever fewer rows"


class Planner:
    """Plans the steps that would be graphs, as the executor does: anew when the rows are others."""

    def __init__(self, limits: SchedulerLimits) -> None:
        chip = tuning.Chip(132, 196608, tuning.measured("nvidia_h200"))
        kv = KvShape(heads=9, kv_heads=3, head_dim=64, element_size=4, page_size=limits.page_size)
        sizes = {"heads": kv.heads, "kv_heads": kv.kv_heads, "head_dim": kv.head_dim}
        tile = tuning.tree_tile(chip, **sizes, element_size=kv.element_size, page_size=kv.page_size)
        assert tile is not None
        self._planner, self._page, self._per_tile = PrefixPlanner(tile, kv), kv.page_size, tile.block_m // 3
        self._pages: Ints = np.zeros((RUNNING + 1, CONTEXT // kv.page_size), np.int32)
        self._rows: Ints | None = None
        self.plans: list[TreePlan | None] = []

    def see(self, step: StepPlan) -> None:
        """Check what holds in this step, made now or for an earlier one of the same rows."""
        entries = step.new_pages.reshape(-1, 3)
        self._pages[entries[:, 0], entries[:, 1]] = entries[:, 2]
        if step.size < step.tokens or (step.token_ids != FROM_TABLE).any():
            self._rows = None
            return
        if self._rows is not step.rows:
            self._rows = step.rows
            self.plans.append(self._planner.plan(step.rows, step.starts, self._pages))
        plan = self.plans[-1]
        if plan is not None:
            check(plan, step.rows, step.starts, self._pages, self._page, self._per_tile)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_plans_of_the_same_requests(options: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "TREE_LEAST_MIB", 0)
    page = options.get("page_size", PAGE)
    limits = SchedulerLimits(
        POOL // page, page, CONTEXT, RUNNING, chunked_prefill_size=options.get("chunked_prefill_size", 8192)
    )
    driver, planner = Driver(limits, depth=1), Planner(limits)
    launch = driver.executor.launch

    def watched(step: StepPlan) -> Any:
        planner.see(step)
        return launch(step)

    monkeypatch.setattr(driver.executor, "launch", watched)
    ids = prompts()
    for turn in range(2):
        for i, (prompt, count) in enumerate(zip(ids, new_tokens(len(ids)), strict=True)):
            assert len(prompt) + count <= CONTEXT
            sampling = SamplingParams(max_new_tokens=count, temperature=0.0, ignore_eos=True)
            assert driver.add(f"{turn}-{i}", prompt, sampling=sampling).failed is None
        driver.finish()
    judge(planner.plans)


@pytest.mark.gpu
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_changes_no_text(smollm2_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, cold and warm. No two best tokens of these texts are closer than 1e-3, which sums of another
    order do not move."""
    monkeypatch.setattr(tuning, "TREE_LEAST_MIB", 0)
    plan, made = PrefixPlanner.plan, list[TreePlan | None]()

    def watched(self: PrefixPlanner, *step: Any) -> TreePlan | None:
        made.append(plan(self, *step))
        return made[-1]

    monkeypatch.setattr(PrefixPlanner, "plan", watched)
    ids = prompts()
    sampling = [{"temperature": 0, "max_new_tokens": n, "ignore_eos": True} for n in new_tokens(len(ids))]
    outs: dict[bool, list[list[list[int]]]] = {}
    for on in (False, True):
        with Engine(
            str(smollm2_path),
            device="cuda",
            inline=True,
            dtype="float32",
            max_total_tokens=POOL,
            context_length=CONTEXT,
            max_running_requests=RUNNING,
            disable_tree_attention=not on,
            **{"page_size": PAGE, **options},
        ) as engine:
            turns = [engine.generate(input_ids=ids, sampling_params=sampling) for _ in range(2)]
        outs[on] = [[out["output_ids"] for out in turn] for turn in turns]
        assert on == bool(made)
    judge(made)
    for turn, (mine, theirs) in enumerate(zip(outs[True], outs[False], strict=True)):
        differ = [i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b]
        assert not differ, f"turn {turn}: other texts than without tree attention"
