"""Finds launch settings of decode kernels on this GPU, for `radixlang/kernels/settings/`.

    python benchmarks/gpu_tune.py --sections product [--tokens 1 32 64 128] [--shapes NAME …] [--seconds S]
    python benchmarks/gpu_tune.py --sections decode [--models llama qwen] [--pages 16 64] [--batches 1 8 …]
    python benchmarks/gpu_tune.py --sections step [--models qwen] [--batches 1 32] [--variants NAME[=JSON] …]

product: matrix products of few tokens with what stands around them in a decoder (norm, activation, sum), by the
library and by our kernels, which begin or end norms where they can. decode: attention of a decode step, context
1,088. Every candidate runs in a CUDA graph that goes through many copies of weights or caches, so that none is in
the cache. Both print the best as entries of the settings file.

step: whole bare decode steps with parts of the settings replaced, an engine for each variant: one of those in
gpu_variants.py, or several joined by "+", or a new name and JSON with the settings file's keys. Those of one model
leave the other's products alone, so one name can stand for a change to each:

    python benchmarks/gpu_tune.py --sections step --batches 1 2 8 32 --seconds 36 --variants as-it-is \\
        llama-sums+qwen-sums llama-gate_up+qwen-qkv llama-qkv+qwen-gate_up llama-gate_up-matvec+qwen-sums-16
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gpu_variants import SHAPES, VARIANTS, exactly, named

from radixlang.kernels import chain, library_linear, tuning
from radixlang.kernels.activation import silu_mul
from radixlang.kernels.decode_attention import decode_attention, decode_projected
from radixlang.kernels.matvec import matvec
from radixlang.kernels.norm import rms_norm
from radixlang.kernels.rope_write import rope_write
from radixlang.kernels.skinny_linear import BegunNorm, can_begin_norm, skinny_add, skinny_linear
from radixlang.kernels.tuning import DecodeTile, MatvecTile, SkinnyTile

#: query heads, key/value heads of 128, with norms
HEADS = {"llama": (32, 8, False), "qwen": (16, 8, True)}
#: keys a tile, warps, stages
DECODE_FEW = ((16, 4, 4), (32, 2, 4), (32, 4, 3), (32, 4, 4), (64, 4, 2), (64, 4, 3), (64, 8, 3), (128, 4, 2))
DECODE_MANY = (
    (16, 1, 6), (32, 1, 4), (32, 2, 3), (32, 2, 4), (32, 2, 5), (32, 4, 4), (64, 2, 2), (64, 2, 3), (64, 4, 2),
    (64, 4, 3), (128, 4, 2), (128, 8, 2),
)  # fmt: skip
DECODE_PACKED = ((32, 2, 3), (32, 2, 4), (32, 4, 3), (64, 2, 3), (64, 4, 3))
DECODE_LEFT = ((64, 4, 2), (64, 4, 3), (128, 4, 2), (128, 8, 2))
"""with the keys as left operands"""
#: KV heads a tile, then as above: by descriptor
DECODE_DESCRIBED = (
    *((4, 64, warps, stages) for warps in (1, 2, 4) for stages in (2, 3, 4)),
    *((pack, 128, warps, stages) for pack in (4, 8) for warps in (2, 4) for stages in (2, 3)),
    *((2, 32, warps, stages) for warps in (1, 2) for stages in (3, 4, 5, 6)),
)
BYTES = 3 << 29


def timed(work: Callable[[int], object], copies: int) -> float:
    """µs of one call in a graph of `copies` calls."""
    work(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        for i in range(copies):
            work(i)
        graph.capture_end()
    times = []
    for _ in range(4):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / copies)
    return min(times)


#: outputs a program, inputs a step, warps, stages
TILES = (
    (16, 256, 4, 4),
    (16, 512, 4, 2),
    (32, 128, 4, 4),
    (32, 256, 4, 3),
    (32, 256, 4, 4),
    (64, 64, 4, 6),
    (64, 128, 4, 3),
    (64, 128, 4, 4),
    (64, 128, 4, 6),
    (64, 256, 4, 3),
    (64, 256, 4, 4),
    (128, 64, 4, 4),
    (128, 64, 8, 4),
    (128, 64, 8, 6),
    (128, 128, 4, 3),
    (128, 128, 8, 3),
    (128, 128, 8, 4),
)
Tile = SkinnyTile | MatvecTile


def skinny_candidates(outer: int, inner: int, gated: bool, tokens: int) -> list[Tile]:
    block_m = max(16, 1 << (tokens - 1).bit_length())
    found: list[Tile] = []
    for (block_n, block_k, warps, stages), splits in itertools.product(TILES, (1, 2, 4, 8)):
        shared = stages * block_k * 2 * (block_n * (2 if gated else 1) + block_m)
        steps, programs = inner // block_k // splits, -(-outer // block_n) * splits
        if shared > 200 << 10 or inner % (block_k * splits) or steps < 2:
            continue
        if programs >= 96 and (splits == 1 or programs <= 132 * 6):
            found.append(SkinnyTile(block_n, block_k, splits, warps, stages))
    return found


def matvec_candidates(outer: int, inner: int, gated: bool, tokens: int) -> list[Tile]:
    """At most 128 registers of weights a thread, and not fewer programs than there are multiprocessors."""
    found: list[Tile] = []
    width = tuning.next_power_of_2(inner) * (2 if gated else 1)
    for block_n, warps in itertools.product((1, 2, 4, 8, 16, 32), (2, 4, 8)):
        registers = block_n * width // (warps * 64)
        if tokens <= tuning.MAX_MATVEC_TOKENS and 16 <= registers <= 128 and outer // block_n >= 100:
            found.append(MatvecTile(block_n, warps))
    return found


def candidates(outer: int, inner: int, gated: bool, tokens: int) -> list[Tile]:
    return matvec_candidates(outer, inner, gated, tokens) + skinny_candidates(outer, inner, gated, tokens)


class Product:
    """One shape and number of tokens: every way to compute it, with the norm before and what follows."""

    def __init__(self, name: str, tokens: int, outer: int | None = None) -> None:
        full, self.inner, self.gated = SHAPES[name]
        self.name, self.tokens, self.outer = name, tokens, outer or full
        self.normed = name.endswith(("qkv", "gate_up"))
        self.summed = name.endswith((" o", "down"))
        self.rows = self.outer * (2 if self.gated else 1)
        self.copies = max(2, min(64, BYTES // (self.rows * self.inner * 2))) if outer is None else 1
        some = {"dtype": torch.bfloat16, "device": "cuda"}
        self.weights = [torch.randn((self.rows, self.inner), **some) / self.inner**0.5 for _ in range(self.copies)]
        self.x = torch.randn((tokens, self.inner), **some)
        self.stream = torch.randn((tokens, self.outer), **some)
        self.norm, self.next = (torch.ones(size, device="cuda") for size in (self.inner, self.outer))
        squares = torch.ones((self.inner // 64, max(16, tuning.next_power_of_2(tokens))), device="cuda")
        self.begun = BegunNorm(self.norm, self.x, squares)

    def library(self, i: int) -> torch.Tensor:
        x = rms_norm(self.x, self.norm, 1e-6) if self.normed else self.x
        if self.summed:
            return self.stream.addmm_(x, self.weights[i].t())
        y = torch.nn.functional.linear(x, self.weights[i])
        return silu_mul(y) if self.gated else y

    def ours(self, i: int, tile: Tile) -> torch.Tensor:
        more: dict[str, Any] = {"activation": "silu" if self.gated else None}
        more["residual"] = self.stream if self.summed else None
        if isinstance(tile, MatvecTile):
            more |= {"norm": self.norm, "eps": 1e-6} if self.normed else {}
            return matvec(self.x, self.weights[i], tile=tile, **more)
        if self.summed and can_begin_norm(self.stream, tile):
            return skinny_add(self.x, self.weights[i], residual=self.stream, norm=self.next, tile=tile).scaled
        x = self.begun if self.normed else self.x
        return skinny_linear(x, self.weights[i], eps=1e-6, tile=tile, **more)

    def entry(self, tile: Tile) -> str:
        found = {"max_tokens": self.tokens} | exactly(self.name) | {"block_n": tile.block_n, "warps": tile.warps}
        if isinstance(tile, SkinnyTile):
            programs = tile.splits * -(-self.outer // tile.block_n)
            found |= {"block_k": tile.block_k, "stages": tile.stages, "programs": programs}
            found |= {"early": 1} if tile.early else {}
        return f"{'skinny' if isinstance(tile, SkinnyTile) else 'matvec'}: {json.dumps(found)}"


def in_threads(jobs: list[Callable[[], object]]) -> None:
    """Compile many kernels at once."""
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda job: job(), jobs))
    torch.cuda.synchronize()


def timed_all(candidates: list[Any], work: Callable[[int, Any], object], copies: int) -> list[tuple[float, Any]]:
    """(µs, candidate), the fastest first; what does not fit the chip is left out with a line."""
    results = []
    for candidate in candidates:
        try:
            results.append((timed(lambda i, c=candidate: work(i, c), copies), candidate))  # type: ignore[misc]
        except Exception as error:
            print("failed", candidate, type(error).__name__, str(error)[:80])
    return sorted(results, key=lambda r: r[0])


def product(args: argparse.Namespace) -> None:
    begin = time.monotonic()
    cases = [(name, tokens) for name in args.shapes for tokens in args.tokens]
    jobs: dict[Any, Callable[[], object]] = {}
    for name, tokens in cases:
        for tile in candidates(*SHAPES[name], tokens):
            small = Product(name, tokens, outer=2 * tile.block_n)
            whole = small.inner if isinstance(tile, MatvecTile) or small.normed else 0
            jobs.setdefault((tile, name.split()[1], whole, tokens), lambda p=small, t=tile: p.ours(0, t))  # type: ignore[misc]
    in_threads(list(jobs.values()))
    print(f"compiled {len(jobs)} in {time.monotonic() - begin:.0f} s", flush=True)
    for name, tokens in cases:
        if time.monotonic() - begin > args.seconds:
            break
        case = Product(name, tokens)
        library = timed(case.library, case.copies)
        results = timed_all(candidates(*SHAPES[name], tokens), case.ours, case.copies)
        early = [replace(tile, early=True) for _, tile in results[:6] if isinstance(tile, SkinnyTile)]
        results = sorted(results + timed_all(early, case.ours, case.copies), key=lambda r: r[0])
        floor = case.rows * case.inner * 2 / 4.2e6
        print(f"{name}, {tokens} tokens: floor {floor:.1f}, library {library:.1f} µs")
        for kind in (MatvecTile, SkinnyTile):
            for us, tile in [r for r in results if isinstance(r[1], kind)][:3]:
                print(f"  {us:6.1f} µs  {case.entry(tile)}", flush=True)
        del case
        torch.cuda.empty_cache()


class Decode:
    """Attention of one shape, page size and batch, over copies of the cache."""

    CONTEXT = 1088

    def __init__(self, model: str, page: int, batch: int, most: int = 64) -> None:
        self.heads, self.kv_heads, self.normed = HEADS[model]
        self.batch, self.page = batch, page
        per_row = -(-self.CONTEXT // page)
        pages = 1 + batch * per_row
        some = {"dtype": torch.bfloat16, "device": "cuda"}
        size = 2 * pages * page * self.kv_heads * 128 * 2
        self.copies = max(1, min(most, 3 * BYTES // size))
        self.caches = torch.empty((self.copies, 2, pages, page, self.kv_heads, 128), **some)
        for cache in self.caches:
            cache.normal_()
        self.table = (torch.randperm(pages - 1, device="cuda") + 1).int().view(batch, per_row)
        self.rows = torch.arange(batch, dtype=torch.int32, device="cuda")
        self.starts = torch.arange(batch + 1, dtype=torch.int32, device="cuda")
        self.lengths = torch.full((batch,), self.CONTEXT, dtype=torch.int32, device="cuda")
        self.slots = self.table[:, -1].long() * page + (self.CONTEXT - 1) % page
        self.qkv = torch.randn((batch, (self.heads + 2 * self.kv_heads) * 128), **some)
        self.cos, self.sin = torch.randn((2, batch, 64), device="cuda")
        self.norm = torch.ones(128, device="cuda") if self.normed else None

    def __call__(self, i: int, tile: DecodeTile) -> torch.Tensor:
        k, v = self.caches[i]
        weights = {"q_weight": self.norm, "k_weight": self.norm}
        if tile.projected:
            return decode_projected(
                self.qkv, k, v, self.table, self.rows, self.slots, self.lengths, heads=self.heads,
                angles=(self.cos, self.sin), scale=0.09, tile=tile, **weights,
            )  # fmt: skip
        parts = self.qkv.view(self.batch, -1, 128)
        q, new_k, new_v = parts.split((self.heads, self.kv_heads, self.kv_heads), 1)
        q = rope_write(q, new_k, new_v, self.cos, self.sin, None, self.slots, k, v, **weights)
        table = (self.table, self.rows, self.starts, self.lengths)
        return decode_attention(q, k, v, *table, scale=0.09, max_query=1, tile=tile)

    def candidates(self) -> list[DecodeTile]:
        most = {1: 32, 8: 8, 32: 4, 64: 2, 128: 2, 256: 2}
        wanted = next((splits for batch, splits in most.items() if self.batch <= batch), 1)
        splits = [s for s in (wanted, wanted // 2, wanted // 4) if s]
        tiles = DECODE_FEW if self.batch <= 16 else DECODE_MANY
        described = [
            DecodeTile(s, block, warps, stages, projected=False, pack=pack, tma=True)
            for s in splits
            for pack, block, warps, stages in DECODE_DESCRIBED
            # in one page; and no more queries than a tile has rows, or it would hold fewer heads
            if self.batch >= 32 and self.page % (block // pack) == 0 and pack * self.heads <= 16 * self.kv_heads
        ]
        return described + [
            DecodeTile(s, block, warps, stages, keys_left=left)
            for s in splits
            for left, some in ((False, tiles), (True, DECODE_LEFT))
            for block, warps, stages in some
        ]


def decode(args: argparse.Namespace) -> None:
    begin = time.monotonic()
    cases = [(m, p, b) for m in args.models for p in args.pages for b in args.batches]
    jobs: dict[Any, Callable[[], object]] = {}
    for model, page, batch in cases:
        small = Decode(model, page, batch, most=1) if batch <= 16 else Decode(model, page, 32, most=1)
        for tile in small.candidates():
            how = min(tile.splits, 3)  # alone, joined by the last program, joined by a second kernel
            key = (model, page, replace(tile, splits=how))
            jobs.setdefault(key, lambda c=small, t=tile: c(0, t))  # type: ignore[misc]
    in_threads(list(jobs.values()))
    print(f"compiled {len(jobs)} in {time.monotonic() - begin:.0f} s", flush=True)
    for model, page, batch in cases:
        if time.monotonic() - begin > args.seconds:
            break
        case = Decode(model, page, batch)
        results = timed_all(case.candidates(), case, case.copies)
        best = results[0][1]
        hints = [{"prefetch": True}, {"evict_first": True}, {"prefetch": True, "evict_first": True}]
        variants = [replace(best, **hint) for hint in hints]
        variants += [replace(best, projected=False), replace(best, projected=False, chained=False)]
        variants += [
            DecodeTile(best.splits, block, warps, stages, projected=False, pack=pack, chained=chained)
            for pack in (2, 4)
            for block, warps, stages in DECODE_PACKED
            for chained in (False, True)
        ]
        results = sorted(results + timed_all(variants, case, case.copies), key=lambda r: r[0])
        print(f"{model}, page {page}, batch {batch}")
        read = batch * case.CONTEXT * case.kv_heads * 128 * 4
        for us, tile in [*results[:4], *(r for r in results[4:] if not r[1].projected)]:
            found = {"max_batch": batch, "block": tile.block, "warps": tile.warps, "stages": tile.stages}
            found["programs"] = tile.splits * batch * case.kv_heads
            found |= {name: int(getattr(tile, name)) for name in (*tuning.DECODE_FLAGS, "pack")}
            print(
                f"  {us:6.1f} µs  {read / us / 1e6:.2f} TB/s  {tile.splits} splits  {json.dumps(found)}",
                flush=True,
            )
        del case
        torch.cuda.empty_cache()


_measured = tuning.measured


def bare_with(model: str, changed: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A bare executor (`gpu.Bare`) with the parts of the chip's table replaced that `changed` gives."""
    from gpu import Bare

    tuning.measured = lambda chip: (given := _measured(chip)) | changed(given)
    # what was looked up in another table
    tuning.chip.cache_clear()
    library_linear.forget()
    with tempfile.TemporaryDirectory() as where:
        return Bare(model, Path(where))


