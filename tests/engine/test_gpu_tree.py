"""Tree attention in real CUDA graphs: the same texts as without it, while requests come and go."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radixlang.executor.prefixes import PrefixPlanner, TreePlan
from radixlang.kernels import tuning
from radixlang.llm import Engine
from tests.conftest import reference

pytestmark = pytest.mark.gpu

NEW = 40


def prompts() -> list[list[int]]:
    """A system prompt, three documents below it with eight requests each, and six requests of their own."""
    cases = [case["prompt_ids"] for case in reference("smollm2")["cases"]]
    words = [token for ids in cases for token in ids]
    pick = random.Random(0)
    system, *documents = [pick.choices(words, k=length) for length in (400, 300, 170, 90)]
    shared = [[*system, *document, *pick.choice(cases)] for document in documents for _ in range(8)]
    return shared + [pick.choices(words, k=100 + 30 * i) for i in range(6)]


@pytest.mark.parametrize(
    "options", [{}, {"page_size": 128}, {"page_size": 1}, {"chunked_prefill_size": 61}], ids=str
)
def test_it_changes_no_text(smollm2_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, cold and warm; answers differ in length, so that rows leave the tree one by one."""
    monkeypatch.setattr(tuning, "TREE_LEAST_MIB", 0)
    plan, made = PrefixPlanner.plan, list[TreePlan | None]()

    def watched(self: PrefixPlanner, *step: Any) -> TreePlan | None:
        made.append(plan(self, *step))
        return made[-1]

    monkeypatch.setattr(PrefixPlanner, "plan", watched)
    ids = prompts()
    sampling = [{"temperature": 0, "max_new_tokens": NEW - i, "ignore_eos": True} for i in range(len(ids))]
    outs: dict[bool, list[list[list[int]]]] = {}
    for off in (True, False):
        with Engine(
            str(smollm2_path),
            device="cuda",
            inline=True,
            dtype="float32",
            max_total_tokens=30000,
            context_length=2048,
            max_running_requests=32,
            disable_tree_attention=off,
            **options,
        ) as engine:
            turns = [engine.generate(input_ids=ids, sampling_params=sampling) for _ in range(2)]
        outs[off] = [[out["output_ids"] for out in turn] for turn in turns]
        assert off == (not made)
    used = [work for work in made if work is not None]
    assert len(used) > 20, "whenever a row had left, in both turns"
    assert max(int(np.max(work.used)) for work in used) >= 2, "both levels of the tree"
    for mine, theirs in zip(outs[False], outs[True], strict=True):
        same = sum(a == b for a, b in zip(mine, theirs, strict=True))
        assert same >= len(ids) - 2, "a close call may fall otherwise, and rarely"
