"""Launch settings of the Triton kernels: safe defaults, and measured values per chip.

`settings/<chip>.json` beside this file holds what was measured on a chip; a chip without a file gets defaults
that fit 64 KiB of shared memory, four warps and two stages, which every supported GPU can run. Must not import
Triton, so that settings can be read where no GPU is.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

SAFE_SHARED_BYTES = 64 * 1024
MAX_SPLITS = 64
#: what a table's entry for decoding may switch on or off with 1 or 0 (see `DecodeTile`)
DECODE_FLAGS = ("projected", "prefetch", "evict_first", "chained", "keys_left", "tma")
#: programs wanted per multiprocessor before a row's keys are no longer split
PROGRAMS_PER_UNIT = 4
#: most query-head rows of one decode tile; longer queries go to the extend kernel
MAX_DECODE_ROWS = 64
#: see `TreeTile`; a guess where nothing was measured
TREE_CHUNK, TREE_SWEEP_COST, TREE_LEAST_MIB = 256, 2, 32
#: limits of the kernel that holds rows of the weight in registers
MAX_MATVEC_TOKENS, MAX_MATVEC_INNER = 8, 16384


@dataclass(frozen=True)
class Chip:
    """What the settings depend on: multiprocessors, shared memory a program may use, measured table."""

    units: int
    shared_bytes: int
    table: dict[str, list[dict[str, int]]]


@dataclass(frozen=True)
class DecodeTile:
    """`splits` programs share a row's keys, each reading tiles of `block` keys, all heads in a tile counted.

    `projected`: attention prepares queries and newest keys itself. `prefetch`: the first tile is asked for while
    the kernel before still runs. `evict_first`: keys and values leave the cache before anything else. `keys_left`:
    keys and values are the left operands of products (see `attention_tile.sweep`). `tma`: whole tiles are loaded
    by descriptor, for which the `block / pack` keys of a tile must lie in one page.
    """

    splits: int
    block: int
    warps: int
    stages: int
    projected: bool = True
    prefetch: bool = False
    evict_first: bool = False
    pack: int = 1
    chained: bool = True
    keys_left: bool = False
    tma: bool = False


@dataclass(frozen=True)
class ExtendTile:
    """`block_m` (query, head) rows against tiles of `block_n` keys.

    `tma`: whole tiles are loaded by descriptor, for which a tile must lie in one page.
    """

    block_m: int
    block_n: int
    warps: int
    stages: int
    tma: bool = False


@dataclass(frozen=True)
class TreeTile:
    """Tree attention: `programs` sweep `block_m` (row, head) pairs over tiles of `block_n` keys.

    What decides whether it pays: a tile's sweep takes as long as `sweep_cost` rows take to read the same keys, and
    reading `least_bytes` less in every layer makes up for the kernels it needs. A node's keys are shared out among
    programs, `chunk` and more to each. `tma` as in `ExtendTile`.
    """

    block_m: int
    block_n: int
    warps: int
    stages: int
    programs: int
    chunk: int
    sweep_cost: int
    least_bytes: int
    tma: bool = False


@dataclass(frozen=True)
class SkinnyTile:
    """`splits` programs share the inner dimension of `block_n` outputs, in steps of `block_k`.

    `early`: the next kernel is let in at the start, and each asks for its weights while the one before still runs.
    `begin_norm`: a product that is added to the stream also begins the norm behind it.
    """

    block_n: int
    block_k: int
    splits: int
    warps: int
    stages: int
    early: bool = False
    begin_norm: bool = True


@dataclass(frozen=True)
class MatvecTile:
    """A program holds `block_n` rows of the weight (of each half, if gated) in its registers."""

    block_n: int
    warps: int


@dataclass(frozen=True)
class LibraryAlgorithm:
    """One of the library's kernels, by its own numbers (see `library_linear`)."""

    tile: int
    stages: int
    custom: int
    cluster: int
    swizzle: int


