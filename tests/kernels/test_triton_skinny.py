"""The product of few tokens and what a decode graph begins with, against their torch twins."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("run by tests/kernels/test_triton_interpreted.py", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed, so its kernels cannot run here")

from radixlang.kernels import reference, tuning  # noqa: E402
from radixlang.kernels.matvec import matvec  # noqa: E402
from radixlang.kernels.norm import rms_norm  # noqa: E402
from radixlang.kernels.rope_write import rotary_angles  # noqa: E402
from radixlang.kernels.skinny_linear import BegunNorm, can_begin_norm, skinny_add, skinny_linear  # noqa: E402
from radixlang.kernels.step_inputs import packed_size, sections, step_inputs  # noqa: E402

DTYPES = [torch.float16, torch.bfloat16]


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Within the rounding of inputs and result, as a share of the whole."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    error = (got.float() - want.float()).norm() / want.float().norm()
    # the interpreter cuts bfloat16 off instead of rounding it
    bound = 1.5e-3 if got.dtype == torch.float16 else 8e-3 if DEVICE == "cuda" else 2e-2
    assert float(error) < bound


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("splits", [1, 2, 4])
@pytest.mark.parametrize(
    ("tokens", "outer", "inner"), [(1, 128, 256), (5, 96, 256), (17, 64, 100), (33, 130, 512)]
)
def test_plain(tokens: int, outer: int, inner: int, splits: int, dtype: torch.dtype) -> None:
    x, weight = randn(tokens, inner, dtype=dtype), randn(outer, inner, dtype=dtype, seed=1)
    tile = tuning.SkinnyTile(64, 64, splits, 4, 3)
    for _ in range(2):  # the arrival counters must be left as they were
        close(skinny_linear(x, weight, tile=tile), reference.skinny_linear(x, weight))


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("activation", [None, "silu", "gelu_tanh"])
@pytest.mark.parametrize(("tokens", "outer", "inner"), [(1, 128, 256), (7, 70, 200)])
def test_with_all_that_may_follow(
    tokens: int, outer: int, inner: int, activation: str | None, splits: int
) -> None:
    dtype = torch.bfloat16
    rows = 2 * outer if activation else outer
    x, weight = randn(tokens, inner, dtype=dtype), randn(rows, inner, dtype=dtype, seed=1)
    bias = randn(rows, dtype=dtype, seed=2) * 9
    residual = randn(tokens, outer, dtype=dtype, seed=4) * 20
    options = {"activation": activation}
    want = reference.skinny_linear(x, weight, bias, residual=residual, **options)  # type: ignore[arg-type]
    stream = residual.clone()
    tile = tuning.SkinnyTile(64, 64, splits, 4, 3)
    got = skinny_linear(x, weight, bias, residual=stream, tile=tile, **options)  # type: ignore[arg-type]
    close(got, want)
    assert got is stream, "the sum is made in place"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize(("tokens", "outer", "inner"), [(1, 128, 256), (17, 150, 100)])
def test_a_norm_is_begun(tokens: int, outer: int, inner: int, splits: int, dtype: torch.dtype) -> None:
    """By a product that is added to the stream as it is without."""
    x, weight = randn(tokens, inner, dtype=dtype), randn(outer, inner, dtype=dtype, seed=1) / 16
    bias, norm = randn(outer, dtype=dtype, seed=2) * 9, randn(outer, seed=3)
    plain, stream = (randn(tokens, outer, dtype=dtype, seed=4) * 9 for _ in range(2))
    tile = tuning.SkinnyTile(64, 64, splits, 4, 3)
    skinny_linear(x, weight, bias, residual=plain, tile=tile)
    begun = skinny_add(x, weight, bias, residual=stream, norm=norm, tile=tile)
    assert torch.equal(stream, plain)
    scaled, squares = reference.begin_norm(stream, norm, 64)
    close(begun.scaled, scaled)
    close(begun.squares[:, :tokens], squares)
    assert not begun.squares[:, tokens:].any(), "tokens that pad it"
    assert begun.norm is norm


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("activation", [None, "silu", "gelu_tanh"])
@pytest.mark.parametrize(("tokens", "outer", "inner", "block"), [(1, 128, 256, 64), (17, 70, 100, 16)])
def test_a_norm_is_ended(
    tokens: int, outer: int, inner: int, block: int, activation: str | None, splits: int, dtype: torch.dtype
) -> None:
    """Sums of squares over a number of blocks that is a power of two, and over one that is not."""
    rows = 2 * outer if activation else outer
    weight, bias = randn(rows, inner, dtype=dtype, seed=1), randn(rows, dtype=dtype, seed=2) * 9
    x = (
        randn(tokens, inner, dtype=dtype, seed=3)
        * torch.arange(1, tokens + 1, device=DEVICE, dtype=dtype)[:, None]
    )
    norm = randn(inner, seed=4)
    scaled, squares = reference.begin_norm(x, norm, block)
    padded = torch.zeros((len(squares), 16 if tokens == 1 else 32), device=DEVICE)
    padded[:, :tokens] = squares
    tile = tuning.SkinnyTile(64, 64, splits, 4, 3)
    more = {"activation": activation}
    got = skinny_linear(BegunNorm(norm, scaled, padded), weight, bias, eps=0.5, tile=tile, **more)  # type: ignore[arg-type]
    close(got, reference.skinny_linear(reference.rms_norm(x, norm, 0.5), weight, bias, **more))  # type: ignore[arg-type]


def test_where_a_norm_is_begun() -> None:
    """In bfloat16 alone, if the table does not forbid it and the sums of squares fit a program."""
    tile = tuning.SkinnyTile(64, 128, 1, 4, 4)
    stream = torch.empty((64, 8192), dtype=torch.bfloat16, device=DEVICE)
    assert can_begin_norm(stream, tile)
    assert not can_begin_norm(stream, replace(tile, begin_norm=False))
    assert not can_begin_norm(stream, replace(tile, block_n=32))
    assert not can_begin_norm(stream.half(), tile)
    assert not can_begin_norm(torch.empty((65, 8192), dtype=torch.bfloat16, device=DEVICE), tile)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", [None, "silu", "gelu_tanh"])
@pytest.mark.parametrize(("tokens", "outer", "inner"), [(1, 64, 128), (3, 37, 200), (8, 16, 96)])
@pytest.mark.parametrize("normed", [False, True])
def test_matvec(
    tokens: int, outer: int, inner: int, normed: bool, activation: str | None, dtype: torch.dtype
) -> None:
    """Rows of x inside a wider tensor, sizes that fill no block, and all that may stand around the product."""
    rows = 2 * outer if activation else outer
    x = randn(tokens, 2 * inner, dtype=dtype)[:, :inner] * 3
    weight, bias = randn(rows, inner, dtype=dtype, seed=1), randn(rows, dtype=dtype, seed=2) * 9
    residual = randn(tokens, outer, dtype=dtype, seed=3) * 20
    norm = randn(inner, seed=4) if normed else None
    plain = x if norm is None else reference.rms_norm(x, norm, 1e-5)
    tile = tuning.MatvecTile(8, 4)
    more = {"norm": norm, "eps": 1e-5, "activation": activation, "tile": tile}
    want = reference.skinny_linear(plain, weight, activation=activation)
    close(matvec(x, weight, **more), want)  # type: ignore[arg-type]
    want = reference.skinny_linear(plain, weight, bias, activation=activation, residual=residual)
    stream = residual.clone()
    got = matvec(x, weight, bias, residual=stream, **more)  # type: ignore[arg-type]
    close(got, want)
    assert got is stream, "the sum is made in place"


def test_matvec_gives_a_token_the_same_bits_in_any_company() -> None:
    x, weight = randn(8, 256, dtype=torch.float16), randn(32, 256, dtype=torch.float16)
    tile = tuning.MatvecTile(8, 4)
    together = matvec(x, weight, norm=randn(256, seed=2), tile=tile)
    for t in range(8):
        assert torch.equal(matvec(x[t : t + 1], weight, norm=randn(256, seed=2), tile=tile)[0], together[t])


@pytest.mark.skipif(DEVICE == "cpu", reason="needs the size of a real layer")
@pytest.mark.parametrize("tokens", [1, 8])
def test_a_chain_of_matvecs(tokens: int) -> None:
    """Each lets the next one in before it waits; a hundred of them one behind the other show a race."""
    first, second = (randn(1024, 1024, dtype=torch.bfloat16, seed=i) / 32 for i in (1, 2))
    norm, tile = torch.ones(1024, device=DEVICE), tuning.MatvecTile(8, 4)
    x = start = randn(tokens, 1024, dtype=torch.bfloat16)
    outs = []
    for _ in range(100):
        y = matvec(x, first, norm=norm, activation=None, tile=tile)
        x = matvec(y, second, residual=start.clone(), tile=tile)
        outs.append((y, x))
    previous = start
    for y, x in outs:
        close(y, reference.skinny_linear(reference.rms_norm(previous, norm, 0.0), first))
        close(x, reference.skinny_linear(y, second, residual=start))
        previous = x


@pytest.mark.skipif(DEVICE == "cpu", reason="needs the size of a real layer")
@pytest.mark.parametrize("tokens", [1, 16, 32, 64, 128])
def test_a_real_layer(tokens: int) -> None:
    """With the chip's own settings, many times over, so that a race would show."""
    dtype = torch.bfloat16
    x, residual = randn(tokens, 4096, dtype=dtype), randn(tokens, 4096, dtype=dtype, seed=4)
    chip = tuning.chip("cuda")
    for outer, activation in ((6144, None), (4096, None), (14336, "silu")):
        rows = 2 * outer if activation else outer
        weight = randn(rows, 4096, dtype=dtype, seed=1) / 64
        tile = tuning.skinny_tile(chip, tokens=tokens, outer=outer, inner=4096, gated=activation is not None)
        tile = tile or tuning.SkinnyTile(64, 64, 4, 4, 3)
        more = {"residual": residual} if outer == 4096 else {}
        want = reference.skinny_linear(x, weight, activation=activation, **more)
        for turn in range(20):
            stream = {"residual": residual.clone()} if more else {}
            got = skinny_linear(x, weight, activation=activation, tile=tile, **stream)
            if turn == 0:
                close(got, want)
                first = got.clone()
            assert torch.equal(got, first), "splits are summed in a fixed order"


