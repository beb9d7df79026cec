"""What a client of the ring asks for and what it gets back: requests, sequences and their streams.

A `GenerateRequest` becomes n `Sequence`s; a `Stream` hands out what is new of all its sequences. Asyncio
only, one loop. Must not know HTTP, JSON shapes or how messages travel.
"""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from radixlang.errors import RadixLangError
from radixlang.messages import GrammarSpec, Logprobs, PinWish, RequestMeta, unpack_ids
from radixlang.sampling_params import SamplingParams

#: stands for a log-probability of minus infinity, which JSON cannot write
LEAST_LOGPROB = -9999.0


@dataclass
class GenerateRequest:
    """One prompt and what to do with it. Either `text` or `input_ids`; the ids win when both are given.

    `namespace` separates the prefix cache (see `namespace_of`). `probe` marks a health check: it appears in no
    log and no metric. `embed` asks for a vector instead of text. `pin` keeps what the request leaves in the cache.
    `param` is what the client calls the prompt, `grammar_param` the constraint (None: as its kind is called), and
    `aliases` maps our parameter names to those of the client; all are for messages.
    """

    text: str | None = None
    input_ids: SequenceOf[int] | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    rid: str | None = None
    namespace: str = ""
    priority: int = 0
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: SequenceOf[int] = ()
    embed: bool = False
    add_special_tokens: bool = True
    probe: bool = False
    grammar: GrammarSpec | None = None
    grammar_param: str | None = None
    pin: PinWish | None = None
    param: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)


def namespace_of(extra_key: str | None, cache_salt: str | None) -> str:
    """One name for the pair, different for different pairs; '' when neither is given."""
    if not extra_key and not cache_salt:
        return ""
    extra_key = extra_key or ""
    return f"{len(extra_key)}:{extra_key}{cache_salt or ''}"


def namespace_parts(namespace: str) -> tuple[str, str]:
    """(extra_key, cache_salt) that `namespace_of` made the name of."""
    size, _, rest = namespace.partition(":")
    return rest[: int(size or 0)], rest[int(size or 0) :]


class TokenLogprobs:
    """Log-probabilities of a run of tokens, one list per column.

    `chosen[i]` belongs to `ids[i]` and is None where nothing predicts the token (the first of a prompt).
    `top[i]` are the best (logprob, id) pairs, `asked[i]` those of the ids asked for; both None likewise.
    """

    __slots__ = ("asked", "chosen", "ids", "top")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.chosen: list[float | None] = []
        self.top: list[list[tuple[float, int]] | None] = []
        self.asked: list[list[tuple[float, int]] | None] = []

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, message: Logprobs, asked_ids: SequenceOf[int], limit: int | None = None) -> None:
        """Append a message's positions, at most `limit` of them."""
        ids = unpack_ids(message.ids).tolist()
        count = len(ids)
        chosen = [_finite(value) for value in np.frombuffer(message.chosen, "<f4").tolist()]
        top = _pairs(np.frombuffer(message.top, "<f4"), unpack_ids(message.top_ids), count, chosen)
        wanted = np.tile(np.asarray(asked_ids, dtype="<i4"), count)
        asked = _pairs(np.frombuffer(message.asked, "<f4"), wanted, count, chosen)
        keep = count if limit is None else min(limit, count)
        self.ids += ids[:keep]
        self.chosen += chosen[:keep]
        self.top += top[:keep]
        self.asked += asked[:keep]

    def add_unknown(self, token: int) -> None:
        """Append a position that nothing predicts."""
        self.ids.append(token)
        self.chosen.append(None)
        self.top.append(None)
        self.asked.append(None)

    def since(self, start: int) -> TokenLogprobs:
        """A copy of the positions from `start` on."""
        part = TokenLogprobs()
        for name in self.__slots__:
            setattr(part, name, getattr(self, name)[start:])
        return part


def _finite(value: float) -> float | None:
    return None if value != value else max(value, LEAST_LOGPROB)