def decode_ms(bare: Any, rows: int) -> float:
    """Median of bare decode steps."""
    bare.run([bare.plan(rows, bare.CONTEXT, 1, True)])
    gaps, _ = bare.run([bare.plan(rows, bare.CONTEXT + i, 1, False) for i in range(1, 81)])
    return statistics.median(gaps[20:])


def step(args: argparse.Namespace) -> None:
    """Median bare step in ms for each variant of the settings, in one process."""
    from gpu import free

    from radixlang.executor import build, shapes

    # no graphs but those that are measured
    build.graph_shapes = lambda *_: [shapes.Shape(rows, rows) for rows in args.batches]
    begin = time.monotonic()
    for item in args.variants:
        if time.monotonic() - begin > args.seconds:
            break
        name, _, change = item.partition("=")
        changed = (lambda given, change=change: json.loads(change)) if change else named(name)
        for model in args.models:
            bare = bare_with(model, changed)
            times = [f"{rows}: {decode_ms(bare, rows):.3f}" for rows in args.batches]
            print(f"{model} {name} | {' | '.join(times)} ms", flush=True)
            bare.device.close()
            del bare
            free()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sections", nargs="+", default=["product"], choices=["product", "decode", "step"])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 32, 64, 128])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES))
    parser.add_argument("--models", nargs="+", default=list(HEADS), choices=list(HEADS))
    parser.add_argument("--pages", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64, 128, 256])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), metavar="NAME[=JSON]")
    parser.add_argument("--seconds", type=float, default=1000.0, help="stop measuring after this time")
    args = parser.parse_args()
    begin = time.monotonic()
    print("chained launches:", chain.available())
    for section in args.sections:
        {"product": product, "decode": decode, "step": step}[section](args)
    print(f"{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
