"""Plans survive the wire: every field, every action, every dtype."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from radixlang.executor.wire import launch_frame, parse, sample_frame, stop_frame
from radixlang.plan import (
    AwaitCopies,
    CopyPages,
    Flush,
    LoadAutomaton,
    LoadPages,
    LoadTokens,
    LogprobWish,
    RowSetup,
    StepPlan,
    StorePages,
)
from radixlang.sampling_params import RowSampling


def ints(*values):
    return np.array(values, np.int32)


def full_plan():
    sampling = RowSampling(temperature=0.5, top_k=3, seed=(1 << 62) + 1, logit_bias={7: -1.5}, end_ids=(2, 3))
    return StepPlan(
        step=12,
        rows=ints(1, 2),
        starts=ints(0, 5),
        counts=ints(3, 1),
        token_ids=ints(4, 5, 6, -1),
        samples=np.array([False, True]),
        pools=np.array([True, False]),
        new_pages=ints(1, 0, 9, 2, 1, 10).reshape(2, 3),
        setups=(
            RowSetup(1, sampling, ints(4, 5, 6), ints(), 0),
            RowSetup(2, RowSampling(), ints(), ints(8), 1, (3, 40)),
        ),
        logprobs=(LogprobWish(0, 1, ints(6, 7), True, 2, (5, 6)),),
        actions=(
            CopyPages(ints(3), ints(4)),
            Flush(),
            LoadTokens(np.array([200, 7], np.uint8), ints(0, 2)),
            LoadAutomaton(2, np.array([-1, 300], np.int16), ints(0), ints(5, -1)),
        ),
        masked=ints(1),
        transfers=(
            StorePages(3, ints(9, 8), ints(0, 1)),
            AwaitCopies((1, 3)),
            LoadPages(5, ints(2), ints(3), layered=True),
            LoadPages(4, ints(5), ints(7)),
        ),
        copies=CopyPages(ints(9, 9), ints(6, 8)),
    )


def same(a, b):
    assert type(a) is type(b), (a, b)
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        np.testing.assert_array_equal(a, b)
    elif isinstance(a, tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif dataclasses.is_dataclass(a):
        for field in dataclasses.fields(a):
            same(getattr(a, field.name), getattr(b, field.name))
    else:
        assert a == b


def test_every_field_of_a_plan():
    plan = full_plan()
    kind, got = parse(launch_frame(plan))
    assert kind == "launch"
    same(plan, got)
    got.token_ids[0] = 1  # an array of its own, not a view of the frame


def test_a_plan_of_decoding_alone():
    plan = dataclasses.replace(
        full_plan(), new_pages=np.zeros((0, 3), np.int32), setups=(), logprobs=(), actions=()
    )
    same(plan, parse(launch_frame(plan))[1])


def test_row_numbers_may_be_numpys():
    plan = dataclasses.replace(full_plan(), setups=(RowSetup(np.int32(3), RowSampling(), ints(), ints()),))
    assert parse(launch_frame(plan))[1].setups[0].row == 3


@pytest.mark.parametrize("masks", [None, np.arange(6, dtype=np.int32).reshape(2, 3)])
def test_masks(masks):
    kind, (step, got) = parse(sample_frame(4, masks))
    assert (kind, step) == ("sample", 4)
    same(masks, got)


def test_stop():
    assert parse(stop_frame()) == ("stop", None)


def test_what_has_no_form_is_named():
    with pytest.raises(TypeError, match="object"):
        launch_frame(dataclasses.replace(full_plan(), setups=(RowSetup(object(), RowSampling(), ints(), ints()),)))
