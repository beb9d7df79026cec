"""The cost model: fitted, kept, read again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from radixlang.bench.steps import StepLog, Work
from radixlang.errors import ConfigError
from radixlang.plan import StepPlan, StepResult
from radixlang.scheduler import SchedulerLimits
from radixlang.simulate.cost import CostModel, EngineModel, non_negative_least_squares

TRUE = CostModel(0.004, 0.006, 3e-5, 2e-9, 1e-4, 4e-9)


def steps(noise: float = 0.0) -> list[list[float]]:
    draw = np.random.default_rng(0)
    out = []
    for _ in range(400):
        rows = int(draw.integers(0, 64))
        tokens = int(draw.integers(1, 2000)) if not rows or draw.random() < 0.4 else 0
        work = Work(tokens, tokens * int(draw.integers(1, 4000)), rows, rows * int(draw.integers(1, 3000)))
        out.append([*work, TRUE.seconds(work) * float(1 + noise * draw.standard_normal())])
    return out


def test_a_fit_finds_what_made_the_steps() -> None:
    for found, true in zip(dataclasses.astuple(CostModel.fit(steps())), dataclasses.astuple(TRUE), strict=True):
        assert found == pytest.approx(true, rel=1e-6)
    noisy = steps(0.1)
    fitted = CostModel.fit(noisy)
    total = sum(fitted.seconds(Work(*map(int, row[:4]))) for row in noisy)
    assert total == pytest.approx(sum(row[-1] for row in noisy), rel=0.02)


def test_decode_seconds_are_those_of_the_single_steps() -> None:
    many = TRUE.decode_seconds(5, 1000, 7)
    assert many.tolist() == [TRUE.seconds(Work(0, 0, 5, 1000 + 5 * i)) for i in range(7)]


def test_no_coefficient_is_negative_and_none_is_better() -> None:
    draw = np.random.default_rng(1)
    for _ in range(20):
        a, b = draw.standard_normal((40, 4)), draw.standard_normal(40)
        x = non_negative_least_squares(a, b)
        assert (x >= 0).all()
        gradient = a.T @ (a @ x - b)
        # The conditions of Karush, Kuhn and Tucker: no step that is allowed goes down.
        assert np.allclose(gradient[x > 0], 0, atol=1e-8)
        assert (gradient[x == 0] > -1e-8).all()
    assert non_negative_least_squares(np.zeros((3, 2)), np.ones(3)).tolist() == [0, 0]


def test_work_of_a_plan() -> None:
    # Two rows decode at 10 and 7 tokens, one prompt goes on from 4 by 3.
    plan = plan_of([10, 7, 4], [1, 1, 3])
    assert Work.of(plan) == Work(3, 5 + 6 + 7, 2, 17)
    assert Work.of(plan_of([3], [1])) == Work(0, 0, 1, 3)


def plan_of(starts: list[int], counts: list[int]) -> StepPlan:
    size, tokens = len(starts), sum(counts)
    return StepPlan(
        step=0,
        rows=np.arange(1, size + 1, dtype=np.int32),
        starts=np.array(starts, np.int32),
        counts=np.array(counts, np.int32),
        token_ids=np.zeros(tokens, np.int32),
        samples=np.ones(size, np.bool_),
        pools=np.zeros(size, np.bool_),
        new_pages=np.zeros((0, 3), np.int32),
    )


class Slow:
    """An executor on which time passes when somebody waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("time.perf_counter", lambda: self.now)

    def launch(self, plan: StepPlan) -> float:
        return 2.0

    def result(self, ticket: float) -> StepResult:
        self.now += ticket
        return StepResult(0, np.zeros(1, np.int32))


def test_the_log_counts_what_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    log = StepLog(slow)
    slow.now = 5.0
    tickets = [log.launch(plan_of([1], [1])), log.launch(plan_of([2], [1]))]
    log.result(tickets[0])
    slow.now += 0.5  # the loop's own work between two steps belongs to the later one
    log.result(tickets[1])
    log.idle()
    slow.now += 100
    log.result(log.launch(plan_of([3], [1])))
    assert log.steps == [(Work(0, 0, 1, 1), 2.0), (Work(0, 0, 1, 2), 2.5), (Work(0, 0, 1, 3), 2.0)]


def test_files(tmp_path: Path) -> None:
    limits = SchedulerLimits(num_pages=100, page_size=16, context_length=512, max_running_requests=8, eos_ids=(2,))
    model = EngineModel(limits, TRUE, overlap=False, device="cpu: x")
    file = tmp_path / "costs.json"
    model.write(file)
    assert EngineModel.read(file) == model
    record = {"kind": "steps", "limits": dataclasses.asdict(limits), "overlap": True, "device": "d"}
    parts = [steps()[:200], steps()[200:]]
    file.write_text(json.dumps(record | {"runs": [{"steps": list(part)} for part in parts]}))
    fitted = EngineModel.read(file)
    assert fitted.limits == limits
    assert fitted.cost.prompt_token == pytest.approx(TRUE.prompt_token, rel=1e-6)
    for text, words in (("{", "cannot be read"), ("[]", "is neither"), ('{"kind": "steps"}', "is neither")):
        file.write_text(text)
        with pytest.raises(ConfigError, match=words):
            EngineModel.read(file)
    with pytest.raises(ConfigError, match="cannot be written"):
        model.write(tmp_path / "no" / "x")
