"""Sampling parameters as columns on the device, and the buffers of rows whose logits are changed."""

from __future__ import annotations

import numpy as np
import pytest

from radixlang.kernels.edit_words import END, PROMPT, TIMES
from radixlang.platforms.cpu import CpuPlatform
from radixlang.sampling.columns import RowColumns
from radixlang.sampling.edits import EditBuffers
from radixlang.sampling_params import RowSampling

NONE = np.zeros(0, np.int32)


def test_columns_hold_what_was_written() -> None:
    columns = RowColumns(6, CpuPlatform())
    first = RowSampling(temperature=0.7, top_p=0.9, min_p=0.1, top_k=40, seed=(1 << 62) + 12345)
    penalised = RowSampling(
        seed=7, frequency_penalty=0.5, presence_penalty=-1.5, repetition_penalty=1.25, min_new_tokens=3
    )
    columns.write([4, 2], [first, penalised], [(0, 0, 0), (1 << 45, 1 << 46, 1 << 47)])
    columns.write([5], [RowSampling(temperature=1.0, min_p=1.0)], [(0, 0, 0)])
    assert columns.temperature.tolist() == pytest.approx([0, 0, 0, 0, 0.7, 0])
    assert columns.top_p.tolist() == pytest.approx([0, 0, 1, 0, 0.9, 1])
    assert columns.min_p.tolist() == pytest.approx([0, 0, 0, 0, 0.1, 1])
    assert columns.top_k.tolist()[4] == 40
    assert columns.seeds.tolist()[2:5] == [7, 0, (1 << 62) + 12345]
    assert columns.frequency.tolist() == [0, 0, 0.5, 0, 0, 0]
    assert columns.presence.tolist() == [0, 0, -1.5, 0, 0, 0]
    assert columns.repetition.tolist() == [0, 0, 1.25, 0, 1, 1]
    assert columns.least.tolist() == [0, 0, 3, 0, 0, 0]
    assert columns.values.tolist() == [0, 0, 1 << 45, 0, 0, 0]
    assert columns.words.tolist() == [0, 0, 1 << 46, 0, 0, 0]
    assert columns.bias.tolist() == [0, 0, 1 << 47, 0, 0, 0]


@pytest.mark.parametrize(
    ("sampling", "has"),
    [
        (RowSampling(temperature=1.0, top_k=3), False),
        (RowSampling(min_new_tokens=2), False),
        (RowSampling(min_new_tokens=2, end_ids=(50,)), False),
        (RowSampling(end_ids=(3,)), False),
        (RowSampling(min_new_tokens=2, end_ids=(3,)), True),
        (RowSampling(logit_bias={3: 1.0}), True),
        (RowSampling(presence_penalty=1.0), True),
    ],
)
def test_only_rows_with_changes_have_a_buffer(sampling: RowSampling, has: bool) -> None:
    buffers = EditBuffers(50, CpuPlatform())
    buffers.setup(2, sampling, NONE, NONE)
    values, words, bias = buffers.addresses(2)
    assert (values != 0) == (words != 0) == has
    assert (bias != 0) == bool(sampling.logit_bias)
    assert (buffers.changed(2) is not None) == has
    assert buffers.addresses(1) == (0, 0, 0)


def test_a_buffer_begins_with_the_history_of_its_new_owner() -> None:
    buffers = EditBuffers(50, CpuPlatform())
    old = RowSampling(repetition_penalty=2.0, logit_bias={9: 1.0}, min_new_tokens=9, end_ids=(1, 60))
    buffers.setup(2, old, np.array([3, 4, 4], np.int32), np.array([4, 7] * 20000, np.int32))
    words = buffers._of[2].words
    assert int(words[4]) == PROMPT + TIMES
    assert int(words[7]) == TIMES, "the count stops at its largest number"
    assert int(words[3]) == PROMPT
    assert int(words[1]) == END
    assert int((words != 0).sum()) == 4
    buffers.setup(2, RowSampling(frequency_penalty=1.0), NONE, np.array([5, 6, 5], np.int32))
    assert buffers._of[2].words is words, "used again"
    assert words.nonzero()[:, 0].tolist() == [5, 6]
    assert words[5:7].tolist() == [2, 1]
    assert buffers.addresses(2)[2] == 0
    buffers.setup(2, RowSampling(logit_bias={8: -2.0, 70: 1.0}), NONE, NONE)
    bias = buffers._of[2].bias
    assert bias is not None
    assert bias.nonzero()[:, 0].tolist() == [8]
    assert buffers.addresses(2)[2] == bias.data_ptr()
