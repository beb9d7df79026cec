"""Every set of layer operations against plain formulas, over odd sizes; Triton under its interpreter."""

from __future__ import annotations

import os

import pytest
import torch

from radixlang.kernels.cpu import available
from radixlang.layers.attention import Attention
from radixlang.layers.ops import OPS, Ops

EPS = 1e-5


def _sets() -> list[str]:
    if os.environ.get("TRITON_INTERPRET") == "1":
        return ["triton"]
    return ["torch", "cpu"] if available() else ["torch"]


@pytest.fixture(params=_sets())
def ops(request: pytest.FixtureRequest) -> Ops:
    return OPS.get(request.param)()


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.double().square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want.float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("tokens", "size"), [(1, 48), (7, 40), (33, 64)])
def test_norms(ops: Ops, tokens: int, size: int) -> None:
    x, residual, weight = torch.randn(tokens, size), torch.randn(tokens, size), torch.randn(size)
    close(ops.rms_norm(x, weight, EPS), norm(x, weight))
    want = x + residual
    normed, total = ops.add_rms_norm(x, residual, weight, EPS)
    close(total, want)
    close(normed, norm(want, weight))


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("size", [20, 64])
def test_gated(ops: Ops, activation: str, size: int) -> None:
    x = torch.randn(5, 2 * size)
    gate, up = x.double().chunk(2, -1)
    if activation == "silu":
        want = gate * torch.sigmoid(gate) * up
    elif activation == "gelu":
        want = gate * 0.5 * (1 + torch.erf(gate / 2**0.5)) * up
    else:
        want = gate * 0.5 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3))) * up
    close(ops.gated(x, activation), want)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "turned"),
    [(4, 2, 16, 16), (3, 1, 32, 32), (5, 5, 12, 12), (2, 1, 64, 32), (2, 2, 20, 0)],
)
def test_rotate_and_store(ops: Ops, heads: int, kv_heads: int, dim: int, turned: int, normed: bool) -> None:
    tokens, pages, page_size = 6, 4, 3
    layer = Attention(
        heads,
        kv_heads,
        dim,
        scale=1.0,
        q_norm=torch.rand(dim) + 0.5 if normed else None,
        k_norm=torch.rand(dim) + 0.5 if normed else None,
        eps=EPS,
    )
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim)
    positions = torch.tensor([0, 1, 2, 900, 5, 31])
    slots = torch.randperm(pages * page_size)[:tokens]
    inverse = torch.rand(turned // 2)
    q, k, v = qkv.clone().view(tokens, -1, dim).split((heads, kv_heads, kv_heads), 1)
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = norm(q, layer.q_norm), norm(k, layer.k_norm)
    angle = torch.polar(torch.full((tokens, 1, turned // 2), 2.0), (positions[:, None].float() * inverse)[:, None])

    def rotate(x: torch.Tensor) -> torch.Tensor:
        half = turned // 2
        z = torch.complex(x[..., :half].float(), x[..., half:turned].float()) * angle
        return torch.cat((z.real, z.imag, x[..., turned:].float()), -1)

    kv = [torch.full((pages, page_size, kv_heads, dim), torch.nan) for _ in range(2)]
    rotation = ops.rotation(positions, inverse, 2.0) if turned else None
    got = ops.rotate_and_store(qkv, layer, rotation, kv[0], kv[1], slots)
    assert got.shape == (tokens, heads, dim)
    torch.testing.assert_close(got, rotate(q), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(kv[0].view(-1, kv_heads, dim)[slots], rotate(k), atol=1e-4, rtol=1e-4)
    assert torch.equal(kv[1].view(-1, kv_heads, dim)[slots], v)
    untouched = torch.ones(pages * page_size, dtype=torch.bool)
    untouched[slots] = False
    for cache in kv:
        assert cache.view(-1, kv_heads, dim)[untouched].isnan().all()


def test_caches_may_have_another_dtype(ops: Ops) -> None:
    layer = Attention(2, 1, 16, scale=1.0, eps=EPS)
    qkv, positions = torch.randn(3, 64), torch.arange(3)
    kv = [torch.zeros(2, 2, 1, 16, dtype=torch.float16) for _ in range(2)]
    value = qkv.view(3, 4, 16)[:, 3:].clone()
    q = ops.rotate_and_store(qkv, layer, ops.rotation(positions, torch.rand(8), 1.0), kv[0], kv[1], positions)
    assert q.dtype == torch.float32
    assert torch.equal(kv[1].view(-1, 1, 16)[:3], value.half())
