"""A server under load over HTTP, beside other engines' figures on the same card.

    python benchmarks/http_load.py [--device cuda] [--model llama] [--paths generate completions] [--out FILE]

Starts the server as its user would, with random weights of the Llama-3.1-8B shape and a tokenizer of as many words
as the shape has token ids, and sends all requests at once, streaming, to the native and to the OpenAI endpoint.
Prompts are random token ids. Options that are not known here go to the server (`--page-size 128`).

The clients are processes of their own (`--clients`) that only look for events in what the sockets bring and note
the time; their processor time is in the table, so that one can see whether they or the server were measured.

The peers (vLLM 0.26.0, SGLang 0.5.16) were measured on one H200 with 256 × 1,024 in / 256 out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from common import ServerProcess, environment
from processes import cpu_seconds, family

from radixlang.bench.report import shown

ENDPOINTS = {"generate": "/generate", "completions": "/v1/completions"}
#: row → vLLM, SGLang, bar: at least (positive) or at most (negative)
PEERS: dict[str, tuple[float | None, float | None, float | None]] = {
    "output tok/s": (5948, 6116, 6400),
    "gap between tokens p50, ms": (18.5, 16.9, None),
    "gap between tokens p99, ms": (351, 28, -30),
    "time to first token p50, s": (None, None, -3.2),
}
BUSY = 0.8
"""share of a core from which a client may have been what was measured"""
TIMEOUT = 900.0


@dataclass
class Outcome:
    """One request; times in seconds of the clock that all processes of a machine share."""

    sent: float
    arrivals: list[float] = field(default_factory=list)
    tokens: int = 0
    ended: float = 0.0
    error: str | None = None


class Reader(asyncio.Protocol):
    """Sends one request and notes when events with text come. Nothing but the last one is decoded."""

    def __init__(self, request: bytes, outcome: Outcome, done: asyncio.Future[None]) -> None:
        self.request, self.outcome, self.done = request, outcome, done
        self.rest = self.head = self.last = b""
        self.complete = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(self.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self.head:
            self.head = data
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                self.complete = True
                self.transport.close()
                return
            self.last = line
            if b'"choices":[]' not in line:  # else the usage, which is no token
                self.outcome.arrivals.append(now)

    def connection_lost(self, error: Exception | None) -> None:
        out = self.outcome
        out.ended = time.perf_counter()
        if not self.head.startswith(b"HTTP/1.1 200"):
            out.error = (self.rest or self.head)[-300:].decode(errors="replace") or "no answer"
        elif not self.complete:
            out.error = f"the stream broke off: {error or 'closed'}"
        else:
            event = json.loads(self.last[6:])
            counts = event.get("meta_info") or event.get("usage") or {}
            out.tokens = counts.get("completion_tokens", 0)
            if "error" in event:
                out.error = str(event["error"])[:300]
        if not self.done.done():
            self.done.set_result(None)


async def ask(host: str, port: int, request: bytes) -> Outcome:
    outcome = Outcome(time.perf_counter())
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    try:
        await loop.create_connection(lambda: Reader(request, outcome, done), host, port)
        await asyncio.wait_for(done, TIMEOUT)
    except (OSError, TimeoutError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
    return outcome


async def ask_all(host: str, port: int, requests: list[bytes]) -> list[Outcome]:
    return list(await asyncio.gather(*(ask(host, port, request) for request in requests)))


def client(host: str, port: int, requests: list[bytes], barrier: Any, result: Connection) -> None:
    """A client process: waits for the others, sends all at once, hands back outcomes and its share of a core."""
    barrier.wait()
    began, used = time.perf_counter(), time.process_time()
    outcomes = asyncio.run(ask_all(host, port, requests))
    share = (time.process_time() - used) / (time.perf_counter() - began)
    result.send((outcomes, share))


def encoded(path: str, ids: list[int], new: int, host: str) -> bytes:
    """The bytes of one request."""
    sampling = {"temperature": 0, "ignore_eos": True}
    if path == "generate":
        body = {"input_ids": ids, "sampling_params": sampling | {"max_new_tokens": new}}
    else:
        usage = {"stream_options": {"include_usage": True}}
        body = {"model": "load", "prompt": ids, "max_tokens": new} | usage | sampling
    data = json.dumps(body | {"stream": True}).encode()
    head = [
        f"POST {ENDPOINTS[path]} HTTP/1.1",
        f"Host: {host}",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
    ]
    return "\r\n".join([*head, "", ""]).encode() + data


def load(server: ServerProcess, path: str, args: argparse.Namespace, vocabulary: int) -> dict[str, Any]:
    """All requests at once → what the clients saw, and who worked how much."""
    url = urlsplit(server.url)
    host, port = str(url.hostname), int(url.port or 80)
    rng = random.Random(path)  # other prompts on each path: the cache must not help

    def requests(count: int, new: int) -> list[bytes]:
        prompts = [[rng.randrange(100, vocabulary - 100) for _ in range(args.input_len)] for _ in range(count)]
        return [encoded(path, ids, new, f"{host}:{port}") for ids in prompts]

    warm = asyncio.run(ask_all(host, port, requests(args.warmup, 8)))
    if broken := [outcome.error for outcome in warm if outcome.error]:
        raise SystemExit(f"the server refuses the warm-up: {broken[0]}")
    asked = requests(args.requests, args.output_len)
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(args.clients + 1)
    ends, processes = [], []
    for i in range(args.clients):
        mine, theirs = context.Pipe(duplex=False)
        part = asked[i :: args.clients]
        process = context.Process(target=client, args=(host, port, part, barrier, theirs))
        process.start()
        ends.append(mine)
        processes.append(process)
    barrier.wait(120)
    members = family(server.process.pid)
    used = {pid: cpu_seconds(pid) for pid in members}
    began = time.perf_counter()
    parts = [end.recv() for end in ends]
    wall = time.perf_counter() - began
    work = {members[pid]: (cpu_seconds(pid) - before) / wall for pid, before in used.items()}
    for process in processes:
        process.join(10)
    outcomes = [outcome for part, _ in parts for outcome in part]
    return {"outcomes": outcomes, "clients": [share for _, share in parts], "server": work}


def figures(seen: dict[str, Any], args: argparse.Namespace) -> dict[str, float]:
    """Row → value of one path."""
    outcomes: list[Outcome] = seen["outcomes"]
    for outcome in outcomes:
        if outcome.error is None and outcome.tokens != args.output_len:
            outcome.error = f"{outcome.tokens} of {args.output_len} tokens came"
    good = [outcome for outcome in outcomes if outcome.error is None]
    for text, count in Counter(o.error for o in outcomes if o.error).most_common(3):
        print(f"{count} × {text}", file=sys.stderr)
    out: dict[str, float] = {"answered in full": len(good)}
    if not good:
        return out
    first = [o.arrivals[0] - o.sent for o in good]
    gaps = [1000 * (b - a) for o in good for a, b in pairwise(o.arrivals)]
    seconds = max(o.ended for o in good) - min(o.sent for o in good)
    out["seconds"] = seconds
    out["output tok/s"] = sum(o.tokens for o in good) / seconds
    for name, values, points in (
        ("time to first token p{}, s", first, (50, 99)),
        ("gap between tokens p{}, ms", gaps, (50, 99, 100)),
    ):
        for point in points:
            out[name.format(point)] = float(np.percentile(values, point)) if values else float("nan")
    out["tokens a chunk"] = sum(o.tokens for o in good) / sum(len(o.arrivals) for o in good)
    out["busiest client, share of a core"] = max(seen["clients"])
    return out | {f"{name}, share of a core": share for name, share in seen["server"].items()}


def word_tokenizer(folder: Path, vocabulary: int) -> None:
    """A tokenizer that has a word for each id of the model, so that every token has text as in a real server."""
    words = {f"Ġw{i}": i for i in range(vocabulary)}
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "unk_token": None, "vocab": words, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(data))


def flags_of(args: argparse.Namespace, where: Path) -> tuple[str, int, list[str]]:
    """(model path, its vocabulary, server flags)."""
    flags = ["--device", args.device, "--max-running-requests", str(args.requests), "--served-model-name", "load"]
    flags.append("--incremental-streaming-output")
    from gpu_models import MODELS, folder_of

    if args.model not in MODELS:
        return args.model, 10_000, flags
    folder = folder_of(args.model, where)
    vocabulary = MODELS[args.model]["vocab_size"]
    word_tokenizer(Path(folder), vocabulary)
    return folder, vocabulary, [*flags, "--load-format", "dummy", "--context-length", "16384"]


def table(results: dict[str, dict[str, float]], args: argparse.Namespace) -> tuple[str, bool]:
    """(markdown, whether every bar is kept). Peers and bars of speed hold for the load they were measured with."""
    like = (args.device, args.model, args.requests, args.input_len, args.output_len)
    comparable = like == ("cuda", "llama", 256, 1024, 256)
    bars = dict(PEERS) if comparable else {}
    bars["answered in full"] = (None, None, args.requests)
    bars["busiest client, share of a core"] = (None, None, -BUSY)
    lines = [f"| what | {' | '.join(ENDPOINTS[path] for path in results)} | vLLM | SGLang | bar | |"]
    lines.append("|---" * (len(results) + 5) + "|")
    kept = True
    for name in next(iter(results.values())):
        values = [result.get(name, float("nan")) for result in results.values()]
        vllm, sglang, bar = bars.get(name, (None, None, None))
        verdict = text = ""
        if bar is not None:
            good = all(value >= bar if bar > 0 else value <= -bar for value in values)
            kept &= good
            verdict, text = "pass" if good else "FAIL", f"{'≥' if bar > 0 else '≤'} {shown(abs(bar))}"
        cells = [name, *map(shown, values), shown(vllm), shown(sglang), text, verdict]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines), kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="llama", help="a shape of gpu.py, or as --model-path")
    parser.add_argument("--paths", nargs="+", choices=list(ENDPOINTS), default=list(ENDPOINTS))
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--input-len", type=int, default=1024)
    parser.add_argument("--output-len", type=int, default=256)
    parser.add_argument("--clients", type=int, default=2, help="client processes")
    parser.add_argument("--warmup", type=int, default=8, help="requests before the load, all at once")
    parser.add_argument("--out", type=Path, help="append the table to this file")
    args, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as where:
        model, vocabulary, flags = flags_of(args, Path(where))
        with ServerProcess(model, *flags, *more) as server:
            print(f"[ready in {server.ready_seconds:.1f} s]", file=sys.stderr, flush=True)
            results = {path: figures(load(server, path, args, vocabulary), args) for path in args.paths}
    body, kept = table(results, args)
    text = (
        f"{environment('http_load')}\n{args.model} on {args.device}: {args.requests} at once, "
        f"{args.input_len:,} in / {args.output_len} out, {args.clients} client processes\n\n{body}"
    )
    print(text)
    if args.out:
        with args.out.open("a") as file:
            file.write(f"\n## Over HTTP\n{text}\n")
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
