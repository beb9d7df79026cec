"""What is made of cuBLASLt for a product is given back, and what it refuses is left to torch; no GPU is needed."""

from __future__ import annotations

import collections
import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from radixlang.kernels import library_linear
from radixlang.kernels.library_linear import WORKSPACE, Found, Problem, Product, Refused, add_linear, linear
from radixlang.kernels.tuning import Chip, LibraryAlgorithm, library_algorithm

NUMBERS = LibraryAlgorithm(tile=15, stages=35, custom=1, cluster=5, swizzle=0)


class Library:
    """Counts what it makes and destroys, refuses the n-th call of `refused`, and says what an algorithm needs."""

    handle = None

    def __init__(self) -> None:
        self.alive: collections.Counter[str] = collections.Counter()
        self.refused, self.bytes = ("", 0), 0
        self._calls: collections.Counter[str] = collections.Counter()

    def __call__(self, name: str, *arguments: Any) -> None:
        self._calls[name] += 1
        if (name, self._calls[name]) == self.refused:
            raise Refused(name)
        for end, change in (("Create", 1), ("Destroy", -1)):
            if name.endswith(end):
                self.alive[name.removesuffix(end)] += change
                if change == 1:
                    arguments[0]._obj.value = 1
        if name == "MatmulAlgoCheck":
            found = arguments[-1]._obj
            assert isinstance(found, Found)
            found.workspace = self.bytes


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    fake = Library()
    monkeypatch.setattr(library_linear, "library", lambda device: fake)
    library_linear.forget()
    yield fake
    library_linear.forget()


def make() -> Product:
    return Product(Problem(0, torch.bfloat16, 128, 64, 32), NUMBERS, 1.0)


def test_everything_made_is_given_back(library: Library) -> None:
    product = make()
    assert library.alive == {"MatmulDesc": 1, "MatrixLayout": 3}
    del product
    gc.collect()
    assert not any(library.alive.values())


@pytest.mark.parametrize(
    "refused",
    [("MatrixLayoutCreate", 1), ("MatrixLayoutCreate", 3), ("MatmulAlgoInit", 1), ("MatmulAlgoCheck", 1)],
)
def test_also_when_something_is_refused(library: Library, refused: tuple[str, int]) -> None:
    library.refused = refused
    with pytest.raises(Refused):
        make()
    gc.collect()
    assert not any(library.alive.values())


def test_workspace(library: Library) -> None:
    library.bytes = WORKSPACE
    make()
    library.bytes += 1
    with pytest.raises(Refused, match="needs 65537 bytes"):
        make()


def test_where_the_table_names_none_torch_computes() -> None:
    x, weight, stream = torch.randn(5, 32), torch.randn(64, 32), torch.randn(5, 64)
    expected = stream + x @ weight.t()
    assert torch.equal(linear(x, weight), torch.nn.functional.linear(x, weight))
    torch.testing.assert_close(add_linear(x, weight, stream), expected)
    torch.testing.assert_close(stream, expected)


def test_the_table() -> None:
    bounds = {
        "min_tokens": 97,
        "max_tokens": 128,
        "min_outer": 64,
        "max_outer": 64,
        "min_inner": 32,
        "max_inner": 32,
    }
    chip = Chip(132, 1 << 16, {"library": [bounds | {"tile": 15, "stages": 35, "custom": 1, "cluster": 5}]})
    assert library_algorithm(chip, tokens=97, outer=64, inner=32) == NUMBERS
    for sizes in ((96, 64, 32), (129, 64, 32), (97, 65, 32), (97, 64, 31)):
        tokens, outer, inner = sizes
        assert library_algorithm(chip, tokens=tokens, outer=outer, inner=inner) is None
    assert library_algorithm(Chip(132, 1 << 16, {}), tokens=97, outer=64, inner=32) is None
