"""Log-probabilities against torch's log_softmax."""

from __future__ import annotations

import numpy as np
import torch

from radixlang.sampling.logprobs import Segment, join, position_logprobs


def test_segments_of_a_block() -> None:
    logits = torch.randn(7, 90) * 3
    chosen = torch.randint(0, 90, (7,))
    segments = [Segment(0, 3, 5, (1, 89)), Segment(3, 4, 0, ()), Segment(4, 7, 200, (500, 2))]
    want = logits.double().log_softmax(-1)
    for segment, got in zip(segments, position_logprobs(logits, chosen, segments), strict=True):
        values = want[segment.begin : segment.end]
        kept = chosen[segment.begin : segment.end, None]
        torch.testing.assert_close(got.chosen.double(), values.gather(1, kept)[:, 0], atol=1e-5, rtol=0)
        top = min(segment.top, 90)
        best = values.topk(top, -1)
        assert got.top_ids.dtype == torch.int32
        torch.testing.assert_close(got.top.double(), best.values, atol=1e-5, rtol=0)
        assert torch.equal(got.top_ids.long(), best.indices)
        for column, token in enumerate(segment.token_ids):
            expected = values[:, token] if token < 90 else torch.full((len(values),), -torch.inf).double()
            torch.testing.assert_close(got.ids[:, column].double(), expected, atol=1e-5, rtol=0)


def test_join_makes_one_of_many() -> None:
    logits = torch.randn(6, 20)
    chosen = torch.arange(6)
    whole = join(position_logprobs(logits, chosen, [Segment(0, 6, 3, (4,))]))
    halves = [position_logprobs(logits[i : i + 3], chosen[i : i + 3], [Segment(0, 3, 3, (4,))])[0] for i in (0, 3)]
    joined = join(halves)
    for name in ("chosen", "top_ids", "top", "ids"):
        np.testing.assert_allclose(getattr(joined, name), getattr(whole, name), atol=1e-6)
