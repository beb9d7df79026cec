"""`radixlang bench prefix --base-url`: the same workloads on a running server.

Speaks the native `/generate` with token ids, which our server and SGLang's have: the next request of a session
needs the answer's own ids, not its text. Must not know what runs behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import msgspec
import numpy as np

from radixlang.bench.http import Client, HttpError
from radixlang.bench.play import Asked, Figures, Ideal, Play
from radixlang.bench.prefix import Settings
from radixlang.bench.report import Report, Table
from radixlang.errors import ConfigError, EngineError
from radixlang.plan import Ints


class _Meta(msgspec.Struct):
    cached_tokens: int = 0
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct):
    output_ids: list[int] = []
    meta_info: _Meta | None = None
    error: Any = None


_CHUNK = msgspec.json.Decoder(_Chunk)
_PAGE = 16
"""tokens of a page where the server does not say"""


def measure_server(url: str, api_key: str | None, vocab: int, settings: Settings) -> Report:
    """Play every workload to the server, its cache emptied before each, and report.

    Raises:
        ConfigError: the server cannot be reached. EngineError: it failed on a request.
    """
    settings.check()
    return asyncio.run(_measure(Client(url, api_key), url, vocab, settings.filled(True)))


async def _measure(client: Client, url: str, vocab: int, s: Settings) -> Report:
    try:
        info = await client.get("/server_info")
    except (OSError, HttpError, msgspec.DecodeError) as error:
        raise ConfigError(f"{url} does not answer ({error}); is a server running there?") from None
    page = int(info.get("page_size") or _PAGE) if isinstance(info, dict) else _PAGE
    table, facts = Table(f"{s.sessions} sessions, lengths × {s.scale:g}", ["workload", *Figures.COLUMNS]), {}
    for workload in s.workloads:
        # A server that has no such page keeps its cache; what it says is text.
        try:
            with contextlib.suppress(HttpError, msgspec.DecodeError):
                await client.get("/flush_cache")
        except OSError as error:
            raise EngineError(f"{url} has stopped answering ({error}).") from None
        figures = Figures.of(await _Player(client, s.play(workload), vocab, page).run())
        table.rows.append([workload, *figures.cells()])
        facts[workload] = figures.facts()
    return Report("prefix", f"of the server {url}", s.plain(), [table], facts=facts, of_client=True)


class _Player:
    """One workload."""

    def __init__(self, client: Client, play: Play, vocab: int, page: int) -> None:
        self._client = client
        self._play = play
        self._vocab = vocab
        self._ideal = Ideal(page)
        self._began = time.perf_counter()
        self._answered: list[Asked] = []

    def _now(self) -> float:
        return time.perf_counter() - self._began

    async def run(self) -> list[Asked]:
        tasks: set[asyncio.Task[None]] = set()
        try:
            while not self._play.done:
                tasks |= {asyncio.create_task(self._ask(asked)) for asked in self._play.due(self._now())}
                due = self._play.next_time
                wait = None if due is None else max(0.0, due - self._now())
                if not tasks:
                    await asyncio.sleep(wait or 0.0)
                    continue
                ended, _ = await asyncio.wait(tasks, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()
                tasks -= ended
        finally:
            # One failure is told; asyncio would print the others if nobody asked for them.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return self._answered

    async def _ask(self, asked: Asked) -> None:
        prompt = asked.prompt(self._vocab)
        asked.possible_tokens = self._ideal.sent(prompt)
        sampling = {"max_new_tokens": asked.output, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": prompt.tolist(), "sampling_params": sampling, "stream": True}
        ids: list[int] = []
        try:
            async for data in self._client.events("/generate", body):
                chunk = _CHUNK.decode(data)
                if chunk.error is not None:
                    raise HttpError(str(chunk.error))
                if chunk.output_ids and not ids:
                    asked.first = self._now()
                meta = chunk.meta_info or _Meta()
                # Cumulative, unless the server was started to send what is new.
                whole = meta.completion_tokens in (None, len(chunk.output_ids))
                ids = chunk.output_ids if whole else ids + chunk.output_ids
                if chunk.meta_info is not None:
                    asked.cached_tokens = meta.cached_tokens
        except (OSError, HttpError, msgspec.DecodeError) as error:
            raise EngineError(f"A request of the benchmark failed: {str(error).rstrip('.')}.") from None
        if len(ids) != asked.output:
            raise EngineError(f"The server answered with {len(ids)} tokens where {asked.output} were asked for.")
        asked.ended = self._now()
        answer: Ints = np.array(ids, np.int32)
        self._ideal.said(prompt, answer)
        self._answered.append(asked)
        self._play.answered(asked, answer)
