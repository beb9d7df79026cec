"""Tensor parallelism on the GPUs of one host: is the text the same, and how much faster is decoding?

    python benchmarks/tp.py [--sizes 1 2] [--layers 16] [--batch 64] [--out FILE]
    python benchmarks/tp.py --device cpu --tiny        the same over Gloo, to try the script

Random weights of the Llama-3.1-70B shape with fewer layers. Three parts, one markdown table each:

* equality: two layers in float32, greedy text of each size against the first size, and the largest difference of
  the tokens' log-probabilities (bfloat16 rounds differently in sums of parts, so texts may part at close calls);
* decoding: bfloat16, `batch` requests of 128 tokens; a step is the time between two answers of different lengths,
  divided by their difference, so that prompts and start-up do not count;
* sums: one all-reduce as a decode step does it, in a CUDA graph, over symmetric memory and over NCCL.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch

from radixlang.llm import Engine

SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
TINY = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
}
SHORT, LONG = 32, 288
"""answer lengths between which a step is measured"""
SUM_TOKENS = (1, 8, 16, 32, 64, 128, 256)
REPEATS = 100


def folder_of(layers: int, tiny: bool, root: Path) -> Path:
    """A model folder without weights."""
    folder = root / f"layers-{layers}"
    folder.mkdir(exist_ok=True)
    config = SHAPE | (TINY if tiny else {}) | {"num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def start(folder: Path, size: int, device: str, dtype: str, **options: Any) -> Engine:
    return Engine(
        str(folder),
        skip_tokenizer_init=True,
        load_format="dummy",
        device=device,
        dtype=dtype,
        tp_size=size,
        context_length=1024,
        random_seed=1,
        **options,
    )


def prompts_of(count: int, length: int, vocab: int) -> list[list[int]]:
    draw = random.Random(5)
    return [[draw.randrange(3, vocab) for _ in range(length)] for _ in range(count)]


def ask(engine: Engine, prompts: list[list[int]], new: int, **fields: Any) -> list[Any]:
    params = {"temperature": 0, "max_new_tokens": new, "ignore_eos": True}
    return engine.generate(input_ids=prompts, sampling_params=params, **fields)


def equality(folder: Path, sizes: list[int], device: str, vocab: int) -> list[str]:
    """Greedy text and log-probabilities of each size against the first's."""
    lines = ["| tp | same texts | same tokens | largest log-probability difference |", "| --- | --- | --- | --- |"]
    prompts = prompts_of(8, 40, vocab)
    first: list[Any] = []
    for size in sizes:
        with start(folder, size, device, "float32", max_total_tokens=8192) as engine:
            # Without log-probabilities a step may be a graph; with them it is not: both must say the same.
            texts = [out["output_ids"] for out in ask(engine, prompts, 48)]
            outs = ask(engine, prompts, 48, return_logprob=True)
        first = first or outs
        same = tokens = 0
        apart = 0.0
        for text, out, want in zip(texts, outs, first, strict=True):
            same += text == out["output_ids"] == want["output_ids"]
            mine, theirs = (answer["meta_info"]["output_token_logprobs"] for answer in (out, want))
            for a, b in zip(mine, theirs, strict=True):
                if a[1] != b[1]:
                    break
                tokens += 1
                apart = max(apart, abs(a[0] - b[0]))
        lines.append(f"| {size} | {same} of {len(prompts)} | {tokens} of {48 * len(prompts)} | {apart:.1e} |")
    return lines