@pytest.mark.skipif(DEVICE == "cpu", reason="needs the size of a real layer")
@pytest.mark.parametrize("tokens", [2, 8, 32, 64])
@pytest.mark.parametrize(("hidden", "heads", "mlp"), [(4096, 4096, 14336), (1024, 2048, 3072)])
def test_the_norms_of_a_real_layer(tokens: int, hidden: int, heads: int, mlp: int) -> None:
    """The products of a layer in a chain, with the chip's own settings: the same bits every time, and what the
    same products give with the norms as kernels between them."""
    dtype, chip = torch.bfloat16, tuning.chip("cuda")

    def of(outer: int, inner: int, activation: str | None = None) -> tuple[torch.Tensor, dict[str, Any]]:
        gated = activation is not None
        tile = tuning.skinny_tile(chip, tokens=tokens, outer=outer, inner=inner, gated=gated)
        weight = randn(outer * (2 if gated else 1), inner, dtype=dtype, seed=outer) / inner**0.5
        return weight, {"tile": tile or tuning.SkinnyTile(64, 64, 2, 4, 4)}

    output, gate_up, down, qkv = of(hidden, heads), of(mlp, hidden, "silu"), of(hidden, mlp), of(heads, hidden)
    gate_up[1]["activation"] = "silu"
    norms = [randn(hidden, seed=seed) for seed in (1, 2)]
    x, start = randn(tokens, heads, dtype=dtype), randn(tokens, hidden, dtype=dtype, seed=3) * 5

    def fused() -> list[torch.Tensor]:
        stream, made = start.clone(), []
        for _ in range(4):
            begun = skinny_add(x, output[0], residual=stream, norm=norms[0], **output[1])
            made.append(skinny_linear(begun, gate_up[0], eps=1e-5, **gate_up[1]))
            begun = skinny_add(made[-1], down[0], residual=stream, norm=norms[1], **down[1])
            made.append(skinny_linear(begun, qkv[0], eps=1e-5, **qkv[1]))
        return [*made, stream]

    def apart() -> list[torch.Tensor]:
        stream, made = start.clone(), []
        for _ in range(4):
            skinny_linear(x, output[0], residual=stream, **output[1])
            made.append(skinny_linear(rms_norm(stream, norms[0], 1e-5), gate_up[0], **gate_up[1]))
            skinny_linear(made[-1], down[0], residual=stream, **down[1])
            made.append(skinny_linear(rms_norm(stream, norms[1], 1e-5), qkv[0], **qkv[1]))
        return [*made, stream]

    first = fused()
    for got, want in zip(first, apart(), strict=True):
        close(got, want)
    for _ in range(20):
        assert all(map(torch.equal, fused(), first)), "sums of squares are added up in a fixed order"


