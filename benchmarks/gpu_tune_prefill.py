"""Attention of prompts in TFLOP/s (causal products only) on this GPU, for `radixlang/kernels/settings/`.

    python benchmarks/gpu_tune_prefill.py [--head-dim 128] [--pages 16 64 128]

Our kernel over a grid of tiles, and FlashAttention-3 where it is installed. A line for each workload and page
size: the library, the present setting, the best ones.
"""

from __future__ import annotations

import argparse
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import torch
from gpu_tune import timed  # type: ignore[import-not-found]

from radixlang.attention.fa3 import Fa3Attention
from radixlang.forward import ForwardBatch
from radixlang.kernels import tuning
from radixlang.kernels.extend_attention import extend_attention
from radixlang.kernels.tuning import ExtendTile
from radixlang.models.spec import LayerSpec, ModelSpec

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--pages", type=int, nargs="+", default=[16, 64, 128])
    args = parser.parse_args()
    prefill(args.head_dim, args.pages)


if __name__ == "__main__":
    main()
