"""Tree attention and the decode kernel behind it: together what each row's own attention gives."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("run by tests/kernels/test_triton_interpreted.py", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed, so its kernels cannot run here")

from radixlang.executor.prefixes import KvShape, PrefixPlanner  # noqa: E402
from radixlang.kernels import reference, tuning  # noqa: E402
from radixlang.kernels.decode_attention import decode_attention  # noqa: E402
from radixlang.kernels.tree_attention import tree_attention  # noqa: E402
from radixlang.kernels.tree_work import TreeWork, tree_sections, tree_size  # noqa: E402
from radixlang.kernels.tuning import DecodeTile, TreeTile  # noqa: E402

TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@dataclass
class Step:
    """Inputs of both kernels."""

    inputs: dict[str, torch.Tensor]
    work: TreeWork
    tile: TreeTile


def make(
    paths: list[str],
    lengths: list[int],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 64,
    page: int = 4,
    block: int = 16,
    part: int = 48,
    padding: int = 2,
    tma: bool = False,
    dtype: torch.dtype = torch.float32,
    tile: TreeTile | None = None,
) -> Step:
    """A step of rows of `lengths` tokens: each letter of a row's path is a node of `part` tokens, the rest is its
    own. Pages are scattered, and NaN is in every slot that holds no key; `padding` rows of length 0 follow.
    Without a `tile`, one of `block` keys is made."""
    generator = torch.Generator().manual_seed(0)
    free = (torch.randperm(1 + sum(-(-n // page) for n in lengths), generator=generator) + 1).tolist()
    k = torch.full((len(free) + 1, page, kv_heads, dim), float("nan"))
    v = k.clone()
    count = len(paths)
    table = np.zeros((count + 2, 2 + max(lengths) // page + 1), np.int32)
    rows = torch.randperm(count + 1, generator=generator)[:count] + 1
    nodes: dict[tuple[str, int], int] = {}
    for row, path, length in zip(rows.tolist(), paths, lengths, strict=True):
        for i in range(-(-length // page)):
            shared = (i + 1) * page <= len(path) * part
            name = path[: -(-(i + 1) * page // part)] if shared else f"{row}"
            here = nodes.get((name, i))
            if here is None:
                here = nodes[name, i] = free.pop()
                filled = min(page, length - i * page)
                k[here, :filled] = torch.randn((filled, kv_heads, dim), generator=generator)
                v[here, :filled] = torch.randn((filled, kv_heads, dim), generator=generator)
            table[row, i] = here
    block_m = 16 if heads < 16 * kv_heads else 32
    tile = tile or TreeTile(block_m, block, 4, 2, programs=5, chunk=block, sweep_cost=1, least_bytes=1, tma=tma)
    planner = PrefixPlanner(tile, KvShape(heads, kv_heads, dim, 64, page))  # keys are dear: small parts pay
    starts = np.array(lengths, np.int32) - 1
    plan = planner.plan(rows.numpy().astype(np.int32), starts, table)
    assert plan is not None
    packed = np.zeros(tree_size(count + padding), np.int32)
    plan.write(packed, count + padding)
    nothing = torch.zeros(padding, dtype=torch.int32)
    fused = torch.randn((count + padding, heads + 2 * kv_heads, dim), generator=generator)
    inputs = {
        "q": fused.to(dtype)[:, :heads],
        "k_cache": k.to(dtype),
        "v_cache": v.to(dtype),
        "page_table": torch.from_numpy(table),
        "rows": torch.cat([rows.int(), nothing]),
        "query_starts": torch.arange(count + padding + 1, dtype=torch.int32),
        "lengths": torch.cat([torch.tensor(lengths, dtype=torch.int32), nothing]),
    }
    on_device = {name: tensor.to(DEVICE) for name, tensor in inputs.items()}
    return Step(on_device, TreeWork(*tree_sections(torch.from_numpy(packed).to(DEVICE), count + padding)), tile)


def check(
    step: Step,
    *,
    splits: int = 1,
    block: int = 16,
    scale: float = 0.2,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    pack: int = 1,
    tile: DecodeTile | None = None,
) -> None:
    """The tree's part against its twin, slot by slot, and the whole against each row's own attention."""
    inputs, work = step.inputs, step.work
    tolerance = TOLERANCE[inputs["q"].dtype]
    tensors = [inputs[name] for name in ("q", "k_cache", "v_cache", "page_table")]
    prefixes = tree_attention(*tensors, work, scale=scale, softcap=softcap, tile=step.tile)
    partial, lse = reference.tree_attention(*tensors, work, scale=scale, softcap=softcap)
    there = ~lse.isnan()
    assert there.sum((1, 2)).tolist() == [used * lse.shape[1] for used in work.used.tolist()]
    torch.testing.assert_close(prefixes.lse[there], lse[there], atol=5 * tolerance, rtol=tolerance)
    torch.testing.assert_close(prefixes.partial[there], partial[there], atol=tolerance, rtol=tolerance)
    prefixes.lse[~there], prefixes.partial[~there] = float("nan"), float("nan")
    tile = tile or DecodeTile(splits=splits, block=block, warps=4, stages=2, pack=pack)
    options = {"scale": scale, "softcap": softcap, "sinks": sinks}
    out = decode_attention(**inputs, **options, max_query=1, tile=tile, prefixes=prefixes)
    expected = reference.paged_attention(**inputs, **options)
    torch.testing.assert_close(out.float(), expected.float(), atol=tolerance, rtol=tolerance)


TWO_LEVELS = ["aa", "aa", "aa", "ab", "ab", "ab", "a", "b"]
LENGTHS = [97, 130, 141, 110, 97, 98, 50, 60]


@pytest.mark.parametrize(("page", "splits"), [(1, 1), (4, 2), (16, 4)])
def test_two_levels(page: int, splits: int) -> None:
    """Rows that end right behind what they share, rows alone in their node, and rows of padding."""
    step = make(TWO_LEVELS, LENGTHS, page=page)
    assert step.work.begins.tolist()[-2:] == [0, 0]
    assert (step.work.used[:3] > 1).all()
    check(step, splits=splits)


def test_odd_pages() -> None:
    """A part is a multiple of page and tile, whatever these are; the rest is each row's own."""
    check(make(["a"] * 5, [121, 127, 140, 113, 150], page=7, part=112), splits=2, block=32)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(1, 1, 64), (14, 2, 64), (9, 3, 80), (16, 1, 96), (2, 2, 128), (3, 1, 256)]
)
def test_heads(heads: int, kv_heads: int, dim: int) -> None:
    """Groups that do not fill a tile, fill it alone, or need several tiles for their rows."""
    step = make(["a", "a", "a", ""], [49, 60, 81, 20], heads=heads, kv_heads=kv_heads, dim=dim, padding=1)
    check(step, splits=2, scale=dim**-0.5)