def decoding(folder: Path, sizes: list[int], device: str, vocab: int, batch: int, dtype: str) -> list[str]:
    """Decode throughput of each size, and the ratio to the first's."""
    lines = [
        "| tp | weights a device, GB | KV a token a device, KB | step ms | tok/s | × first | start s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    prompts = prompts_of(batch, 128, vocab)
    base = 0.0
    for size in sizes:
        began = time.monotonic()
        with start(
            folder, size, device, dtype, max_total_tokens=batch * 512, max_running_requests=batch
        ) as engine:
            ready = time.monotonic() - began
            info = engine.get_server_info()
            ask(engine, prompts, 8)  # warm, and the prompts are cached
            best: dict[int, float] = {}
            for _ in range(3):
                for new in (SHORT, LONG):
                    began = time.monotonic()
                    ask(engine, prompts, new)
                    best[new] = min(best.get(new, 1e9), time.monotonic() - began)
        step = (best[LONG] - best[SHORT]) / (LONG - SHORT)
        base = base or step
        kv = info["kv_bytes"] / (info["num_pages"] * info["page_size"]) / 1e3
        lines.append(
            f"| {size} | {info['weight_bytes'] / 1e9:.1f} | {kv:.1f} | {step * 1e3:.2f} | {batch / step:,.0f} "
            f"| {base / step:.2f} | {ready:.1f} |"
        )
    return lines


def sums(sizes: list[int], hidden: int) -> list[str]:
    """Microseconds of one all-reduce, by the tokens of the step."""
    lines = [
        "| tp | tokens | KB | as the engine does it, µs | NCCL, µs | largest relative error |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for size in (size for size in sizes if size > 1):
        with tempfile.TemporaryDirectory() as folder:
            ranks = [
                subprocess.Popen(
                    [sys.executable, __file__, "--rank", str(rank), str(size), f"{folder}/ranks", str(hidden)],
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for rank in range(size)
            ]
            outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
        lines += [line for line in outputs[0].splitlines() if line.startswith("|")]
    return lines


def sum_on_rank(rank: int, size: int, meeting: str, hidden: int) -> None:
    """One rank of `sums`; the first prints the rows."""
    import torch.distributed as dist

    from radixlang.parallel import connect

    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    group = connect(rank, size, meeting, device)

    def nccl(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x

    for tokens in SUM_TOKENS:
        generator = torch.Generator(device).manual_seed(rank)
        x = torch.randn(tokens, hidden, dtype=torch.bfloat16, device=device, generator=generator)
        exact = group.all_reduce(x.float())
        error = ((group.all_reduce(x.clone()).float() - exact).abs() / exact.abs().clamp(min=1.0)).max().item()
        times = [micros(call, x) for call in (group.all_reduce, nccl)]
        if rank == 0:
            kb = x.numel() * 2 / 1024
            print(f"| {size} | {tokens} | {kb:.0f} | {times[0]:.1f} | {times[1]:.1f} | {error:.1e} |", flush=True)
    torch.cuda.synchronize()
    dist.destroy_process_group()


def micros(call: Any, x: torch.Tensor) -> float:
    """One call in a graph of many."""
    y = torch.zeros_like(x)  # zeros stay finite however often they are summed
    call(y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(REPEATS):
            call(y)
    graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1e3 / REPEATS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--parts", nargs="+", default=["equality", "decoding", "sums"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rank", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank, size, meeting, hidden = options.rank
        sum_on_rank(int(rank), int(size), meeting, int(hidden))
        return
    shape = SHAPE | (TINY if options.tiny else {})
    on_gpu = options.device.startswith("cuda")
    dtype, layers = ("bfloat16", options.layers) if on_gpu else ("float32", 2)
    what = f"{torch.cuda.get_device_name()}, " if on_gpu else ""
    report = [f"`python {' '.join(sys.argv)}` · {date.today()} · {what}torch {torch.__version__}"]
    with tempfile.TemporaryDirectory() as root:
        few, many = (folder_of(count, options.tiny, Path(root)) for count in (2, layers))
        runs = {
            "equality": lambda: equality(few, options.sizes, options.device, shape["vocab_size"]),
            "decoding": lambda: decoding(
                many, options.sizes, options.device, shape["vocab_size"], options.batch, dtype
            ),
            "sums": lambda: sums(options.sizes, shape["hidden_size"]),
        }
        for part in options.parts:
            if part == "sums" and not on_gpu:
                continue
            title = {"decoding": f"decoding, {dtype}, {layers} layers, batch {options.batch}"}.get(part, part)
            lines = runs[part]()
            print("\n".join([title, "", *lines, ""]), flush=True)
            report += ["", title, "", *lines]
    if options.out:
        with options.out.open("a") as file:
            file.write("\n".join(report) + "\n")


if __name__ == "__main__":
    main()
