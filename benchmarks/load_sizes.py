"""From how many tokens on is it worth to fetch a prefix from a lower tier, when computing it is the alternative?

    python benchmarks/load_sizes.py [--device cuda] [--model llama] [--page-size 16] [--out FILE]

Prompts share 256 tokens, which the device has. Behind these a prompt goes on for some pages that lie below: in
host memory on a GPU; on a CPU in the memory that pages pass through to the folder beneath. Half of the prompts of
each size fetch them (whatever `SchedulerLimits.least_load` says), half compute them; the table says how long the
first token took, median and slowest, on an idle engine and beside rows that decode. A fetch costs its request a
step.

Random weights (or a real model, by `--model default`), random prompts, each asked once.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from common import environment
from gpu_models import MODELS, folder_of

from radixlang.llm import Engine
from radixlang.scheduler.lower_tiers import HostAndStorage

PAGES = (1, 2, 4, 8, 16, 32)
STEM, TAIL = 256, 4
EVERYTHING, NOTHING = 1, 1 << 30
"""what `HostAndStorage.least` is set to, in pages"""


class Prompts:
    """Distinct continuations of one stem."""

    def __init__(self, vocabulary: int) -> None:
        self.rng = random.Random(0)
        self.vocabulary = vocabulary
        self.stem = self.draw(STEM)

    def draw(self, count: int) -> list[int]:
        return [self.rng.randrange(10, self.vocabulary) for _ in range(count)]


def first_token(engine: Engine, ids: list[int]) -> tuple[float, int]:
    """(seconds, tokens that came from below the device)"""
    began = time.perf_counter()
    out = engine.generate(
        input_ids=ids, sampling_params={"temperature": 0, "max_new_tokens": 1, "ignore_eos": True}
    )
    details = out["meta_info"]["cached_tokens_details"] or {}
    return time.perf_counter() - began, details.get("host", 0) + details.get("storage", 0)


def forget(engine: Engine) -> None:
    """Empty the device's tree and nothing below it, in the engine's own thread, when it has nothing to do."""
    loop = engine.ring.engine  # type: ignore[union-attr]

    def work() -> bool:
        if not loop._quiet:
            return False
        loop.scheduler.pages.flush()
        return True

    loop._controls["forget"] = work
    while not engine._call(engine.hub.control("forget")):
        time.sleep(0.01)


def measure(engine: Engine, prompts: Prompts, beside: int, times: int) -> list[str]:
    """The table's lines, with so many rows that decode meanwhile."""
    page = engine.hub.info["page_size"]
    lower = engine.ring.engine.scheduler.lower  # type: ignore[union-attr]
    assert isinstance(lower, HostAndStorage)
    asked = {
        (pages, least): [prompts.stem + prompts.draw(pages * page + TAIL) for _ in range(times)]
        for pages in PAGES
        for least in (EVERYTHING, NOTHING)
    }
    for group in asked.values():
        for ids in group:
            first_token(engine, ids)
    forget(engine)
    first_token(engine, prompts.stem + prompts.draw(1))
    work = threading.Thread(target=decode, args=(engine, prompts, beside))
    work.start()
    time.sleep(0.5)
    spent: dict[tuple[int, int], list[float]] = {key: [] for key in asked}
    for turn in range(times):  # by turns, so that a machine that slows down does so for all
        for (pages, least), group in asked.items():
            lower.least = least
            seconds, fetched = first_token(engine, group[turn])
            assert fetched == (pages * page if least == EVERYTHING else 0), (pages, least, fetched)
            spent[pages, least].append(seconds)
    while work.is_alive():
        engine.abort_request(abort_all=True)
        work.join(0.1)

    def told(values: list[float]) -> str:
        return f"{1e3 * statistics.median(values):.1f} ({1e3 * max(values):.0f})"

    return [
        f"| {beside} | {pages * page} | {told(spent[pages, EVERYTHING])} | {told(spent[pages, NOTHING])} |"
        for pages in PAGES
    ]


def decode(engine: Engine, prompts: Prompts, rows: int) -> None:
    """Until all are aborted."""
    if rows:
        params = {"temperature": 0, "max_new_tokens": 1500, "ignore_eos": True}
        engine.generate(input_ids=[prompts.draw(32) for _ in range(rows)], sampling_params=params)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="llama", help=f"{', '.join(MODELS)}, or as --model-path")
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--beside", type=int, nargs="*", default=[0, 32], help="rows that decode meanwhile")
    parser.add_argument("--times", type=int, default=8, help="prompts of each kind")
    parser.add_argument("--out", help="file that the table is appended to")
    args = parser.parse_args()
    lines = ["| rows beside | tokens below | fetched: ms to the first token | computed |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"model_path": args.model}
        if args.model in MODELS:
            options = {"model_path": folder_of(args.model, Path(folder)), "load_format": "dummy"}
        options |= {"device": args.device, "page_size": args.page_size, "max_total_tokens": 98304}
        if args.device == "cpu":
            options |= {"cache_dir": f"{folder}/pages", "num_threads": 1}
        else:
            options |= {"enable_hierarchical_cache": True}
        with Engine(inline=True, skip_tokenizer_init=True, **options) as engine:
            prompts = Prompts(int(engine.hub.info["vocab_size"]))
            for beside in args.beside:
                lines += measure(engine, prompts, beside, args.times)
    table = "\n".join([environment("load_sizes"), "", *lines])
    print(table)
    if args.out:
        with open(args.out, "a") as file:
            file.write(f"\n{table}\n")


if __name__ == "__main__":
    main()
