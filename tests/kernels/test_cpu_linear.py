"""Packed linear layers: exact codes, float32 accuracy, and the same bits for a row in any batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from radixlang.kernels.cpu import blocks as b
from radixlang.kernels.cpu.blocks import QuantBlocks, quant_blocks_from_gguf
from radixlang.kernels.cpu.linear import concat, pack

TYPES = {"Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14}
ROWS = (1, 2, 3, 4, 5, 8, 11, 16, 17, 33)


def _random_raw(number: int, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Random bytes with sane half-float scales, so that every code and scale pattern occurs."""
    rng = np.random.default_rng(seed)
    per_block, size = b._SIZES[number]
    raw = rng.integers(0, 256, (rows * columns // per_block, size), dtype=np.uint8)
    halves = {2: (0,), 3: (0, 2), 6: (0,), 7: (0, 2), 8: (0,), 12: (0, 2), 13: (0, 2), 14: (208,)}[number]
    for at in halves:
        scale = rng.uniform(-0.01, 0.01, raw.shape[0]).astype(np.float16)
        raw[:, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
    return raw.reshape(rows, -1)


def _quantised(
    kind: str, rows: int, columns: int, group: int, minimum: bool, half: bool, seed: int = 1
) -> QuantBlocks:
    generator = torch.Generator().manual_seed(seed)
    low, high, dtype = (0, 16, torch.uint8) if kind == "q4" else (-128, 128, torch.int8)
    codes = torch.randint(low, high, (rows, columns), generator=generator).to(dtype)
    scales, mins = torch.randn(2, rows, columns // group, generator=generator) / 50
    if half:
        scales, mins = scales.half().float(), mins.half().float()
    return QuantBlocks(kind, codes, scales, mins if minimum else None, group)


CASES = {
    "q4 half": _quantised("q4", 100, 96, 32, True, True),
    "q4 float": _quantised("q4", 64, 64, 32, True, False),
    "q8 half": _quantised("q8", 130, 64, 32, False, True),
    "q8 16": _quantised("q8", 64, 80, 16, False, False),
    "q8 minimum": _quantised("q8", 64, 64, 32, True, False),
    "no such format": _quantised("q8", 64, 64, 64, True, False),
    "float32": torch.randn(70, 50, generator=torch.Generator().manual_seed(2)),
    "bfloat16": torch.randn(70, 50, generator=torch.Generator().manual_seed(2)).bfloat16(),
    "float16": torch.randn(64, 32, generator=torch.Generator().manual_seed(2)).half(),
}


def _dense(weight: QuantBlocks | torch.Tensor) -> torch.Tensor:
    return weight.dequantize() if isinstance(weight, QuantBlocks) else weight.float()


@pytest.mark.parametrize("name", TYPES)
def test_codes_equal_the_gguf_library(name: str) -> None:
    quants = pytest.importorskip("gguf.quants")
    number = TYPES[name]
    raw = _random_raw(number, 6, 512)
    blocks = quant_blocks_from_gguf(raw, number, (6, 512))
    assert blocks is not None
    expected = quants.dequantize(raw, __import__("gguf").GGMLQuantizationType(number))
    np.testing.assert_allclose(blocks.dequantize().numpy(), expected, rtol=2e-7, atol=1e-9)
    packed = pack(blocks)
    assert torch.equal(packed.weight, blocks.dequantize())


def test_unknown_block_types_are_left_to_the_caller() -> None:
    assert quant_blocks_from_gguf(np.zeros(64, np.uint8), 10, (1, 256)) is None  # Q2_K


@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_product_is_accurate_and_independent_of_the_batch(case: str, integer: bool) -> None:
    weight = CASES[case]
    dense = _dense(weight)
    bias = torch.randn(dense.shape[0], generator=torch.Generator().manual_seed(3))
    layer = pack(weight, bias, integer=integer)
    x = torch.randn(max(ROWS), dense.shape[1] + 7, generator=torch.Generator().manual_seed(4))[:, 3:-4]
    x[5] = 0
    expected = x.double() @ dense.double().T + bias.double()
    scale = (x.double().abs() @ dense.double().abs().T).max().item()
    alone = torch.cat([layer(x[i : i + 1]) for i in range(max(ROWS))])
    for rows in ROWS:
        y = layer(x[:rows])
        assert y.shape == (rows, dense.shape[0])
        assert (y - expected[:rows]).abs().max() < scale * (2e-5 if integer else 4e-7)
        assert torch.equal(y, alone[:rows])
    assert layer(x[:0]).shape == (0, dense.shape[0])


def test_integer_activations_survive_outliers_per_group() -> None:
    weight = _quantised("q4", 64, 128, 32, True, True)
    x = torch.randn(3, 128)
    x[:, 7] = 1e4
    error = (pack(weight, integer=True)(x) - x @ weight.dequantize().T).abs().max()
    assert error < 1e4 / 32767 * weight.dequantize()[:, :32].abs().sum(1).max() + 1e-2


def test_parts_of_different_kinds_run_as_one_layer() -> None:
    parts = [
        _quantised("q4", 48, 64, 32, True, True),
        _quantised("q8", 16, 64, 16, False, False),
        torch.randn(24, 64),
    ]
    layer = concat(parts, bias=torch.arange(88.0))
    dense = torch.cat([_dense(p) for p in parts])
    x = torch.randn(5, 64)
    torch.testing.assert_close(layer(x), x @ dense.T + torch.arange(88.0), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(layer.weight, dense)
    ids = torch.tensor([70, 0, 47, 48, 63, 64, 87, 0])
    torch.testing.assert_close(layer.embedding(ids), dense[ids])


def test_same_kinds_are_merged_and_take_their_stored_size() -> None:
    part = _quantised("q4", 64, 64, 32, True, True)
    layer = concat([part, part.rows(torch.arange(63, -1, -1))])
    assert layer.nbytes == 2 * 64 * 64 * 5 // 8
    assert torch.equal(layer.weight[:64], layer.weight[64:].flip(0))


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"\(4, 8\), \(4, 12\)"):
        concat([torch.zeros(4, 8), torch.zeros(4, 12)])


def test_without_numba_torch_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from radixlang.kernels.cpu import linear

    weight = CASES["q4 half"]
    compiled = pack(weight)
    monkeypatch.setattr(linear, "available", lambda: False)
    plain = pack(weight)
    x = torch.randn(4, 96)
    torch.testing.assert_close(plain(x), compiled(x), rtol=1e-5, atol=1e-5)
    assert torch.equal(plain.embedding(torch.tensor([3, 99])), compiled.embedding(torch.tensor([3, 99])))