@pytest.mark.parametrize("splits", [1, 4])
def test_softcap_and_sinks(splits: int) -> None:
    sinks = torch.linspace(-3.0, 4.0, 4).to(DEVICE)
    check(make(TWO_LEVELS, LENGTHS), splits=splits, softcap=5.0, sinks=sinks)


@pytest.mark.parametrize(("page", "batch"), [(16, 32), (128, 16), (1, 8)])
def test_the_chips_own_tiles(page: int, batch: int) -> None:
    """As the engine takes them for a small model in float32: splits, warps, stages, what is asked for early."""
    chip, sizes = tuning.chip(DEVICE), {"kv_heads": 3, "head_dim": 64, "element_size": 4}
    shared = tuning.tree_tile(chip, heads=9, page_size=page, **sizes)
    assert shared is not None
    shared = replace(shared, sweep_cost=1, least_bytes=1)
    lengths = [257, 300, 391, 270, 257, 258, 150, 160]
    step = make(TWO_LEVELS, lengths, heads=9, kv_heads=3, page=page, part=128, tile=shared)
    tile = tuning.decode_tile(chip, batch=batch, queries=3, max_length=2048, page_size=page, **sizes)
    check(step, scale=0.125, tile=tile)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    check(make(TWO_LEVELS, LENGTHS, dtype=dtype), splits=2, block=32, pack=2)


@pytest.mark.skipif(
    DEVICE == "cuda" and torch.cuda.get_device_capability()[0] < 9, reason="needs a GPU with TMA (sm_90)"
)
@pytest.mark.parametrize("dtype", [torch.float16] + [torch.bfloat16] * (DEVICE == "cuda"))
def test_by_descriptors(dtype: torch.dtype) -> None:
    lengths = [140, 150, 160, 129, 170, 145]
    step = make(["a"] * 6, lengths, page=64, block=32, part=128, tma=True, dtype=dtype)
    check(step, block=32)
    for splits, block, pack in ((1, 64, 2), (2, 64, 1), (3, 32, 2)):  # the rows' own keys as well
        check(step, tile=DecodeTile(splits, block, warps=4, stages=2, pack=pack, tma=True))


def test_deep_trees() -> None:
    """More common lengths than there are slots; random, with rows that are alone."""
    random = np.random.default_rng(0)
    letters = ["".join(random.choice(["a", "b"], size=random.integers(1, 9), p=[0.9, 0.1])) for _ in range(9)]
    lengths = [16 * len(path) + int(random.integers(1, 40)) for path in letters]
    check(make(letters, lengths, part=16, heads=2, kv_heads=1, dim=16), splits=2)
    chain = ["a" * i for i in range(1, 19)]
    check(make(chain, [16 * len(path) + 3 for path in chain], part=16, heads=2, kv_heads=1, dim=16))


def test_no_work() -> None:
    """An empty list leaves all to the decode kernel, whatever the slots hold."""
    step = make(TWO_LEVELS, LENGTHS)
    for part in vars(step.work).values():
        part.zero_()
    check(step, splits=2)
