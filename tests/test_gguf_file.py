"""The GGUF reader against the `gguf` package: container, every block type, damaged files."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from radixlang.errors import WeightError
from radixlang.gguf_file import GGUFTensor, dequantize, is_gguf, read_gguf

gguf = pytest.importorskip("gguf")
Kind = gguf.GGMLQuantizationType

OWN = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
LIBRARY = ["Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "IQ2_XXS", "TQ1_0"]


def random_blocks(kind: str, rows: int, columns: int) -> np.ndarray:
    """Random bytes with finite half-precision scales: any bytes but the scales are legal blocks."""
    block, size = gguf.GGML_QUANT_SIZES[Kind[kind]]
    rng = np.random.default_rng(len(kind) + rows)
    if block == 1:
        values = rng.standard_normal((rows, columns)).astype(np.float32)
        return gguf.quants.quantize(values, Kind[kind]).view(np.uint8).reshape(rows, -1)
    data = rng.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    scales = rng.standard_normal((rows, columns // block, 2)).astype(np.float16).view(np.uint8)
    at = {"Q6_K": 208, "Q2_K": 80, "Q3_K": 108, "TQ1_0": 52}.get(kind, 0)
    width = 4 if kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K", "Q2_K") else 2
    data[..., at : at + width] = scales[..., :width]
    return data.reshape(rows, -1)


@pytest.mark.parametrize("kind", OWN + LIBRARY)
def test_dequantize_is_bitwise_that_of_the_library(kind: str) -> None:
    data = random_blocks(kind, 3, 512)
    tensor = GGUFTensor("t", (3, 512), kind, data.reshape(-1), "file")
    expected = gguf.quants.dequantize(data, Kind[kind]).astype(np.float32).reshape(3, 512)
    ours = dequantize(tensor)
    assert ours.dtype == np.float32
    assert ours.shape == (3, 512)
    assert np.array_equal(ours.view(np.uint32), expected.view(np.uint32))


def write_file(path: Path, **writer_options: object) -> dict[str, np.ndarray]:
    writer = gguf.GGUFWriter(str(path), "llama", **writer_options)
    writer.add_uint32("llama.block_count", 7)
    writer.add_float32("eps", 1e-5)
    writer.add_bool("flag", True)
    writer.add_string("text", "naïve 😀")
    writer.add_array("words", ["a", "", "日本"])
    writer.add_array("numbers", [1, 2, 3])
    rng = np.random.default_rng(0)
    tensors = {
        "norm": rng.standard_normal(5).astype(np.float32),
        "proj": rng.standard_normal((4, 64)).astype(np.float32),
        "cube": rng.standard_normal((2, 3, 32)).astype(np.float32),
    }
    writer.add_tensor("norm", tensors["norm"])
    for name in ("proj", "cube"):
        packed = gguf.quants.quantize(tensors[name], Kind.Q8_0)
        tensors[name] = gguf.quants.dequantize(packed, Kind.Q8_0)
        writer.add_tensor(name, packed, raw_dtype=Kind.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    expected = write_file(path)
    assert is_gguf(path)
    file = read_gguf(path)
    meta = file.metadata
    assert (meta["general.architecture"], meta["llama.block_count"], meta["flag"]) == ("llama", 7, True)
    assert meta["eps"] == np.float32(1e-5)
    assert meta["text"] == "naïve 😀"
    assert meta["words"] == ["a", "", "日本"]
    assert list(meta["numbers"]) == [1, 2, 3]
    assert list(file.tensors) == ["norm", "proj", "cube"]
    for name, values in expected.items():
        assert file.tensors[name].shape == values.shape
        assert np.array_equal(dequantize(file.tensors[name]), values)
    assert file.tensors["proj"].type == "Q8_0"
    assert file.tensors["proj"].data.dtype == np.uint8
    assert read_gguf(path, metadata_only=True).tensors == {}


def test_split_file(tmp_path: Path) -> None:
    expected = write_file(tmp_path / "m.gguf", split_max_tensors=1)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) > 1
    file = read_gguf(parts[0])
    assert set(file.tensors) == set(expected)
    for name, values in expected.items():
        assert np.array_equal(dequantize(file.tensors[name]), values)
    with pytest.raises(WeightError, match="give the first"):
        read_gguf(parts[1])
    parts[1].unlink()
    with pytest.raises(WeightError, match=parts[1].name):
        read_gguf(parts[0])


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    whole = tmp_path / "m.gguf"
    write_file(whole)
    content = whole.read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in [*range(0, len(content) - 32, 7), len(content) - 33]:
        cut.write_bytes(content[:size])
        with pytest.raises(WeightError, match=r"cut\.gguf"):
            read_gguf(cut)
    cut.write_bytes(content[: len(content) - 100])
    with pytest.raises(WeightError, match="Tensor cube runs past the end"):
        read_gguf(cut)


def test_bad_magic_version_type_and_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_file(path)
    content = bytearray(path.read_bytes())
    for at, replacement, message in [(0, b"GGML", "not a GGUF"), (4, struct.pack("<I", 9), "version 9")]:
        damaged = bytearray(content)
        damaged[at : at + 4] = replacement
        path.write_bytes(damaged)
        with pytest.raises(WeightError, match=message):
            read_gguf(path)
    at = content.index(b"proj") + 4 + 4 + 16
    damaged = bytearray(content)
    damaged[at : at + 4] = struct.pack("<I", 999)
    path.write_bytes(damaged)
    with pytest.raises(WeightError, match=r"proj .*unknown type 999"):
        read_gguf(path)
    with pytest.raises(WeightError, match="nowhere"):
        read_gguf(tmp_path / "nowhere.gguf")
    assert not is_gguf(tmp_path / "nowhere.gguf")
