"""The gated product in one round of programs, against its torch twin."""

from __future__ import annotations

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("run by tests/kernels/test_triton_interpreted.py", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed, so its kernels cannot run here")

from radixlang.kernels import reference  # noqa: E402
from radixlang.kernels.norm import rms_norm  # noqa: E402
from radixlang.kernels.tuning import WideTile  # noqa: E402
from radixlang.kernels.wide_gated import wide_gated  # noqa: E402


def randn(*shape: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Within the rounding of inputs and result, as a share of the whole."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    error = (got.float() - want.float()).norm() / want.float().norm()
    # the interpreter cuts bfloat16 off instead of rounding it
    bound = 1.5e-3 if got.dtype == torch.float16 else 8e-3 if DEVICE == "cuda" else 2e-2
    assert float(error) < bound


@pytest.mark.parametrize("tokens", [1, 65, 130, 256])
@pytest.mark.parametrize(
    ("outer", "inner", "pieces"),
    [(224, 128, (64, 32, 16)), (150, 200, (64, 32, 16)), (40, 136, (32, 16)), (100, 256, (64,)), (8, 128, (16,))],
)
def test_wide_gated(tokens: int, outer: int, inner: int, pieces: tuple[int, ...]) -> None:
    """Also outputs that end inside a piece and at its end, and an inner dimension that steps do not divide."""
    x, weight = randn(tokens, inner), randn(2 * outer, inner, seed=1) / 8
    got = wide_gated(x, weight, tile=WideTile(pieces, 64, 8, 3, ahead=2))
    close(got, reference.skinny_linear(x, weight, activation="silu"))


def test_bfloat16_and_rows_of_a_wider_tensor() -> None:
    x = randn(70, 512, dtype=torch.bfloat16)[:, 128:384]
    weight = randn(2 * 112, 256, dtype=torch.bfloat16, seed=1) / 8
    got = wide_gated(x, weight, tile=WideTile((64, 32, 16), 32, 8, 3))
    close(got, reference.skinny_linear(x, weight, activation="silu"))
    assert wide_gated(x[:0], weight, tile=WideTile((64,), 64, 8, 3)).shape == (0, 112)


def test_closed_gates_and_open_ones() -> None:
    """Gates of -128 and 128: the exponential of neither does harm."""
    x, weight = torch.ones((65, 128)), torch.ones((32, 128))
    weight[:8] *= -1
    got = wide_gated(x.half().to(DEVICE), weight.half().to(DEVICE), tile=WideTile((16,), 64, 8, 3))
    assert not got[:, :8].any()
    assert (got[:, 8:] == 128.0 * 128.0).all()


@pytest.mark.skipif(DEVICE == "cpu", reason="needs the size of a real layer")
@pytest.mark.parametrize("tokens", [65, 128, 200, 256])
@pytest.mark.parametrize("ahead", [0, 4])
def test_a_real_layer(tokens: int, ahead: int) -> None:
    """Many times over, behind a kernel that writes what it reads, so that a race would show; and in a graph."""
    dtype = torch.bfloat16
    x, weight = randn(tokens, 4096, dtype=dtype), randn(2 * 14336, 4096, dtype=dtype, seed=1) / 64
    tile = WideTile((64, 32, 16), 64, 8, 3, ahead=ahead)
    first = wide_gated(x, weight, tile=tile)
    close(first, reference.skinny_linear(x, weight, activation="silu"))
    norm = torch.ones(4096, device=DEVICE)
    want = wide_gated(rms_norm(x, norm, 1e-5), weight, tile=tile)
    made = [wide_gated(rms_norm(x, norm, 1e-5), weight, tile=tile) for _ in range(20)]
    assert all(torch.equal(got, want) for got in made)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = wide_gated(rms_norm(x, norm, 1e-5), weight, tile=tile)
    x.copy_(randn(tokens, 4096, dtype=dtype, seed=2))
    graph.replay()
    close(replayed, reference.skinny_linear(reference.rms_norm(x, norm, 1e-5), weight, activation="silu"))
