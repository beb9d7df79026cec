"""Settings files hold nothing that is not read, and say who does a product."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixlang.kernels import tuning
from radixlang.kernels.tuning import Chip, matvec_tile, measured, skinny_tile

FILES = sorted((Path(tuning.__file__).parent / "settings").glob("*.json"))
PRODUCT = {"tokens", "outer", "inner", "gated"}
#: kernel: sizes that its entries may bound, what else they may say
READ = {
    "decode": (
        {"batch", "page", "queries", "kv_heads", "head_dim"},
        {"block", "warps", "stages", "programs", "pack", *tuning.DECODE_FLAGS},
    ),
    "extend": ({"page", "head_dim"}, {"block_m", "block_n", "warps", "stages", "tma"}),
    "tree": (
        {"page", "head_dim"},
        {"block_m", "block_n", "warps", "stages", "tma", "per_unit", "chunk", "sweep_cost", "least_mib"},
    ),
    "matvec": (PRODUCT, {"block_n", "warps"}),
    "library": ({"tokens", "outer", "inner"}, {"tile", "stages", "custom", "cluster", "swizzle"}),
    "skinny": (PRODUCT, {"block_n", "block_k", "warps", "stages", "programs", "early", "begin_norm"}),
}


@pytest.mark.parametrize("name", [file.stem for file in FILES])
def test_every_key_is_read(name: str) -> None:
    table = measured(name)
    for kernel, (sizes, fields) in READ.items():
        for entry in table.pop(kernel, []):
            known = fields | {f"{end}_{size}" for size in sizes for end in ("min", "max")}
            assert entry.keys() <= known, kernel
    assert table.keys() <= {"source", "shared_bytes"}


def test_what_is_left_to_the_library() -> None:
    entries = [
        {"max_tokens": 32, "block_n": 64, "block_k": 64, "warps": 4, "stages": 3, "programs": 1, "begin_norm": 0},
        {"max_tokens": 64, "min_inner": 512, "block_n": 0},
        {"max_tokens": 64, "block_n": 64, "block_k": 64, "warps": 4, "stages": 3, "programs": 1},
    ]
    chip = Chip(132, 1 << 16, {"skinny": entries})

    def tile(tokens: int, inner: int) -> object:
        return skinny_tile(chip, tokens=tokens, outer=128, inner=inner, gated=False)

    assert tile(32, 512) == tuning.SkinnyTile(64, 64, 1, 4, 3, begin_norm=False)
    assert tile(33, 256) == tuning.SkinnyTile(64, 64, 1, 4, 3)
    assert tile(33, 512) is None
    assert tile(65, 512) is None


def test_what_does_not_fit_an_entry_is_left_out() -> None:
    """Keys on the left of many queries, which need shared memory too, as those in float32 do; and descriptors of
    the narrowest heads."""
    table = measured("nvidia_h200")
    chip = Chip(132, table["shared_bytes"], table)

    def keys_left(queries: int) -> bool:
        sizes = {"kv_heads": 1, "head_dim": 256, "element_size": 2, "page_size": 16}
        return tuning.decode_tile(chip, batch=32, queries=queries, max_length=999, **sizes).keys_left

    def tma(dim: int, element_size: int = 2, page: int = 64) -> set[bool]:
        sizes = {"head_dim": dim, "element_size": element_size, "page_size": page}
        tree = tuning.tree_tile(chip, heads=4, kv_heads=2, **sizes)
        assert tree is not None
        return {tree.tma, tuning.extend_tile(chip, **sizes).tma}

    def several(chip: Chip, dim: int, element_size: int) -> tuple[int, int]:
        sizes = {"kv_heads": 1, "head_dim": dim, "element_size": element_size, "page_size": 16}
        tile = tuning.decode_tile(chip, batch=1, queries=tuning.MAX_DECODE_ROWS, max_length=999, **sizes)
        return tile.block, tile.stages

    assert [keys_left(queries) for queries in (4, 32, 33, 64)] == [True, True, False, False]
    assert [tma(dim) for dim in (8, 16, 80, 128, 256)] == [{False}, {True}, {False}, {True}, {False}]
    unmeasured = Chip(82, tuning.SAFE_SHARED_BYTES, {})
    assert [several(unmeasured, dim, 4) for dim in (64, 128, 192)] == [(32, 2), (32, 1), (16, 1)]
    assert [several(unmeasured, dim, 2) for dim in (64, 128, 192)] == [(64, 2), (64, 2), (64, 1)]
    assert [several(chip, dim, 4) for dim in (128, 256)] == [(32, 3), (32, 2)]
    assert tma(128, element_size=4) == tma(128, page=96) == tma(128, page=32) == {False}


def test_decode_by_descriptor_on_an_h200() -> None:
    """Of many rows, where four KV heads fill a tile: what else there is was not measured, or cannot be."""
    table = measured("nvidia_h200")
    chip = Chip(132, table["shared_bytes"], table)

    def tma(rows: int, **other: int) -> bool:
        sizes = {"queries": 4, "kv_heads": 8, "head_dim": 128, "element_size": 2, "page_size": 16} | other
        return tuning.decode_tile(chip, batch=rows, max_length=999, **sizes).tma

    assert [tma(rows) for rows in (1, 192, 193, 512)] == [False, False, True, True]
    for other in ({"queries": 8}, {"kv_heads": 1}, {"head_dim": 256}, {"element_size": 4}, {"page_size": 1}):
        assert not tma(256, **other), other
    assert not tma(256, page_size=64)
    assert not tma(256, head_dim=96)


@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize(
    ("sizes", "rows"),
    [
        ((4096, 1024, False), 16),
        ((1024, 2048, False), 8),
        ((3072, 1024, True), 8),
        ((1024, 3072, False), 4),
        ((6144, 4096, False), 4),
        ((4096, 4096, False), None),
        ((14336, 4096, True), None),
        ((4096, 14336, False), None),
    ],
)
def test_very_few_tokens_on_an_h200(sizes: tuple[int, int, bool], rows: int | None, tokens: int) -> None:
    """Small products, and wide ones behind a norm, by the matrix-vector kernel: rows of the weight a program."""
    table = measured("nvidia_h200")
    chip, of = Chip(132, table["shared_bytes"], table), dict(zip(("outer", "inner", "gated"), sizes, strict=True))
    tile = matvec_tile(chip, tokens=tokens, **of)  # type: ignore[arg-type]
    assert (tile and tile.block_n) == rows
    assert skinny_tile(chip, tokens=tokens, **of), "it must multiply more tokens"  # type: ignore[arg-type]
    assert matvec_tile(chip, tokens=3, **of) is None  # type: ignore[arg-type]
