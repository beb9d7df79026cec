"""Fast paths for the CPU: quantised linear layers, paged attention, fused small operations.

Tensors in, tensors out; knows nothing of models, layers or requests. The kernels are compiled by numba on first
use and kept on disk; where numba is missing, plain torch computes the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixlang.kernels.cpu.linear import CpuLinear


@cache
def available() -> bool:
    """Whether the compiled kernels can be used (numba is installed)."""
    return find_spec("numba") is not None


def warm_up(layers: Iterable[CpuLinear] = ()) -> None:
    """Compile, or load from disk, the kernels that a model with these linear layers runs.

    The first time on a machine a weight format takes some seconds; later starts take milliseconds.
    """
    if not available():
        return
    from radixlang.kernels.cpu import paged, pool, rowwise

    pool.warm_up()
    for compiled in (
        rowwise.norm, rowwise.gate, rowwise.rope, rowwise.take, rowwise.best, paged.decode, paged.pack_keys,
        paged.extend,
    ):  # fmt: skip
        compiled()
    for layer in layers:
        layer.prepare()
