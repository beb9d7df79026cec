"""`radixlang bench serving`: load on any OpenAI-compatible server, and what its clients see.

Speaks `/v1/completions` with streaming only, so that other engines can be measured with the same program. Must not
know anything that only our server has.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any

import msgspec
import numpy as np

from radixlang.bench.http import Client, HttpError
from radixlang.bench.report import Cell, Report, Table, percentiles, random_prompts
from radixlang.errors import ConfigError, EngineError

#: words that are one token, or nearly, in most vocabularies
WORDS = (
    *(
        "time",
        "year",
        "people",
        "way",
        "day",
        "man",
        "thing",
        "woman",
        "life",
        "child",
        "world",
        "school",
        "state",
    ),
    *("family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company"),
    *("system", "program", "question", "work", "night", "point", "home", "water", "room", "mother", "area"),
    *("money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business"),
    *("issue", "side", "kind", "head", "house", "service", "friend", "father", "power", "hour", "game", "line"),
)


@dataclass(frozen=True)
class Settings:
    """`request_rate` in requests a second, infinite for all at once; `max_concurrency` None for no limit."""

    base_url: str = "http://127.0.0.1:30000"
    api_key: str | None = None
    model: str | None = None
    num_prompts: int = 32
    input_len: int = 128
    output_len: int = 32
    shared_len: int = 0
    text: bool = False
    """send words instead of token ids"""
    vocab_size: int = 10_000
    request_rate: float = math.inf
    max_concurrency: int | None = None
    warmup: int = 2
    temperature: float = 0.0
    ignore_eos: bool = True
    timeout: float = 600.0
    prompt_seed: int = 0


@dataclass
class Outcome:
    """One request. Times are seconds by this process's clock; `arrivals` those of the chunks that had text."""

    sent: float
    arrivals: list[float] = field(default_factory=list)
    ended: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    counted: bool = False
    """the server said how many tokens there were; otherwise chunks stand for tokens"""
    error: str | None = None

    @property
    def ttft(self) -> float:
        return self.arrivals[0] - self.sent

    @property
    def latency(self) -> float:
        return self.ended - self.sent

    @property
    def per_token(self) -> float | None:
        """Seconds a token after the first, None for a single one."""
        more = self.output_tokens - 1
        return (self.arrivals[-1] - self.arrivals[0]) / more if more > 0 else None


class _Choice(msgspec.Struct):
    text: str | None = None


_RANGE = msgspec.Meta(ge=0, le=2**53)
_Count = Annotated[int, _RANGE] | Annotated[float, _RANGE] | None


class _Usage(msgspec.Struct):
    prompt_tokens: _Count = None
    completion_tokens: _Count = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_CHUNK = msgspec.json.Decoder(_Chunk)


def measure(settings: Settings) -> Report:
    """Put the load on the server and report.

    Raises:
        ConfigError: the server cannot be reached. EngineError: no request was answered.
    """
    return asyncio.run(_measure(settings))


async def _measure(s: Settings) -> Report:
    if s.shared_len > s.input_len:
        raise ConfigError(f"--shared-len {s.shared_len} is more than --input-len {s.input_len}.")
    client = Client(s.base_url, s.api_key)
    try:
        model = await _model(client, s)
    except OSError as error:
        raise ConfigError(f"{s.base_url} does not answer ({error}); is a server running there?") from None
    server = await _server(client, s.base_url)
    for prompt in _prompts(s, s.warmup, s.prompt_seed + 1):
        await _ask(client, s, model, prompt)
    prompts = _prompts(s, s.num_prompts, s.prompt_seed)
    began = time.perf_counter()
    outcomes = await _load(client, s, model, prompts)
    good = [o for o in outcomes if o.error is None]
    if not good:
        raise EngineError(
            f"None of {len(outcomes)} requests was answered; the first: {str(outcomes[0].error).rstrip('.')}."
        )
    seconds = max(o.ended for o in good) - began
    return _report(s, model, server, outcomes, good, seconds)


async def _model(client: Client, s: Settings) -> str:
    """What the model is called: as the user says, else the first that the server lists.

    Raises:
        ConfigError: nobody says it. OSError: the server is not reached.
    """
    try:
        listed = (await client.get("/v1/models"))["data"][0]["id"]
    except HttpError as error:
        trouble = f"cannot be read ({error})"
    except (msgspec.DecodeError, LookupError, TypeError):
        trouble = "names no model"
    else:
        return s.model or str(listed)
    if s.model is None:
        raise ConfigError(f"{client.base}/v1/models {trouble}; give a model with --model.") from None
    return s.model


async def _server(client: Client, url: str) -> str:
    """The server and what it says of itself, where it has one of the usual pages."""
    for path in ("/server_info", "/version"):
        try:
            page = await client.get(path)
        except (OSError, HttpError, msgspec.DecodeError):
            continue
        if isinstance(page, dict) and "version" in page:
            return f"of the server {url} (version {page['version']}, {page.get('device') or 'device unknown'})"
    return f"of the server {url}"


