"""What the structure of programs saves: forks, batches and independent calls against the same work one by one.

    python benchmarks/frontend.py [--model default] [--context 1500] [--programs 64] [--only fork,batch,calls]

`fork`: 8 branches over one context, with the radix cache and on a server without it: prompt tokens really
computed, and seconds. `batch`: `run_batch` against one program after the other. `calls`: 3 independent calls in a
fork against 3 that wait for each other. Each table is made on a server in a process of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from typing import Any

from common import ServerProcess, environment

import radixlang as sgl

BRANCHES = 8
ANSWER = 8  # tokens a branch generates


@sgl.function
def forked(s, context, branches):
    s += context
    forks = s.fork(branches)
    forks += lambda i: (
        f"\nQuestion {i}: how many sheep?\nAnswer:" + sgl.gen("answer", max_tokens=ANSWER, ignore_eos=True)
    )
    forks.join()


@sgl.function
def small(s, number):
    s += f"Question: what is {number} plus {number + 1}?\nAnswer:"
    s += sgl.gen("answer", max_tokens=16, ignore_eos=True)


@sgl.function
def independent(s):
    forks = s.fork(3)
    forks += lambda i: f"A story about animal number {i}:" + sgl.gen("story", max_tokens=48, ignore_eos=True)
    forks.join()


@sgl.function
def dependent(s):
    for i in range(3):
        s += f"A story about animal number {i}:" + sgl.gen(f"story_{i}", max_tokens=48, ignore_eos=True)


def context_of(tokens: int) -> str:
    """Prose of about so many tokens that does not repeat."""
    count = max(1, tokens // 21)
    lines = [f"In the year {1500 + i} the village of Number {i} had {7 * i + 3} sheep." for i in range(count)]
    return " ".join(lines)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def run_fork(url: str, context: str, cache: bool) -> tuple[float, int, int]:
    """Seconds, prompt tokens computed, and the least possible: the shared part once and the branches' own."""
    backend = sgl.RuntimeEndpoint(url)
    if not cache:  # announcing a prefix to a server that forgets it would only be work
        backend.capabilities = dataclasses.replace(backend.capabilities, prefix_cache=False)
    small.run(1, backend=backend, temperature=0).sync()

    def work() -> Any:
        state = forked.run(context, BRANCHES, backend=backend, temperature=0)
        state.sync()
        return state

    seconds, state = timed(work)
    metas = state.get_meta_info("answer")
    shared = tokens_of(backend, context)
    announced = sum(span.kind == "prefix" for span in state.record.spans)
    computed = announced * shared + sum(meta["prompt_tokens"] - meta["cached_tokens"] for meta in metas)
    return seconds, computed, shared + sum(meta["prompt_tokens"] - shared for meta in metas)


def tokens_of(backend: Any, text: str) -> int:
    from radixlang.lang import loop

    return len(loop.call(backend.tokenize([text]))[0])


def fork(model: str, context: str, flags: list[str]) -> None:
    rows = []
    for name, more in (("radix cache", []), ("without", ["--disable-radix-cache"])):
        with ServerProcess(model, *flags, *more) as server:
            rows.append((name, *run_fork(server.url, context, not more)))
    print(f"\n### Fork of {BRANCHES}, {ANSWER} tokens each\n")
    print("| | prompt tokens computed | least possible | ratio | seconds |\n|---|---|---|---|---|")
    for name, seconds, computed, least in rows:
        print(f"| {name} | {computed} | {least} | {computed / least:.2f} | {seconds:.2f} |")
    (_, fast, few, _), (_, slow, many, _) = rows
    print(f"\n{many / few:.1f} times fewer tokens, {slow / fast:.1f} times the speed.")


def batch(url: str, programs: int) -> None:
    backend = sgl.RuntimeEndpoint(url)
    items = [{"number": n} for n in range(programs)]
    small.run_batch(items[:2], backend=backend, temperature=0)
    one_by_one, _ = timed(lambda: small.run_batch(items, backend=backend, temperature=0, num_threads=1))
    together, states = timed(lambda: small.run_batch(items, backend=backend, temperature=0, progress_bar=True))
    assert all(state.error() is None for state in states)
    print(f"\n### run_batch of {programs} programs\n\n| | seconds |\n|---|---|")
    print(f"| one after the other | {one_by_one:.2f} |\n| together | {together:.2f} |")
    print(f"\n{one_by_one / together:.1f} times the speed.")


def calls(url: str) -> None:
    backend = sgl.RuntimeEndpoint(url)
    independent.run(backend=backend).sync()
    rows = []
    for name, program in (("independent", independent), ("dependent", dependent)):
        seconds, state = timed(lambda program=program: _synced(program.run(backend=backend, temperature=0)))
        spans = [span for span in state.record.spans if span.kind == "gen"]
        most = max(sum(a.started <= b.started < a.ended for a in spans) for b in spans)
        rows.append((name, most, seconds))
    print("\n### Three calls\n\n| | at once | seconds |\n|---|---|---|")
    for name, most, seconds in rows:
        print(f"| {name} | {most} | {seconds:.2f} |")
    print(f"\n{rows[1][2] / rows[0][2]:.1f} times the speed.")


def _synced(state: Any) -> Any:
    state.sync()
    return state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--context", type=int, default=1500, help="tokens that the branches share")
    parser.add_argument("--programs", type=int, default=64)
    parser.add_argument("--only", default="fork,batch,calls")
    args, flags = parser.parse_known_args()
    print(environment("frontend"))
    wanted = args.only.split(",")
    if "fork" in wanted:
        fork(args.model, context_of(args.context), flags)
    if "batch" in wanted or "calls" in wanted:
        with ServerProcess(args.model, *flags) as server:
            if "batch" in wanted:
                batch(server.url, args.programs)
            if "calls" in wanted:
                calls(server.url)


if __name__ == "__main__":
    main()
