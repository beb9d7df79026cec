"""Kernels that are compiled ahead are launched, once, and not compiled again."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

import triton.language as tl  # noqa: E402
from triton import knobs  # noqa: E402

from radixlang.kernels.ahead import compiled_ahead  # noqa: E402

pytestmark = pytest.mark.gpu


@triton.jit
def _add(x_ptr, y, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(x_ptr + at, tl.load(x_ptr + at) + y)


def test_each_kernel_is_launched_once_and_compiled_ahead() -> None:
    x = torch.zeros(64, device="cuda")
    compiled: list[int] = []
    calls: list[int] = []

    def work() -> None:
        calls.append(len(compiled))
        for size in (16, 32, 64):
            _add[(1,)](x, 1.0, N=size)

    before = knobs.runtime.jit_post_compile_hook
    knobs.runtime.jit_post_compile_hook = lambda **what: compiled.append(1)
    try:
        compiled_ahead(x.device, work)
    finally:
        knobs.runtime.jit_post_compile_hook = before
    assert calls == [0, 3]
    assert len(compiled) == 3
    assert x.tolist() == [3.0] * 16 + [2.0] * 16 + [1.0] * 32


def test_an_error_of_the_first_time_is_forgotten() -> None:
    x = torch.zeros(16, device="cuda")
    turns: list[int] = []

    def work() -> None:
        turns.append(1)
        if len(turns) == 1:
            raise ValueError("rubbish")
        _add[(1,)](x, 2.0, N=16)

    compiled_ahead(x.device, work)
    assert x.tolist() == [2.0] * 16
