"""What `soak.py` does to an engine: a load that never lets go, pauses in which everything is counted, and the
judge of texts. Must not know how results are shown."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from processes import Usage, device_memory, usage

from radixlang.errors import EngineDeadError, RadixLangError
from radixlang.llm import Engine
from radixlang.messages import Abort

PATIENCE = 120.0
"""seconds after which a request that has not ended never will"""
DOCS = Path(__file__).resolve().parent.parent / "docs"


@dataclass(frozen=True)
class Size:
    """The load. Lengths in tokens, as (shortest, longest); `capacity` is the KV pool, `rows` run at most."""

    prompts: int
    heads: int
    head: tuple[int, int]
    own: tuple[int, int]
    new: tuple[int, int]
    capacity: int
    rows: int
    chunk: int
    pause: float

    @property
    def context(self) -> int:
        return self.head[1] + self.own[1] + self.new[1] + 1


SIZES = {
    "cpu": Size(24, 3, (16, 96), (4, 48), (4, 40), 1024, 48, 64, 15.0),
    "cuda": Size(120, 8, (64, 512), (16, 256), (8, 448), 24576, 256, 512, 60.0),
}

#: how a request ends, and how often: by itself, as a stream, or cut short
ENDS = {"answer": 60, "stream": 15, "cancelled": 8, "stream left": 8, "aborted": 9}
SHORT = ("cancelled", "stream left", "aborted")
#: what it asks for, and how often: only greedy ones have a text to compare
KINDS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "greedy": (80, {"temperature": 0}, {}),
    "greedy with log-probabilities": (8, {"temperature": 0}, {"return_logprob": True, "top_logprobs_num": 2}),
    "sampled": (8, {"temperature": 0.9, "top_p": 0.9}, {}),
    "sampled with penalties": (4, {"temperature": 0.7, "frequency_penalty": 0.5}, {}),
}


@dataclass
class Prompt:
    ids: list[int]
    own: int
    """tokens after the head, which other prompts share"""
    answer: list[int] = field(default_factory=list)
    """what the quiet engine says"""


@dataclass
class Sample:
    """What one look showed. `pressure` is the open requests' need by the KV capacity."""

    at: float
    pressure: float
    running: float
    queued: float
    processes: dict[str, Usage]
    device: float | None


def pool(engine: Engine, size: Size, rng: random.Random) -> list[Prompt]:
    """Prompts of pieces of this repository's documentation, or of random ids without a tokenizer."""
    if engine.tokenizer is None:
        corpus = [rng.randrange(3, engine.hub.info["vocab_size"]) for _ in range(20000)]
    else:
        text = "\n".join(path.read_text() for path in sorted(DOCS.glob("*.md")))
        corpus = engine.tokenizer.encode(text, add_special_tokens=False)

    def piece(length: int) -> list[int]:
        at = rng.randrange(len(corpus) - length)
        return corpus[at : at + length]

    heads = [piece(rng.randint(*size.head)) for _ in range(size.heads)]
    owns = [piece(rng.randint(*size.own)) for _ in range(size.prompts)]
    return [Prompt([*rng.choice(heads), *own], len(own)) for own in owns]


def alone(engine: Engine, ids: list[int], sampling: dict[str, Any], **more: Any) -> dict[str, Any]:
    """One answer of an engine that has nothing else to do and nothing cached."""
    flush(engine)
    return dict(engine.generate(input_ids=ids, sampling_params=sampling, **more))


def flush(engine: Engine) -> bool:
    """Empty the prefix cache; a step with surplus tokens may hold it up for a moment."""
    for _ in range(200):
        if engine.flush_cache():
            return True
        time.sleep(0.005)
    return False


def worst_gap(engine: Engine, prompt: list[int], answer: list[int]) -> float:
    """By how much the quiet engine prefers its own token to the answer's, where it does so most."""
    meta = alone(
        engine,
        [*prompt, *answer],
        {"temperature": 0, "max_new_tokens": 0},
        return_logprob=True,
        logprob_start_len=len(prompt) - 1,
        top_logprobs_num=1,
    )["meta_info"]
    chosen, best = meta["input_token_logprobs"][1:], meta["input_top_logprobs"][1:]
    assert [token for _, token, _ in chosen] == answer
    return max(top[0][0] - value for (value, _, _), top in zip(chosen, best, strict=True))


