"""A server that is stopped and started again: what the same requests find on disk.

    python benchmarks/restart.py [--model default] [--prompts 12] [--tokens 1200] [--backend file|redis --url URL]

Three servers, one after the other, get the same prompts, one at a time: documents of so many tokens with a
question. The first has an empty folder, the second what the first left behind, the third finds a tenth of the
files damaged (a flipped bit or a cut). Prints the share of the prompt tokens that came out of storage and the
times to the first token; exits with 1 if a text differs or the second server finds less than 90 %. No prompt
shares anything with another one, so nothing comes from the device's memory.
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

import httpx
from common import ServerProcess, environment

BAR = 0.9
WORDS = ("river", "stone", "garden", "letter", "window", "morning", "engine", "paper", "bridge", "silver")


def documents(url: str, count: int, tokens: int) -> list[str]:
    rng = random.Random(0)
    out = []
    for number in range(count):
        words = [f"Document {number}:"]
        words += rng.choices(WORDS, k=tokens)
        text = " ".join(words)
        ids = httpx.post(url + "/tokenize", json={"prompt": text}).json()["tokens"]
        keep = int(len(words) * min(1.0, tokens / len(ids)))
        out.append(" ".join(words[:keep]) + f". In one sentence, document {number} is about")
    return out


def ask(url: str, prompts: list[str]) -> list[dict[str, Any]]:
    answers = []
    for prompt in prompts:
        began = time.perf_counter()
        body = {"text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 16}, "stream": True}
        first, meta, text = 0.0, {}, ""
        with httpx.stream("POST", url + "/generate", json=body, timeout=300) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: {"):
                    first = first or time.perf_counter() - began
                    piece = json.loads(line[6:])
                    text, meta = piece["text"], piece["meta_info"]
        details = meta["cached_tokens_details"] or {}
        answers.append(
            {"text": text, "prompt": meta["prompt_tokens"], "stored": details.get("storage", 0), "ttft": first}
        )
    return answers


def damage(folder: Path) -> int:
    """A flipped bit or a cut in every tenth file. → how many"""
    rng = random.Random(1)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files[::10]:
        data = bytearray(path.read_bytes())
        if rng.random() < 0.5:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        else:
            del data[rng.randrange(len(data)) :]
        path.write_bytes(data)
    return len(files[::10])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=1200)
    parser.add_argument("--backend", choices=("file", "redis"), default="file")
    parser.add_argument("--url", default="redis://127.0.0.1:6379/0")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = ["--context-length", "4096", "--hicache-storage-prefetch-policy", "wait_complete"]
        if args.backend == "file":
            flags += ["--cache-dir", name]
        else:
            extra = json.dumps({"url": args.url, "ttl": 3600})
            flags += ["--hicache-storage-backend", "redis", "--hicache-storage-backend-extra-config", extra]
        runs: dict[str, list[dict[str, Any]]] = {}
        prompts: list[str] = []
        damaged = 0
        for run in ("first", "restarted", "damaged"):
            if run == "damaged":
                if args.backend != "file":
                    break
                damaged = damage(folder)
            with ServerProcess(args.model, *flags) as server:
                prompts = prompts or documents(server.url, args.prompts, args.tokens)
                runs[run] = ask(server.url, prompts)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(environment("restart"))
    print("| server | prompt tokens | of these from storage | time to first token, median | texts |")
    print("|---|---|---|---|---|")
    reference = [answer["text"] for answer in runs["first"]]
    shares, same = {}, True
    for run, answers in runs.items():
        total = sum(answer["prompt"] for answer in answers)
        shares[run] = sum(answer["stored"] for answer in answers) / total
        equal = [answer["text"] for answer in answers] == reference
        same &= equal
        ttft = statistics.median(answer["ttft"] for answer in answers)
        print(
            f"| {run} | {total} | {100 * shares[run]:.1f} % | {1000 * ttft:.0f} ms "
            f"| {'identical' if equal else 'DIFFERENT'} |"
        )
    if args.backend == "file":
        print(f"\n{size / 1e6:.0f} MB of files, {damaged} of the files damaged before the third run.")
    passed = same and shares["restarted"] >= BAR
    print(f"{'pass' if passed else 'FAIL'}: at least {100 * BAR:.0f} % from storage, and the same texts")
    raise SystemExit(0 if passed else 1)


if __name__ == "__main__":
    main()
