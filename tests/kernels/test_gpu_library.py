"""A product by the library that a table names, launched by itself and in a graph."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed, so its kernels cannot run here")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from radixlang.kernels.tuning import LibraryProduct
from radixlang.layers import triton_ops
from radixlang.layers.triton_ops import TritonOps
from radixlang.quant.unquantized import DenseLinear

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("cublaslt", [False, True])
@pytest.mark.parametrize("tokens", [33, 64, 256])
def test_either_library(monkeypatch: pytest.MonkeyPatch, tokens: int, cublaslt: bool) -> None:
    monkeypatch.setattr(triton_ops, "matvec_tile", lambda *_, **__: None)
    monkeypatch.setattr(triton_ops, "skinny_tile", lambda *_, **__: None)
    monkeypatch.setattr(triton_ops, "library_product", lambda *_, **__: LibraryProduct(cublaslt))
    before = torch.backends.cuda.preferred_blas_library()
    some = {"dtype": torch.bfloat16, "device": "cuda"}
    x, start = torch.randn((tokens, 2048), **some), torch.randn((tokens, 1024), **some)
    linear = DenseLinear(torch.randn((1024, 2048), **some) / 45, None)
    product = x.float() @ linear.weight.float().T
    ops = TritonOps()

    def close(got: torch.Tensor, want: torch.Tensor) -> None:
        assert float((got.float() - want).norm() / want.norm()) < 8e-3

    close(ops.linear(x, linear), product)
    close(ops.linear_add(x, start.clone(), linear, None)[1], product + start.float())
    stream, graph = start.clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.linear_add(x, stream, linear, None)
    stream.copy_(start)
    graph.replay()
    close(stream, product + start.float())
    assert torch.backends.cuda.preferred_blas_library() == before
