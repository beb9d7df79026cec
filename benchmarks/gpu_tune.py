"""Finds launch settings of the skinny product on this GPU, for `radixlang/kernels/settings/`.

    python benchmarks/gpu_tune.py [--tokens 1 32 64 128] [--shapes NAME …] [--seconds S]

Every candidate runs in a CUDA graph that goes through many copies of the weight, so that none is in the cache;
the library's product is measured alike. Prints a line for each shape and number of tokens.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from radixlang.kernels import chain
from radixlang.kernels.skinny_linear import skinny_linear
from radixlang.kernels.tuning import SkinnyTile

#: name: (outputs of each half if gated, inputs, gated)
SHAPES = {
    "llama qkv": (6144, 4096, False),
    "llama o": (4096, 4096, False),
    "llama gate_up": (14336, 4096, True),
    "llama down": (4096, 14336, False),
    "llama head": (128256, 4096, False),
    "qwen qkv": (4096, 1024, False),
    "qwen o": (1024, 2048, False),
    "qwen gate_up": (3072, 1024, True),
    "qwen down": (1024, 3072, False),
    "qwen head": (151936, 1024, False),
}
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


def candidates(outer: int, inner: int, gated: bool, tokens: int) -> list[SkinnyTile]:
    block_m = max(16, 1 << (tokens - 1).bit_length())
    found = []
    for (block_n, block_k, warps, stages), splits in itertools.product(TILES, (1, 2, 4, 8)):
        shared = stages * block_k * 2 * (block_n * (2 if gated else 1) + block_m)
        steps, programs = inner // block_k // splits, -(-outer // block_n) * splits
        if shared > 200 << 10 or inner % (block_k * splits) or steps < 2:
            continue
        if programs >= 96 and (splits == 1 or programs <= 132 * 6):
            found.append(SkinnyTile(block_n, block_k, splits, warps, stages))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 32, 64, 128])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES))
    parser.add_argument("--seconds", type=float, default=1000.0, help="stop measuring after this time")
    args = parser.parse_args()
    begin = time.monotonic()
    print("chained launches:", chain.available())
    dtype = torch.bfloat16
    jobs = []
    for name in args.shapes:
        outer, inner, gated = SHAPES[name]
        for tokens in args.tokens:
            jobs += [(name, tokens, tile) for tile in candidates(outer, inner, gated, tokens)]

    def compile_one(job: tuple[str, int, SkinnyTile]) -> None:
        name, tokens, tile = job
        outer, inner, gated = SHAPES[name]
        outer = tile.block_n * 2
        x = torch.zeros((tokens, inner), dtype=dtype, device="cuda")
        weight = torch.zeros((outer * (2 if gated else 1), inner), dtype=dtype, device="cuda")
        run_one(x, weight, gated, tile)

    unique = {(tokens, SHAPES[name][2], tile): (name, tokens, tile) for name, tokens, tile in jobs}
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(compile_one, unique.values()))
    print(f"compiled {len(unique)} of {len(jobs)} in {time.monotonic() - begin:.0f} s", flush=True)
    for name in args.shapes:
        for tokens in args.tokens:
            if time.monotonic() - begin < args.seconds:
                print(measure(name, tokens), flush=True)
                torch.cuda.empty_cache()
    print(f"{time.monotonic() - begin:.0f} s")


def measure(name: str, tokens: int) -> str:
    outer, inner, gated = SHAPES[name]
    rows = outer * (2 if gated else 1)
    copies = max(2, min(64, BYTES // (rows * inner * 2)))
    dtype = torch.bfloat16
    weights = [torch.randn((rows, inner), dtype=dtype, device="cuda") / inner**0.5 for _ in range(copies)]
    x = torch.randn((tokens, inner), dtype=dtype, device="cuda")
    library = timed(lambda i: torch.nn.functional.linear(x, weights[i]), copies)
    results = []
    for tile in candidates(outer, inner, gated, tokens):

        def one(i: int, tile: SkinnyTile = tile) -> torch.Tensor:
            return run_one(x, weights[i], gated, tile)

        try:
            results.append((timed(one, copies), tile))
        except Exception as error:
            print("failed", tile, type(error).__name__, str(error)[:80])
    results.sort(key=lambda r: r[0])
    best = "; ".join(
        f"{us:.1f} {t.block_n}x{t.block_k} s{t.splits} w{t.warps} st{t.stages}" for us, t in results[:5]
    )
    return (
        f"{name} {tokens}: floor {rows * inner * 2 / 4.2e6:.1f} library {library:.1f} ours {results[0][0]:.1f} "
        f"| {best}"
    )


def run_one(x: torch.Tensor, weight: torch.Tensor, gated: bool, tile: SkinnyTile) -> torch.Tensor:
    return skinny_linear(x, weight, activation="silu" if gated else None, tile=tile)


if __name__ == "__main__":
    main()