def _pairs(
    values: np.ndarray, ids: np.ndarray, count: int, chosen: list[float | None]
) -> list[list[tuple[float, int]] | None]:
    if not count or not len(values):
        return [None] * count
    rows = zip(values.reshape(count, -1).tolist(), ids.reshape(count, -1).tolist(), chosen, strict=True)
    return [
        None
        if own is None
        else [
            (max(value, LEAST_LOGPROB), token)
            for value, token in zip(row, tokens, strict=True)
            if value == value and token >= 0
        ]
        for row, tokens, own in rows
    ]


@dataclass(slots=True)
class Output:
    """What is new of one sequence since its last output. `sequence` has everything so far.

    `finish_reason` is None while the sequence goes on; `meta` is None until the engine has told its counts.
    `logprobs` is None unless they were asked for.
    """

    index: int
    text: str
    data: bytes
    """the token ids as int32 bytes"""
    finish_reason: dict[str, Any] | None
    meta: RequestMeta | None
    logprobs: TokenLogprobs | None
    sequence: Sequence

    @property
    def ids(self) -> list[int]:
        return unpack_ids(self.data).tolist()


class Sequence:
    """One running sample of one prompt: everything that has arrived for it.

    `wire` is its id inside the ring; it differs from the client's `rid` only where another bears or bore that id
    there, and was given up a moment ago: messages for it may still be on their way. Times are seconds since the
    epoch.
    """

    __slots__ = (
        "_ids",
        "_seen_ids",
        "_seen_logprobs",
        "_seen_texts",
        "_texts",
        "completion_tokens",
        "finish_reason",
        "finished_at",
        "first_at",
        "index",
        "last_at",
        "logprobs",
        "meta",
        "names",
        "new_tokens",
        "prompt_ids",
        "prompt_index",
        "prompt_logprobs",
        "queued",
        "received",
        "request",
        "rid",
        "sample",
        "sampling",
        "stream",
        "vector",
        "wire",
    )  # fmt: skip

    def __init__(
        self,
        stream: Stream,
        request: GenerateRequest,
        prompt_ids: np.ndarray,
        sampling: SamplingParams,
        rid: str,
        index: int,
        prompt_index: int,
        sample: int,
    ) -> None:
        self.stream = stream
        self.request = request
        self.prompt_ids = prompt_ids
        self.sampling = sampling
        self.rid = rid
        self.wire = rid
        self.names: tuple[str, ...] = (rid,)
        self.index = index
        self.prompt_index = prompt_index
        self.sample = sample
        self.received = time.time()
        self.first_at = 0.0
        self.last_at = 0.0
        self.finished_at = 0.0
        self.finish_reason: dict[str, Any] | None = None
        self.meta: RequestMeta | None = None
        self.vector: np.ndarray | None = None
        self.completion_tokens = 0
        self.new_tokens = 0
        self.queued = False
        self.logprobs = TokenLogprobs() if request.return_logprob else None
        self.prompt_logprobs = TokenLogprobs() if request.return_logprob else None
        start = request.logprob_start_len
        if self.prompt_logprobs is not None and 0 <= start < len(prompt_ids):
            # Nothing predicts the first position asked for: its entry is null, and the engine sends none.
            self.prompt_logprobs.add_unknown(int(prompt_ids[start]))
        self._ids = bytearray()
        self._texts: list[str] = []
        self._seen_ids = 0
        self._seen_texts = 0
        self._seen_logprobs = 0

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._texts)

    @property
    def ids(self) -> list[int]:
        """All token ids so far, the stop token included."""
        return unpack_ids(bytes(self._ids)).tolist()

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt_ids)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came out of the radix cache, or the tiers below it."""
        return self.meta.cached_tokens if self.meta else 0

    @property
    def cached_by_tier(self) -> dict[str, int]:
        """Those of `cached_tokens` that were on the device, in host memory, in storage (left out where none)."""
        if self.meta is None:
            return {"device": 0, "host": 0}
        host, storage = self.meta.cached_host, self.meta.cached_storage
        tiers = {"device": self.meta.cached_tokens - host - storage, "host": host}
        return tiers | ({"storage": storage} if storage else {})

    def add(self, text: str, ids: bytes, count: int) -> None:
        """Append new text and `count` tokens (int32 bytes)."""
        if text:
            self._texts.append(text)
        if count:
            self._ids += ids
            self.completion_tokens += count
            self.new_tokens += count

    def take(self) -> Output:
        """What is new since the last call."""
        texts, data = self._texts[self._seen_texts :], self._ids[self._seen_ids :]
        logprobs = None
        if self.logprobs is not None:
            logprobs = self.logprobs.since(self._seen_logprobs)
            self._seen_logprobs = len(self.logprobs)
        self._seen_texts, self._seen_ids = len(self._texts), len(self._ids)
        self.queued = False
        self.new_tokens = 0
        return Output(
            self.index,
            texts[0] if len(texts) == 1 else "".join(texts),
            bytes(data),
            self.finish_reason,
            self.meta,
            logprobs,
            self,
        )


class Stream:
    """The sequences of one client request, as an async iterator of `Output`s.

    Made by `Hub.generate`. `await open()` validates, tokenises and sends (iterating does it too); `aclose()`
    tells the engine to forget what is unfinished and must be called when the client has gone. `collect()`
    waits for the end instead of iterating; then nobody is woken per token.
    """

    def __init__(
        self, opener: Callable[[Stream], Any], closer: Callable[[Stream], None], interval: int = 1
    ) -> None:
        self.sequences: list[Sequence] = []
        self.interval = interval
        self.incremental = True
        self.unfinished = 0
        self._opener = opener
        self._closer = closer
        self._opened = False
        self._ready: collections.deque[Sequence] = collections.deque()
        self._wake: asyncio.Future[None] | None = None
        self._error: RadixLangError | None = None

    async def open(self) -> Stream:
        """Validate and send.

        Raises:
            RequestError: the request cannot be served; nothing was sent.
        """
        if not self._opened:
            self._opened = True
            await self._opener(self)
        return self

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Output:
        await self.open()
        while True:
            if self._ready:
                return self._ready.popleft().take()
            if self._error is not None:
                self._closer(self)
                raise self._error
            if not self.unfinished:
                raise StopAsyncIteration
            await self._sleep()

    async def collect(self) -> list[Sequence]:
        """All sequences, finished.

        Raises:
            RadixLangError: one of them failed; the others were given up.
        """
        self.incremental = False
        try:
            await self.open()
            while self.unfinished and self._error is None:
                await self._sleep()
            if self._error is not None:
                raise self._error
        finally:
            self._closer(self)
        return self.sequences

    async def peek(self) -> Stream:
        """Wait until there is something to hand out, so that an early error is raised before a response begins:
        also one that came together with the first news of another sample."""
        try:
            await self.open()
            while not self._ready and self.unfinished and self._error is None:
                await self._sleep()
            if self._error is not None:
                raise self._error
        except BaseException:  # a cancelled waiter means that the client has gone
            self._closer(self)
            raise
        return self

    async def aclose(self) -> None:
        """Give up what is unfinished. May be called at any time and more than once."""
        self._closer(self)

    async def _sleep(self) -> None:
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    # ---- called by the hub ----

    def advanced(self, sequence: Sequence) -> None:
        """`sequence` has news; wakes the reader when it wants them now."""
        finished = sequence.finish_reason is not None
        if self.incremental and not sequence.queued:
            interval = sequence.sampling.stream_interval or self.interval
            new = sequence.new_tokens
            if finished or (new and (new == sequence.completion_tokens or new >= interval)):
                sequence.queued = True
                self._ready.append(sequence)
        if sequence.queued or not self.unfinished:
            self.wake()

    def fail(self, error: RadixLangError) -> None:
        """End the whole stream with an error."""
        if self._error is None:
            self._error = error
        self.wake()

    def wake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
