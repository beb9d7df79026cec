"""The client side of the ring: sends requests to the engine, hands what comes back to whoever waits for it.

Shared by the HTTP server and the in-process engine. Asyncio only: every method runs on one loop, tokenizing
of large texts in a few threads. Every request gets exactly one ending. Must not know HTTP or torch.
"""

from __future__ import annotations

import asyncio
import collections
import time
import uuid
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np

from radixlang.channel import Sender
from radixlang.config import Config
from radixlang.errors import (
    EngineDeadError,
    OverloadedError,
    RadixLangError,
    RequestError,
    from_status,
)
from radixlang.log import get_logger
from radixlang.messages import (
    Abort,
    Control,
    Dead,
    Embedding,
    Failed,
    Generate,
    Reply,
    Stats,
    Stopped,
    Texts,
    ToServer,
    pack_ids,
)
from radixlang.sampling_params import SamplingParams
from radixlang.server.limits import Limits, check_rid, complete_info, token_array
from radixlang.server.metrics import Metrics
from radixlang.server.parsing import Parsers
from radixlang.server.stream import GenerateRequest, Sequence, Stream

log = get_logger(__name__)

#: characters from which tokenizing leaves the loop's thread
LARGE_TEXT = 4096
#: characters from which a text may be refused by its length alone
HUGE_TEXT = 1 << 20
#: prompts of a batch between two looks at other requests, and such as are sent together
GROUP = 32
#: ids of health probes start with this
PROBE_PREFIX = "HEALTH_CHECK_"
#: given-up ids that are remembered, so that their late messages do not reach a new bearer
GIVEN_UP = 4096
#: characters of a prompt or an answer in the log
LOGGED_TEXT = 500
ABORTED = 499


