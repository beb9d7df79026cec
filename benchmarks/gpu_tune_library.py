"""Finds algorithms of cuBLASLt that beat torch's products on this GPU, for `radixlang/kernels/settings/`.

    python benchmarks/gpu_tune_library.py [--tokens 128 192 8192] [--shapes "llama qkv" …] [--steps]

For every shape: what cuBLASLt proposes, and the best few of it with other clusters and orders of tiles. The
fastest are measured again for a tenth of a second each, torch's product before and after, since under such load
the card is at its power limit, as in an engine's steps. Prints the best and their times ÷ torch's as entries of
the settings file. `--steps`: bare steps of the Llama shape, and prompts, with and without the table as it is.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import torch
from gpu_tune import bare_with, decode_ms
from gpu_variants import SHAPES

from radixlang.kernels.library_linear import CONFIG, WORKSPACE, Found, Problem, Product, Refused
from radixlang.kernels.tuning import LibraryAlgorithm

PROPOSALS, BYTES = 32, 1 << 30
CLUSTERS = range(2, 12)
#: numbers of cuBLASLt
PREFERENCE_WORKSPACE, SPLITS = 1, 2
FASTEST, ENDS = 5, ("min", "max")


class Case:
    """One product: weights enough that none is in the cache, torch's way to it, and others."""

    def __init__(self, name: str, tokens: int) -> None:
        outer, inner, gated = SHAPES[name]
        rows, some = outer * (2 if gated else 1), {"dtype": torch.bfloat16, "device": "cuda"}
        self.add = name.endswith((" o", "down"))
        copies = max(2, min(32, BYTES // (rows * inner * 2)))
        self.weights = [torch.randn((rows, inner), **some) / inner**0.5 for _ in range(copies)]
        self.x = torch.randn((tokens, inner), **some)
        self.out = torch.zeros((tokens, rows), **some)
        self.calls = min(copies, max(2, 20_000 // tokens))
        self.problem = Problem(0, torch.bfloat16, tokens, rows, inner)
        self.entry = {"min_tokens": tokens, "max_tokens": tokens}
        self.entry |= {
            f"{end}_{size}": value for size, value in (("outer", rows), ("inner", inner)) for end in ENDS
        }

    def plain(self, i: int) -> None:
        if self.add:
            self.out.addmm_(self.x, self.weights[i].t())
        else:
            torch.mm(self.x, self.weights[i].t(), out=self.out)

    def proposals(self) -> list[LibraryAlgorithm]:
        """The library's, its first choice first, but for sums of parts, of which the table knows nothing."""
        library, found, count = self.problem.library, (Found * PROPOSALS)(), ctypes.c_int()
        preference, workspace = ctypes.c_void_p(), ctypes.c_size_t(WORKSPACE)
        library("MatmulPreferenceCreate", ctypes.byref(preference))
        size = ctypes.c_size_t(8)
        library("MatmulPreferenceSetAttribute", preference, PREFERENCE_WORKSPACE, ctypes.byref(workspace), size)
        rest = (preference, PROPOSALS, found, ctypes.byref(count))
        library("MatmulAlgoGetHeuristic", library.handle, *self.problem.arguments, *rest)
        whole = [one.algorithm for one in found[: count.value] if not one.state and self._get(one, SPLITS) <= 1]
        return [LibraryAlgorithm(**{name: self._get(one, *how) for name, how in CONFIG.items()}) for one in whole]

    def _get(self, algorithm: Any, attribute: int, number: Any = ctypes.c_uint32) -> int:
        value, size = number(), ctypes.c_size_t(ctypes.sizeof(number))
        rest = (attribute, ctypes.byref(value), size, ctypes.byref(ctypes.c_size_t()))
        self.problem.library("MatmulAlgoConfigGetAttribute", ctypes.byref(algorithm), *rest)
        return int(value.value)

    def by(self, numbers: LibraryAlgorithm) -> torch.cuda.CUDAGraph | None:
        """A graph of its products; None where the library refuses it."""
        try:
            product = Product(self.problem, numbers, float(self.add))
            return self.graph(lambda i: product(self.x, self.weights[i], self.out))
        except Refused:
            return None

    def graph(self, work: Callable[[int], object]) -> torch.cuda.CUDAGraph:
        work(0)
        torch.cuda.synchronize()
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            graph.capture_begin()
            for i in range(self.calls):
                work(i)
            graph.capture_end()
        return graph

    def us(self, graph: torch.cuda.CUDAGraph, seconds: float) -> float:
        """µs of a call in the second half of so long a run."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        half = max(1, int(seconds * 500 / begin.elapsed_time(end)))
        for i in range(2 * half):
            if i == half:
                begin.record()
            graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / half / self.calls


def neighbours(numbers: LibraryAlgorithm) -> list[LibraryAlgorithm]:
    return [replace(numbers, swizzle=1), *(replace(numbers, cluster=cluster) for cluster in CLUSTERS)]


def tune(name: str, tokens: int) -> None:
    case = Case(name, tokens)
    quick: dict[LibraryAlgorithm, tuple[float, torch.cuda.CUDAGraph]] = {}

    def attempt(some: list[LibraryAlgorithm]) -> list[LibraryAlgorithm]:
        """The fastest of all so far, the fastest first."""
        for numbers in some:
            if numbers not in quick and (graph := case.by(numbers)) is not None:
                quick[numbers] = case.us(graph, 0.008), graph
        return sorted(quick, key=lambda numbers: quick[numbers][0])[:FASTEST]

    best = attempt(case.proposals())
    best = attempt([near for numbers in best for near in neighbours(numbers)])
    plain, ratios, library = case.graph(case.plain), {}, []
    case.us(plain, 0.2)
    for numbers in best:
        before, now, after = (case.us(graph, 0.12) for graph in (plain, quick[numbers][1], plain))
        ratios[numbers] = 2 * now / (before + after)
        library += [before, after]
    us, work = statistics.median(library), 2 * tokens * case.weights[0].numel()
    print(f"{name}, {tokens} tokens: torch {us:.1f} µs, {work / us / 1e6:.0f} TFLOP/s")
    for numbers in sorted(best, key=ratios.__getitem__)[:3]:
        print(f"  {ratios[numbers]:.3f}  {json.dumps(case.entry | asdict(numbers))}", flush=True)


def steps(tokens: list[int]) -> None:
    """Medians in ms: of decode steps up to 256 rows, beyond of prompts of 1,024 tokens."""
    from gpu import free

    from radixlang.executor import build, shapes

    rows = [count for count in tokens if count <= 256]
    build.graph_shapes = lambda *_: [shapes.Shape(count, count) for count in rows]
    for name, changes in [("on", {}), ("off", {"library": []})] * 2:
        bare = bare_with("llama", lambda given, changes=changes: changes)  # type: ignore[misc]
        times = [f"{count}: {(decode_ms if count in rows else prompt_ms)(bare, count):.3f}" for count in tokens]
        print(f"table {name} | {' | '.join(times)} ms", flush=True)
        bare.device.close()
        del bare
        free()


def prompt_ms(bare: Any, tokens: int) -> float:
    prompts = -(-tokens // 1024)
    plans = [bare.plan(prompts, 0, tokens // prompts, True)] * max(8, 60_000 // tokens)
    gaps, _ = bare.run(plans)
    return statistics.median(gaps[len(gaps) // 5 :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 192, 256, 2048, 8192])
    parser.add_argument("--shapes", nargs="*", default=[name for name in SHAPES if "head" not in name])
    parser.add_argument("--steps", action="store_true", help="measure steps as well")
    args = parser.parse_args()
    for tokens in args.tokens:
        for name in args.shapes:
            tune(name, tokens)
            torch.cuda.empty_cache()
    if args.steps:
        steps(args.tokens)


if __name__ == "__main__":
    main()