def _prompts(s: Settings, count: int, seed: int) -> list[Any]:
    """Token ids, or as many words."""
    vocab = len(WORDS) if s.text else s.vocab_size
    ids = random_prompts(count, s.input_len, vocab, seed, s.shared_len)
    return [" ".join(WORDS[i] for i in row) for row in ids] if s.text else list(ids)


async def _load(client: Client, s: Settings, model: str, prompts: list[Any]) -> list[Outcome]:
    """All requests, as they come at the rate and are let through by the limit."""
    gate = asyncio.Semaphore(s.max_concurrency or len(prompts))

    async def one(prompt: Any) -> Outcome:
        async with gate:
            return await _ask(client, s, model, prompt)

    tasks = [
        asyncio.create_task(one(prompt)) async for prompt in _arriving(prompts, s.request_rate, s.prompt_seed)
    ]
    return list(await asyncio.gather(*tasks))


async def _arriving(prompts: list[Any], rate: float, seed: int) -> AsyncIterator[Any]:
    """Each prompt when its time has come: exponential pauses that make `rate` a second on average."""
    generator, due = np.random.default_rng(seed), time.perf_counter()
    for prompt in prompts:
        yield prompt
        if math.isfinite(rate):
            due += generator.exponential(1 / rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))


async def _ask(client: Client, s: Settings, model: str, prompt: Any) -> Outcome:
    """One request from connecting to its last chunk. Errors are part of the outcome."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": s.output_len,
        "temperature": s.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if s.ignore_eos:
        body["ignore_eos"] = True
    out = Outcome(time.perf_counter())
    try:
        async with asyncio.timeout(s.timeout):
            async for data in client.events("/v1/completions", body):
                _take(out, _CHUNK.decode(data))
    except TimeoutError:
        out.error = f"no end after {s.timeout:g} s"
    except (OSError, HttpError, msgspec.DecodeError, RecursionError) as error:
        out.error = str(error)
    out.ended = time.perf_counter()
    if out.error is None and not out.arrivals:
        # Special tokens have none, and no token has where the server runs without a tokenizer.
        out.error = (
            f"{out.output_tokens} tokens without text, whose times are unknown" if out.counted else "no token came"
        )
    if not out.counted:
        out.output_tokens = len(out.arrivals)
    return out


def _take(out: Outcome, chunk: _Chunk) -> None:
    if chunk.error is not None:
        raise HttpError(
            str(chunk.error.get("message", chunk.error) if isinstance(chunk.error, dict) else chunk.error)
        )
    if chunk.choices and chunk.choices[0].text:
        out.arrivals.append(time.perf_counter())
    if chunk.usage is not None:
        out.prompt_tokens = int(chunk.usage.prompt_tokens or 0)
        # A server that speaks of the prompt alone, or of no tokens beside a text, has not counted.
        written = int(chunk.usage.completion_tokens or 0)
        out.counted = written > 0
        if out.counted:
            out.output_tokens = written


def _report(
    s: Settings, model: str, server: str, outcomes: list[Outcome], good: list[Outcome], seconds: float
) -> Report:
    read, written = sum(o.prompt_tokens for o in good), sum(o.output_tokens for o in good)
    rate = f"{s.request_rate:g} requests/s" if math.isfinite(s.request_rate) else "all at once"
    limit = f", at most {s.max_concurrency} at a time" if s.max_concurrency else ""
    total = Table(
        f"{model}: {s.num_prompts} × {s.input_len} in / {s.output_len} out, {rate}{limit}",
        ["answered", "errors", "s", "requests/s", "output tok/s", "total tok/s"],
        [
            [
                str(len(good)),
                len(outcomes) - len(good),
                seconds,
                len(good) / seconds,
                written / seconds,
                (read + written) / seconds,
            ]
        ],
    )
    samples = {
        "time to first token": [o.ttft for o in good],
        "gap between tokens": [b - a for o in good for a, b in pairwise(o.arrivals)],
        "time per output token": [value for o in good if (value := o.per_token) is not None],
        "whole request": [o.latency for o in good],
    }
    times = Table("As clients see it, ms", ["", "mean", "p50", "p90", "p99", "largest"])
    for name, values in samples.items():
        scaled = [1000 * value for value in values]
        row: list[Cell] = [
            name,
            float(np.mean(scaled)) if scaled else None,
            *percentiles(scaled, (50, 90, 99, 100)),
        ]
        times.rows.append(row)
    notes = [
        f"{count} × error: {text}"
        for text, count in collections.Counter(o.error for o in outcomes if o.error).most_common(5)
    ]
    if not all(o.counted for o in good):
        notes.append("The server reports no usage: every chunk was counted as one token.")
    settings = dataclasses.asdict(s) | {"api_key": None}
    if not math.isfinite(s.request_rate):
        settings["request_rate"] = None
    return Report("serving", server, settings, [total, times], notes, of_client=True)
