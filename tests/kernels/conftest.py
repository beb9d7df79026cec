"""What tests of interpreted kernels share."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def products_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted, a product is the processor's library's, which on some processors adds up a row in an order that
    depends on how many rows there are. Hardware does not; of float64 sums the rounding hides it."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def create_dot(self: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
        product = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64))
        return TensorHandle(product.astype(d.data.dtype) + d.data, d.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
