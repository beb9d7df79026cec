"""Reads GGUF files: metadata, a table of tensors over a memory map, and dequantisation in numpy.

It serves both columns (the tokenizer and config come from the metadata, the weights from the tensors), so it
knows nothing of models, of tokenizers or of torch. Block layouts are those of the GGML format; the results of
`dequantize` are bitwise those of the `gguf` package, which is imported only for block types not written here.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from radixlang.errors import WeightError

_MAGIC = b"GGUF"
_SPLIT = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.gguf$")

# metadata value type -> (struct code, bytes); 8 is a string, 9 an array
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

# GGML type number -> (name, weights per block, bytes per block)
_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
_SIZES = {name: (block, size) for name, block, size in _TYPES.values()}
_PIECE = 1 << 16  # weights decoded at a time


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor: `shape` in torch order (rows first); `data` is a uint8 view of the file, quantised as stored."""

    name: str
    shape: tuple[int, ...]
    type: str
    data: np.ndarray
    path: str

    @property
    def nbytes(self) -> int:
        return int(self.data.size)


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """`metadata`: key -> scalar, str, list[str] or numpy array; `tensors`: name -> tensor, in file order."""

    path: str
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]


def is_gguf(path: str | Path) -> bool:
    """Whether `path` is a file that starts with the GGUF magic."""
    path = Path(path)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == _MAGIC


def read_gguf(path: str | Path, metadata_only: bool = False) -> GGUFFile:
    """Opens a GGUF v2/v3 file, or all parts of a split one when given its first part.

    The tensor data is mapped, not read. With `metadata_only` the tensor table is left out (and the other parts
    of a split file are not opened). Raises WeightError naming the file, and the tensor where there is one.
    """
    first = Path(path)
    file = _read_part(first, metadata_only)
    count = int(file.metadata.get("split.count", 1) or 1)
    if metadata_only or count == 1:
        return file
    match = _SPLIT.match(first.name)
    if match is None or int(match.group(2)) != 1:
        raise WeightError(f"{first} is one of {count} parts: give the first, named …-00001-of-{count:05d}.gguf.")
    tensors = dict(file.tensors)
    for number in range(2, count + 1):
        name = f"{match.group(1)}-{number:05d}-of-{match.group(3)}.gguf"
        for tensor in _read_part(first.with_name(name), False).tensors.values():
            if tensor.name in tensors:
                raise WeightError(f"Tensor {tensor.name} occurs twice in the parts of {first}.")
            tensors[tensor.name] = tensor
    return GGUFFile(str(first), file.metadata, tensors)


def dequantize(tensor: GGUFTensor) -> np.ndarray:
    """The tensor as float32 of shape `tensor.shape`, bitwise equal to `gguf.quants.dequantize`."""
    decode = _DECODERS.get(tensor.type)
    if decode is not None:
        return _in_pieces(decode, tensor)
    gguf = _gguf_package(tensor.path, tensor.name, tensor.type)
    kind = gguf.GGMLQuantizationType[tensor.type]
    try:
        rows = tensor.data.reshape(-1, tensor.nbytes // int(np.prod(tensor.shape[:-1], dtype=np.int64)))
        return gguf.quants.dequantize(rows, kind).astype(np.float32, copy=False).reshape(tensor.shape)
    except NotImplementedError as error:
        message = f"Tensor {tensor.name} of {tensor.path} has type {tensor.type}, which cannot be dequantised."
        raise WeightError(message) from error


def block_size(tensor: GGUFTensor) -> tuple[int, int]:
    """(weights, bytes) of one block of the tensor, which lies within a row."""
    if tensor.type in _SIZES:
        return _SIZES[tensor.type]
    gguf = _gguf_package(tensor.path, tensor.name, tensor.type)
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[tensor.type]]
    return int(block), int(size)


