"""The CPU's methods: weights stay in the form they are stored in.

GGML blocks keep their codes and scales, bfloat16 stays bfloat16; both are exact, and reading fewer bytes is
what makes a step fast. Block types without an exact packed form are held as float32. The two methods differ in
the activations: float32, or rounded to 16 bits within a group where the weights are quantised.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from radixlang.kernels.cpu import blocks as b
from radixlang.kernels.cpu.linear import CpuLinear, Weight, concat, pack
from radixlang.quant import StoredWeight

_NUMBERS = {
    "Q4_0": b.Q4_0,
    "Q4_1": b.Q4_1,
    "Q5_0": b.Q5_0,
    "Q5_1": b.Q5_1,
    "Q8_0": b.Q8_0,
    "Q4_K": b.Q4_K,
    "Q5_K": b.Q5_K,
    "Q6_K": b.Q6_K,
}


class PackedHead:
    """An embedding table used as the output matrix."""

    nbytes = 0

    def __init__(self, table: CpuLinear) -> None:
        self._table = table

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._table(x)


class PackedEmbedding:
    """Rows of a packed matrix, made float32 on every look-up."""

    def __init__(self, table: CpuLinear) -> None:
        self._table = table
        self.nbytes = table.nbytes

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        return self._table.embedding(ids)

    def head(self) -> PackedHead:
        return PackedHead(self._table)


class CpuPackedFloat:
    """Float32 activations and sums: equal to dense float32 up to the order of sums."""

    integer = False

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        assert torch.device(device).type == "cpu"
        assert dtype == torch.float32

    def linear(self, weights: Sequence[StoredWeight], biases: Sequence[StoredWeight]) -> CpuLinear:
        bias = torch.cat([part.dense().float() for part in biases]) if biases else None
        return self._ready(concat([_weight(part) for part in weights], bias, self.integer))

    def embedding(self, weight: StoredWeight) -> PackedEmbedding:
        return PackedEmbedding(self._ready(pack(_weight(weight), integer=self.integer)))

    def _ready(self, layer: CpuLinear) -> CpuLinear:
        # Compile, or load from disk, now: not in the first request.
        layer.prepare()
        return layer


class CpuPacked(CpuPackedFloat):
    """16-bit activations (error at most 2⁻¹⁵ of a group's largest): the fastest, and greedy text stays the same
    on all reference continuations."""

    integer = True


def _weight(stored: StoredWeight) -> Weight:
    rows = stored.blocks()
    if rows is not None and rows.type in _NUMBERS:
        packed = b.quant_blocks_from_gguf(rows.data, _NUMBERS[rows.type], (rows.shape[0], rows.shape[1]))
        if packed is not None:
            return packed
    return stored.dense()
