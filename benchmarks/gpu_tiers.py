"""Host memory below the device's KV pool: what it is worth, how fast copies are, and what they run beside.

    python benchmarks/gpu_tiers.py [--sections bandwidth ttft chat trace] [--model llama] [--out FILE]

bandwidth   pages of the Llama-3.1-8B shape to pinned memory and back, slots side by side and scattered, ÷ one
            large copy between the same memory and the device
ttft        one request on an idle engine, whose prefix lies in host memory: time to its first token where it waits
            for its pages, where its first step waits for all of them, and where each layer of the step waits for
            its own; beside the same prefix on the device. The share of the copy that is hidden is what the layers
            save, ÷ what the copy costs where the step waits for all of it
chat        conversations whose KV is three times the device's pool, turn after turn in the same order, which
            leaves the device alone with no hits: the same turns with the host tier and without it
trace       one such turn under torch's profiler: the share of the copies' time in which kernels run; saves the
            trace

Random weights, random prompts, temperature 0, end tokens ignored. Prints `pass` or `FAIL` beside every bar and
exits with 1 if one was missed. `--device cpu --model tiny --sections ttft chat` runs the same code anywhere; a CPU
has no host tier, so a folder takes its place and there are no bars.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import environment
from gpu_models import MODELS, folder_of

from radixlang.bench.report import random_prompts
from radixlang.executor.copies import PIECES
from radixlang.llm import Engine

SECTIONS = ("bandwidth", "ttft", "chat", "trace")
BANDWIDTH_BAR, CHAT_BAR, OVERLAP_BAR = 0.8, 2.0, 0.5
HIDDEN_BAR = 0.4
"""of the copy or of the request without one, whichever takes less: the request's way to its step and back and the
first part of its pages are never hidden"""
PAGES = 512
Line = tuple[str, str, bool | None]
"""what, how much, whether that passes (None: no bar)"""


# ---- bandwidth ----


def seconds_of(work: Callable[[], None], streams: list[torch.cuda.Stream], times: int = 5) -> float:
    """The best of some runs, from an idle device until all streams are done."""
    best = float("inf")
    for _ in range(times):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        for stream in streams:
            stream.synchronize()
        best = min(best, time.perf_counter() - began)
    return best


def bandwidth() -> list[Line]:
    from radixlang.executor.copies import CudaCopies
    from radixlang.memory.host_pool import HostPool
    from radixlang.memory.kv_pool import KvPool
    from radixlang.models.spec import LayerSpec, ModelSpec
    from radixlang.plan import LoadPages, StorePages

    shape, device = MODELS["llama"], torch.device("cuda")
    spec = ModelSpec(
        family="llama", architecture="LlamaForCausalLM", vocab_size=32, hidden_size=4096, intermediate_size=32,
        num_heads=32, num_kv_heads=shape["num_key_value_heads"], head_dim=128,
        layers=(LayerSpec(),) * shape["num_hidden_layers"], context_length=4096,
    )  # fmt: skip
    pool = KvPool(spec, PAGES, 16, torch.bfloat16, device)
    host = HostPool(pool, 2 * PAGES, pinned=True)
    copies = CudaCopies(pool, host, device)
    copies.warm_up()
    size = host.blocks[:PAGES].nbytes
    block = torch.empty_like(host.blocks[:PAGES], device=device)
    current = torch.cuda.current_stream()
    down = seconds_of(lambda: host.blocks[:PAGES].copy_(block, non_blocking=True), [current])
    up = seconds_of(lambda: block.copy_(host.blocks[:PAGES], non_blocking=True), [current])
    rng = np.random.default_rng(0)
    pages = rng.permutation(PAGES).astype(np.int32)
    lines: list[Line] = [
        (
            "one large copy, device to host / host to device, GB/s",
            f"{size / down / 1e9:.1f} / {size / up / 1e9:.1f}",
            None,
        )
    ]
    numbers = iter(range(1 << 30))
    streams = [copies._stores.stream, copies._loads.stream]
    for kind, slots in (
        ("side by side", np.arange(PAGES, dtype=np.int32)),
        ("scattered", rng.permutation(2 * PAGES)[:PAGES].astype(np.int32)),
    ):
        stored = seconds_of(lambda slots=slots: copies.run((StorePages(next(numbers), pages, slots),)), streams)
        loaded = seconds_of(lambda slots=slots: copies.run((LoadPages(next(numbers), slots, pages),)), streams)
        for name, seconds, floor in (("store", stored, down), ("load", loaded, up)):
            share = floor / seconds
            what = f"{name} {PAGES} pages, slots {kind}: GB/s, share of one large copy"
            lines.append((what, f"{size / seconds / 1e9:.1f}, {100 * share:.0f} %", share >= BANDWIDTH_BAR))

    def two_ways() -> None:
        slots = np.arange(PAGES, dtype=np.int32)
        half = PAGES // 2
        copies.run((StorePages(next(numbers), pages[:half], slots[:half]),))
        copies.run((LoadPages(next(numbers), slots[half:], pages[half:]),))

    lines.append(("both directions at once, GB/s", f"{size / seconds_of(two_ways, streams) / 1e9:.1f}", None))
    copies.close()
    return lines


# ---- one request whose prefix is in host memory ----

HERE, WAITS = "prefix on the device", "waits for its pages"
WHOLE, LAYERS = "step waits for all pages", "layers wait for their pages"


def first_tokens(args: argparse.Namespace, where: Path) -> list[Line]:
    """A prefix, and three of the same length that drive it from the device; the pool holds two and a half."""
    vocabulary = MODELS[args.model]["vocab_size"]
    prefix, *others = random_prompts(4, args.prefix, vocabulary, seed=0)
    sampling = {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True}
    pool = args.pool
    args.pool = args.prefix * 5 // 2
    lines: list[Line] = []
    with engine_for(args, where, True) as engine:
        loop = engine.ring.engine
        lower, copies = loop.scheduler.lower, loop.executor.copies

        def ask(prompt: list[int]) -> tuple[float, dict[str, int]]:
            while lower.busy or not loop._quiet:  # copies to host memory use the bus, too
                time.sleep(0.01)
            began = time.perf_counter()
            out = engine.generate(input_ids=prompt, sampling_params=sampling)
            return 1e3 * (time.perf_counter() - began), out["meta_info"]["cached_tokens_details"] or {}

        ways = {WAITS: (0.0, PIECES), WHOLE: (np.inf, 1), LAYERS: (np.inf, PIECES)}
        if args.device == "cpu":  # copies in one way only
            del ways[WHOLE]
        ask(prefix)
        for number, count in enumerate(args.suffixes):
            suffixes = iter(random_prompts(8 * len(ways), count, vocabulary, seed=1 + number))
            times: dict[str, list[float]] = {HERE: []}
            for way, (lower.hidden_load, copies.pieces) in ways.items():
                times[way] = []
                for turn in range(4):
                    for other in others:
                        ask(other)
                    spent, found = ask([*prefix, *next(suffixes)])
                    if found.get("host", 0) + found.get("storage", 0) < 0.9 * args.prefix:
                        raise SystemExit(f"the prefix was not in host memory: {found}")
                    again, _ = ask([*prefix, *next(suffixes)])
                    if turn:  # the first may compile
                        times[way].append(spent)
                        times[HERE].append(again)
            medians = {way: float(np.median(spent)) for way, spent in times.items()}
            told = ", ".join(f"{way} {value:.1f}" for way, value in medians.items())
            what = f"{args.prefix} tokens in host memory, {count} more: ms to the first token"
            lines.append((what, told, None))
            if args.device == "cpu":
                continue
            copy, saved = medians[WHOLE] - medians[HERE], medians[WHOLE] - medians[LAYERS]
            passed = saved >= HIDDEN_BAR * min(copy, medians[HERE])
            lines.append(("… copy, ms, and share of it hidden", f"{copy:.1f}, {100 * saved / copy:.0f} %", passed))
    args.pool = pool
    return lines


# ---- conversations ----


class Chat:
    """Conversations that all take a turn before the next one begins."""

    def __init__(self, args: argparse.Namespace, vocabulary: int) -> None:
        self.args = args
        self.texts = random_prompts(args.conversations, args.first, vocabulary, seed=0)
        self.turns = [
            random_prompts(args.conversations, args.turn, vocabulary, seed=1 + number)
            for number in range(args.turns)
        ]
        self.cached = {"device": 0, "host": 0, "storage": 0}
        self.prompt_tokens = 0

    def round(self, engine: Engine, number: int) -> float:
        """→ seconds of turn `number`"""
        prompts = (
            self.texts if number == 0 else [t + m for t, m in zip(self.texts, self.turns[number], strict=True)]
        )
        sampling = {"temperature": 0, "max_new_tokens": self.args.new, "ignore_eos": True}
        began = time.perf_counter()
        outs = engine.generate(input_ids=prompts, sampling_params=sampling)
        seconds = time.perf_counter() - began
        if number:
            self.prompt_tokens += sum(map(len, prompts))
            for out in outs:
                for tier in self.cached:
                    self.cached[tier] += (out["meta_info"]["cached_tokens_details"] or {}).get(tier, 0)
        self.texts = [prompt + out["output_ids"] for prompt, out in zip(prompts, outs, strict=True)]
        return seconds


def engine_for(args: argparse.Namespace, where: Path, tier: bool) -> Engine:
    options: dict[str, Any] = {"max_total_tokens": args.pool, "max_running_requests": args.running}
    if tier and args.device == "cpu":
        options |= {"cache_dir": str(where / "pages")}
    elif tier:
        options |= {"enable_hierarchical_cache": True, "hicache_size": args.host_gb}
    return Engine(
        folder_of(args.model, where),
        load_format="dummy",
        skip_tokenizer_init=True,
        inline=True,
        device=args.device,
        **options,
    )


def conversations(args: argparse.Namespace, where: Path, sections: list[str]) -> list[Line]:
    vocabulary = MODELS[args.model]["vocab_size"]
    working_set = args.conversations * (args.first + args.turns * (args.turn + args.new))
    lines: list[Line] = [("working set ÷ device pool, tokens", f"{working_set} ÷ {args.pool}", None)]
    spent: dict[bool, list[float]] = {}
    made: dict[bool, list[list[int]]] = {}
    for tier in (False, True) if "chat" in sections else (True,):
        chat = Chat(args, vocabulary)
        with engine_for(args, where, tier) as engine:
            turns = args.turns if "chat" in sections else 2
            spent[tier] = [chat.round(engine, number) for number in range(turns - 1)]
            traced = tier and "trace" in sections and args.device != "cpu"
            with profiler() if traced else nullcontext() as profile:
                last = chat.round(engine, turns - 1)
            if traced:
                lines += overlap(profile, args.trace)
            else:
                spent[tier].append(last)
        made[tier] = chat.texts
        share = {name: 100 * count / max(1, chat.prompt_tokens) for name, count in chat.cached.items()}
        what = "with the lower tier" if tier else "device alone"
        told = ", ".join(f"{value:.1f} % {name}" for name, value in share.items())
        lines.append((f"{what}: prompt tokens cached from turn 2 on", told, None))
        lines.append((f"{what}: seconds a turn", ", ".join(f"{seconds:.2f}" for seconds in spent[tier]), None))
    if "chat" in sections:
        later = min(map(len, spent.values()))
        ratio = sum(spent[False][1:later]) / sum(spent[True][1:later])
        passed = None if args.device == "cpu" else ratio >= CHAT_BAR
        lines.append(("throughput from turn 2 on ÷ that of the device alone", f"{ratio:.2f}", passed))
        pairs = list(zip(made[False], made[True], strict=True))
        lines.append(
            ("conversations with the same text", f"{sum(a == b for a, b in pairs)} of {len(pairs)}", None)
        )
    return lines


# ---- what runs beside what ----


def profiler() -> Any:
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])


def overlap(profile: Any, path: str) -> list[Line]:
    """The share of the time of large copies in which a kernel of another stream runs."""
    profile.export_chrome_trace(path)
    events = [event for event in json.loads(Path(path).read_text())["traceEvents"] if event.get("ph") == "X"]
    copies = [e for e in events if e.get("cat") == "gpu_memcpy" and e["args"].get("bytes", 0) >= 1 << 20]
    streams = {event["args"]["stream"] for event in copies}
    kernels = [e for e in events if e.get("cat") == "kernel" and e["args"]["stream"] not in streams]
    busy = merged([(e["ts"], e["ts"] + e["dur"]) for e in kernels])
    copied = merged([(e["ts"], e["ts"] + e["dur"]) for e in copies])
    total = sum(end - begin for begin, end in copied)
    shared = in_both(copied, busy)
    share = shared / total if total else 0.0
    return [
        (
            f"large copies in the trace ({path}): seconds, share beside kernels",
            f"{total / 1e6:.3f}, {100 * share:.0f} %",
            share >= OVERLAP_BAR,
        )
    ]


def merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    out: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((begin, end))
    return out


def in_both(a: list[tuple[float, float]], b: list[tuple[float, float]]) -> float:
    """Time that is in a span of each of two merged lists."""
    total, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        total += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--model", choices=tuple(MODELS), default="llama")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--pool", type=int, help="tokens of the device's KV pool")
    parser.add_argument("--conversations", type=int)
    parser.add_argument("--first", type=int, help="tokens of a conversation's first turn")
    parser.add_argument("--turn", type=int, help="tokens of each later one")
    parser.add_argument("--new", type=int, help="tokens of an answer")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--running", type=int, help="requests that run at once")
    parser.add_argument("--host-gb", type=float, default=32.0)
    parser.add_argument("--prefix", type=int, help="tokens in host memory, for `ttft`")
    parser.add_argument("--suffixes", type=int, nargs="+", help="tokens that follow them")
    parser.add_argument("--trace", default="tiers-trace.json")
    parser.add_argument("--out", help="file that the table is appended to")
    args = parser.parse_args()
    small = {"pool": 1024, "conversations": 12, "first": 200, "turn": 12, "new": 8, "running": 4}
    small |= {"prefix": 320, "suffixes": [8, 64]}
    large = {"pool": 65536, "conversations": 96, "first": 1700, "turn": 80, "new": 32, "running": 24}
    large |= {"prefix": 8192, "suffixes": [64, 512, 2048]}
    for name, value in (small if args.device == "cpu" else large).items():
        setattr(args, name, getattr(args, name) or value)
    lines: list[Line] = []
    if "bandwidth" in args.sections:
        lines += bandwidth()
    if "ttft" in args.sections:
        with tempfile.TemporaryDirectory() as where:
            lines += first_tokens(args, Path(where))
    if {"chat", "trace"} & set(args.sections):
        with tempfile.TemporaryDirectory() as where:
            lines += conversations(args, Path(where), args.sections)
    table = environment("gpu_tiers")
    if args.device != "cpu":
        table += f"{torch.cuda.get_device_name()}\n"
    table += "\n| measured | value | bar |\n|---|---|---|\n"
    words = {True: "pass", False: "FAIL", None: ""}
    table += "".join(f"| {what} | {value} | {words[passed]} |\n" for what, value, passed in lines)
    print(table)
    if args.out:
        with open(args.out, "a") as file:
            file.write(table + "\n")
    raise SystemExit(int(any(passed is False for _, _, passed in lines)))


if __name__ == "__main__":
    main()
