"""The kernels behind `--enable-deterministic-inference`: right, and the same bits for a row in any company."""

from __future__ import annotations

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("run by tests/kernels/test_triton_interpreted.py", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed, so its kernels cannot run here")

from radixlang.kernels import reference, tuning  # noqa: E402
from radixlang.kernels.exact_attention import chunk_of, exact_attention  # noqa: E402
from radixlang.kernels.exact_linear import ExactTile, exact_linear, segments, tile_of  # noqa: E402
from radixlang.kernels.log_sum_exp import log_sum_exp  # noqa: E402

pytestmark = pytest.mark.usefixtures("products_in_float64")

DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float16
#: chips on which rows and products are never split, split as they come, and always split
CHIPS = [tuning.Chip(units, 196608, {}) for units in (1, 16, 1000)]
COUNTS = (1, 2, 17, 40, 64, 65, 130, 257) if DEVICE == "cuda" else (1, 33)


def randn(*shape: int, dtype: torch.dtype = DTYPE, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


@pytest.mark.parametrize("activation", [None, "silu", "gelu_tanh"])
@pytest.mark.parametrize(("outer", "inner"), [(96, 520), (70, 136)])
def test_a_product_has_the_same_bits_in_any_number(outer: int, inner: int, activation: str | None) -> None:
    rows = 2 * outer if activation else outer
    x, weight, bias = randn(300, inner), randn(rows, inner, seed=1) * inner**-0.5, randn(rows, seed=2)
    stream = None if activation else randn(300, outer, seed=3)

    def product(at: slice, chip: tuning.Chip) -> torch.Tensor:
        residual = None if stream is None else stream[at].clone()
        return exact_linear(x[at], weight, bias, chip=chip, activation=activation, residual=residual)

    whole = product(slice(0, 300), CHIPS[1])
    want = reference.skinny_linear(x, weight, bias, activation=activation, residual=stream)
    torch.testing.assert_close(whole.float(), want.float(), atol=0.03, rtol=0.01)
    for chip in CHIPS:
        for count in COUNTS:
            assert torch.equal(product(slice(7, 7 + count), chip), whole[7 : 7 + count]), (chip.units, count)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tokens", [1, 20, 64, 200, 300])
def test_every_tile_is_right(tokens: int, gated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = randn(tokens, 320), randn(160, 320, seed=1) * 0.05
    with monkeypatch.context() as patch:
        patch.setattr("radixlang.kernels.exact_linear.interpreted", lambda: False)
        tile = tile_of(CHIPS[1], tokens, gated, 1)
    activation = "silu" if gated else None
    out = exact_linear(x, weight, chip=CHIPS[1], activation=activation, dtype=torch.float32, tile=tile)
    assert out.dtype == torch.float32
    want = reference.skinny_linear(x.float(), weight.float(), activation=activation)
    torch.testing.assert_close(out, want, atol=2e-3, rtol=2e-3)


def test_segments_depend_on_the_weight_and_fill_a_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixlang.kernels.exact_linear.interpreted", lambda: False)
    assert [segments(n, k) for n, k in ((28672, 4096), (6144, 4096), (4096, 4096), (4096, 14336))] == [1, 1, 2, 2]
    assert segments(1024, 3072) == 8
    assert segments(64, 256) == 1
    small = tile_of(tuning.Chip(1, 65536, {}), 8192, False, 1)
    assert small == ExactTile(128, 256, 64, 8, 1)


def paged(length: int, page: int, kv_heads: int, dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    pages = -(-length // page)
    table = torch.zeros((2, pages + 1), dtype=torch.int32)
    table[1, :pages] = torch.randperm(pages, generator=torch.Generator().manual_seed(0)).int() + 1
    cache = randn(2, pages + 1, page, kv_heads, dim, seed=3)
    return cache[0], cache[1], table.to(DEVICE)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "page", "length", "more"),
    [
        (2, 1, 32, 16, 530, {}),
        (8, 1, 16, 7, 300, {"window": 100}),
        (2, 2, 24, 16, 280, {"softcap": 5.0, "sinks": torch.linspace(-1, 2, 2)}),
        (2, 1, 32, 16, 600, {"window": 270, "sinks": torch.linspace(-1, 2, 2)}),
        *([(4, 2, 256, 16, 270, {}), (4, 1, 64, 64, 300, {}), (32, 8, 128, 16, 6000, {})] * (DEVICE == "cuda")),
    ],
)
def test_a_query_has_the_same_bits_in_any_step(
    heads: int, kv_heads: int, dim: int, page: int, length: int, more: dict[str, object]
) -> None:
    k, v, table = paged(length, page, kv_heads, dim)
    q = randn(length, heads, dim, seed=4)
    layer: dict[str, object] = {"scale": dim**-0.5} | more
    if "sinks" in layer:
        layer["sinks"] = torch.as_tensor(layer["sinks"]).to(DEVICE)

    def attend(parts: list[tuple[int, int]], chip: tuning.Chip = CHIPS[1], room: int = 0) -> list[torch.Tensor]:
        """Queries [begin, end) of the one sequence, as rows of one step; begin = end is a padded row."""
        counts = [max(1, end - begin) for begin, end in parts]
        chosen = torch.cat([q[begin : begin + n] for (begin, _), n in zip(parts, counts, strict=True)])
        live = [end if end > begin else 0 for begin, end in parts]
        integers = ([int(n > 0) for n in live], [0, *torch.tensor(counts).cumsum(0).tolist()], live)
        tensors = [torch.tensor(numbers, dtype=torch.int32, device=DEVICE) for numbers in integers]
        out = exact_attention(
            chosen, k, v, table, *tensors, max_query=max(counts), max_length=max(room, *live), chip=chip, **layer
        )
        return list(out.split(counts))

    whole = attend([(0, length)])[0]
    rows = (torch.tensor(n, dtype=torch.int32, device=DEVICE) for n in ([1], [0, length], [length]))
    want = reference.paged_attention(q, k, v, table, *rows, **layer)
    torch.testing.assert_close(whole.float(), want.float(), atol=0.02, rtol=0.02)
    ends = [n for n in (1, 6, 64, 65, 256, 257, 300, 513, length) if n <= length]
    for chip in CHIPS:
        for got, end in zip(attend([(n - 1, n) for n in ends], chip, 5000), ends, strict=True):
            assert torch.equal(got[0], whole[end - 1]), (chip.units, end)
    cuts = [(3, 100), (100, 130), (250, 261), (length - 90, length), (0, 1)]
    for got, (begin, end) in zip(attend(cuts), cuts, strict=True):
        assert torch.equal(got, whole[begin:end]), (begin, end)
    one, padded = attend([(length - 1, length), (0, 0)])
    assert torch.equal(one[0], whole[-1])
    assert not padded.any()


def test_chunks_grow() -> None:
    assert [chunk_of(n) for n in (0, 255, 256, 4095, 4096, 5119, 5120, 32767, 32768, 36864)] == [
        *(0, 0, 1, 15, 16, 16, 17, 43, 44, 45)
    ]


def test_log_sum_exp() -> None:
    logits = randn(5, 9000, dtype=torch.float32) * 8
    logits[1, 100:] = -torch.inf
    logits[2, 7] = torch.nan
    logits[4, [3, 8000]] = torch.inf
    out = log_sum_exp(logits)
    torch.testing.assert_close(out, logits.logsumexp(-1, keepdim=True), equal_nan=True, atol=1e-5, rtol=1e-6)
    assert torch.equal(log_sum_exp(logits[3:4]), out[3:4])
    assert log_sum_exp(torch.full((1, 9), -torch.inf, device=DEVICE)).item() == -torch.inf