class Soak:
    """The load on one engine, and what came of it."""

    def __init__(self, engine: Engine, size: Size, prompts: list[Prompt], pressure: float, seed: int) -> None:
        self.engine = engine
        self.size = size
        self.prompts = prompts
        self.rng = random.Random(seed)
        info = engine.get_server_info()
        self.capacity, self._page = int(info["max_total_num_tokens"]), int(info["page_size"])
        self.goal = pressure * self.capacity
        self.need = 0
        self.counts: Counter[str] = Counter()
        self.tokens = 0
        self.differing: Counter[tuple[int, tuple[int, ...]]] = Counter()
        self.problems: list[str] = []
        self.failures: Counter[str] = Counter()
        self.samples: list[Sample] = []
        self.slowest = 0.0
        """seconds that pages took at most to come back when nothing was running or waiting any more"""
        self.feeding = False
        self.mixed = True
        """requests of all kinds, not greedy ones alone"""
        self._latency = 1.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._serial = 0
        pids = engine.get_all_child_pids()
        names = ("engine", *(f"engine, rank {rank}" for rank in range(1, len(pids) - 1)), "detokenizer")
        self._pids = dict(zip(names, pids, strict=True))
        self._pids["client and hub"] = os.getpid()
        self._count_aborts()

    def _count_aborts(self) -> None:
        hub = self.engine.hub
        send = hub._send

        def counted(message: Any) -> None:
            self.counts["aborts sent"] += isinstance(message, Abort)
            send(message)

        hub._send = counted  # type: ignore[method-assign]

    async def run(self, seconds: float, pause: float) -> None:
        """Load until the time is over, with pauses.

        Raises:
            EngineDeadError: it died, or some requests never end.
        """
        # The own questions run in one thread, so that a thread more later is a leak.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1, "soak"))
        began = time.monotonic()
        watcher = asyncio.create_task(self._watch(began))
        number = 0
        while (left := began + seconds - time.monotonic()) > 0 and not self._hopeless:
            self.mixed = number % 2 == 0
            await self._feed(time.monotonic() + min(pause, left))
            number += 1
            if number % 4 > 1:  # after either kind of period
                self.engine.abort_request(abort_all=True)
            if self._tasks:
                _, stuck = await asyncio.wait(self._tasks, timeout=PATIENCE)
                if stuck:
                    raise EngineDeadError(f"{len(stuck)} requests never end")
            await self._count_everything(f"pause {number}")
            print(f"[{time.monotonic() - began:.0f} s: {dict(self.counts)}]", file=sys.stderr, flush=True)
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)

    @property
    def _hopeless(self) -> bool:
        return sum(self.failures.values()) > 100

    async def _feed(self, until: float) -> None:
        self.feeding = True
        while time.monotonic() < until:
            while self.need < self.goal and not self._hopeless:
                task = asyncio.create_task(self._serve())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                await asyncio.sleep(0)  # the task's first step counts its need
            self._room.clear()
            try:
                await asyncio.wait_for(self._room.wait(), max(0.01, until - time.monotonic()))
            except TimeoutError:
                break
        self.feeding = False

    async def _serve(self) -> None:
        """One request from its draw to its end."""
        rng = self.rng
        index = rng.randrange(len(self.prompts))
        prompt = self.prompts[index]
        kind = rng.choices(list(KINDS), [share for share, _, _ in KINDS.values()])[0] if self.mixed else "greedy"
        end = rng.choices(list(ENDS), list(ENDS.values()))[0]
        new = rng.randint(*self.size.new)
        delay = rng.random() * 1.2 * self._latency
        need = prompt.own + new
        self.need += need
        self.counts["opened"] += 1
        try:
            began = time.monotonic()
            answer = await self._ask(prompt, kind, end, new, delay)
            if answer is None:
                self.counts[end] += 1
                return
            self._take(index, kind, new, answer)
            self._latency += 0.05 * (time.monotonic() - began - self._latency)
        except RadixLangError as error:
            self.failures[f"{type(error).__name__}: {error}"] += 1
        finally:
            self.need -= need
            self._room.set()

    async def _ask(self, prompt: Prompt, kind: str, end: str, new: int, delay: float) -> dict[str, Any] | None:
        """The answer as far as it came; None for one whose reader has gone."""
        _, sampling, fields = KINDS[kind]
        self._serial += 1
        rid = f"soak-{self._serial}"
        body = {
            "input_ids": prompt.ids,
            "sampling_params": {**sampling, "max_new_tokens": new, "ignore_eos": True},
            "rid": rid,
            **fields,
        }
        if end.startswith("stream"):
            leave_after = self.rng.randint(1, new) if end == "stream left" else None
            chunks = await self.engine.async_generate(stream=True, **body)
            last: dict[str, Any] | None = None
            try:
                async for last in chunks:
                    if leave_after is not None and len(last["output_ids"]) >= leave_after:
                        return None
            finally:
                await chunks.aclose()
            return last
        if end == "cancelled":
            try:
                return dict(await asyncio.wait_for(self.engine.async_generate(**body), delay))
            except TimeoutError:
                return None
        if end == "aborted":
            asyncio.get_running_loop().call_later(delay, self.engine.abort_request, rid)
        return dict(await self.engine.async_generate(**body))

    def _take(self, index: int, kind: str, new: int, answer: dict[str, Any]) -> None:
        ids, finish = answer["output_ids"], answer["meta_info"]["finish_reason"]["type"]
        self.tokens += len(ids)
        self.counts["aborted" if finish == "abort" else "finished"] += 1
        if finish != "abort" and (finish, len(ids)) != ("length", new):
            self.problems.append(f"an answer of {new} tokens has {len(ids)} and ends by {finish}")
        if not kind.startswith("greedy"):
            self.counts["sampled: not compared"] += 1
        elif ids == self.prompts[index].answer[: len(ids)]:
            self.counts["equal"] += bool(ids)
        else:
            self.differing[index, tuple(ids)] += 1

    async def _count_everything(self, when: str) -> None:
        """Nothing is open any more: every page, row and stream must be back; then flush."""
        info = await self._settled()
        free, cached = int(info["kv_available_tokens"]), int(info["kv_evictable_tokens"])
        if free + cached != self.capacity:
            self.problems.append(f"{when}: {free} free + {cached} cached of {self.capacity} tokens of KV")
        for what in ("num_running_reqs", "num_queue_reqs"):
            if info[what]:
                self.problems.append(f"{when}: {what} is {info[what]:g}")
        if self.engine.hub.running:
            self.problems.append(f"{when}: {self.engine.hub.running} streams are open in the hub")
        if self.need:
            self.problems.append(f"{when}: the load miscounts")
        if await asyncio.to_thread(flush, self.engine):
            self.counts["flushes"] += 1
        else:
            self.problems.append(f"{when}: an idle engine refuses to flush")
        free = int((await asyncio.to_thread(self.engine.get_server_info))["kv_available_tokens"])
        if free != self.capacity:
            self.problems.append(f"{when}: {free} of {self.capacity} tokens of KV are free after a flush")
        await self._use_all_rows(when)

    async def _settled(self) -> dict[str, Any]:
        """The engine's figures when it is idle; aborts of readers that left may still be on their way, and so may
        pages that come from a lower tier for requests that were aborted."""
        since: float | None = None
        for _ in range(400):
            info = await asyncio.to_thread(self.engine.get_server_info)
            pages = int(info["kv_available_tokens"]) + int(info["kv_evictable_tokens"])
            if not (info["num_running_reqs"] or info["num_queue_reqs"] or self.engine.hub.running):
                now = time.monotonic()
                since = since or now
                self.slowest = max(self.slowest, now - since)
                if pages == self.capacity:
                    break
            await asyncio.sleep(0.025)
        return info

    async def _use_all_rows(self, when: str) -> None:
        """As many requests as there are rows must run at once: a row that was lost would be missed."""
        pages = self.capacity // self._page
        rows = min(self.size.rows, pages)
        new = min(max(2, pages // rows * self._page * 6 // 10), self.size.context - 2)
        body = {
            "input_ids": [[5 + i % 100] for i in range(rows)],
            "sampling_params": {"temperature": 0, "max_new_tokens": new, "ignore_eos": True},
        }
        most = 0
        for _ in range(10):  # all may have ended before the engine is asked
            work = asyncio.ensure_future(self.engine.async_generate(**body))
            while not work.done() and most < rows:
                info = await asyncio.to_thread(self.engine.get_server_info)
                most = max(most, int(info["num_running_reqs"]))
            await work
            if most == rows:
                break
        if most != rows:
            self.problems.append(f"{when}: {most} of {rows} rows can run at once")
        await self._settled()
        await asyncio.to_thread(flush, self.engine)

    async def _watch(self, began: float) -> None:
        while True:
            info = await asyncio.to_thread(self.engine.get_server_info)
            # Asking takes the card's driver a while.
            device = await asyncio.to_thread(device_memory) if len(self.samples) % 5 == 0 else None
            processes = {name: found for name, pid in self._pids.items() if (found := usage(pid))}
            self.samples.append(
                Sample(
                    time.monotonic() - began,
                    self.need / self.capacity if self.feeding else float("nan"),
                    info["num_running_reqs"],
                    info["num_queue_reqs"],
                    processes,
                    device,
                )
            )
            await asyncio.sleep(1.0)

    def judge(self, tie: float) -> tuple[int, int, float]:
        """Answers that differ → how many by near-ties, how many are wrong, and the largest gap of all."""
        ties, wrong, largest = 0, 0, 0.0
        for (index, ids), count in self.differing.items():
            gap = worst_gap(self.engine, self.prompts[index].ids, list(ids))
            largest = max(largest, gap)
            ties, wrong = (ties + count, wrong) if gap <= tie else (ties, wrong + count)
        return ties, wrong, largest
