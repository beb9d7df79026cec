"""Finds launch settings of kernels on this GPU, for `radixlang/kernels/settings/`.

    python benchmarks/gpu_tune.py [products] [--tokens 1 32 64 128] [--shapes NAME …] [--seconds S]
    python benchmarks/gpu_tune.py prefill [--head-dim 128] [--pages 16 64 128]

`products`: every candidate of the skinny product runs in a CUDA graph that goes through many copies of the weight,
so that none is in the cache; the library's product is measured alike. Prints a line for each shape and number of
tokens. `prefill`: attention of prompts in TFLOP/s (causal products only), our kernel over a grid of tiles, and
FlashAttention-3 where it is installed. Prints a line for each workload and page size, the present setting first.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import torch

from radixlang.attention.fa3 import Fa3Attention
from radixlang.forward import ForwardBatch
from radixlang.kernels import chain, tuning
from radixlang.kernels.extend_attention import extend_attention
from radixlang.kernels.skinny_linear import skinny_linear
from radixlang.kernels.tuning import ExtendTile, SkinnyTile
from radixlang.models.spec import LayerSpec, ModelSpec

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
    parser.add_argument("section", nargs="?", default="products", choices=["products", "prefill"])
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--pages", type=int, nargs="+", default=[16, 64, 128])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 32, 64, 128])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES))
    parser.add_argument("--seconds", type=float, default=1000.0, help="stop measuring after this time")
    args = parser.parse_args()
    if args.section == "prefill":
        prefill(args.head_dim, args.pages)
    else:
        products(args)


def products(args: argparse.Namespace) -> None:
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


#: requests, new tokens of each, tokens of each in all
PREFILLS = {"8 x 2048": (8, 2048, 2048), "1 x 16384": (1, 16384, 16384), "8 x 512 over 8192": (8, 512, 8704)}
HEADS, KV_HEADS = 32, 8


def prefill(head_dim: int, pages: list[int]) -> None:
    """Measure attention of prompts of a model with 32 heads, 8 of them for K and V."""
    begin = time.monotonic()
    spec = ModelSpec(
        family="llama", architecture="LlamaForCausalLM", vocab_size=32, hidden_size=HEADS * head_dim,
        intermediate_size=32, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=head_dim, layers=(LayerSpec(),),
        context_length=32768,
    )  # fmt: skip
    if reason := Fa3Attention.supports(spec, "cuda"):
        print(reason)

    def compile_one(job: tuple[int, ExtendTile]) -> None:
        page, tile = job
        try:
            run_prefill(prefill_inputs(1, 64, 64, page, head_dim), tile)
        except Exception as error:
            print("failed", page, tile, type(error).__name__, str(error)[:80])

    jobs = [(page, tile) for page in pages for tile in prefill_tiles(page, head_dim)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(compile_one, jobs))
    torch.cuda.synchronize()
    print(f"compiled {len(jobs)} in {time.monotonic() - begin:.0f} s", flush=True)
    for name, page in itertools.product(PREFILLS, pages):
        print(measure_prefill(spec, name, page), flush=True)
        torch.cuda.empty_cache()
    print(f"{time.monotonic() - begin:.0f} s")


def measure_prefill(spec: ModelSpec, name: str, page: int) -> str:
    requests, new, length = PREFILLS[name]
    head_dim = spec.head_dim
    inputs = prefill_inputs(requests, new, length, page, head_dim)
    visible = requests * sum(range(length - new + 1, length + 1))
    work = 4 * visible * HEADS * head_dim / 1e6  # millions of operations: TFLOP/s when divided by µs
    parts = []
    if Fa3Attention.supports(spec, "cuda") is None:
        q, k, v, batch = inputs
        backend = Fa3Attention(spec, page, "cuda:0")
        plan = backend.plan(batch)
        layer = SimpleNamespace(scale=head_dim**-0.5, window=0, softcap=0.0)
        parts.append(f"fa3 {work / timed(lambda _: backend.forward(layer, q, k, v, batch, plan), 4):.0f};")
    present = tuning.extend_tile(tuning.chip("cuda:0"), head_dim=head_dim, element_size=2, page_size=page)
    found = []
    for tile in dict.fromkeys([present, *prefill_tiles(page, head_dim)]):

        def one(_: int, tile: ExtendTile = tile) -> torch.Tensor:
            return run_prefill(inputs, tile)

        try:
            found.append((work / timed(one, 4), tile))
        except Exception as error:
            print("failed", page, tile, type(error).__name__, str(error)[:80])
    parts += [
        f"{speed:.0f} {t.block_m}x{t.block_n} w{t.warps} st{t.stages}{' tma' if t.tma else ''};"
        for speed, t in found[:1] + sorted(found, key=lambda pair: -pair[0])[:5]
    ]
    return f"{name} page {page}: {' '.join(parts)}"


def prefill_tiles(page: int, head_dim: int) -> list[ExtendTile]:
    found = []
    for (block_m, warps), block_n, stages in itertools.product(((128, 8), (64, 4)), (64, 128), (2, 3, 4)):
        if (stages * block_n * 2 + block_m) * head_dim * 2 <= 224 << 10:
            found.append(ExtendTile(block_m, block_n, warps, stages))
            if page % block_n == 0 and head_dim & (head_dim - 1) == 0:
                found.append(ExtendTile(block_m, block_n, warps, stages, tma=True))
    return found


Prefill = tuple[torch.Tensor, torch.Tensor, torch.Tensor, ForwardBatch]


def prefill_inputs(requests: int, new: int, length: int, page: int, head_dim: int) -> Prefill:
    """q [T, heads, head_dim], K and V in pages, in disorder, and the step."""
    each = -(-length // page)
    table = (torch.randperm(requests * each, device="cuda") + 1).int().view(requests, each)
    fused = torch.randn((requests * new, HEADS + 2 * KV_HEADS, head_dim), dtype=torch.bfloat16, device="cuda")
    shape = (requests * each + 1, page, KV_HEADS, head_dim)
    k, v = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    ids = torch.zeros(requests * new, dtype=torch.int64, device="cuda")
    batch = ForwardBatch(
        input_ids=ids,
        positions=ids,
        slots=ids,
        rows=torch.arange(requests, dtype=torch.int32, device="cuda"),
        query_starts=torch.arange(requests + 1, dtype=torch.int32, device="cuda") * new,
        lengths=torch.full((requests,), length, dtype=torch.int32, device="cuda"),
        page_table=table,
        page_size=page,
        max_query=new,
        max_length=length,
    )
    return fused[:, :HEADS], k, v, batch


def run_prefill(inputs: Prefill, tile: ExtendTile) -> torch.Tensor:
    q, k, v, batch = inputs
    where = (batch.page_table, batch.rows, batch.query_starts, batch.lengths)
    return extend_attention(q, k, v, *where, scale=q.shape[2] ** -0.5, tile=tile)


if __name__ == "__main__":
    main()
