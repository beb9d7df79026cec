"""Constrained requests on a GPU: 100 at once, in turns without a constraint and with each kind; new schemas.

    python benchmarks/gpu_json.py [--device cuda] [--model llama] [--turns 7] [--out FILE] [server flags]

The server runs as its user would start it, with random weights of the Llama-3.1-8B shape. Its tokenizer is the
packaged model's, filled up with words to the shape's vocabulary, so that texts of JSON are cut into real tokens
and masks have the real width. Random weights seldom end a text by themselves: the constraints allow texts longer
than the output, and `ignore_eos` holds every request to the same number of tokens. Each turn runs all kinds, in
another order and each with an empty cache; ratios are of tokens a second to the unconstrained run of the same
turn, medians over turns. `first`: seconds that the first request with a new schema takes longer than one with a
known schema. Requests that the device followed by itself are counted: all with `regex` and `choice` should be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from common import ServerProcess, environment
from gpu_models import folder_of
from http_load import ask_all

from radixlang.hub_files import resolve_model_path
from radixlang.text.tokenizer import load_tokenizer

BARS = {"json_schema": 0.99, "regex": 0.995, "choice": 0.995, "first": 0.15}
_ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "kind": {"enum": ["book", "film", "song"]},
        "year": {"type": "integer", "minimum": 1000, "maximum": 2999},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 3, "maxItems": 9},
        "rating": {"type": "number"},
    },
    "required": ["name", "kind", "year", "tags", "rating"],
    "additionalProperties": False,
}


def schema(name: str) -> dict[str, Any]:
    """A schema no text of which ends within the output; another `name` makes it another schema."""
    return {
        "type": "object",
        "properties": {name: {"type": "array", "items": _ITEM, "minItems": 60}},
        "required": [name],
    }


def constraint(kind: str) -> dict[str, Any]:
    if kind == "json_schema":
        return {"json_schema": json.dumps(schema("items"))}
    if kind == "regex":
        return {"regex": r"([a-z]{2,9}@[a-z]{2,9}\.(com|org|net), )*"}
    if kind == "choice":  # one after another, so that the text does not end
        return {"regex": "((positive|negative|neutral|mixed|not applicable), )*"}
    return {}


def full_tokenizer(folder: Path, size: int) -> None:
    """The packaged model's tokenizer with words for the ids beyond its own."""
    data = json.loads(load_tokenizer(str(resolve_model_path("default"))).backend.to_str())
    words = data["model"]["vocab"]
    known = len(words) + sum(token["content"] not in words for token in data["added_tokens"])
    data["model"]["vocab"] = {word: at for word, at in words.items() if at < size}
    data["model"]["merges"] = [
        pair for pair in data["model"]["merges"]
        if "".join(pair if isinstance(pair, list) else pair.split(" ")) in data["model"]["vocab"]
    ]  # fmt: skip
    data["added_tokens"] = [token for token in data["added_tokens"] if token["id"] < size]
    data["model"]["vocab"] |= {f"Ġfiller{at}": at for at in range(known, size)}
    (folder / "tokenizer.json").write_text(json.dumps(data))


def encoded(ids: list[int], new: int, sampling: dict[str, Any], host: str) -> bytes:
    params = {"temperature": 1.0, "ignore_eos": True, "max_new_tokens": new} | sampling
    data = json.dumps({"input_ids": ids, "sampling_params": params, "stream": True}).encode()
    head = ["POST /generate HTTP/1.1", f"Host: {host}", "Connection: close", "Content-Type: application/json",
            f"Content-Length: {len(data)}"]  # fmt: skip
    return "\r\n".join([*head, "", ""]).encode() + data


class Load:
    """Requests to one server."""

    def __init__(self, url: str, vocabulary: int, args: argparse.Namespace) -> None:
        split = urlsplit(url)
        self.host, self.port = str(split.hostname), int(split.port or 80)
        self.vocabulary, self.args = vocabulary, args
        self.rng = random.Random(5)

    def run(self, count: int, new: int, sampling: dict[str, Any]) -> tuple[float, int]:
        """(seconds, tokens) of `count` requests at once."""
        prompts = [
            [self.rng.randrange(100, self.vocabulary - 100) for _ in range(self.args.input_len)]
            for _ in range(count)
        ]
        requests = [encoded(ids, new, sampling, f"{self.host}:{self.port}") for ids in prompts]
        began = time.perf_counter()
        outcomes = asyncio.run(ask_all(self.host, self.port, requests))
        took = time.perf_counter() - began
        tokens = sum(outcome.tokens for outcome in outcomes)
        if broken := [outcome.error for outcome in outcomes if outcome.error]:
            raise SystemExit(f"{len(broken)} of {count} requests failed, {list(sampling)}: {broken[0]}")
        if tokens != count * new:
            raise SystemExit(f"{count} requests for {new} tokens each got {tokens}, {list(sampling)}")
        return took, tokens

    def flush(self) -> None:
        """Empty the server's cache, so that no run has to evict what others left."""
        urllib.request.urlopen(f"http://{self.host}:{self.port}/flush_cache", b"").close()

    def followed(self) -> int:
        """Requests that the device has followed so far."""
        with urllib.request.urlopen(f"http://{self.host}:{self.port}/get_server_info") as answer:
            return int(json.load(answer)["internal_states"][0]["num_grammar_device_total"])


