"""Norms, gated activations, rotary with cache write: compiled kernels against the plain torch twins."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("numba")

from radixlang.kernels.cpu import fused, reference, warm_up

TOKENS = (1, 3, 40)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("size", [576, 50])  # fifty goes to torch
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_norms(tokens: int, size: int, offset: float) -> None:
    x, residual, weight = torch.randn(tokens, size), torch.randn(tokens, size), torch.randn(size)
    torch.testing.assert_close(
        fused.rms_norm(x, weight, 1e-5, offset), reference.rms_norm(x, weight, 1e-5, offset), rtol=1e-5, atol=1e-6
    )
    total = residual + x
    normed = fused.add_rms_norm(x, residual, weight, 1e-5, offset)
    assert torch.equal(residual, total)
    torch.testing.assert_close(normed, reference.rms_norm(total, weight, 1e-5, offset), rtol=1e-5, atol=1e-6)


def test_norm_reads_strided_rows() -> None:
    wide, weight = torch.randn(5, 100), torch.randn(64)
    torch.testing.assert_close(
        fused.rms_norm(wide[:, 10:74], weight, 1e-6), reference.rms_norm(wide[:, 10:74], weight, 1e-6)
    )


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
def test_gated(tokens: int, activation: str) -> None:
    gate_up = torch.randn(tokens, 640) * 5
    gate_up[0, :4] = torch.tensor([-200.0, 200.0, 0.0, -30.0])
    torch.testing.assert_close(
        fused.gated(gate_up, activation), reference.gated(gate_up, activation), rtol=1e-5, atol=5e-6
    )


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("size", "rotary"), [(64, 64), (64, 32), (48, 48), (24, 24)])  # the last two go to torch
@pytest.mark.parametrize("norms", [False, True])
def test_rope_and_store(tokens: int, size: int, rotary: int, norms: bool) -> None:
    heads, kv_heads, page_size, pages = 6, 2, 8, 20
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * size)
    angles = torch.rand(100, rotary // 2) * 6
    cos, sin = angles.cos(), angles.sin()
    positions, slots = torch.randint(0, 100, (tokens,)), torch.randperm(pages * page_size)[:tokens]
    q_norm, k_norm = (torch.randn(size), torch.randn(size)) if norms else (None, None)
    k_cache, v_cache = torch.zeros(2, pages, page_size, kv_heads, size)
    q, k, v = qkv.clone().view(tokens, -1, size).split((heads, kv_heads, kv_heads), 1)
    if q_norm is not None and k_norm is not None:
        q, k = reference.rms_norm(q, q_norm, 1e-6, 1.0), reference.rms_norm(k, k_norm, 1e-6, 1.0)
    q, k = (reference.rotate(t, cos[positions], sin[positions]) for t in (q, k))
    result = fused.rope_and_store(
        qkv, cos, sin, positions, slots, k_cache, v_cache, heads, kv_heads, q_norm, k_norm, 1e-6, 1.0
    )
    torch.testing.assert_close(result, q, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(k_cache.flatten(0, 1)[slots], k, rtol=1e-5, atol=1e-5)
    assert torch.equal(v_cache.flatten(0, 1)[slots], v)
    untouched = torch.ones(pages * page_size, dtype=torch.bool)
    untouched[slots] = False
    assert k_cache.flatten(0, 1)[untouched].eq(0).all()
    assert v_cache.flatten(0, 1)[untouched].eq(0).all()


def test_rotation_is_a_rotation() -> None:
    """The twin itself: lengths of pairs are kept, and position zero changes nothing."""
    x = torch.randn(3, 2, 32)
    angles = torch.tensor([0.0, 1.0, 2.5])[:, None].expand(3, 16)
    turned = reference.rotate(x, angles.cos(), angles.sin())
    assert torch.equal(turned[0], x[0])
    torch.testing.assert_close(turned[..., :16] ** 2 + turned[..., 16:] ** 2, x[..., :16] ** 2 + x[..., 16:] ** 2)


@pytest.mark.parametrize("size", [16, 40, 576])
def test_take(size: int) -> None:
    x, index = torch.randn(7, 2 * size)[:, :size], torch.tensor([6, 0, 3, 3])
    assert torch.equal(fused.take(x, index), x[index])


def test_warm_up_is_repeatable() -> None:
    warm_up()
    warm_up()
