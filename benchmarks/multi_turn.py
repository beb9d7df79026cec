"""A multi-turn conversation with a long system prompt, with the radix cache and without it.

    python benchmarks/multi_turn.py [--turns 20] [--system-tokens 1000]

Starts two servers one after the other, talks to each through the OpenAI client's endpoint (streamed), and prints
per turn the prompt tokens, those served from the cache, and the time to the first token. The texts must be equal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import httpx
from common import ServerProcess, environment

SENTENCE = "You are a careful assistant who answers in one short sentence. "


def conversation(url: str, turns: int, system: str) -> list[dict[str, float | str]]:
    messages = [{"role": "system", "content": system}]
    rows: list[dict[str, float | str]] = []
    for turn in range(turns):
        messages.append(
            {"role": "user", "content": f"Question {turn + 1}: what comes after the number {turn * 3}?"}
        )
        body = {
            "model": "default",
            "messages": messages,
            "temperature": 0,
            "max_tokens": 24,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        text, first, usage = "", 0.0, {}
        began = time.perf_counter()
        with httpx.stream("POST", url + "/v1/chat/completions", json=body, timeout=300) as stream:
            for line in stream.iter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line[6:])
                usage = chunk.get("usage") or usage
                piece = chunk["choices"][0]["delta"].get("content") if chunk["choices"] else None
                if piece:
                    first = first or time.perf_counter() - began
                    text += piece
        messages.append({"role": "assistant", "content": text})
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        rows.append({"prompt": usage["prompt_tokens"], "cached": cached, "ttft": first, "text": text})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--system-tokens", type=int, default=1000)
    parser.add_argument("--model", default="default")
    args = parser.parse_args()
    results = {}
    for name, flags in (("cache", []), ("no cache", ["--disable-radix-cache"])):
        with ServerProcess(args.model, "--context-length", "8192", *flags) as server:
            count = len(httpx.post(server.url + "/tokenize", json={"prompt": SENTENCE * 10}).json()["tokens"])
            system = SENTENCE * max(1, round(args.system_tokens * 10 / count))
            results[name] = conversation(server.url, args.turns, system)
    on, off = results["cache"], results["no cache"]
    print(environment("multi_turn"))
    print("| turn | prompt tokens | cached | TTFT ms with cache | TTFT ms without | ratio |")
    print("|---|---|---|---|---|---|")
    for turn, (a, b) in enumerate(zip(on, off, strict=True), 1):
        ratio = float(b["ttft"]) / float(a["ttft"])
        print(
            f"| {turn} | {a['prompt']} | {a['cached']} | {1000 * float(a['ttft']):.0f} "
            f"| {1000 * float(b['ttft']):.0f} | {ratio:.1f} |"
        )
    share = sum(int(row["cached"]) for row in on) / sum(int(row["prompt"]) for row in on)
    later = [float(b["ttft"]) / float(a["ttft"]) for a, b in zip(on[1:], off[1:], strict=True)]
    print(f"\nprompt tokens from the cache: {100 * share:.1f} % (from turn 2 on: ", end="")
    print(f"{100 * sum(int(r['cached']) for r in on[1:]) / sum(int(r['prompt']) for r in on[1:]):.1f} %)")
    print(f"TTFT ratio from turn 2 on: smallest {min(later):.1f}, median {statistics.median(later):.1f}")
    print(f"texts identical: {[r['text'] for r in on] == [r['text'] for r in off]}")


if __name__ == "__main__":
    main()
