"""The KV pool's layers behind gates: a step computes its first layers while pages of later ones are still copied.

    copies    layers 0-3 │ 4-7 │ 8-11 │ ...          opens a gate behind each group of layers
    step        wait ───▶ 0-3 │ 4-7 │ ...            passes the group's gate when it takes its first layer

Gates are kernels (`kernels.gate`), so that steps in CUDA graphs have them too; one that is open costs a step the
launch of a small kernel. Must not know what is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch

GATES = 8
"""at most: a step begins when the first of so many parts of its pages is there, and ends when it has computed the
last; with more, the pieces that are copied get small"""
_WORDS = 4
"""int32 of a gate: its kernel is compiled for addresses that are multiples of 16"""

Pair = tuple[torch.Tensor, torch.Tensor]


class LayerGates:
    """`KvLayers` (see `forward`) over the pool's: taking a layer's pair puts its gate, if it is the first behind
    one, on the current stream."""

    def __init__(self, layers: Sequence[Pair]) -> None:
        self._layers = layers
        size = -(-len(layers) // GATES)
        self.groups = [range(i, min(i + size, len(layers))) for i in range(0, len(layers), size)]
        """layers behind each gate"""
        self._shut = torch.zeros((len(self.groups), _WORDS), dtype=torch.int32, device=layers[0][0].device)
        self._gate_of = {group.start: gate for group, gate in zip(self.groups, self._shut, strict=True)}

    def shut(self) -> None:
        """On the stream of the steps, before the copies that open the gates are begun. Each gate is opened once: a
        step that has passed them all leaves nothing behind that could open them for the next."""
        self._shut.fill_(1)

    def open(self, first: int = 0, last: int | None = None) -> None:
        """The gates of `groups[first:last]`, on the stream of the copies."""
        self._shut[first:last].zero_()

    def parts(self, most: int) -> Iterator[tuple[range, int, int]]:
        """(layers, first gate, last gate, exclusive) of the parts that are copied one after the other, as many as
        there are gates but not more than `most`."""
        count = max(1, min(most, len(self.groups)))
        bounds = [len(self.groups) * part // count for part in range(count + 1)]
        for first, last in pairwise(bounds):
            yield range(self.groups[first].start, self.groups[last - 1].stop), first, last

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, layer: int, /) -> Pair:
        gate = self._gate_of.get(layer)
        if gate is not None:
            # Import here: the kernel comes with Triton, which other platforms lack.
            from radixlang.kernels.gate import wait_open

            wait_open(gate)
        return self._layers[layer]

    def __iter__(self) -> Iterator[Pair]:
        return (self[layer] for layer in range(len(self._layers)))
