"""Settings files hold nothing that is not read, and say who does a product."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixlang.kernels import tuning
from radixlang.kernels.tuning import Chip, LibraryProduct, library_product, measured, skinny_tile

FILES = sorted((Path(tuning.__file__).parent / "settings").glob("*.json"))
PRODUCT = {"tokens", "outer", "inner", "gated"}
#: kernel: sizes that its entries may bound, what else they may say
READ = {
    "decode": ({"batch"}, {"block", "warps", "stages", "programs", "pack", *tuning.DECODE_FLAGS}),
    "extend": ({"page", "head_dim"}, {"block_m", "block_n", "warps", "stages", "tma"}),
    "tree": (
        {"page", "head_dim"},
        {"block_m", "block_n", "warps", "stages", "tma", "per_unit", "chunk", "sweep_cost", "least_mib"},
    ),
    "matvec": (PRODUCT, {"block_n", "warps"}),
    "skinny": (
        PRODUCT,
        {"block_n", "block_k", "warps", "stages", "programs", "early", "begin_norm", "cublaslt"},
    ),
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
        {"max_tokens": 64, "min_inner": 512, "block_n": 0, "cublaslt": 1},
        {"max_tokens": 64, "block_n": 64, "block_k": 64, "warps": 4, "stages": 3, "programs": 1},
    ]
    chip = Chip(132, 1 << 16, {"skinny": entries})

    def tile(tokens: int, inner: int) -> object:
        sizes = {"tokens": tokens, "outer": 128, "inner": inner, "gated": False}
        return skinny_tile(chip, **sizes) or library_product(chip, **sizes)  # type: ignore[arg-type]

    assert tile(32, 512) == tuning.SkinnyTile(64, 64, 1, 4, 3, begin_norm=False)
    assert tile(33, 256) == tuning.SkinnyTile(64, 64, 1, 4, 3)
    assert tile(33, 512) == LibraryProduct(cublaslt=True)
    assert tile(65, 512) == LibraryProduct()


def test_a_chip_without_a_table_asks_for_no_library() -> None:
    chip = Chip(132, 1 << 16, {})
    assert library_product(chip, tokens=64, outer=4096, inner=14336, gated=False) == LibraryProduct()
