"""Tree attention: what it saves where prompts share prefixes, and what it costs where they do not.

    python benchmarks/gpu_tree.py [--sections kernels engine timeline] [--page-size 16] [--out FILE]

engine: the Llama-3.1-8B shape with random weights, 256 requests of 128 tokens of their own, 128 tokens out: below
one prefix of 2,048 tokens, cold and warm; below a system prompt of 1,024 and eight documents of as many; and with
2,048 tokens each that nobody shares; with tree attention and without. Peers (vLLM 0.26.0, SGLang 0.5.16) were
measured on one H200. kernels: attention of one layer in such a step, for some settings of the tree's tiles.

`--device cpu --model tiny` runs the engine's part anywhere, at small sizes and without the kernels.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu import Bench, Rows, Timeline, device_line, free, shown
from gpu_models import MODELS
from gpu_tune import timed

from radixlang.executor.prefixes import KvShape, PrefixPlanner, TreePlan
from radixlang.kernels import tuning
from radixlang.kernels.tree_work import TreeWork, tree_sections, tree_size
from radixlang.plan import Ints

PEERS = {
    "shared, cold, s": "3.60 / 4.25",
    "shared, warm, s": "3.67 / 3.48",
    "nothing shared, s": "16.6 / 16.4",
}
#: block of queries, of keys, warps, stages, programs a multiprocessor, least keys of an item, loaded by descriptor
TILES = (
    (128, 64, 8, 3, 1, 256, False),
    (128, 64, 8, 2, 1, 256, False),
    (128, 64, 8, 2, 2, 256, False),
    (128, 64, 4, 2, 1, 256, False),
    (128, 128, 8, 2, 1, 256, False),
    (128, 32, 8, 4, 1, 256, False),
    (64, 64, 4, 3, 2, 256, False),
    (64, 64, 4, 2, 3, 256, False),
    (128, 64, 8, 3, 1, 512, False),
    (128, 128, 8, 2, 1, 256, True),
    (128, 64, 8, 3, 1, 256, True),
    (128, 64, 8, 4, 1, 256, True),
    (128, 64, 4, 3, 1, 256, True),
    (64, 64, 4, 3, 2, 256, True),
    (64, 128, 4, 2, 2, 256, True),
)


class Sizes:
    """Lengths in tokens, and how many requests."""

    def __init__(self, small: bool) -> None:
        self.rows, self.shared, self.own, self.new = (8, 64, 8, 8) if small else (256, 2048, 128, 128)
        self.documents = 2 if small else 8


def numbers(count: int, vocabulary: int) -> list[int]:
    return [random.randrange(100, vocabulary - 100) for _ in range(count)]


class Prompts:
    """The prompts of the tests, new each time, so that cold is cold."""

    def __init__(self, sizes: Sizes, vocabulary: int) -> None:
        self._sizes = sizes
        self._vocabulary = vocabulary

    def _ids(self, count: int) -> list[int]:
        return numbers(count, self._vocabulary)

    def one_prefix(self) -> list[list[int]]:
        prefix = self._ids(self._sizes.shared)
        return [prefix + self._ids(self._sizes.own) for _ in range(self._sizes.rows)]

    def two_levels(self) -> list[list[int]]:
        half, count = self._sizes.shared // 2, self._sizes.documents
        system = self._ids(half)
        documents = [system + self._ids(half) for _ in range(count)]
        return [documents[i % count] + self._ids(self._sizes.own) for i in range(self._sizes.rows)]

    def nothing(self, shared: int) -> list[list[int]]:
        return [self._ids(shared + self._sizes.own) for _ in range(self._sizes.rows)]


class Workload(Prompts):
    """The tests of one engine."""

    def __init__(self, bench: Bench, sizes: Sizes) -> None:
        super().__init__(sizes, bench.vocabulary)
        self._bench = bench

    def seconds(self, ids: list[list[int]], new: int) -> float:
        return self._bench.seconds(len(ids), 0, new, ids)

    def cold_and_warm(self, make: Callable[[], list[list[int]]], rounds: int) -> tuple[float, float]:
        """The better of the rounds each."""
        cold, warm = [], []
        for _ in range(rounds):
            ids = make()
            cold.append(self.seconds(ids, self._sizes.new))
            warm.append(self.seconds(ids, self._sizes.new))
            self._bench.engine.flush_cache()
        return min(cold), min(warm)

    def step(self, make: Callable[[], list[list[int]]]) -> float:
        """ms of a decode step: the difference of two runs over cached prompts."""
        ids, few = make(), max(2, self._sizes.new // 8)
        self.seconds(ids, few)
        gaps = [self.seconds(ids, self._sizes.new) - self.seconds(ids, few) for _ in range(2)]
        self._bench.engine.flush_cache()
        return min(gaps) / (self._sizes.new - few) * 1e3


def timeline(model: str, where: Path, device: str, page: int) -> list[str]:
    """Lines of a table: neighbouring steps with as many prompt tokens and rows are one line."""
    sizes = Sizes(device == "cpu")
    line, work = Timeline(model, where, device=device, page_size=page), Prompts(sizes, MODELS[model]["vocab_size"])
    lines = ["| run | steps | prompt tokens | rows that decode | ms: median | least | most | ms in all |"]
    lines.append("|---" * 8 + "|")
    for round in range(3):
        ids = work.one_prefix()
        for run in ("cold", "warm"):
            steps = line.steps(ids, sizes.new)
            if round < 2:
                continue  # compiles, and finds memory
            for (tokens, rows), same in groupby(steps, key=lambda step: (step[0].prompt_tokens, step[0].rows)):
                ms = [1e3 * seconds for _, seconds in same]
                times = [f"{value:.2f}" for value in (statistics.median(ms), min(ms), max(ms), sum(ms))]
                lines.append(f"| {run} | {len(ms)} | {tokens:,} | {rows} | {' | '.join(times)} |")
            whole = 1e3 * sum(seconds for _, seconds in steps)
            lines.append(f"| {run} | {len(steps)} in all | | | | | | {whole:.1f} |")
        line.flush()
    line.close()
    return lines


def engine(model: str, where: Path, device: str, page: int) -> dict[str, tuple[Rows, Rows]]:
    """All workloads by both engines → test → (with tree attention, without)."""
    sizes = Sizes(device == "cpu")
    found: list[Rows] = []
    for on in (True, False):
        bench = Bench(model, where, device=device, disable_tree_attention=not on, page_size=page)
        work, rounds = Workload(bench, sizes), 2 if on else 1
        rows: Rows = {}
        begin = time.perf_counter()
        work.cold_and_warm(work.one_prefix, 1)  # compiles, and finds memory
        rows["shared, cold, s"], rows["shared, warm, s"] = work.cold_and_warm(work.one_prefix, rounds)
        rows["two levels, cold, s"], rows["two levels, warm, s"] = work.cold_and_warm(work.two_levels, rounds)
        rows["a step, nothing shared, context ≈ 700, ms"] = work.step(partial(work.nothing, sizes.shared // 4))
        if on:
            rows["nothing shared, s"] = work.seconds(work.nothing(sizes.shared), sizes.new)
        print(f"[{'on' if on else 'off'}: {time.perf_counter() - begin:.1f} s]", file=sys.stderr, flush=True)
        bench.engine.shutdown()
        del bench, work  # the other engine wants the memory
        free()
        found.append(rows)
    return {test: (found[0].get(test, ""), found[1].get(test, "")) for test in found[0]}


class Layer:
    """Attention of one layer in a step of 256 rows: caches, a page table, and what is shared."""

    ROWS, HEADS, KV_HEADS, DIM = 256, 32, 8, 128

    def __init__(self, shared: int, own: int, groups: int, page: int) -> None:
        """`groups` share half of `shared` tokens each, all of them the other half; 1: all share all."""
        self.page, half = page, shared // 2 // page
        each = -(-own // page)
        self.table: Ints = np.zeros((self.ROWS + 1, 2 * half + each), np.int32)
        self.table[1:, :half] = 1 + np.arange(half)
        self.table[1:, half : 2 * half] = (
            1 + half + (np.arange(self.ROWS) % groups)[:, None] * half + np.arange(half)
        )
        first = 1 + half * (1 + groups)
        self.table[1:, 2 * half :] = first + np.arange(self.ROWS * each).reshape(self.ROWS, each)
        shape = (first + self.ROWS * each, page, self.KV_HEADS, self.DIM)
        self.kv = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        self.q = torch.randn((self.ROWS, self.HEADS, self.DIM), device="cuda", dtype=torch.bfloat16)
        self.pages = torch.from_numpy(self.table).cuda()
        self.rows = np.arange(1, self.ROWS + 1, dtype=np.int32)
        self.starts = np.full(self.ROWS, shared + own - 1, np.int32)
        self.device_rows = torch.from_numpy(self.rows).cuda()
        self.lengths = torch.from_numpy(self.starts + 1).cuda()
        self.decode = tuning.decode_tile(
            tuning.chip("cuda"), batch=self.ROWS, queries=self.HEADS // self.KV_HEADS, max_length=16384,
            kv_heads=self.KV_HEADS, head_dim=self.DIM, element_size=2, page_size=self.page,
        )  # fmt: skip

    def plan(self, tile: tuning.TreeTile) -> TreePlan | None:
        kv = KvShape(self.HEADS, self.KV_HEADS, self.DIM, 2, self.page)
        return PrefixPlanner(tile, kv).plan(self.rows, self.starts, self.table)

    def times(self, tile: tuning.TreeTile | None) -> tuple[float, float]:
        """µs of the tree's kernel and of what comes behind it; without a tile of the latter alone."""
        from radixlang.kernels.decode_attention import decode_attention
        from radixlang.kernels.tree_attention import tree_attention

        def behind(prefixes: Any) -> Any:
            return decode_attention(
                self.q, self.kv[0], self.kv[1], self.pages, self.device_rows, self.device_rows, self.lengths,
                scale=0.09, max_query=1, tile=self.decode, prefixes=prefixes,
            )  # fmt: skip

        if tile is None:
            return 0.0, timed(lambda i: behind(None), 20)
        plan = self.plan(tile)
        assert plan is not None
        packed = np.zeros(tree_size(self.ROWS), np.int32)
        plan.write(packed, self.ROWS)
        work = TreeWork(*tree_sections(torch.from_numpy(packed).cuda(), self.ROWS))

        def tree(i: int) -> Any:
            return tree_attention(self.q, self.kv[0], self.kv[1], self.pages, work, scale=0.09, tile=tile)

        prefixes = tree(0)
        return timed(tree, 20), timed(lambda i: behind(prefixes), 20)