def interpreted() -> bool:
    """True when Triton kernels run in its CPU interpreter."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def upcast_dots(dtype: torch.dtype) -> bool:
    """True when matrix products must be done in float32: the interpreter miscomputes bfloat16."""
    return interpreted() and dtype == torch.bfloat16


def next_power_of_2(n: int) -> int:
    """Smallest power of two ≥ n, for n ≥ 1."""
    return 1 << (n - 1).bit_length()


@lru_cache
def chip(device: torch.device | str) -> Chip:
    """The chip behind a torch device such as "cuda:0"; read once, at load."""
    if torch.device(device).type != "cuda":
        return Chip(units=16, shared_bytes=SAFE_SHARED_BYTES, table={})
    properties = torch.cuda.get_device_properties(device)
    name = re.sub(r"[^a-z0-9]+", "_", properties.name.lower()).strip("_")
    table = measured(name)
    return Chip(
        units=properties.multi_processor_count,
        shared_bytes=int(table.get("shared_bytes", SAFE_SHARED_BYTES)),
        table=table,
    )


def measured(name: str) -> dict[str, Any]:
    """The table of a chip by its file's name, such as "nvidia_h200"; empty if nothing was measured on it."""
    path = Path(__file__).parent / "settings" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _entry(chip: Chip, kernel: str, default: dict[str, int], **at: int) -> dict[str, int]:
    """The first entry of the table whose every `max_x` is at least `at[x]`, and `min_x` at most."""
    for entry in chip.table.get(kernel, []):
        if all(
            entry.get(f"min_{name}", value) <= value <= entry.get(f"max_{name}", value)
            for name, value in at.items()
        ):
            return entry
    return default


def _fit(block: int, stages: int, head_dim: int, element_size: int, shared_bytes: int) -> tuple[int, int]:
    """Shrink stages, then the tile, until the K and V tiles in flight fit into shared memory."""
    bytes_per_key = 2 * next_power_of_2(head_dim) * element_size
    while stages > 1 and stages * block * bytes_per_key > shared_bytes:
        stages -= 1
    while block > 16 and stages * block * bytes_per_key > shared_bytes:
        block //= 2
    return block, stages