def test_rotary_angles() -> None:
    positions = torch.tensor([0, 1, 77, 4097, 131071], device=DEVICE)
    inverse = (1.0 / 500000.0 ** (torch.arange(20) / 20)).to(DEVICE)
    got, want = rotary_angles(positions, inverse, 1.5), reference.rotary_angles(positions, inverse, 1.5)
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_step_inputs() -> None:
    """Tokens known and waited for, new pages, padding, and more tokens than one program takes."""
    table = torch.zeros((6, 4), dtype=torch.int32, device=DEVICE)
    waiting = torch.tensor([7, 10, 20, 30, 40, 50], device=DEVICE)
    tokens, rows = 700, 3
    host = torch.zeros(packed_size(tokens, rows), dtype=torch.int32)
    parts = sections(host, tokens, rows)
    assert sum(map(len, parts)) == len(host)
    parts[3][:] = torch.tensor([0, 650, 650])
    parts[6][:3] = torch.tensor([-5, 11, -2])
    parts[6][650] = -1
    parts[7][:3] = torch.tensor([17, 0, 3])
    parts[8][:3] = torch.tensor([99, 16, 98])
    parts[9][:6] = torch.tensor([5, 2, 44, 2, 0, 9])
    ids, positions, slots = (torch.full((tokens,), -9, device=DEVICE) for _ in range(3))
    wanted = torch.full((rows,), -9, device=DEVICE)
    step_inputs(host.to(DEVICE), waiting, table, ids, positions, slots, wanted)
    assert ids[:4].tolist() == [50, 11, 20, 0]
    assert int(ids[650]) == 10
    assert positions[:4].tolist() == [17, 0, 3, 0]
    assert slots[:4].tolist() == [99, 16, 98, 0]
    assert not ids[651:].any()
    assert wanted.tolist() == [0, 650, 650]
    assert int(table[5, 2]) == 44
    assert int(table.sum()) == 44 + 9
