"""Sampling parameters as columns, and which rows need nothing but a draw."""

from __future__ import annotations

import numpy as np
import pytest

from radixlang.plan import RowSetup
from radixlang.platforms.cpu import CpuPlatform
from radixlang.sampling.batch import SamplingBatch
from radixlang.sampling.columns import RowColumns
from radixlang.sampling_params import RowSampling

NONE = np.zeros(0, np.int32)


def test_columns_hold_what_was_written() -> None:
    columns = RowColumns(6, CpuPlatform())
    first = RowSampling(temperature=0.7, top_p=0.9, min_p=0.1, top_k=40, seed=(1 << 62) + 12345)
    columns.write([4, 2], [first, RowSampling(temperature=0.0, seed=7)])
    columns.write([5], [RowSampling(temperature=1.0, min_p=1.0)])
    assert columns.temperature.tolist() == pytest.approx([0, 0, 0, 0, 0.7, 0])
    assert columns.top_p.tolist() == pytest.approx([0, 0, 1, 0, 0.9, 1])
    assert columns.min_p.tolist() == pytest.approx([0, 0, 0, 0, 0.1, 1])
    assert columns.top_k.tolist()[4] == 40
    assert columns.seeds.tolist()[2:5] == [7, 0, (1 << 62) + 12345]


def test_plain_rows() -> None:
    state = SamplingBatch(6, 50, CpuPlatform())
    for row, sampling in enumerate(
        (
            RowSampling(),
            RowSampling(temperature=1.0, top_k=3),
            RowSampling(presence_penalty=1.0),
            RowSampling(logit_bias={3: 1.0}),
            RowSampling(min_new_tokens=2, end_ids=(0,)),
        ),
        1,
    ):
        state.setup(RowSetup(row, sampling, NONE, NONE))
    assert state.plain(np.array([1, 2], np.int32))
    assert [state.plain(np.array([1, row], np.int32)) for row in (3, 4, 5)] == [False] * 3
    state.setup(RowSetup(3, RowSampling(), NONE, NONE))
    assert state.plain(np.array([1, 2, 3], np.int32)), "the row has changed hands"
