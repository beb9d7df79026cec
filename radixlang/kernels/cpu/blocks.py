"""Quantised weights as they come from a file, kept exactly: codes, a scale and perhaps a minimum per group.

`weight = scale · code + minimum`. Two kinds hold every common GGUF block type without requantising: "q4"
(codes 0 … 15) and "q8" (codes -128 … 127). Knows nothing of how kernels lay them out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class QuantBlocks:
    """A matrix [N, K]: `codes` uint8 (q4) or int8 (q8) [N, K]; `scales`, `mins` float32 [N, K / group]."""

    kind: str
    codes: torch.Tensor
    scales: torch.Tensor
    mins: torch.Tensor | None
    group: int

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)"""
        return self.codes.shape[0], self.codes.shape[1]

    def rows(self, index: torch.Tensor | slice) -> QuantBlocks:
        """The rows that `index` selects, in its order (for un-permuting q and k, or splitting)."""
        mins = None if self.mins is None else self.mins[index]
        return QuantBlocks(self.kind, self.codes[index], self.scales[index], mins, self.group)

    def dequantize(self) -> torch.Tensor:
        """The weights as float32 [N, K], rounded as `scale · code` and then `+ minimum`."""
        grouped = self.codes.unflatten(1, (-1, self.group)).float() * self.scales[..., None]
        if self.mins is not None:
            grouped += self.mins[..., None]
        return grouped.flatten(1)


# Block types of the GGUF file format (ggml.h): number → (weights per block, bytes per block).
_SIZES = {
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
}
Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K = _SIZES


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """Low nibbles of the last axis, then its high ones."""
    return np.concatenate([packed & 15, packed >> 4], -1)


def _high_bits(blocks: np.ndarray, at: int) -> np.ndarray:
    """32 bits a block as 0 or 16 each (the fifth bit of the 5-bit types)."""
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") << 4


def _k_scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Q4_K and Q5_K: scales and minima [blocks, 8]; six bits each in twelve bytes after two half floats."""
    raw = blocks[:, 4:16].reshape(-1, 3, 4)
    first, second, high = raw[:, 0], raw[:, 1], raw[:, 2]
    scale = np.concatenate([first & 63, (high & 15) | (first >> 6 << 4)], 1)
    minimum = np.concatenate([second & 63, (high >> 4) | (second >> 6 << 4)], 1)
    return _half(blocks, 0) * scale.astype(np.float32), _half(blocks, 2) * minimum.astype(np.float32)


def quant_blocks_from_gguf(raw: np.ndarray, ggml_type: int, shape: tuple[int, int]) -> QuantBlocks | None:
    """The codes of a GGUF tensor: `raw` its bytes (uint8), `shape` (N, K); None for a type without exact codes."""
    if ggml_type not in _SIZES:
        return None
    size = _SIZES[ggml_type][1]
    blocks = np.ascontiguousarray(raw).reshape(-1).view(np.uint8).reshape(-1, size)
    kind, group, mins = "q8", 32, None
    if ggml_type == Q4_0:
        kind, scales = "q4", _half(blocks, 0)
        codes, mins = _nibbles(blocks[:, 2:]), -8 * scales
    elif ggml_type == Q4_1:
        kind, scales, mins = "q4", _half(blocks, 0), _half(blocks, 2)
        codes = _nibbles(blocks[:, 4:])
    elif ggml_type == Q5_0:
        scales = _half(blocks, 0)
        codes = (_nibbles(blocks[:, 6:]) | _high_bits(blocks, 2)).view(np.int8) - np.int8(16)
    elif ggml_type == Q5_1:
        scales, mins = _half(blocks, 0), _half(blocks, 2)
        codes = (_nibbles(blocks[:, 8:]) | _high_bits(blocks, 4)).view(np.int8)
    elif ggml_type == Q8_0:
        scales, codes = _half(blocks, 0), blocks[:, 2:].view(np.int8)
    elif ggml_type == Q4_K:
        kind = "q4"
        scales, mins = _k_scales(blocks)
        codes, mins = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)), -mins
    elif ggml_type == Q5_K:
        scales, mins = _k_scales(blocks)
        # Bit s of byte i is the fifth bit of weight i of sub-block s.
        high = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[None, :, None] & 1) << 4
        low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
        codes, mins = (low | high).view(np.int8), -mins
    else:  # Q6_K: each half of 128 weights takes 64 bytes of nibbles and 32 of bit pairs
        group = 16
        nibbles = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
        pairs = (
            blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[None, None, :, None] & 3
        )
        codes = (nibbles | pairs << 4).view(np.int8) - np.int8(32)
        scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    rows, columns = shape
    as_tensor = [
        None if a is None else torch.from_numpy(np.ascontiguousarray(a).reshape(rows, -1))
        for a in (codes, scales, mins)
    ]
    assert as_tensor[0] is not None
    assert as_tensor[1] is not None
    if as_tensor[0].shape[1] != columns:
        raise ValueError(f"A tensor of shape {shape} cannot have {raw.nbytes} bytes of block type {ggml_type}.")
    return QuantBlocks(kind, as_tensor[0], as_tensor[1], as_tensor[2], group)
