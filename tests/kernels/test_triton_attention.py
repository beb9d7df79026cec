"""Both paged attention kernels against their torch twin: in the interpreter on a CPU, compiled on a GPU."""

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

from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

from radixlang.kernels import reference  # noqa: E402
from radixlang.kernels.decode_attention import decode_attention, decode_projected  # noqa: E402
from radixlang.kernels.extend_attention import extend_attention  # noqa: E402
from radixlang.kernels.tuning import DecodeTile, ExtendTile  # noqa: E402

pytestmark = pytest.mark.usefixtures("products_in_float64")

TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def make(
    counts: list[int],
    lengths: list[int],
    *,
    heads: int,
    kv_heads: int,
    dim: int,
    page: int,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """A batch with scattered pages, shuffled rows, and NaN in every cache slot that holds no key."""
    generator = torch.Generator().manual_seed(seed)
    batch = len(counts)
    need = [-(-length // page) for length in lengths]
    pages = sum(need) + 3
    k = torch.full((pages, page, kv_heads, dim), float("nan"))
    v = k.clone()
    free = (torch.randperm(pages - 1, generator=generator) + 1).tolist()
    table = torch.zeros((batch + 2, max(need, default=0) + 2), dtype=torch.int32)
    rows = torch.randperm(batch + 2, generator=generator)[:batch].int()
    for row, length in zip(rows.tolist(), lengths, strict=True):
        for position in range(length):
            if position % page == 0:
                table[row, position // page] = free.pop()
            here = table[row, position // page]
            k[here, position % page] = torch.randn((kv_heads, dim), generator=generator)
            v[here, position % page] = torch.randn((kv_heads, dim), generator=generator)
    # queries as the layers give them: a slice of the fused projection
    fused = torch.randn((sum(counts), heads + 2 * kv_heads, dim), generator=generator)
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    tensors = {
        "q": fused.to(dtype)[:, :heads],
        "k_cache": k.to(dtype),
        "v_cache": v.to(dtype),
        "page_table": table,
        "rows": rows,
        "query_starts": starts,
        "lengths": torch.tensor(lengths, dtype=torch.int32),
    }
    return {name: tensor.to(DEVICE) for name, tensor in tensors.items()}


def check(
    inputs: dict[str, torch.Tensor],
    *,
    splits: int | None = None,
    block: int = 16,
    pack: int = 1,
    keys_left: bool = False,
    block_m: int = 16,
    tma: bool = False,
    scale: float = 0.3,
    window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> None:
    """Compare the decode kernel (when `splits` is given) or the extend kernel with the twin."""
    options = {"scale": scale, "window": window, "softcap": softcap, "sinks": sinks}
    expected = reference.paged_attention(**inputs, **options)
    starts = inputs["query_starts"]
    if splits is not None:
        out = decode_attention(
            **inputs,
            **options,
            max_query=int((starts[1:] - starts[:-1]).max()),
            tile=DecodeTile(splits, block, warps=4, stages=2, pack=pack, keys_left=keys_left, tma=tma),
        )
    else:
        tile = ExtendTile(block_m=block_m, block_n=block, warps=4, stages=2, tma=tma)
        out = extend_attention(**inputs, **options, tile=tile)
    assert not out.isnan().any()
    tolerance = TOLERANCE[out.dtype]
    torch.testing.assert_close(out.float(), expected.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("page", "splits"), [(1, 1), (7, 4), (16, 1), (16, 4), (128, 4)])
def test_decode_page_sizes(page: int, splits: int) -> None:
    inputs = make([1, 1, 1], [1, 37, 130], heads=4, kv_heads=2, dim=64, page=page)
    check(inputs, splits=splits)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 3), (14, 2), (9, 3), (16, 1), (32, 1)])
def test_decode_head_groups(heads: int, kv_heads: int) -> None:
    check(make([1, 1], [19, 50], heads=heads, kv_heads=kv_heads, dim=64, page=16), splits=2)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "pack", "splits"),
    [(8, 4, 2, 1), (8, 4, 2, 3), (16, 8, 8, 3), (12, 6, 4, 1), (5, 5, 8, 3), (32, 4, 4, 1)]
    if DEVICE == "cpu"
    else [
        (*heads, splits)
        for heads in ((8, 4, 2), (16, 8, 8), (12, 6, 4), (5, 5, 8), (32, 4, 4))
        for splits in (1, 2, 4)
    ],
)
def test_several_kv_heads_a_tile(heads: int, kv_heads: int, pack: int, splits: int) -> None:
    """Also where fewer heads than asked for divide, or fit into the tile's rows."""
    for page in (1, 7, 16) if DEVICE == "cuda" else (7,):
        inputs = make([1, 1, 1], [1, 37, 130], heads=heads, kv_heads=kv_heads, dim=64, page=page)
        check(inputs, splits=splits, block=32, pack=pack)
    check(inputs, splits=splits, block=32, pack=pack, window=20, sinks=torch.linspace(-3.0, 4.0, heads).to(DEVICE))
    several = make([3, 1, 2], [9, 40, 75], heads=heads, kv_heads=kv_heads, dim=64, page=16)
    check(several, splits=splits, block=32, pack=pack)


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("pack", [1, 2])
def test_keys_as_left_operands(pack: int, splits: int) -> None:
    for page in (1, 7, 16, 128) if DEVICE == "cuda" else (7,):
        inputs = make([1, 1, 1], [1, 64, 150], heads=12, kv_heads=4, dim=64, page=page)
        check(inputs, splits=splits, block=64, pack=pack, keys_left=True)
    sinks = torch.linspace(-3.0, 4.0, 12).to(DEVICE)
    check(inputs, splits=splits, block=64, pack=pack, keys_left=True, window=20, softcap=5.0, sinks=sinks)
    several = make([3, 1, 2], [9, 70, 135], heads=12, kv_heads=4, dim=80, page=16)
    check(several, splits=splits, block=64, pack=pack, keys_left=True)


NEEDS_TMA = pytest.mark.skipif(
    DEVICE == "cuda" and torch.cuda.get_device_capability()[0] < 9, reason="needs a GPU with TMA (sm_90)"
)
DESCRIBED = [torch.float16] + [torch.bfloat16] * (DEVICE == "cuda")


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The boxes of the descriptors that launches make."""
    boxes: list[list[int]] = []
    make = TensorDescriptor.from_tensor

    def noted(tensor: torch.Tensor, box: list[int]) -> TensorDescriptor:
        boxes.append(box)
        return make(tensor, box)

    monkeypatch.setattr(TensorDescriptor, "from_tensor", noted)
    return boxes


@NEEDS_TMA
@pytest.mark.parametrize("splits", [1, 2, 3])
@pytest.mark.parametrize(
    ("page", "block", "pack"),
    [(16, 16, 1), (16, 32, 2), (16, 64, 4), (16, 128, 8), (64, 64, 1), (64, 64, 4), (128, 128, 1), (128, 128, 2)],
)
@pytest.mark.parametrize("dtype", DESCRIBED)
def test_decode_by_descriptors(
    page: int, block: int, pack: int, splits: int, dtype: torch.dtype, described: list[list[int]]
) -> None:
    """Rows that end inside, at and one past a tile, and of no length; slots that hold no key are NaN."""
    keys = block // pack
    lengths = [1, keys - 1, keys, keys + 1, 0, 2 * keys, page + 1, 2 * page + keys // 2]
    inputs = make([1] * 8, lengths, heads=4 * pack, kv_heads=2 * pack, dim=64, page=page, dtype=dtype)
    check(inputs, splits=splits, block=block, pack=pack, tma=True)
    assert described == [[keys, 64] if pack == 1 else [keys, pack, 64]] * 2


@NEEDS_TMA
@pytest.mark.parametrize(("page", "block", "pack"), [(16, 64, 4), (64, 64, 1)])
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("dtype", DESCRIBED)
def test_all_that_decode_does_by_descriptors(
    page: int, block: int, pack: int, splits: int, dtype: torch.dtype, described: list[list[int]]
) -> None:
    options: dict[str, Any] = {"splits": splits, "block": block, "pack": pack, "tma": True}
    sinks = torch.linspace(-3.0, 4.0, 16).to(DEVICE)
    inputs = make([1] * 4, [1, 64, 150, 0], heads=16, kv_heads=4, dim=64, page=page, dtype=dtype)
    check(inputs, **options, softcap=5.0, sinks=sinks)
    check(inputs, **options, keys_left=True)
    # several queries a row: whole tiles end before the first of them, maybe in an earlier split
    several = make([8, 8, 5, 0, 3], [70, 130, 5, 30, 82], heads=8, kv_heads=4, dim=64, page=page, dtype=dtype)
    check(several, **options)
    assert len(described) == 6


@pytest.mark.parametrize("dtype", DESCRIBED)
def test_decode_tiles_that_cannot_be_described(dtype: torch.dtype, described: list[list[int]]) -> None:
    """Windows, and fewer heads a tile than asked for, which makes it longer than a page, by pointer."""
    options: dict[str, Any] = {"splits": 2, "block": 64, "pack": 4, "tma": True}
    check(make([1, 1], [70, 9], heads=8, kv_heads=4, dim=64, page=16, dtype=dtype), **options, window=20)
    check(make([1, 1], [70, 9], heads=6, kv_heads=6, dim=64, page=16, dtype=dtype), **options)
    check(make([1, 1], [70, 9], heads=32, kv_heads=4, dim=64, page=16, dtype=dtype), **options)
    assert not described


@pytest.mark.parametrize("dim", [64, 80, 96, 192, 256])
def test_head_dims(dim: int) -> None:
    check(make([1, 1], [33, 20], heads=4, kv_heads=2, dim=dim, page=16), splits=2, scale=dim**-0.5)
    check(make([9, 5], [33, 5], heads=4, kv_heads=2, dim=dim, page=16), scale=dim**-0.5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    check(make([1, 1], [40, 70], heads=8, kv_heads=2, dim=64, page=16, dtype=dtype), splits=2, scale=0.125)
    check(make([11, 1], [40, 70], heads=8, kv_heads=2, dim=64, page=16, dtype=dtype), scale=0.125)


@pytest.mark.parametrize("window", [1, 5, 16, 33] + [1000] * (DEVICE == "cuda"))
def test_sliding_window(window: int) -> None:
    check(make([1, 1, 1], [3, 40, 75], heads=4, kv_heads=2, dim=64, page=8), splits=2, window=window)
    check(make([3, 3], [3, 40], heads=4, kv_heads=2, dim=64, page=8), splits=2, window=window)
    check(make([20, 3, 33], [20, 40, 40], heads=4, kv_heads=2, dim=64, page=8), window=window)


@pytest.mark.parametrize("splits", [1, 4])
def test_softcap_and_sinks(splits: int) -> None:
    sinks = torch.linspace(-3.0, 4.0, 6).to(DEVICE)
    decode = make([1, 1, 1], [2, 40, 75], heads=6, kv_heads=2, dim=64, page=16)
    check(decode, splits=splits, softcap=5.0)
    check(decode, splits=splits, sinks=sinks)
    check(decode, splits=splits, softcap=5.0, sinks=sinks, window=9)


def check_projected(
    lengths: list[int],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 64,
    page: int = 16,
    rotary: int | None = None,
    normed: bool = False,
    splits: int = 1,
    block: int = 16,
    keys_left: bool = False,
    tma: bool = False,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> None:
    """Compare the kernel that begins at the projection with the two twins it stands for."""
    ones = [1] * len(lengths)
    inputs = make(ones, lengths, heads=heads, kv_heads=kv_heads, dim=dim, page=page, dtype=dtype)
    table, rows, counts = inputs["page_table"], inputs["rows"], inputs["lengths"]
    caches = [inputs["k_cache"], inputs["v_cache"]]
    newest = (counts.long() - 1).clamp(min=0)
    slots = table[rows.long(), newest // page].long() * page + newest % page
    slots[counts == 0] = 0
    for cache in caches:  # not there before the kernel writes it; a padded row must write nothing
        cache.view(-1, kv_heads, dim)[slots] = float("nan")
    generator = torch.Generator().manual_seed(1)
    qkv = torch.randn((len(lengths), (heads + 2 * kv_heads) * dim), generator=generator).to(DEVICE, dtype)
    weights = (torch.rand((2, dim), generator=generator) + 0.5).to(DEVICE) if normed else (None, None)
    half = (dim if rotary is None else rotary) // 2
    angle = newest[:, None].cpu() / 100.0 ** (torch.arange(half) / max(half, 1))
    angles = (angle.cos().to(DEVICE), angle.sin().to(DEVICE)) if half else None

    expected_caches = [cache.clone() for cache in caches]
    there = (counts > 0).nonzero()[:, 0]
    q, k, v = qkv.view(len(lengths), -1, dim)[there].split([heads, kv_heads, kv_heads], 1)
    turned = inputs["q"].new_zeros((len(lengths), heads, dim))
    scale = 2 * dim**-0.5
    flat = angles or (torch.ones((len(lengths), 0)).to(DEVICE),) * 2
    turned[there] = reference.rope_write(
        q, k, v, flat[0], flat[1], there, slots[there], *expected_caches,
        q_weight=weights[0], k_weight=weights[1], eps=1e-5,
    )  # fmt: skip
    expected = reference.paged_attention(
        turned, *expected_caches, table, rows, inputs["query_starts"], counts, scale=scale, **options
    )
    tile = DecodeTile(splits=splits, block=block, warps=4, stages=2, keys_left=keys_left, tma=tma)
    out = decode_projected(
        qkv, *caches, table, rows, slots, counts, heads=heads, angles=angles,
        q_weight=weights[0], k_weight=weights[1], eps=1e-5, scale=scale, tile=tile, **options,
    )  # fmt: skip
    assert not out.isnan().any()
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out.float(), expected.float(), atol=tolerance, rtol=tolerance)
    for got, want in zip(caches, expected_caches, strict=True):
        torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance, equal_nan=True)


@pytest.mark.parametrize(
    ("page", "splits"), [(1, 2), (7, 1), (7, 4), (16, 1), (16, 2), (16, 4), (128, 1), (128, 2)]
)
def test_projected_page_sizes(page: int, splits: int) -> None:
    """The newest key alone, first and last of a tile, first of a page, and rows of padding."""
    check_projected([1, 16, 17, 37, 129, 0, 128, 0], page=page, splits=splits)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "rotary", "normed"),
    [
        (1, 1, 64, 64, False),
        (14, 2, 64, 32, True),
        (9, 3, 96, 96, True),
        (16, 1, 80, 20, False),
        (3, 3, 128, 0, True),
        (32, 1, 256, 0, False),
        (5, 1, 192, 12, True),
    ],
)
def test_projected_heads_and_rotations(heads: int, kv_heads: int, dim: int, rotary: int, normed: bool) -> None:
    check_projected([50, 3], heads=heads, kv_heads=kv_heads, dim=dim, rotary=rotary, normed=normed, splits=2)


@pytest.mark.parametrize("splits", [1, 2])
def test_projected_keys_as_left_operands(splits: int) -> None:
    check_projected([1, 64, 65, 150, 0], heads=6, normed=True, splits=splits, block=64, keys_left=True)
    check_projected([3, 40, 175], page=8, splits=splits, block=64, keys_left=True, window=33)


@NEEDS_TMA
@pytest.mark.parametrize(("page", "block", "splits"), [(16, 16, 1), (16, 16, 4), (64, 32, 2), (64, 64, 1)])
@pytest.mark.parametrize("dtype", DESCRIBED)
def test_projected_by_descriptors(
    page: int, block: int, splits: int, dtype: torch.dtype, described: list[list[int]]
) -> None:
    """The newest key alone, first and last of a tile, and rows of padding."""
    lengths = [1, block, block + 1, 37, 129, 0, 128, 2 * block + 1]
    check_projected(lengths, page=page, block=block, splits=splits, dtype=dtype, tma=True)
    assert described == [[block, 64]] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_projected_half_precision(dtype: torch.dtype) -> None:
    check_projected([40, 70], heads=8, normed=True, splits=2, dtype=dtype)


@pytest.mark.parametrize("window", [1, 2, 16, 17, 33, 1000])
def test_projected_window(window: int) -> None:
    check_projected([3, 40, 75, 81], page=8, splits=2, window=window)
    check_projected([3, 40, 75, 81], page=8, window=window)


def test_projected_softcap_and_sinks() -> None:
    sinks = torch.linspace(-3.0, 4.0, 4).to(DEVICE)
    check_projected([2, 40, 75, 0], splits=4, softcap=5.0, sinks=sinks, window=9)
    check_projected([2, 40, 75, 0], softcap=5.0, sinks=sinks)


@pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter has no second-level cache")
@pytest.mark.parametrize("hint", ["prefetch", "evict_first"])
def test_hints_change_nothing(hint: str) -> None:
    inputs = make([1] * 3, [1, 300, 77], heads=8, kv_heads=2, dim=128, page=16, dtype=torch.bfloat16)
    plain = DecodeTile(splits=4, block=32, warps=2, stages=4)
    want = decode_attention(**inputs, scale=0.1, max_query=1, tile=plain)
    got = decode_attention(**inputs, scale=0.1, max_query=1, tile=replace(plain, **{hint: True}))
    assert torch.equal(got, want)


def test_extend_softcap_and_sinks() -> None:
    extend = make([17, 30], [17, 45], heads=6, kv_heads=2, dim=64, page=16)
    check(extend, softcap=5.0)
    check(extend, sinks=torch.linspace(-3.0, 4.0, 6).to(DEVICE))


def test_softcap_at_its_limits() -> None:
    """Scores far beyond the cap saturate instead of overflowing."""
    check(make([1, 1], [20, 33], heads=4, kv_heads=2, dim=64, page=16), splits=1, softcap=2.0, scale=1e4)


@pytest.mark.parametrize("splits", [1, 3])
def test_verification_of_several_queries(splits: int) -> None:
    """The decode kernel with up to eight queries a row, ragged, over splits whose keys some may not see."""
    inputs = make([8, 1, 5, 0], [90, 64, 5, 30], heads=6, kv_heads=2, dim=64, page=16)
    check(inputs, splits=splits)


@pytest.mark.parametrize(
    ("page", "block_m", "block"),
    [(1, 32, 64), (5, 16, 16), (5, 64, 16), (16, 32, 64), (16, 64, 16), (64, 16, 16), (64, 32, 64)],
)
def test_extend_mixed_batch(page: int, block_m: int, block: int) -> None:
    """Prefill, chunk over a prefix, decoding row, empty row and a last row, with a group that fills no tile."""
    inputs = make([23, 40, 1, 0, 2], [23, 77, 50, 9, 2], heads=6, kv_heads=2, dim=64, page=page)
    check(inputs, block_m=block_m, block=block)


@NEEDS_TMA
@pytest.mark.parametrize(("page", "block", "dim"), [(16, 16, 64), (64, 32, 128), (128, 128, 64), (128, 64, 256)])
@pytest.mark.parametrize("dtype", DESCRIBED)
def test_extend_by_descriptors(page: int, block: int, dim: int, dtype: torch.dtype) -> None:
    """Whole tiles by descriptor, the others by pointer, so that no slot past a row's end (NaN) is ever read."""
    inputs = make([23, 60, 1, 0, 1], [23, 277, 250, 9, 0], heads=6, kv_heads=2, dim=dim, page=page, dtype=dtype)
    options = {"scale": dim**-0.5, "block_m": 64, "block": block, "tma": True}
    check(inputs, **options)
    check(inputs, **options, sinks=torch.linspace(-3.0, 4.0, 6).to(DEVICE), window=200)


@pytest.mark.parametrize("window", [1, 16, 17, 50, 143])
def test_extend_window_edges(window: int) -> None:
    """Windows that begin and end in, at and between tiles, with runs of tiles that nobody masks and without."""
    inputs = make([50, 40, 1], [150, 130, 149], heads=2, kv_heads=1, dim=64, page=16)
    check(inputs, block_m=32, block=16, window=window)


@pytest.mark.parametrize("kernel", ["decode", "decode split", "extend"])
def test_padded_rows_give_zeros(kernel: str) -> None:
    inputs = make([1, 1, 1], [30, 0, 0], heads=4, kv_heads=2, dim=64, page=16)
    splits = {"decode": 1, "decode split": 4, "extend": None}[kernel]
    check(inputs, splits=splits)
    check(inputs, splits=splits, window=4)
    check(inputs, splits=splits, sinks=torch.ones(4).to(DEVICE))


@pytest.mark.parametrize("rows", [5, 300 if DEVICE == "cuda" else 40])
def test_extend_in_a_larger_batch(rows: int) -> None:
    """As in a graph: a row of length 0 with the tokens that pad a step, then rows without tokens."""
    counts, lengths = [23, 1, 40], [30, 50, 40]
    inputs = make(counts, lengths, heads=4, kv_heads=2, dim=64, page=16)
    tile = ExtendTile(block_m=16, block_n=16, warps=4, stages=2)
    expected = extend_attention(**inputs, scale=0.1, tile=tile)
    used, more = sum(counts), rows - len(counts)
    total = used + 16
    nothing = torch.zeros(more, dtype=torch.int32, device=DEVICE)
    padded = inputs | {
        "q": torch.cat([inputs["q"], inputs["q"][:16]]),
        "rows": torch.cat([inputs["rows"], nothing]),
        "query_starts": torch.cat([inputs["query_starts"], nothing + total]),
        "lengths": torch.cat([inputs["lengths"], nothing]),
    }
    out = extend_attention(**padded, scale=0.1, tile=tile)
    assert torch.equal(out[:used], expected)
    assert not out[used:].any()


def test_a_later_key_never_matters() -> None:
    """Overwriting the newest key changes the newest query's output and no earlier one's."""
    inputs = make([12], [30], heads=4, kv_heads=2, dim=64, page=16)
    tile = ExtendTile(block_m=16, block_n=16, warps=4, stages=2)
    before = extend_attention(**inputs, scale=0.1, tile=tile)
    page = inputs["page_table"][inputs["rows"][0], 29 // 16]
    inputs["v_cache"][page, 29 % 16] += 100.0
    after = extend_attention(**inputs, scale=0.1, tile=tile)
    assert torch.equal(before[:-1], after[:-1])
    assert not torch.allclose(before[-1], after[-1])