def _in_pieces(decode: Callable[[np.ndarray], np.ndarray], tensor: GGUFTensor) -> np.ndarray:
    """Decodes a few thousand weights at a time, so that the intermediate arrays stay in the processor's cache."""
    block, size = _SIZES[tensor.type]
    out = np.empty(tensor.shape, np.float32)
    flat, blocks = out.reshape(-1), max(1, _PIECE // block)
    for start in range(0, flat.size // block, blocks):
        piece = decode(tensor.data[start * size : (start + blocks) * size]).reshape(-1)
        flat[start * block : start * block + piece.size] = piece
    return out


def _gguf_package(path: str, tensor: str, kind: object) -> Any:
    try:
        import gguf
        import gguf.quants
    except ImportError as error:
        message = f"Tensor {tensor} of {path} has type {kind}, for which `pip install gguf` is needed."
        raise WeightError(message) from error
    return gguf


def _type_of(number: int, path: str, tensor: str) -> tuple[str, int, int]:
    known = _TYPES.get(number)
    if known is not None:
        return known
    gguf = _gguf_package(path, tensor, number)
    try:
        kind = gguf.GGMLQuantizationType(number)
    except ValueError as error:
        raise WeightError(f"Tensor {tensor} of {path} has the unknown type {number}.") from error
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return kind.name, block, size


# ---- the container ----------------------------------------------------------------------------------------------


class _Cursor:
    """Reads little-endian values one after the other; running past the end is a WeightError."""

    def __init__(self, buffer: mmap.mmap, path: Path) -> None:
        self.buffer, self.path, self.at = buffer, path, 0

    def scalar(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        try:
            (value,) = layout.unpack_from(self.buffer, self.at)
        except struct.error as error:
            raise self.truncated() from error
        self.at += layout.size
        return value

    def string(self) -> str:
        size = self.scalar("Q")
        end = self.at + size
        if end > len(self.buffer):
            raise self.truncated()
        text = self.buffer[self.at : end].decode("utf-8", "replace")
        self.at = end
        return text

    def strings(self, count: int) -> list[str]:
        """`count` strings; a vocabulary has 262,144 of them, so this loop does nothing it can avoid."""
        buffer, at, end = self.buffer, self.at, len(self.buffer)
        if count > (end - at) // 8:
            raise self.truncated()
        unpack, out = struct.Struct("<Q").unpack_from, []
        try:
            for _ in range(count):
                start = at + 8
                at = start + unpack(buffer, at)[0]
                if at > end:
                    raise self.truncated()
                out.append(buffer[start:at].decode("utf-8", "replace"))
        except struct.error as error:
            raise self.truncated() from error
        self.at = at
        return out

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            inner, count = self.scalar("I"), self.scalar("Q")
            if inner == _STRING:
                return self.strings(count)
            if inner == _ARRAY:
                return [self.value(_ARRAY) for _ in range(count)]
            dtype = np.dtype("<" + self._code(inner))
            if count > (len(self.buffer) - self.at) // dtype.itemsize:
                raise self.truncated()
            array = np.frombuffer(self.buffer, dtype, count, self.at).copy()
            self.at += array.nbytes
            return array
        return self.scalar(self._code(kind))

    def _code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise WeightError(f"{self.path} is damaged: metadata value of unknown type {kind}.")
        return _SCALARS[kind]

    def truncated(self) -> WeightError:
        return WeightError(f"{self.path} ends inside its header: it is truncated, fetch it again.")


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            if file.read(4) != _MAGIC:
                raise WeightError(f"{path} is not a GGUF file: it does not start with the letters GGUF.")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise WeightError(f"{path} cannot be read: {error.strerror or error}.") from error


def _read_part(path: Path, metadata_only: bool) -> GGUFFile:
    buffer = _map(path)
    cursor = _Cursor(buffer, path)
    cursor.at = len(_MAGIC)
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise WeightError(f"{path} has GGUF version {version}; versions 2 and 3 (little endian) can be read.")
    n_tensors, n_keys = cursor.scalar("Q"), cursor.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(n_keys):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("I"))
    tensors = {} if metadata_only else _tensors(cursor, n_tensors, metadata)
    return GGUFFile(str(path), metadata, tensors)


def _tensors(cursor: _Cursor, count: int, metadata: dict[str, Any]) -> dict[str, GGUFTensor]:
    table = []
    for _ in range(count):
        name = cursor.string()
        sizes = [cursor.scalar("Q") for _ in range(cursor.scalar("I"))]
        table.append((name, tuple(reversed(sizes)), cursor.scalar("I"), cursor.scalar("Q")))
    align = int(metadata.get("general.alignment", 32)) or 32
    base = -(-cursor.at // align) * align
    whole, path = np.frombuffer(cursor.buffer, np.uint8), str(cursor.path)
    tensors = {}
    for name, shape, number, offset in table:
        kind, block, size = _type_of(number, path, name)
        weights = 1
        for extent in shape:  # python ints: a damaged header must not overflow
            weights *= extent
        if shape and shape[-1] % block:
            message = f"Tensor {name} of {path} has rows of {shape[-1]}, not a multiple of {block} ({kind})."
            raise WeightError(message)
        start, nbytes = base + offset, weights // block * size
        if start + nbytes > whole.size:
            raise WeightError(f"Tensor {name} runs past the end of {path}: it is truncated, fetch it again.")
        tensors[name] = GGUFTensor(name, shape, kind, whole[start : start + nbytes], path)
    return tensors


# ---- block types ------------------------------------------------------------------------------------------------
# Each decoder takes the raw bytes and returns float32 of one row per block. The order of the multiplications and
# additions is that of the format's definition: another order rounds differently.


def _blocks(data: np.ndarray, size: int) -> np.ndarray:
    return data.reshape(-1, size)


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 at byte `at` of every block, as a float32 column."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: np.ndarray, group: int) -> np.ndarray:
    """uint8 [n, b] -> [n, 2 b]: per `group` bytes first all low nibbles, then all high ones."""
    parts = packed.reshape(packed.shape[0], -1, 1, group)
    return (parts >> np.array([0, 4], np.uint8).reshape(2, 1) & np.uint8(15)).reshape(packed.shape[0], -1)


def _fifth_bits(blocks: np.ndarray, at: int) -> np.ndarray:
    """The 32 bits at byte `at`, already shifted to the value 16."""
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") << np.uint8(4)


def _q4_0(data: np.ndarray) -> np.ndarray:
    blocks = _blocks(data, 18)
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:], 16).view(np.int8) - np.int8(8)).astype(np.float32)


