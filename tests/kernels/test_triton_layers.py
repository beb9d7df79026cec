"""Norm, rotation with KV write, activation and page copy kernels against their torch twins."""

from __future__ import annotations

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("run by tests/kernels/test_triton_interpreted.py", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed, so its kernels cannot run here")

from radixlang.kernels import activation, norm, page_blocks, page_copy, reference, rope_write  # noqa: E402
from radixlang.memory.kv_pool import KvPool  # noqa: E402
from tests.memory.test_sizing import spec  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal up to one rounding of the result's dtype; NaN is never equal."""
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "width"), [(1, 576), (7, 100), (33, 64), (2, 4096), (0, 64)])
def test_rms_norm(tokens: int, width: int, dtype: torch.dtype) -> None:
    x, weight = randn(tokens, width, dtype=dtype) * 3, randn(width, dtype=dtype, seed=1)
    close(norm.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    gemma = norm.rms_norm(x, weight, 1e-6, weight_offset=1.0)
    close(gemma, reference.rms_norm(x, weight, 1e-6, weight_offset=1.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [576, 100])
def test_add_rms_norm(width: int, dtype: torch.dtype) -> None:
    x, residual = randn(5, width, dtype=dtype), randn(5, 2 * width, dtype=dtype, seed=1)[:, :width]
    weight = randn(width, dtype=dtype, seed=2)
    out, total = norm.add_rms_norm(x, residual, weight, 1e-5, weight_offset=1.0)
    expected, expected_total = reference.add_rms_norm(x, residual, weight, 1e-5, weight_offset=1.0)
    if DEVICE == "cpu" and dtype == torch.bfloat16:
        # the interpreter cuts bfloat16 off instead of rounding it, so the sum may be a last digit away
        close(total, expected_total)
        expected = reference.rms_norm(total, weight, 1e-5, weight_offset=1.0)
    else:
        assert torch.equal(total, expected_total)
    close(out, expected)


def test_rms_norm_of_heads_inside_a_projection() -> None:
    fused = randn(5, 9, 80)
    q = fused[:, 2:7]
    close(norm.rms_norm(q, randn(80, seed=1), 1e-6), reference.rms_norm(q, randn(80, seed=1), 1e-6))


def test_rms_norm_refuses_four_dimensions() -> None:
    with pytest.raises(ValueError, match="2 or 3 dimensions"):
        norm.rms_norm(randn(1, 2, 3, 4), randn(4), 1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "rotary", "normed"),
    [
        (4, 2, 64, 64, False),
        (14, 2, 64, 64, True),
        (3, 3, 80, 32, True),
        (9, 3, 96, 96, False),
        (1, 1, 256, 64, False),
    ],
)
def test_rope_write(heads: int, kv_heads: int, dim: int, rotary: int, normed: bool, dtype: torch.dtype) -> None:
    tokens, page = 7, 5
    fused = randn(tokens, heads + 2 * kv_heads, dim, dtype=dtype)
    q, k, v = fused.split([heads, kv_heads, kv_heads], dim=1)
    positions = torch.tensor([0, 1, 2, 9, 30, 31, 5], device=DEVICE)
    slots = torch.tensor([11, 12, 13, 7, 24, 19, 0], device=DEVICE)
    angle = torch.arange(32)[:, None] / 10000.0 ** (torch.arange(rotary // 2) / (rotary // 2))
    cos, sin = angle.cos().to(DEVICE), angle.sin().to(DEVICE)
    options: dict[str, object] = {"weight_offset": 1.0} if normed else {}
    if normed:
        options |= {"q_weight": randn(dim, dtype=dtype, seed=2), "k_weight": randn(dim, dtype=dtype, seed=3)}
    caches = [randn(6, page, kv_heads, dim, dtype=dtype, seed=4 + i) for i in range(2)]
    expected_caches = [cache.clone() for cache in caches]
    out = rope_write.rope_write(q, k, v, cos, sin, positions, slots, *caches, **options)
    expected = reference.rope_write(q, k, v, cos, sin, positions, slots, *expected_caches, **options)
    close(out, expected)
    close(caches[0], expected_caches[0])
    assert torch.equal(caches[1], expected_caches[1])


def test_rope_write_is_a_rotation() -> None:
    """Checked without the twin: position 0 changes nothing, any position keeps the length of each pair."""
    q, k, v = randn(2, 2, 64), randn(2, 1, 64, seed=1), randn(2, 1, 64, seed=2)
    angle = torch.arange(8)[:, None] / 10000.0 ** (torch.arange(32) / 32)
    caches = [torch.zeros(2, 4, 1, 64, device=DEVICE) for _ in range(2)]
    positions = torch.tensor([0, 7], device=DEVICE)
    out = rope_write.rope_write(
        q, k, v, angle.cos().to(DEVICE), angle.sin().to(DEVICE), positions, positions, caches[0], caches[1]
    )
    assert torch.equal(out[0], q[0])
    assert torch.equal(caches[0][0, 0], k[0])
    assert not torch.allclose(out[1], q[1])
    pairs = out[1, :, :32] ** 2 + out[1, :, 32:] ** 2
    close(pairs, q[1, :, :32] ** 2 + q[1, :, 32:] ** 2)
    assert torch.equal(caches[1][1, 3], v[1])


def test_rope_write_wants_both_weights() -> None:
    x, table = randn(1, 1, 64), randn(1, 32)
    with pytest.raises(ValueError, match="both"):
        rope_write.rope_write(
            x, x, x, table, table, torch.zeros(1), torch.zeros(1), x[None], x[None], q_weight=randn(64)
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "width"), [(1, 1536), (3, 100), (0, 64)])
def test_gated_activations(tokens: int, width: int, dtype: torch.dtype) -> None:
    x = randn(tokens, 2 * width, dtype=dtype) * 4
    close(activation.silu_mul(x), reference.silu_mul(x))
    close(activation.gelu_tanh_mul(x), reference.gelu_tanh_mul(x))


def test_gated_activations_saturate() -> None:
    x = torch.tensor([[-200.0, 200.0, 1.0, 2.0]], device=DEVICE)
    assert activation.silu_mul(x).tolist() == [[0.0, 400.0]]
    assert activation.gelu_tanh_mul(x).tolist() == [[0.0, 400.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("page", [1, 16, 37])
def test_copy_pages(page: int, dtype: torch.dtype) -> None:
    caches = [(randn(9, page, 3, 68, seed=seed) * 50).to(dtype) for seed in range(4)]
    expected = [cache.clone() for cache in caches]
    addresses = page_blocks.cache_addresses(caches)
    for integer in (torch.int32, torch.int64):
        sources = torch.tensor([1, 1, 8], dtype=integer, device=DEVICE)
        targets = torch.tensor([2, 7, 3], dtype=integer, device=DEVICE)
        page_copy.copy_pages(addresses, sources, targets, caches[0][0].nbytes)
        reference.copy_pages(expected, sources, targets)
        assert all(torch.equal(a, b) for a, b in zip(caches, expected, strict=True))
        page_copy.copy_pages(addresses, sources[:0], targets[:0], caches[0][0].nbytes)


def test_a_pool_copies_by_kernel() -> None:
    pool = KvPool(spec(), 5, 2, torch.float16, torch.device(DEVICE))
    pool.copy_by_kernel()
    for k, v in pool.layers:
        for page in range(1, 5):
            k[page], v[page] = page, -page
    ids = torch.tensor([[1, 1], [4, 3]], device=DEVICE)
    pool.copy(*ids)
    for k, v in pool.layers:
        assert k[:, 1, 2, 63].tolist() == [0, 1, 2, 1, 1]
        assert v[:, 0, 0, 0].tolist() == [0, -1, -2, -1, -1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("page", [1, 16, 37])
def test_page_blocks(page: int, dtype: torch.dtype) -> None:
    caches = [(randn(9, page, 3, 68, seed=seed) * 50).to(dtype) for seed in range(4)]
    pages = torch.tensor([5, 1, 8], dtype=torch.int32, device=DEVICE)
    blocks, expected = (torch.zeros(5, 4 * caches[0][0].nbytes, dtype=torch.uint8, device=DEVICE) for _ in "ab")
    addresses = page_blocks.cache_addresses(caches)
    page_blocks.gather_pages(addresses, pages, blocks)
    reference.gather_pages(caches, pages, expected)
    assert torch.equal(blocks, expected)
    copies = [cache.clone() for cache in caches]
    to = torch.tensor([2, 8, 3], dtype=torch.int32, device=DEVICE)
    page_blocks.scatter_pages(addresses, to, blocks)
    reference.scatter_pages(copies, to, blocks)
    assert all(torch.equal(a, b) for a, b in zip(caches, copies, strict=True))
    page_blocks.gather_pages(addresses, to[:0], blocks)
    with pytest.raises(ValueError, match="dense"):
        page_blocks.cache_addresses([caches[0][:, :, :2]])
