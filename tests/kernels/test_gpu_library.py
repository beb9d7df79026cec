"""Algorithms of the chip's table give what torch's products give, and are used."""

from __future__ import annotations

import pytest
import torch

from radixlang.kernels import library_linear
from radixlang.kernels.library_linear import add_linear, linear
from radixlang.kernels.tuning import LibraryAlgorithm, chip

pytestmark = pytest.mark.gpu


def entries() -> list[dict[str, int]]:
    return chip("cuda").table.get("library", []) if torch.cuda.is_available() else []


def numbers(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_entry_of_the_table(dtype: torch.dtype) -> None:
    if not entries():
        pytest.skip("nothing was measured on this chip")
    for entry in entries():
        weight = numbers(entry["min_outer"], entry["min_inner"], dtype=dtype) / entry["min_inner"] ** 0.5
        for tokens in {
            entry["min_tokens"],
            (entry["min_tokens"] + entry["max_tokens"]) // 2 + 1,
            entry["max_tokens"],
        }:
            x = numbers(tokens, entry["min_inner"], dtype=dtype)
            stream = numbers(tokens, entry["min_outer"], dtype=dtype)
            assert library_linear._product(x.device, dtype, tokens, *weight.shape, True) is not None, entry
            plain = torch.nn.functional.linear(x, weight)
            torch.testing.assert_close(linear(x, weight), plain, atol=2e-2, rtol=2e-2)
            added = torch.addmm(stream, x, weight.t())
            torch.testing.assert_close(add_linear(x, weight, stream), added, atol=4e-2, rtol=2e-2)


def test_in_a_graph() -> None:
    if not entries():
        pytest.skip("nothing was measured on this chip")
    entry = entries()[0]
    weight, x = (
        numbers(entry["min_outer"], entry["min_inner"]) / 64,
        numbers(entry["max_tokens"], entry["min_inner"]),
    )
    linear(x, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = linear(x, weight)
    x.normal_()
    graph.replay()
    torch.testing.assert_close(out, torch.nn.functional.linear(x, weight), atol=2e-2, rtol=2e-2)


def test_what_the_library_does_not_know_is_computed_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = LibraryAlgorithm(tile=60_000, stages=35, custom=0, cluster=2, swizzle=0)
    monkeypatch.setattr(library_linear, "library_algorithm", lambda *_, **sizes: unknown)
    library_linear.forget()
    x, weight = numbers(40, 128), numbers(64, 128)
    assert library_linear._product(x.device, x.dtype, 40, 64, 128, False) is None
    assert torch.equal(linear(x, weight), torch.nn.functional.linear(x, weight))
    library_linear.forget()


def test_what_is_not_dense_is_computed_by_torch() -> None:
    entry = (entries() or [{"min_tokens": 8, "min_outer": 64, "min_inner": 64}])[0]
    weight = numbers(entry["min_outer"], entry["min_inner"]) / 64
    turned = numbers(entry["min_inner"], entry["min_tokens"]).t()
    shifted = numbers(entry["min_inner"] * entry["min_tokens"] + 1)[1:].view(entry["min_tokens"], -1)
    for x in (turned, shifted):
        assert torch.equal(linear(x, weight), torch.nn.functional.linear(x, weight))