def kernels(page: int) -> Rows:
    """Times of a layer's kernels. The rows' own keys do not fit into the second-level cache, as in a real step."""
    chip = tuning.chip("cuda")
    out: Rows = {}
    base = tuning.tree_tile(chip, heads=32, kv_heads=8, head_dim=128, element_size=2, page_size=page)
    assert base is not None
    for name, groups in (("one prefix of 2,048", 1), ("two levels of 1,024", 8)):
        layer = Layer(2048, 192, groups, page)
        out[f"{name}: without, µs"] = layer.times(None)[1]
        for block_m, block_n, warps, stages, per_unit, chunk, tma in TILES:
            if tma and page % block_n:
                continue  # a page must hold the tile
            sizes = {"block_m": block_m, "block_n": block_n, "warps": warps, "stages": stages, "chunk": chunk}
            sizes["tma"] = tma
            tile = replace(base, **sizes, programs=per_unit * chip.units)
            try:
                first, second = layer.times(tile)
            except Exception as error:  # a tile may not fit
                out[f"{name}: {sizes}"] = type(error).__name__
                continue
            out[f"{name}: {sizes}, {per_unit} a unit: tree + behind, µs"] = f"{first:.1f} + {second:.1f}"
        del layer
        free()
    return out


def table(sections: dict[str, Any]) -> str:
    lines: list[str] = []
    if "engine" in sections:
        lines += ["| test | tree attention | without | without ÷ with | vLLM / SGLang |", "|---|---|---|---|---|"]
        for test, (on, off) in sections["engine"].items():
            ratio = f"{off / on:.3f}" if isinstance(off, float) else "–"
            lines.append(f"| {test} | {shown(on)} | {shown(off)} | {ratio} | {PEERS.get(test, '–')} |")
    if "kernels" in sections:
        lines += ["", "| kernels of a layer | |", "|---|---|"]
        lines += [f"| {test} | {shown(value)} |" for test, value in sections["kernels"].items()]
    lines += ["", *sections.get("timeline", [])]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="llama", choices=list(MODELS))
    parser.add_argument("--sections", nargs="+", default=["engine"], choices=["engine", "kernels", "timeline"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--out", type=Path, help="append the table to this file")
    args = parser.parse_args()
    random.seed(0)
    sections: dict[str, Any] = {}
    if "kernels" in args.sections:
        sections["kernels"] = kernels(args.page_size)
        print(table({"kernels": sections["kernels"]}), flush=True)
    with tempfile.TemporaryDirectory() as where:
        if "timeline" in args.sections:
            sections["timeline"] = timeline(args.model, Path(where), args.device, args.page_size)
            free()
        if "engine" in args.sections:
            sections["engine"] = engine(args.model, Path(where), args.device, args.page_size)
    text = f"## {time.strftime('%Y-%m-%d')}: {device_line(args.device)}\n\n`{' '.join(['python', *sys.argv])}`\n\n"
    text += table(sections) + "\n"
    print(text)
    if args.out:
        with args.out.open("a") as file:
            file.write("\n" + text)


if __name__ == "__main__":
    main()
