"""The quantisation seam: a method turns stored weights into things that multiply.

Models hand over what the checkpoint stores and get a `Linear` or an `Embedding` back; they never learn how the
numbers are kept. Must not know models or checkpoint formats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from radixlang.registry import Registry

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class BlockRows:
    """A matrix as GGML blocks: `data` is uint8 [rows, bytes of a row], `type` a name such as "Q4_1"."""

    type: str
    shape: tuple[int, ...]
    data: np.ndarray


class StoredWeight(Protocol):
    """One tensor of a checkpoint, read on demand. `shape` is (out features, in features) for a matrix."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def dense(self) -> torch.Tensor:
        """The values, in the dtype they are stored in (float32 for blocks)."""
        ...

    def blocks(self) -> BlockRows | None:
        """The stored blocks, if that is how it is stored."""
        ...

    def part(self, dim: int, start: int, stop: int) -> StoredWeight:
        """Rows (`dim` 0) or columns (1) start … stop - 1 as a weight of their own; the rest is not read."""
        ...


class Linear(Protocol):
    """y = x Wᵀ + b. `nbytes` is the memory it owns."""

    @property
    def nbytes(self) -> int: ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in] → [T, out]"""
        ...


class Embedding(Protocol):
    """A table of rows, which may also serve as the output matrix."""

    @property
    def nbytes(self) -> int: ...

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """ids [T] int64 → rows [T, hidden]"""
        ...

    def head(self) -> Linear:
        """The same storage as a linear [T, hidden] → [T, vocab]; its `nbytes` is 0."""
        ...


class QuantMethod(Protocol):
    """`dtype` is what inputs and outputs have."""

    def __init__(self, device: str, dtype: torch.dtype) -> None: ...

    def linear(self, weights: Sequence[StoredWeight], biases: Sequence[StoredWeight]) -> Linear:
        """One linear whose outputs are those of all `weights`, one after the other; `biases` may be empty."""
        ...

    def embedding(self, weight: StoredWeight) -> Embedding:
        """A table to look rows up in."""
        ...


METHODS: Registry[type[QuantMethod]] = Registry(
    "quantisation method",
    "quant",
    {
        "unquantized": "radixlang.quant.unquantized:Unquantized",
        "cpu_packed": "radixlang.quant.cpu_packed:CpuPacked",
        "cpu_packed_float": "radixlang.quant.cpu_packed:CpuPackedFloat",
        "exact": "radixlang.quant.exact:Exact",
    },
)
