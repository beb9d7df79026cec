"""Every quantisation method computes what the stored numbers say, whatever form they are stored in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from radixlang.quant import METHODS, BlockRows, QuantMethod

gguf = pytest.importorskip("gguf")


def atol(method: QuantMethod) -> float:
    """Of sums over 256 products of about 1; wider where activations are rounded to 2⁻¹⁵ of a group's largest."""
    return 4e-3 if getattr(method, "integer", False) else 2e-4


@dataclass(frozen=True)
class Stored:
    """A tensor in memory, as GGML blocks if it has a `type`."""

    name: str
    values: torch.Tensor
    type: str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def dense(self) -> torch.Tensor:
        rows = self.blocks()
        if rows is None:
            return self.values
        kind = gguf.GGMLQuantizationType[rows.type]
        return torch.from_numpy(gguf.quants.dequantize(rows.data, kind))

    def blocks(self) -> BlockRows | None:
        if self.type is None:
            return None
        data = gguf.quants.quantize(self.values.numpy(), gguf.GGMLQuantizationType[self.type])
        return BlockRows(self.type, self.shape, np.ascontiguousarray(data))


FORMS = ["float32", "bfloat16", "float16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ2_0"]


def stored(form: str, rows: int, columns: int = 256, seed: int = 0) -> Stored:
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    if form in ("float32", "bfloat16", "float16"):
        return Stored("w", values.to(getattr(torch, form)))
    return Stored("w", values, form)


# `exact` runs in kernels alone: tests/kernels/test_triton_exact.py and tests/executor/test_exactness_triton.py.
@pytest.fixture(params=[name for name in METHODS.names() if name != "exact"])
def method(request: pytest.FixtureRequest) -> QuantMethod:
    return METHODS.get(request.param)("cpu", torch.float32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [1, 9])
def test_one_linear_of_several_weights(method: QuantMethod, form: str, tokens: int) -> None:
    weights = [stored(form, 48, seed=1), stored("float32", 5, seed=2), stored(form, 17, seed=3)]
    biases = [Stored("b", torch.randn(w.shape[0])) for w in weights]
    x = torch.randn(tokens, 256)
    dense = torch.cat([w.dense().double() for w in weights])
    want = x.double() @ dense.T
    linear = method.linear(weights, [])
    assert linear.nbytes > 0
    torch.testing.assert_close(linear(x).double(), want, atol=atol(method), rtol=1e-5)
    want += torch.cat([b.values for b in biases])
    torch.testing.assert_close(method.linear(weights, biases)(x).double(), want, atol=atol(method), rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_embedding_and_its_head_share_storage(method: QuantMethod, form: str) -> None:
    weight = stored(form, 37)
    table = method.embedding(weight)
    dense = weight.dense().float()
    ids = torch.tensor([36, 0, 17, 0])
    assert torch.equal(table(ids), dense[ids])
    head = table.head()
    assert head.nbytes == 0
    assert table.nbytes > 0
    x = torch.randn(3, 256)
    torch.testing.assert_close(head(x), x @ dense.T, atol=atol(method), rtol=1e-5)


def test_packed_blocks_take_the_files_space() -> None:
    packed = METHODS.get("cpu_packed")("cpu", torch.float32)
    weight = stored("Q4_1", 256)
    rows = weight.blocks()
    assert rows is not None
    assert packed.linear([weight], []).nbytes <= 1.05 * rows.data.nbytes