def measure(load: Load, args: argparse.Namespace) -> tuple[dict[str, list[tuple[float, int]]], list[float], str]:
    """(kind → (seconds, tokens) of each turn, seconds that new schemas add, what the device followed)."""
    kinds = ["none", "json_schema", "regex", "choice"]
    for kind in kinds:
        load.run(args.requests, args.output_len, constraint(kind))
    time.sleep(1)  # tables are made beside what is served
    before = load.followed()
    results: dict[str, list[tuple[float, int]]] = {kind: [] for kind in kinds}
    for turn in range(args.turns):
        for at in range(len(kinds)):
            kind = kinds[(at + turn) % len(kinds)]
            load.flush()
            results[kind].append(load.run(args.requests, args.output_len, constraint(kind)))
    most = 2 * args.turns * args.requests
    followed = f"The device followed {load.followed() - before} of {most} requests by itself."
    added = []
    for turn in range(args.firsts):
        new = {"json_schema": json.dumps(schema(f"items_{turn}_{random.randrange(10**9)}"))}
        first, _ = load.run(1, 4, new)
        added.append(first - statistics.median(load.run(1, 4, new)[0] for _ in range(3)))
    return results, added, followed


def table(results: dict[str, list[tuple[float, int]]], added: list[float]) -> tuple[str, bool]:
    lines = [
        "| constraint | tok/s, median | least | most | ÷ unconstrained | bar | |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    kept = True
    for kind, runs in results.items():
        speeds = [tokens / seconds for seconds, tokens in runs]
        ratios = [speed * free[0] / free[1] for speed, free in zip(speeds, results["none"], strict=True)]
        ratio, bar = statistics.median(ratios), BARS.get(kind)
        verdict = "" if bar is None else "pass" if ratio >= bar else "FAIL"
        kept &= verdict != "FAIL"
        shown = " | ".join(f"{speed:,.0f}" for speed in (statistics.median(speeds), min(speeds), max(speeds)))
        lines.append(f"| {kind} | {shown} | {ratio:.3f} "
                     f"| {'' if bar is None else f'≥ {bar}'} | {verdict} |")  # fmt: skip
    good = statistics.median(added) <= BARS["first"]
    verdict = "pass" if good else "FAIL"
    lines.append(f"\nThe first request with a new schema takes {statistics.median(added):.3f} s longer (median "
                 f"of {len(added)}, most {max(added):.3f} s); bar ≤ {BARS['first']} s: {verdict}.")  # fmt: skip
    return "\n".join(lines), kept and good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="llama", help="a shape of gpu.py")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--firsts", type=int, default=8, help="new schemas")
    parser.add_argument("--vocabulary", type=int, help="tokens, instead of the shape's")
    parser.add_argument("--out", type=Path, help="append the table to this file")
    args, more = parser.parse_known_args()
    flags = ["--device", args.device, "--max-running-requests", str(args.requests),
             "--incremental-streaming-output", "--load-format", "dummy", "--context-length", "4096"]  # fmt: skip
    with tempfile.TemporaryDirectory() as where:
        folder = Path(folder_of(args.model, Path(where)))
        config = json.loads((folder / "config.json").read_text())
        config["vocab_size"] = vocabulary = args.vocabulary or config["vocab_size"]
        config["eos_token_id"] = 2
        (folder / "config.json").write_text(json.dumps(config))
        full_tokenizer(folder, vocabulary)
        with ServerProcess(str(folder), *flags, *more) as server:
            print(f"[ready in {server.ready_seconds:.1f} s]", file=sys.stderr, flush=True)
            results, added, followed = measure(Load(server.url, vocabulary, args), args)
    body, kept = table(results, added)
    text = (
        f"{environment('gpu_json')}\n{args.model} on {args.device}, {vocabulary:,} tokens: "
        f"{args.requests} at once, {args.input_len} in / {args.output_len} out, {args.turns} turns\n\n"
        f"{body}\n{followed}"
    )
    print(text)
    if args.out:
        with args.out.open("a") as file:
            file.write(f"\n## Constrained requests, {args.model}\n{text}\n")
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
