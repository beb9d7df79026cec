"""Linear layers on the CPU with weights kept as they were stored: 4-bit, 8-bit, bfloat16 or float32.

`pack` and `concat` bring weights into the panels of `tiles.py`; a `CpuLinear` multiplies by them. Activations
and sums are float32, so the only difference from a float32 product is its rounding; with `integer` activations
are rounded to 16 bits instead, for speed. Either way a row's result is the same bits whatever other rows are in
the batch. Where numba is missing, weights are held as float32 for torch. Must not know models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from radixlang.kernels.cpu import available, pool
from radixlang.kernels.cpu.blocks import QuantBlocks

if available():
    from radixlang.kernels.cpu import tiles, tiles16

Weight = torch.Tensor | QuantBlocks

_ALONE = 8192
"""Below this many values one thread rounds activations faster than several."""
_ROWS = 128
"""Rows multiplied with all weights before the next: so many stay in the second-level cache."""


@dataclass(frozen=True)
class _Part:
    """Some of a layer's outputs, in one format: `data` uint8 [panels, groups, bytes of a group]."""

    form: int
    outputs: int
    data: torch.Tensor


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def _panels(tensor: torch.Tensor) -> torch.Tensor:
    """[N, ...] → [panels, 16, ...], N padded with zeros to whole blocks."""
    missing = -tensor.shape[0] % tiles.BLOCK
    if missing:
        tensor = torch.cat((tensor, tensor.new_zeros(missing, *tensor.shape[1:])))
    return tensor.unflatten(0, (-1, tiles.PANEL))


def _exact_in_half(blocks: QuantBlocks) -> bool:
    return all(t is None or torch.equal(t.half().float(), t) for t in (blocks.scales, blocks.mins))


