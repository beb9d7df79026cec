"""Weights of GGUF files under the names of `layout.py`, blocks left as they are in the file.

The converter of llama-architecture files reorders the rows of q and k (it stores rotary pairs next to each
other); here they are put back. A row of blocks moves as a whole, so this needs no dequantisation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from radixlang.errors import WeightError
from radixlang.gguf_file import GGUFTensor, block_size, dequantize, read_gguf
from radixlang.models.spec import ModelSpec
from radixlang.quant import BlockRows, StoredWeight

_WHOLE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
#: with a norm after each part, the one before the MLP has another name
_SANDWICH = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_FLOATS: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}
#: read with the config
_CONFIG_TENSORS = ("rope_freqs.weight",)


@dataclass(frozen=True)
class GgufWeight:
    """One tensor of a GGUF file; `order` is the order in which its rows are wanted, None for the file's."""

    name: str
    shape: tuple[int, ...]
    tensor: GGUFTensor
    order: np.ndarray | None

    def dense(self) -> torch.Tensor:
        kind = self.tensor.type
        if kind in _FLOATS:
            values = torch.from_numpy(self._rows().view(_FLOATS[kind]).reshape(self.shape).copy())
        elif kind == "BF16":
            values = torch.from_numpy(self._rows().view("<i2").reshape(self.shape).copy()).view(torch.bfloat16)
        else:
            rows = replace(self.tensor, shape=self.shape, data=self._rows().reshape(-1))
            values = torch.from_numpy(dequantize(rows))
        return values

    def blocks(self) -> BlockRows | None:
        if self.tensor.type in _FLOATS or self.tensor.type == "BF16" or len(self.shape) != 2:
            return None
        return BlockRows(self.tensor.type, self.shape, self._rows())

    def part(self, dim: int, start: int, stop: int) -> StoredWeight:
        rows = self.tensor.data.reshape(self.tensor.shape[0], -1)
        if dim == 0:
            shape = (stop - start, *self.shape[1:])
            if self.order is not None:
                return replace(self, shape=shape, order=self.order[start:stop])
            tensor = replace(self.tensor, shape=shape, data=rows[start:stop].reshape(-1))
            return replace(self, shape=shape, tensor=tensor)
        block, size = block_size(self.tensor)
        if start % block or stop % block:
            return _Columns(self, start, stop)
        data = np.ascontiguousarray(rows[:, start // block * size : stop // block * size]).reshape(-1)
        shape = (self.shape[0], stop - start)
        return replace(self, shape=shape, tensor=replace(self.tensor, shape=shape, data=data))

    def _rows(self) -> np.ndarray:
        """uint8 [rows, bytes of a row], in the wanted order."""
        rows = self.tensor.data.reshape(self.tensor.shape[0], -1)
        return rows if self.order is None else rows[self.order]


class _Columns:
    """Columns of a matrix that begin or end within a block: only their values can be had, not the blocks."""

    def __init__(self, whole: GgufWeight, start: int, stop: int) -> None:
        self.name = whole.name
        self.shape = (whole.shape[0], stop - start)
        self._whole = whole
        self._start, self._stop = start, stop

    def dense(self) -> torch.Tensor:
        return self._whole.dense()[:, self._start : self._stop].contiguous()

    def blocks(self) -> BlockRows | None:
        return None

    def part(self, dim: int, start: int, stop: int) -> StoredWeight:
        raise NotImplementedError("a part is not parted again")


class GgufSource:
    """A GGUF file, or a split one by its first part."""

    def __init__(self, path: Path, spec: ModelSpec) -> None:
        file = read_gguf(path)
        self.what = str(path)
        self.skipped = 0
        self.tensors: dict[str, StoredWeight] = {}
        permuted = file.metadata.get("general.architecture") == "llama"
        for name, tensor in file.tensors.items():
            if name in _CONFIG_TENSORS:
                self.skipped += 1
                continue
            order = _order(name, spec) if permuted else None
            if order is not None and len(order) != tensor.shape[0]:
                order = None  # misshapen: `verify` will say so
            self.tensors[_rename(name, spec, path)] = GgufWeight(name, tensor.shape, tensor, order)


def _rename(name: str, spec: ModelSpec, path: Path) -> str:
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?([a-z_]+)\.(weight|bias)", name)
    if match is not None:
        layer, stem, kind = match.groups()
        table = _WHOLE if layer is None else _LAYER | (_SANDWICH if spec.sandwich_norms else {})
        if stem in table:
            prefix = "" if layer is None else f"model.layers.{layer}."
            return f"{prefix}{table[stem]}.{kind}"
    raise WeightError(f"{path} has a tensor {name} that a {spec.family} model has no place for.")


def _order(name: str, spec: ModelSpec) -> np.ndarray | None:
    """Rows of a q or k matrix (or bias) in the halves convention, from the file's pairs."""
    match = re.fullmatch(r"blk\.\d+\.attn_([qk])\.(weight|bias)", name)
    if match is None:
        return None
    heads = spec.num_heads if match.group(1) == "q" else spec.num_kv_heads
    rows = np.arange(heads * spec.head_dim)
    return rows.reshape(heads, spec.head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
