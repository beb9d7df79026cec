"""Hostile constraints: what each costs, and whether an ordinary request beside them keeps its speed.

    python benchmarks/hostile.py [--sections cost server] [--model default] [--seconds 20] [--out FILE]

`cost`: every constraint of hostile_grammars.py in this process: refused with a sentence, or compiled; then a
random walk over its masks. CPU seconds of compilation (limit 2), growth of the resident set (limit 256 MiB; it
holds what the libraries keep), the longest step of the walk. `server`: a server in a process of its own, one
unconstrained request after another; in turns alone, beside clients with short harmless requests and beside clients
that send hostile constraints in a loop, a new one each time so that no cache helps: its tokens a second, and
whether every hostile answer was a text or a 400. Exits with 1 when a limit is passed, the server dies, or an
answer is neither.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from common import ServerProcess, environment
from hostile_grammars import hostile

from radixlang.grammar.errors import GrammarError, GrammarFailure
from radixlang.grammar.manager import GrammarManager
from radixlang.grammar.vocabulary import Vocabulary
from radixlang.hub_files import resolve_model_path
from radixlang.messages import GrammarSpec
from radixlang.text.tokenizer import load_tokenizer

CPU_LIMIT, MEMORY_LIMIT, STEP_LIMIT = 2.0, 256.0, 0.25
"""CPU seconds of a compilation, MiB, CPU seconds of one step"""
STEPS = 60


def resident() -> float:
    """MiB of this process."""
    match = re.search(r"VmRSS:\s*(\d+)", Path("/proc/self/status").read_text())
    return int(match[1]) / 1024 if match else 0.0


def walked(grammar: Any, words: int, seed: int) -> tuple[list[float], str]:
    """(CPU seconds of each step of a random text, how it ended)."""
    state, row, times = grammar.start(), np.zeros(words, np.int32), []
    rng = random.Random(seed)
    try:
        for _ in range(STEPS):
            began = time.process_time()
            state.fill(row)
            took = time.process_time() - began
            token = int(rng.choice(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))))
            began = time.process_time()
            if not state.accept(token):
                state.backtrack()
            times.append(took + time.process_time() - began)
            if state.finished:
                return times, "complete"
    except GrammarFailure as error:
        return times, f"ends: {error}"
    return times, "goes on"


def costs(vocabulary: Vocabulary) -> tuple[list[str], bool]:
    """(rows of the table, whether all limits are kept)."""
    manager = GrammarManager(lambda: vocabulary, workers=1)
    for spec in (
        GrammarSpec("regex", r"\w+"),
        GrammarSpec("json_schema", "{}"),
        GrammarSpec("ebnf", 'root ::= "a"'),
    ):
        walked(manager.get(spec).result(), vocabulary.words, 0)  # tables that are made once
    rows, kept = (
        [
            "| constraint | kind | outcome | compile CPU ms | MiB | longest step ms |",
            "|---|---|---|---:|---:|---:|",
        ],
        True,
    )
    for name, (kind, text) in hostile().items():
        memory, began, steps = resident(), time.process_time(), [0.0]
        try:
            grammar = manager.get(GrammarSpec(kind, text)).result()
        except GrammarError as error:
            outcome = f"400: {str(error).replace('|', ' ')[:110]}"
        else:
            outcome = "compiled"
        took = time.process_time() - began
        if outcome == "compiled":
            steps, ending = walked(grammar, vocabulary.words, 1)
            outcome += f", text {ending[:90]}"
        grown, longest = resident() - memory, max(steps, default=0.0)
        good = took <= CPU_LIMIT and grown <= MEMORY_LIMIT and longest <= STEP_LIMIT
        kept &= good
        rows.append(
            f"| {name.replace('|', '¦')} | {kind} | {outcome}{'' if good else ' **FAIL**'} "
            f"| {1e3 * took:.0f} | {grown:.0f} | {1e3 * longest:.1f} |"
        )
    manager.close()
    return rows, kept


def post(url: str, text: str, sampling: dict[str, Any], timeout: float = 120) -> tuple[int, dict[str, Any]]:
    body = json.dumps({"text": text, "sampling_params": sampling}).encode()
    request = urllib.request.Request(f"{url}/generate", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"{}")


def fresh(kind: str, text: str, number: int) -> str:
    """The same constraint in other words, so that no cache knows it."""
    if kind in ("json_schema", "structural_tag"):
        return text + " " * (1 + number % 1000) + "\n" * (number // 1000)
    return f"{text}\n# {number}" if kind == "ebnf" else f"{text}|zz{number}"


def attack(url: str, stop: threading.Event, seen: Counter[str], first: int, clients: int) -> None:
    """One client: hostile constraints in a loop until `stop`."""
    cases = [(name, *case) for name, case in hostile().items() if case[0] != "choice" and len(case[1]) < 1 << 20]
    number = first
    while not stop.is_set():
        name, kind, text = cases[number % len(cases)]
        sampling = {kind: fresh(kind, text, number), "max_new_tokens": 8, "temperature": 1.0}
        try:
            status, answer = post(url, "Go on:", sampling)
        except (OSError, ValueError) as error:
            if not stop.is_set():
                seen[f"broken: {type(error).__name__} at {name}"] += 1
        else:
            if status == 200 and answer["meta_info"]["finish_reason"]["type"] in ("stop", "length"):
                seen["text"] += 1
            elif status == 400 and answer.get("error"):
                seen["400"] += 1
            else:
                seen[f"broken: {status} {str(answer)[:200]} at {name}"] += 1
        number += clients


def harmless(url: str, stop: threading.Event, first: int, clients: int) -> None:
    """One client: requests as short as the hostile ones, without constraints."""
    while not stop.is_set():
        post(url, f"Go on {first}:", {"max_new_tokens": 8, "temperature": 1.0, "ignore_eos": True})
        first += clients


def beside(model: str, args: argparse.Namespace) -> tuple[list[str], bool]:
    """(rows of the table, whether nothing broke)."""
    seen: Counter[str] = Counter()
    speeds: dict[str, list[float]] = {"alone": [], "harmless": [], "hostile": []}
    flags = ["--device", args.device, "--max-running-requests", "16", "--context-length", "2048"]
    with ServerProcess(model, *flags) as server:
        plain = {"max_new_tokens": args.tokens, "temperature": 0, "ignore_eos": True}
        for kind, text in (("regex", "[a-z ]{8}"), ("json_schema", "{}")):
            post(server.url, "Once upon a time", plain | {kind: text, "max_new_tokens": 8})
        post(server.url, "Once upon a time", plain)
        for turn in range(args.turns):
            for company, found in speeds.items():
                stop, threads = threading.Event(), []
                for i in range(args.clients if company != "alone" else 0):
                    first = args.clients * 50 * turn + i
                    if company == "hostile":
                        work = threading.Thread(target=attack, args=(server.url, stop, seen, first, args.clients))
                    else:
                        work = threading.Thread(target=harmless, args=(server.url, stop, first, args.clients))
                    threads.append(work)
                    work.start()
                number, end = 0, time.perf_counter() + args.seconds
                while time.perf_counter() < end:
                    began = time.perf_counter()
                    _, answer = post(server.url, f"Story {turn} {company} {number}: once upon a time", plain)
                    found.append(answer["meta_info"]["completion_tokens"] / (time.perf_counter() - began))
                    number += 1
                stop.set()
                for thread in threads:
                    thread.join()
        alive = (
            server.process.poll() is None and post(server.url, "Still", plain | {"max_new_tokens": 2})[0] == 200
        )
    alone, friends, foes = (statistics.median(found) for found in speeds.values())
    broken = {text: count for text, count in seen.items() if text.startswith("broken")}
    rows = [
        f"| an unconstrained request of {args.tokens} tokens | alone | beside {args.clients} harmless clients "
        f"| beside {args.clients} hostile clients | hostile ÷ harmless |",
        "|---|---:|---:|---:|---:|",
        f"| tokens/s, median | {alone:.1f} | {friends:.1f} | {foes:.1f} | {foes / friends:.2f} |",
        f"| slowest | {' | '.join(f'{min(found):.1f}' for found in speeds.values())} | |",
        f"| requests | {' | '.join(str(len(found)) for found in speeds.values())} | |",
        f"| hostile answers: texts / 400s / broken | | "
        f"| {seen['text']} / {seen['400']} / {sum(broken.values())} | |",
        f"| server alive at the end | | | {'yes' if alive else 'NO'} | |",
    ]
    rows += [f"\n{count} × {text}" for text, count in broken.items()]
    return rows, alive and not broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", nargs="+", choices=["cost", "server"], default=["cost", "server"])
    parser.add_argument("--model", default="default")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, default=2, help="hostile clients")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10, help="of a turn, each way")
    parser.add_argument("--tokens", type=int, default=32, help="of an ordinary request")
    parser.add_argument("--out", type=Path, help="append the tables to this file")
    args = parser.parse_args()
    model = str(resolve_model_path(args.model))
    parts, kept = [environment("hostile")], True
    if "cost" in args.sections:
        rows, good = costs(Vocabulary.of(load_tokenizer(model)))
        parts.append("\n".join(rows))
        kept &= good
    if "server" in args.sections:
        rows, good = beside(model, args)
        parts.append("\n".join(rows))
        kept &= good
    text = "\n\n".join(parts)
    print(text)
    if args.out:
        with args.out.open("a") as file:
            file.write(f"\n## Hostile constraints\n{text}\n")
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