class Hub:
    """Requests in, streams out.

    `tokenizer` is None with --skip-tokenizer-init. `info` is what the engine reported when it was ready.
    `draining` refuses new requests while running ones end; `healthy` is False once the engine is gone.
    """

    def __init__(self, config: Config, tokenizer: Any, info: dict[str, Any], to_engine: Sender) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.info = complete_info(info, config.model.is_embedding)
        self.limits = Limits(self.info, config.server.allow_auto_truncate, tokenizer is not None, config.grammar)
        self.parsers = Parsers(config.server, tokenizer)
        self.metrics = Metrics(config.model_name, self.info)
        self.draining = False
        self.started = time.time()
        #: when the engine last sent anything, seconds since the epoch
        self.heard = 0.0
        self._send = to_engine.send
        self._send_all = to_engine.send_all
        self._eos_ids = tuple(getattr(tokenizer, "eos_ids", ()))
        self._dead: RadixLangError | None = None
        self._by_wire: dict[str, Sequence] = {}
        self._by_rid: dict[str, list[Sequence]] = {}
        self._given_up: collections.OrderedDict[str, None] = collections.OrderedDict()
        self._serial = 0
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._pool = ThreadPoolExecutor(2, "tokenizer")
        self._handlers: dict[type, Callable[[Any], None]] = {
            Texts: self._on_texts,
            Embedding: self._on_embedding,
            Failed: self._on_failed,
            Reply: self._on_reply,
            Stats: self._on_stats,
            Dead: self._on_dead,
            Stopped: self._on_stopped,
        }

    # ---- state ----

    @property
    def healthy(self) -> bool:
        return self._dead is None

    @property
    def running(self) -> int:
        """Sequences that have not ended."""
        return len(self._by_wire)

    def rid_of(self, wire: str) -> str:
        """What clients call the request that is `wire` inside the ring."""
        sequence = self._by_wire.get(wire)
        return wire if sequence is None else sequence.rid

    def check_open(self) -> None:
        """Refuse when nothing new is taken.

        Raises:
            EngineDeadError, OverloadedError: the engine is gone; the server is shutting down.
        """
        if self._dead is not None:
            raise self._death()
        if self.draining:
            raise OverloadedError("The server is shutting down.", retry_after=5)

    def close(self) -> None:
        """Release the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ---- requests ----

    def generate(self, requests: GenerateRequest | SequenceOf[GenerateRequest], rid: str | None = None) -> Stream:
        """A stream over all samples of one request or of a batch; outputs carry a flat prompt-major index.

        `rid` names the batch: its members become `rid_0`, `rid_1`, … Nothing happens until the stream is opened
        or iterated; all requests are checked before the first is sent.
        """
        batch = [requests] if isinstance(requests, GenerateRequest) else list(requests)

        async def opener(stream: Stream) -> None:
            await self._open(stream, batch, rid)

        return Stream(opener, self._close, self.config.server.stream_interval)

    async def _open(self, stream: Stream, batch: list[GenerateRequest], rid: str | None) -> None:
        self.check_open()
        if not batch:
            raise RequestError("The batch is empty.")
        for request in batch:
            self.limits.check_kind(request.embed)
        fitted = []
        for i, request in enumerate(batch):
            if i % GROUP == GROUP - 1:
                await asyncio.sleep(0)  # a long list must not keep the others waiting
            fitted.append(self.limits.fit(request, token_array(await self.prompt_ids(request))))
        # Waiting for the tokenizer let others run: look again before anything is sent.
        self.check_open()
        names = self._names(batch, rid)
        sequences: list[Sequence] = []
        for prompt, (request, (ids, sampling)) in enumerate(zip(batch, fitted, strict=True)):
            for sample in range(1 if request.embed else sampling.n):
                index = len(sequences)
                sequences.append(Sequence(stream, request, ids, sampling, names[index], index, prompt, sample))
        self._register(sequences, rid, batch)
        stream.sequences = sequences
        stream.unfinished = len(sequences)
        try:
            # In groups: the engine works on the first while the next are packed.
            messages = _messages(sequences, self._eos_ids)
            while group := list(islice(messages, GROUP)):
                self._send_all(group)
        except (TypeError, ValueError, OverflowError) as error:
            self._close(stream)
            raise RequestError(f"The request holds a value that cannot be passed on: {error}.") from None

    async def prompt_ids(self, request: GenerateRequest) -> SequenceOf[int]:
        """The tokens of its prompt.

        Raises:
            RequestError: there is no prompt, or it is no text or too long for one.
        """
        if request.input_ids is not None:
            return request.input_ids
        text = request.text
        if text is None:
            raise RequestError("Either text or input_ids is required.", "text")
        if len(text) > HUGE_TEXT and self.tokenizer is not None:
            longest = await asyncio.get_running_loop().run_in_executor(
                self._pool, lambda: int(self.tokenizer.longest_token)
            )
            self.limits.check_size(text, longest, request.param or "text")
        return await self.encode(text, request.add_special_tokens)

    def need_tokenizer(self) -> Any:
        """The tokenizer.

        Raises:
            RequestError: there is none.
        """
        if self.tokenizer is None:
            raise RequestError("Text needs a tokenizer; this server runs with --skip-tokenizer-init.", "text")
        return self.tokenizer

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; large ones leave the loop's thread, so that other requests go on.

        Raises:
            RequestError: the text is not valid Unicode (unpaired surrogates).
        """
        tokenizer = self.need_tokenizer()
        try:
            if len(text) < LARGE_TEXT:
                return tokenizer.encode(text, add_special_tokens=add_special_tokens)
            # As a batch of one: only the batch call of the tokenizers library lets other threads run.
            loop = asyncio.get_running_loop()
            ids = await loop.run_in_executor(self._pool, tokenizer.encode_batch, [text], add_special_tokens)
            return ids[0]
        except UnicodeError as error:
            raise RequestError(f"The text is not valid Unicode: {error}.", "text") from None

    def _names(self, batch: list[GenerateRequest], rid: str | None) -> list[str]:
        """Request ids of all sequences; checks those that the client chose."""
        counts = [1 if request.embed else request.sampling.n for request in batch]
        if rid is not None:
            chosen = [rid, *(f"{rid}_{i}" for i in range(sum(counts)))]
            names = chosen[1:]
        else:
            names, chosen = [], []
            for request, count in zip(batch, counts, strict=True):
                base = uuid.uuid4().hex if request.rid is None else request.rid
                mine = [base] if count == 1 else [f"{base}_{i}" for i in range(count)]
                if request.rid is not None:
                    chosen += [base, *(mine if count > 1 else ())]
                names += mine
        for name in chosen:
            check_rid(name)
            if name in self._by_rid:
                raise RequestError(f"A request with the rid {name!r} is running already.", "rid")
        if len(set(names)) != len(names):
            raise RequestError("The rids of a batch must differ.", "rid")
        return names

    def _register(self, sequences: list[Sequence], rid: str | None, batch: list[GenerateRequest]) -> None:
        for sequence in sequences:
            while sequence.wire in self._given_up or sequence.wire in self._by_wire:
                self._serial += 1
                sequence.wire = f"{sequence.rid}~{self._serial}"
            self._by_wire[sequence.wire] = sequence
            # A sample answers to its own id and to that of the prompt or batch it belongs to.
            group = rid or batch[sequence.prompt_index].rid or sequence.rid
            sequence.names = (sequence.rid,) if group == sequence.rid else (sequence.rid, group)
            for name in sequence.names:
                self._by_rid.setdefault(name, []).append(sequence)
            if self.config.log.log_requests and not sequence.request.probe:
                self._log_prompt(sequence)

    def _close(self, stream: Stream) -> None:
        """Forget the unfinished sequences of a stream and tell the engine to."""
        for sequence in stream.sequences:
            if sequence.finish_reason is None and sequence.wire in self._by_wire:
                self._forget(sequence)
                if not sequence.request.probe:
                    self.metrics.aborted()
                self._give_up(sequence)
        stream.wake()

    def _give_up(self, sequence: Sequence) -> None:
        self._given_up[sequence.wire] = None
        if len(self._given_up) > GIVEN_UP:
            self._given_up.popitem(last=False)
        if self._dead is None:
            self._send(Abort(sequence.wire, quiet=True, message="The client has gone."))

    def _forget(self, sequence: Sequence) -> None:
        del self._by_wire[sequence.wire]
        for name in sequence.names:
            members = self._by_rid[name]
            members.remove(sequence)
            if not members:
                del self._by_rid[name]
        sequence.stream.unfinished -= 1

    def abort(self, rid: str | None = None, every: bool = False) -> int:
        """End the request `rid` with what it has (its samples and its batch too), or every request.

        Ids match exactly; unknown ones are ignored. Returns how many sequences were told to end; their streams
        then finish with the reason `abort`.
        """
        chosen = list(self._by_wire.values()) if every else list(self._by_rid.get(rid or "", ()))
        for sequence in chosen:
            self._send(Abort(sequence.wire, quiet=False, message="Aborted by request."))
        return len(chosen)

    async def control(self, method: str, /, **arguments: Any) -> Any:
        """Call a method of the engine's control table.

        Raises:
            RequestError: the engine refused; EngineError: it failed; EngineDeadError: it is gone.
        """
        if self._dead is not None:
            raise self._death()
        self._serial += 1
        number = self._serial
        future = asyncio.get_running_loop().create_future()
        self._replies[number] = future
        try:
            self._send(Control(number, method, arguments))
            return await future
        finally:
            self._replies.pop(number, None)

    async def probe(self, timeout: float) -> bool:
        """Whether the engine sends anything within `timeout` seconds when asked for one token."""
        if self._dead is not None or self.draining:
            return False
        start = next(iter(self.info.get("eos_ids") or ()), 0)
        stream = self.generate(
            GenerateRequest(
                input_ids=[start],
                sampling=SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True),
                rid=PROBE_PREFIX + uuid.uuid4().hex,
                embed=not self.limits.is_generation,
                probe=True,
            )
        )
        began = time.monotonic()
        collecting = asyncio.ensure_future(stream.collect())
        before = self.heard
        try:
            while time.monotonic() - began < timeout:
                await asyncio.wait({collecting}, timeout=0.05)
                if collecting.done():
                    error = collecting.exception()
                    return error is None or (self._dead is None and isinstance(error, OverloadedError))
                if self.heard != before and self._dead is None:
                    return True
            return False
        finally:
            collecting.cancel()
            await asyncio.gather(collecting, return_exceptions=True)

    # ---- messages ----

    def dispatch(self, messages: list[ToServer]) -> None:
        """Take what arrived from the detokenizer; call it on the loop."""
        if messages:
            self.heard = time.time()
        for message in messages:
            handler = self._handlers.get(type(message))
            if handler is not None:
                handler(message)

    def _on_texts(self, message: Texts) -> None:
        """One step's news of many requests, column by column."""
        now = self.heard
        ids, offset = message.ids, 0
        gaps: dict[float, int] = {}  # most rows waited equally long: a step
        rows = zip(
            message.rids, message.texts, message.counts, message.finishes, message.metas, message.ends, strict=True
        )
        for i, (wire, text, count, finish, meta, end) in enumerate(rows):
            start, offset = offset, offset + 4 * count
            sequence = self._by_wire.get(wire)
            if sequence is None:
                continue
            sequence.add(text, ids[start:offset], count)
            if meta is not None:
                sequence.meta = meta
            if sequence.logprobs is not None and sequence.prompt_logprobs is not None:
                asked = sequence.request.token_ids_logprob
                if (prompt := message.prompt_logprobs.get(i)) is not None:
                    sequence.prompt_logprobs.add(prompt, asked)
                if (output := message.output_logprobs.get(i)) is not None:
                    sequence.logprobs.add(output, asked, count)
            if count:
                if not sequence.first_at:
                    self._first(sequence, now)
                elif not sequence.request.probe:
                    gap = (now - sequence.last_at) / count
                    gaps[gap] = gaps.get(gap, 0) + count
                sequence.last_at = now
            if finish is not None:
                self._finish(sequence, finish, now)
                if end:
                    self._give_up(sequence)
            sequence.stream.advanced(sequence)
        for gap, count in gaps.items():
            self.metrics.next_tokens(gap, count)

    def _first(self, sequence: Sequence, now: float) -> None:
        sequence.first_at = now
        if not sequence.request.probe:
            self.metrics.first_token(sequence)

    def _finish(self, sequence: Sequence, finish: dict[str, Any], now: float) -> None:
        sequence.finish_reason = finish
        sequence.finished_at = now
        self._forget(sequence)
        if not sequence.request.probe:
            self.metrics.finished(sequence)
            if self.config.log.log_requests:
                log.info("finished %r: %s %r", sequence.rid, finish, sequence.text[:LOGGED_TEXT])

    def _on_embedding(self, message: Embedding) -> None:
        sequence = self._by_wire.get(message.rid)
        if sequence is None:
            return
        sequence.vector = np.frombuffer(message.vector, "<f4")
        sequence.meta = message.meta
        sequence.first_at = sequence.last_at = self.heard
        self._finish(sequence, {"type": "stop", "matched": None}, self.heard)
        sequence.stream.advanced(sequence)

    def _on_failed(self, message: Failed) -> None:
        sequence = self._by_wire.get(message.rid)
        if sequence is None:
            return
        if message.status == ABORTED:
            # Somebody asked for it: the client gets what there is, as an answer.
            self._finish(sequence, {"type": "abort", "message": message.message}, self.heard)
            sequence.stream.advanced(sequence)
            return
        self._forget(sequence)
        if message.running:
            self._give_up(sequence)
        if not sequence.request.probe:
            self.metrics.failed(message.status)
        request, param = sequence.request, None
        if message.constraint and request.grammar is not None:
            param = request.grammar_param or request.grammar.kind
        sequence.stream.fail(from_status(message.status, message.message, param))

    def _on_reply(self, message: Reply) -> None:
        future = self._replies.get(message.id)
        if future is None or future.done():
            return
        if message.ok:
            future.set_result(message.value)
        else:
            future.set_exception(from_status(message.status, str(message.value), message.param))

    def _on_stats(self, message: Stats) -> None:
        self.metrics.update(message)

    def _on_dead(self, message: Dead) -> None:
        log.error("the %s process died: %s\n%s", message.process, message.message, message.traceback)
        self.fail_all(EngineDeadError(f"The {message.process} process has died: {message.message}"))

    def _on_stopped(self, message: Stopped) -> None:
        self.draining = True
        self.fail_all(EngineDeadError("The engine has stopped."))

    def fail_all(self, error: RadixLangError | None = None) -> None:
        """The engine is gone: end every stream and every control call with an error, refuse new ones."""
        self._dead = error or EngineDeadError("The engine has died.")
        for sequence in list(self._by_wire.values()):
            self._forget(sequence)
            if not sequence.request.probe:
                self.metrics.failed(self._dead.status)
            sequence.stream.fail(self._death())
        for future in self._replies.values():
            if not future.done():
                future.set_exception(self._death())
        self.metrics.clear()

    def _death(self) -> RadixLangError:
        """A fresh error for each waiter: one exception raised many times would collect all their tracebacks."""
        return EngineDeadError(str(self._dead))

    def _log_prompt(self, sequence: Sequence) -> None:
        text = sequence.request.text
        shown = repr(text[:LOGGED_TEXT]) if text is not None else f"{sequence.prompt_tokens} token ids"
        log.info("received %r: %s %s", sequence.rid, shown, sequence.sampling)


def _messages(sequences: list[Sequence], eos_ids: tuple[int, ...]) -> Iterator[Generate]:
    """One for each; the samples of a prompt, which stand together, share its packed ids."""
    ids = b""
    for sequence in sequences:
        if sequence.sample == 0:
            ids = pack_ids(sequence.prompt_ids)
        yield _message(sequence, ids, eos_ids)


def _message(sequence: Sequence, ids: bytes, eos_ids: tuple[int, ...]) -> Generate:
    request = sequence.request
    return Generate(
        rid=sequence.wire,
        input_ids=ids,
        sampling=sequence.sampling,
        namespace=request.namespace,
        priority=request.priority,
        return_logprob=request.return_logprob,
        logprob_start_len=request.logprob_start_len,
        top_logprobs_num=request.top_logprobs_num,
        token_ids_logprob=tuple(request.token_ids_logprob),
        embed=request.embed,
        sample_index=sequence.sample,
        received=sequence.received,
        eos_ids=eos_ids,
        grammar=request.grammar,
        pin=request.pin,
    )