def _pack_blocks(blocks: QuantBlocks) -> _Part | None:
    """Packed codes; None if no format fits (the caller then keeps float32)."""
    wanted = {
        (blocks.kind, blocks.group, half, blocks.mins is not None)
        for half in (True, False)
        if not half or _exact_in_half(blocks)
    }
    forms = [i for i, f in enumerate(tiles.FORMATS) if (f.kind, f.group, f.half, f.minimum) in wanted]
    if not forms:
        return None
    form = tiles.FORMATS[forms[0]]
    codes = blocks.codes
    if not blocks.scales.all():
        # Such codes mean nothing, and the integer kernels want them zero.
        codes = codes * (blocks.scales != 0).repeat_interleave(blocks.group, 1)
    codes = _panels(codes).unflatten(2, (-1, form.group))
    if form.kind == "q4":
        # [panel, lane, group, byte, nibble, word] → words of eight nibbles, lanes side by side.
        codes = codes.unflatten(3, (4, 2, form.group // 8))
        codes = (codes[:, :, :, :, 0] | codes[:, :, :, :, 1] << 4).permute(0, 2, 4, 1, 3)
    else:
        codes = codes.permute(0, 2, 3, 1)
    pieces = [_bytes(codes).flatten(2)]
    for scales in (blocks.scales, blocks.mins):
        if scales is not None:
            pieces.append(
                _bytes(_panels(scales).transpose(1, 2).to(torch.float16 if form.half else torch.float32))
            )
    return _Part(forms[0], blocks.shape[0], torch.cat(pieces, 2))


def _pack_tensor(weight: torch.Tensor) -> _Part:
    """Packed floats: bfloat16 stays, everything else becomes float32; K padded to whole groups."""
    form = 1 if weight.dtype == torch.bfloat16 else 0
    group = tiles.FORMATS[form].group
    weight = weight if form else weight.float()
    weight = F.pad(weight, (0, -weight.shape[1] % group))
    grouped = _panels(weight).unflatten(2, (-1, group)).permute(0, 2, 3, 1)
    return _Part(form, weight.shape[0], _bytes(grouped).flatten(2))


class CpuLinear:
    """`y = x @ weight.T + bias`, weights packed. Made by `pack` or `concat`; safe to call from several threads.

    `integer`, which may be changed at any time, rounds activations to 16 bits where weights are quantised: see
    `tiles16.py`.
    """

    def __init__(self, weights: Sequence[Weight], bias: torch.Tensor | None, integer: bool) -> None:
        shapes = [tuple(w.shape) for w in weights]
        self.in_features = shapes[0][1]
        self.out_features = sum(n for n, _ in shapes)
        self.bias = None if bias is None else bias.float()
        self._parts: list[_Part] = []
        self._dense: torch.Tensor | None = None
        self.integer = integer
        if any(k != self.in_features for _, k in shapes):
            raise ValueError(f"Weights of one layer must share their inputs, got shapes {shapes}.")
        if not available():
            self._dense = torch.cat([w.dequantize() if isinstance(w, QuantBlocks) else w.float() for w in weights])
            return
        for weight in _merged(weights):
            part = _pack_blocks(weight) if isinstance(weight, QuantBlocks) else None
            if part is None:
                part = _pack_tensor(weight.dequantize() if isinstance(weight, QuantBlocks) else weight)
            self._parts.append(part)
        padded = self._padded = (
            sum(p.outputs for p in self._parts[:-1]) + self._parts[-1].data.shape[0] * tiles.PANEL
        )
        self._bias = None if self.bias is None else F.pad(self.bias, (0, padded - self.out_features))
        self._scratch_floats = tiles.BLOCK * (self.in_features + 4)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x float32 [M, in_features] → float32 [M, out_features]."""
        if self._dense is not None:
            return F.linear(x, self._dense, self.bias)
        group = tiles.FORMATS[self._parts[0].form].group
        if x.shape[1] % group:
            x = F.pad(x, (0, -x.shape[1] % group))
        if x.stride(1) != 1:
            x = x.contiguous()
        count = x.shape[0]
        out = pool.empty(count, self._padded)
        if count:
            self._run(x, out)
        return out if self._padded == self.out_features else out[:, : self.out_features].contiguous()

    def _run(self, x: torch.Tensor, out: torch.Tensor) -> None:
        threads, count = pool.threads(), x.shape[0]
        many = count >= min(tiles.MANY, tiles16.MANY)
        scratch = pool.empty(threads, self._scratch_floats) if many else None
        bias_at = 0 if self._bias is None else self._bias.data_ptr()
        records: dict[int, torch.Tensor] = {}
        begin = 0
        # A part's last block may spill into the next part's columns; the next part, run later, overwrites that.
        for part in self._parts:
            panels, groups, size = part.data.shape
            blocks = panels // 4
            chunks, parts = min(blocks, threads * 8), 1
            if self._by_integers(part):
                parts = -(-count // _ROWS)
                chunks = parts * min(blocks if count == 1 else 2 * blocks, threads * 12)
            group = tiles.FORMATS[part.form].group
            operations: list[pool.Operation] = []
            if self._by_integers(part) and group not in records:
                records[group] = pool.empty(count, tiles16.record_bytes(group) * groups // 4)
                pieces = 1 if x.numel() < _ALONE else min(count, 4 * threads)
                rows = (count, pieces, groups, x.data_ptr(), x.stride(0) * 4, records[group].data_ptr())
                operations.append((tiles16.QUANTISE[group](), np.array(rows, np.int64), pieces))
            task = np.array(
                [
                    x.data_ptr(), x.stride(0) * 4, count, part.data.data_ptr(), groups * size, groups, blocks,
                    out.data_ptr() + begin * 4, out.stride(0) * 4, bias_at + begin * 4 if bias_at else 0,
                    0 if scratch is None else scratch.data_ptr(), self._scratch_floats * 4, chunks,
                    records[group].data_ptr() if self._by_integers(part) else 0, parts,
                ],
                np.int64,
            )  # fmt: skip
            pool.run(*operations, (self._kernel(part), task, chunks))
            begin += part.outputs

    def _by_integers(self, part: _Part) -> bool:
        return self.integer and tiles16.SUPPORTED and part.form in tiles16.LINEAR

    def _kernel(self, part: _Part) -> int:
        """Address of the part's kernel, compiled now if it has not been."""
        return (tiles16 if self._by_integers(part) else tiles).LINEAR[part.form]()

    def prepare(self) -> None:
        """Compile or load the kernels this layer runs."""
        for part in self._parts:
            self._kernel(part)
            if self._by_integers(part):
                tiles16.QUANTISE[tiles.FORMATS[part.form].group]()

    def embedding(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the weight: ids int64 [T] → float32 [T, in_features]."""
        if self._dense is not None:
            return self._dense[ids]
        if len(self._parts) == 1:
            return _rows(self._parts[0], ids)[:, : self.in_features]
        out = torch.empty(ids.shape[0], self.in_features)
        begin = 0
        for part in self._parts:
            mine = (ids >= begin) & (ids < begin + part.outputs)
            out[mine] = _rows(part, ids[mine] - begin)[:, : self.in_features]
            begin += part.outputs
        return out

    @property
    def weight(self) -> torch.Tensor:
        """The weights as float32 [out_features, in_features], made on every call."""
        if self._dense is not None:
            return self._dense
        chunks = torch.arange(self.out_features).split(4096)
        return torch.cat([self.embedding(ids) for ids in chunks])

    @property
    def nbytes(self) -> int:
        """Memory the weights take, in bytes."""
        return self._dense.nbytes if self._dense is not None else sum(p.data.nbytes for p in self._parts)


def _rows(part: _Part, ids: torch.Tensor) -> torch.Tensor:
    form = tiles.FORMATS[part.form]
    panel, lane = ids // tiles.PANEL, ids % tiles.PANEL

    def lanes(begin: int, size: int, kind: torch.dtype) -> torch.Tensor:
        """[T, groups, entries] of the ids' lanes, from a region of each group."""
        region = part.data[:, :, begin : begin + size].view(kind).unflatten(2, (-1, tiles.PANEL))
        return region[panel, :, :, lane]

    if form.kind in ("f32", "bf16"):
        return (
            lanes(0, form.code_bytes, torch.float32 if form.kind == "f32" else torch.bfloat16).float().flatten(1)
        )
    if form.kind == "q4":
        words = lanes(0, form.code_bytes, torch.int32)
        codes = torch.stack([words >> 4 * j & 15 for j in range(8)], 2).flatten(2).float()
    else:
        codes = lanes(0, form.code_bytes, torch.int8).float()
    kind = torch.float16 if form.half else torch.float32
    value = codes * lanes(form.code_bytes, form.scale_bytes, kind).float()
    if form.minimum:
        value += lanes(form.code_bytes + form.scale_bytes, form.scale_bytes, kind).float()
    return value.flatten(1)


def _merged(weights: Sequence[Weight]) -> list[Weight]:
    """Neighbours of the same kind joined, so that they run as one product."""
    out: list[Weight] = []
    for weight in weights:
        last = out[-1] if out else None
        if isinstance(weight, QuantBlocks) and isinstance(last, QuantBlocks):
            same = (last.kind, last.group, last.mins is None) == (weight.kind, weight.group, weight.mins is None)
            if same and _exact_in_half(last) == _exact_in_half(weight):
                mins = None if last.mins is None or weight.mins is None else torch.cat((last.mins, weight.mins))
                codes, scales = torch.cat((last.codes, weight.codes)), torch.cat((last.scales, weight.scales))
                out[-1] = QuantBlocks(last.kind, codes, scales, mins, last.group)
                continue
        elif isinstance(weight, torch.Tensor) and isinstance(last, torch.Tensor) and weight.dtype == last.dtype:
            out[-1] = torch.cat((last, weight))
            continue
        out.append(weight)
    return out


def pack(weight: Weight, bias: torch.Tensor | None = None, integer: bool = False) -> CpuLinear:
    """A layer from one matrix [N, K]: float32, bfloat16, float16 (becomes float32) or quantised blocks.

    `integer`: 16-bit activations, about twice as fast as float32 from eight rows on, accurate to 2⁻¹⁵.
    """
    return CpuLinear([weight], bias, integer)


def concat(weights: Sequence[Weight], bias: torch.Tensor | None = None, integer: bool = False) -> CpuLinear:
    """One layer whose outputs are those of several matrices in a row (fused q, k, v); kinds may differ."""
    return CpuLinear(weights, bias, integer)
