"""A plan laid out: which steps may write and read the cache in one kernel."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixlang.executor.inputs import build_inputs
from radixlang.memory.request_table import RequestTable
from radixlang.plan import FROM_TABLE, StepPlan
from radixlang.platforms import find_platform


@pytest.mark.parametrize(
    ("tokens", "separate"), [([FROM_TABLE, FROM_TABLE], True), ([FROM_TABLE, 7], False), ([7, 7], False)]
)
def test_rows_are_separate_if_no_token_can_be_in_a_prefix(tokens: list[int], separate: bool) -> None:
    """A prompt's last token is known to the host, so a row of the same step may share its page already."""
    table = RequestTable(4, 8, torch.device("cpu"))
    plan = StepPlan(
        step=0,
        rows=np.array([1, 2], np.int32),
        starts=np.array([3, 4], np.int32),
        counts=np.array([1, 1], np.int32),
        token_ids=np.array(tokens, np.int32),
        samples=np.ones(2, np.bool_),
        pools=np.zeros(2, np.bool_),
        new_pages=np.array([[1, 1, 5], [2, 2, 6]], np.int32),
        setups=(),
    )
    batch = build_inputs(plan, table, 2, find_platform("cpu")).batch
    assert batch.separate is separate
    assert batch.slots.tolist() == [11, 12]