def _q4_1(data: np.ndarray) -> np.ndarray:
    blocks = _blocks(data, 20)
    return _half(blocks, 0) * _nibbles(blocks[:, 4:], 16).astype(np.float32) + _half(blocks, 2)


def _q5_0(data: np.ndarray) -> np.ndarray:
    blocks = _blocks(data, 22)
    values = _nibbles(blocks[:, 6:], 16) | _fifth_bits(blocks, 2)
    return _half(blocks, 0) * (values.view(np.int8) - np.int8(16)).astype(np.float32)


def _q5_1(data: np.ndarray) -> np.ndarray:
    blocks = _blocks(data, 24)
    values = _nibbles(blocks[:, 8:], 16) | _fifth_bits(blocks, 4)
    return _half(blocks, 0) * values.astype(np.float32) + _half(blocks, 2)


def _q8_0(data: np.ndarray) -> np.ndarray:
    blocks = _blocks(data, 34)
    return _half(blocks, 0) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)


def _six_bit_scales(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """12 bytes a block -> 8 scales and 8 minima of 6 bits, both [n, 8] float32."""
    low, high, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (rest & 15) | ((low >> 2) & 48)], axis=1)
    minima = np.concatenate([high & 63, (rest >> 4) | ((high >> 2) & 48)], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _k45(blocks: np.ndarray, values: np.ndarray) -> np.ndarray:
    scales, minima = _six_bit_scales(blocks[:, 4:16])
    scales, minima = _half(blocks, 0) * scales, _half(blocks, 2) * minima
    out = scales[:, :, None] * values.reshape(-1, 8, 32).astype(np.float32) - minima[:, :, None]
    return out.reshape(-1, 256)


def _q4_k(data: np.ndarray) -> np.ndarray:
    blocks = _blocks(data, 144)
    return _k45(blocks, _nibbles(blocks[:, 16:], 32))


def _q5_k(data: np.ndarray) -> np.ndarray:
    blocks = _blocks(data, 176)
    shifts = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    fifth = ((blocks[:, 16:48].reshape(-1, 1, 32) >> shifts & np.uint8(1)) << np.uint8(4)).reshape(-1, 256)
    return _k45(blocks, _nibbles(blocks[:, 48:], 32) | fifth)


def _q6_k(data: np.ndarray) -> np.ndarray:
    blocks = _blocks(data, 210)
    low = _nibbles(blocks[:, :128], 64)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & np.uint8(3)).reshape(-1, 256)
    values = ((low | high << np.uint8(4)).view(np.int8) - np.int8(32)).astype(np.float32)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    scales = _half(blocks, 208) * scales
    return (scales[:, :, None] * values.reshape(-1, 16, 16)).reshape(-1, 256)


def _f32(data: np.ndarray) -> np.ndarray:
    return data.view("<f4").astype(np.float32)


def _f16(data: np.ndarray) -> np.ndarray:
    return data.view("<f2").astype(np.float32)


def _bf16(data: np.ndarray) -> np.ndarray:
    return (data.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


_DECODERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
