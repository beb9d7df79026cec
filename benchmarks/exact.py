"""Whether `--enable-deterministic-inference` keeps its promise on this GPU, and what it costs.

    python benchmarks/exact.py [--settings 1000] [--skip-cost] [--out FILE]

Promise: small random bfloat16 models (head dimensions 64 and 128; 1, 4 and 8 query heads a KV head). Each
request runs alone first; then random groups of them run together, chunks cut wherever the budget ends, with
cached prefixes or without, in graphs or out of them, in a pool small enough for retraction. Bits of log-
probabilities and tokens are compared. The same without the flag shows that the comparison can fail. Cost: bare
decode steps and a prompt of the Llama-3.1-8B shape, with and without. One markdown table is printed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu import Bare, Bench, free  # type: ignore[import-not-found]
from gpu_models import MODELS  # type: ignore[import-not-found]

from radixlang.llm import Engine

VOCABULARY = 4096
SHAPES = ((64, 8, 8), (128, 8, 2), (128, 8, 1))
"""(head dimension, query heads, KV heads)"""
STEPS = (1, 32, 256)


def small_model(where: Path, dim: int, heads: int, kv_heads: int) -> str:
    folder = where / f"{dim}-{heads}-{kv_heads}"
    folder.mkdir(exist_ok=True)
    sizes = {
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 3,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
    }
    common = {key: value for key, value in MODELS["llama"].items() if key != "name"}
    (folder / "config.json").write_text(json.dumps(common | sizes))
    return str(folder)


class Promise:
    """One small model, its requests, and what each gives alone."""

    def __init__(self, folder: str, exact: bool) -> None:
        self.draw = random.Random(1)
        self.engine = Engine(
            model_path=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            device="cuda",
            enable_deterministic_inference=exact,
            chunked_prefill_size=384,
            max_running_requests=24,
            max_total_tokens=16_000,
        )
        shared = self._ids(700)
        lengths = [1, 2, 15, 16, 17, 255, 256, 257, 511, 2500, *(self.draw.randint(1, 900) for _ in range(22))]
        self.prompts = [shared[: self.draw.choice([0, 0, 100, 700])] + self._ids(n) for n in lengths]
        self.samplings = [
            {
                "temperature": self.draw.choice([0.0, 0.7, 1.0]),
                "top_p": self.draw.choice([1.0, 0.9]),
                "sampling_seed": i,
                "max_new_tokens": self.draw.randint(4, 40),
                "ignore_eos": True,
            }
            for i in range(len(self.prompts))
        ]
        self.alone = []
        for i in range(len(self.prompts)):
            self.engine.flush_cache()
            self.alone.append(self._run([i], True)[0])

    def _ids(self, count: int) -> list[int]:
        return [self.draw.randrange(3, VOCABULARY) for _ in range(count)]

    def _run(self, chosen: list[int], logprobs: bool) -> list[dict[str, Any]]:
        more = {"return_logprob": True, "top_logprobs_num": 4} if logprobs else {}
        answers: list[dict[str, Any]] = self.engine.generate(
            input_ids=[self.prompts[i] for i in chosen],
            sampling_params=[self.samplings[i] for i in chosen],
            **more,
        )
        return answers

    def compare(self, settings: int) -> tuple[int, int]:
        """(requests compared, requests that differed)"""
        tried = differed = 0
        while tried < settings:
            if self.draw.random() < 0.4:
                self.engine.flush_cache()
            chosen = [self.draw.randrange(len(self.prompts)) for _ in range(self.draw.randint(1, 32))]
            logprobs = self.draw.random() < 0.5
            for i, answer in zip(chosen, self._run(chosen, logprobs), strict=True):
                same = answer["output_ids"] == self.alone[i]["output_ids"]
                if logprobs:
                    for name in ("output_token_logprobs", "output_top_logprobs"):
                        same = same and answer["meta_info"][name] == self.alone[i]["meta_info"][name]
                tried += 1
                differed += not same
        return tried, differed


def promise(where: Path, settings: int) -> list[tuple[str, str]]:
    out = []
    for dim, heads, kv_heads in SHAPES:
        folder = small_model(where, dim, heads, kv_heads)
        for exact in (True, False):
            test = Promise(folder, exact)
            tried, differed = test.compare(settings // len(SHAPES) + 1 if exact else 64)
            test.engine.shutdown()
            free()
            name = (
                f"head dimension {dim}, {heads // kv_heads} query heads a KV head, flag {'on' if exact else 'off'}"
            )
            out.append((name, f"{differed} of {tried} differ"))
            print(name, out[-1][1], flush=True)
    return out


def costs(where: Path) -> list[tuple[str, str]]:
    numbers: dict[str, list[float]] = {}
    for exact in (False, True):
        more = {"enable_deterministic_inference": exact}
        bare = Bare("llama", where, **more)
        for rows in STEPS:
            bare.run([bare.plan(rows, bare.CONTEXT, 1, True)])
            gaps, _ = bare.run([bare.plan(rows, bare.CONTEXT + i, 1, False) for i in range(1, 81)])
            numbers.setdefault(f"decode step at batch {rows}, ms", []).append(statistics.median(gaps[20:]))
        bare.device.close()
        del bare
        free()
        bench = Bench("llama", where, **more)
        for name, value in bench.prefill().items():
            numbers.setdefault(name, []).append(float(value))
        bench.engine.shutdown()
        del bench
        free()
    out = []
    for name, (off, on) in numbers.items():
        cost = on / off - 1 if name.endswith("ms") else off / on - 1
        out.append((name, f"off {off:,.2f}, on {on:,.2f}: {cost:+.1%} time"))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--settings", type=int, default=1000)
    parser.add_argument("--skip-cost", action="store_true")
    parser.add_argument("--out", type=Path, help="append the table to this file")
    args = parser.parse_args()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        rows = promise(Path(folder), args.settings)
        if not args.skip_cost:
            rows += costs(Path(folder))
    lines = ["| test | result |", "|---|---|", *(f"| {name} | {result} |" for name, result in rows)]
    text = "\n".join(lines) + "\n"
    print(text, f"\n{time.perf_counter() - begin:.0f} s")
    if args.out:
        with args.out.open("a") as file:
            file.write("\n" + text)


if __name__ == "__main__":
    main()
