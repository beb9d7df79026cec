"""A small scheduler for tests of one promise each."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from radixlang.sampling_params import SamplingParams
from radixlang.scheduler import SchedulerLimits
from tests.scheduler.driver import EOS, Driver

LIMITS = SchedulerLimits(
    num_pages=65, page_size=4, context_length=128, max_running_requests=8, chunked_prefill_size=16, eos_ids=(EOS,)
)
OVERLAP = pytest.mark.parametrize("depth", [0, 1], ids=["plain", "overlap"])


def driver(depth: int = 0, **changes: Any) -> Driver:
    fake = {key: changes.pop(key) for key in ("poison", "curse", "broken") if key in changes}
    return Driver(dataclasses.replace(LIMITS, **changes), depth, **fake)


def endless(count: int, **fields: Any) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, ignore_eos=True, temperature=0.0, **fields)


def finished(run: Driver) -> None:
    run.finish()
    run.judge_all()