def decode_tile(
    chip: Chip,
    *,
    batch: int,
    queries: int,
    max_length: int,
    kv_heads: int,
    head_dim: int,
    element_size: int,
    page_size: int,
) -> DecodeTile:
    """Settings of a decode step of `batch` rows, none longer than `max_length` tokens.

    `queries` is the number of (query, head) pairs of a row that share a KV head; `MAX_DECODE_ROWS` where rows have
    several queries, for which all steps share one kernel.
    Splits are a power of two, enough to fill the chip and no more than there are tiles to read.
    """
    sizes = {"batch": batch, "page": page_size, "queries": queries, "kv_heads": kv_heads, "head_dim": head_dim}
    entry = _entry(chip, "decode", {"block": 64, "warps": 4, "stages": 2}, **sizes)
    wanted_block, room = entry["block"], chip.shared_bytes
    if element_size == 4 and queries > 16:
        # as in `_query_tile`; without tensor cores, the queries are read from shared memory as well
        wanted_block = min(wanted_block, 32)
        room -= next_power_of_2(queries) * next_power_of_2(head_dim) * element_size
    block, stages = _fit(wanted_block, entry["stages"], head_dim, element_size, room)
    programs = entry.get("programs", PROGRAMS_PER_UNIT * chip.units)
    wanted = max(1, programs // max(1, batch * kv_heads))
    tiles = max(1, -(-max_length // block))
    splits = min(1 << (wanted.bit_length() - 1), next_power_of_2(tiles), MAX_SPLITS)
    warps = max(entry["warps"], 4) if queries > 16 else entry["warps"]
    flags = {name: bool(entry[name]) for name in DECODE_FLAGS if name in entry}
    # Others do not go to the tensor cores as they lie in shared memory; of many queries, weights need room there.
    flags["keys_left"] = flags.get("keys_left", False) and element_size == 2 and queries <= 32
    pack = entry.get("pack", 1)
    flags["tma"] = flags.get("tma", False) and _describable(element_size, head_dim, page_size, block // pack)
    return DecodeTile(splits, block, warps, stages, pack=pack, **flags)


def _describable(element_size: int, head_dim: int, page_size: int, keys: int) -> bool:
    """True where tiles of so many keys can be loaded by descriptor: it reads boxes of powers of two, as wide as a
    product (16 and more), out of one page; elements of half precision are all that was measured."""
    return element_size == 2 and next_power_of_2(head_dim) == head_dim >= 16 and page_size % keys == 0


def extend_tile(chip: Chip, *, head_dim: int, element_size: int, page_size: int) -> ExtendTile:
    """Settings of attention with many queries a row."""
    default = {"block_m": 64, "block_n": 64, "warps": 4, "stages": 2}
    return _query_tile(
        _entry(chip, "extend", default, page=page_size, head_dim=head_dim), chip, head_dim, element_size, page_size
    )


def _query_tile(entry: dict[str, int], chip: Chip, head_dim: int, element_size: int, page_size: int) -> ExtendTile:
    """The tile of a table's entry, as far as it fits into the chip."""
    block_m, wanted_n = entry["block_m"], entry["block_n"]
    if element_size == 4:
        # exact float32 products run without tensor cores: large tiles only cost registers and compile time
        block_m, wanted_n = min(block_m, 32), min(wanted_n, 32)
    width = next_power_of_2(head_dim)
    while block_m > 16 and block_m * width * element_size > chip.shared_bytes // 4:
        block_m //= 2
    query_bytes = block_m * width * element_size
    block_n, stages = _fit(wanted_n, entry["stages"], head_dim, element_size, chip.shared_bytes - query_bytes)
    tma = bool(entry.get("tma")) and _describable(element_size, head_dim, page_size, block_n)
    return ExtendTile(block_m, block_n, entry["warps"], stages, tma)


def tree_tile(
    chip: Chip, *, heads: int, kv_heads: int, head_dim: int, element_size: int, page_size: int
) -> TreeTile | None:
    """Settings of tree attention; None where the heads that share a KV head are too many for a tile."""
    default = {"block_m": 64, "block_n": 64, "warps": 4, "stages": 2, "per_unit": 2}
    entry = _entry(chip, "tree", default, page=page_size, head_dim=head_dim)
    tile = _query_tile(entry, chip, head_dim, element_size, page_size)
    if heads // kv_heads > tile.block_m:
        return None
    return TreeTile(
        tile.block_m,
        tile.block_n,
        tile.warps,
        tile.stages,
        programs=entry["per_unit"] * chip.units,
        chunk=entry.get("chunk", TREE_CHUNK),
        sweep_cost=entry.get("sweep_cost", TREE_SWEEP_COST),
        least_bytes=entry.get("least_mib", TREE_LEAST_MIB) << 20,
        tma=tile.tma,
    )


def skinny_tile(chip: Chip, *, tokens: int, outer: int, inner: int, gated: bool) -> SkinnyTile | None:
    """Settings of a product of few tokens with a weight of `outer` (of each half, if gated) × `inner`.

    None where the library's product is as fast: on chips that were not measured, and beyond the table.
    """
    if "skinny" not in chip.table:
        return None
    entry = _entry(chip, "skinny", {}, tokens=tokens, outer=outer, inner=inner, gated=int(gated))
    if not entry.get("block_n"):
        return None
    block_n, block_k = entry["block_n"], entry["block_k"]
    # Splits fill the chip; each has as many whole steps of the inner dimension.
    blocks = -(-outer // block_n)
    steps = max(1, inner // block_k)
    splits = 1
    while 2 * splits * blocks <= entry["programs"] and steps % (2 * splits) == 0 and splits < 16:
        splits *= 2
    flags = {name: bool(entry[name]) for name in ("early", "begin_norm") if name in entry}
    return SkinnyTile(block_n, block_k, splits, entry["warps"], entry["stages"], **flags)


def matvec_tile(chip: Chip, *, tokens: int, outer: int, inner: int, gated: bool) -> MatvecTile | None:
    """Settings of a product of one token or a few, sizes as for `skinny_tile`; None where that is as fast."""
    if tokens > MAX_MATVEC_TOKENS or inner > MAX_MATVEC_INNER:
        return None
    entry = _entry(chip, "matvec", {}, tokens=tokens, outer=outer, inner=inner, gated=int(gated))
    return MatvecTile(entry["block_n"], entry["warps"]) if entry.get("block_n") else None


def library_algorithm(chip: Chip, *, tokens: int, outer: int, inner: int) -> LibraryAlgorithm | None:
    """How the library shall compute a product of `tokens` rows with a weight of `outer` × `inner`; None where its
    own choice is as fast."""
    entry = _entry(chip, "library", {}, tokens=tokens, outer=outer, inner=inner)
    if not entry:
        return None
    swizzle = entry.get("swizzle", 0)
    return LibraryAlgorithm(entry["tile"], entry["stages"], entry["custom"], entry["cluster"], swizzle)
