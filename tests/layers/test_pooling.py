"""Pooling of ragged rows."""

from __future__ import annotations

import pytest
import torch

from radixlang.layers.pooling import pool

HIDDEN = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
STARTS = torch.tensor([0, 3, 4, 4, 7], dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kinds(dtype: torch.dtype) -> None:
    hidden = HIDDEN.to(dtype)
    rows = hidden.float().split([3, 1, 0, 3])
    for kind, of in (("last", lambda r: r[-1]), ("cls", lambda r: r[0]), ("mean", lambda r: r.mean(0))):
        out = pool(hidden, STARTS, kind, normalize=False)
        assert out.shape == (4, 5)
        assert out.dtype == torch.float32
        for i in (0, 1, 3):
            torch.testing.assert_close(out[i], of(rows[i]))


def test_normalised_vectors_have_length_one() -> None:
    out = pool(HIDDEN, STARTS, "mean")
    torch.testing.assert_close(out[[0, 1, 3]].norm(dim=-1), torch.ones(3))


def test_trailing_row_without_tokens() -> None:
    out = pool(HIDDEN, torch.tensor([0, 7, 7], dtype=torch.int32), "cls", normalize=False)
    torch.testing.assert_close(out[0], HIDDEN[0])
