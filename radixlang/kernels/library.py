"""Which of the vendor's libraries does a matrix product that no kernel of ours does.

torch asks when a product is launched, so a choice lasts in the graphs that were captured under it. Must not know
models.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from radixlang.kernels.tuning import LibraryProduct


@contextmanager
def preferring(product: LibraryProduct) -> Iterator[None]:
    """Products launched inside are done as `product` says, by torch's own choice if that is nothing special.

    The preference is the process's: a product that another thread launches meanwhile may follow it, and is right
    all the same.
    """
    if not product.cublaslt:
        yield
        return
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library("cublaslt")
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)
