"""`Engine`: the runtime in a Python program, without HTTP.

The same ring and the same hub as the server; the hub lives on an event loop in a thread of its own, so sync and
async callers share it. Must not import torch itself.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, Literal, TypeVar, overload

import msgspec

from radixlang.config import Config
from radixlang.errors import EngineDeadError, RequestError
from radixlang.launch import with_model_files
from radixlang.log import configure
from radixlang.messages import Drain
from radixlang.ring import LEAVING, InlineRing, ProcessRing, ProgressHook, Ring, RingReader
from radixlang.sampling_params import SamplingParams
from radixlang.server.admin import model_facts
from radixlang.server.fields import PIN_SECONDS
from radixlang.server.hub import Hub
from radixlang.server.native import (
    GenerateBody,
    answer_of,
    no_text,
    parse_generate,
    prompts_of,
    text_of_tokens,
)
from radixlang.server.openai.embeddings import check_dimensions, unit_vector
from radixlang.server.pins import PinBody, UnpinBody, make_pin, remove_pins
from radixlang.server.profiling import profile_arguments, profile_body
from radixlang.server.stream import Stream
from radixlang.text.worker import load_for

T = TypeVar("T")
B = TypeVar("B", bound=msgspec.Struct)
Answer = dict[str, Any]

_PROMPTS = {"text", "input_ids", "messages"}
"""arguments in which half a surrogate pair is read as U+FFFD"""


class Engine:
    """A model, ready to answer.

    Options are those of the server's flags (`model_path=…`, `page_size=…`). `inline=True` keeps engine and
    detokenizer in threads of this process instead of processes of their own. Use as a context manager, or call
    `shutdown()`.

    Raises:
        ConfigError, ModelError: before anything is loaded in vain.
    """

    def __init__(
        self,
        model_path: str = "default",
        *,
        server_args: Config | None = None,
        inline: bool = False,
        progress: ProgressHook | None = None,
        **options: Any,
    ) -> None:
        self._closed = True
        options.setdefault("log_level", "error")
        options.pop("metrics_port", None)  # an article's option; the engine serves no port
        config = (server_args or Config.from_flat(model_path=model_path, **options)).resolve()
        configure(config.log.log_level, "engine")
        config = with_model_files(config)
        self.config = config
        self.ring = InlineRing(config, progress) if inline else ProcessRing(config, progress)
        try:
            self.tokenizer = load_for(config)
        except BaseException:
            self.ring.close()
            raise
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="radixlang-hub", daemon=True)
        self._thread.start()
        self.hub: Hub = self._call(self._make_hub())
        self._reader = RingReader(self.ring, self.hub, self._loop, lambda: None)
        # An engine that is forgotten is shut down too: a notebook's cell that is run again must not leak a model.
        self._finalizer = weakref.finalize(
            self, _shut_down, self._reader, self._loop, self.hub, self.ring, self._thread
        )

    async def _make_hub(self) -> Hub:
        return Hub(self.config, self.tokenizer, self.ring.info, self.ring.to_engine)

    # ---- text ----

    @overload
    def generate(
        self,
        prompt: str | list[str] | None = ...,
        sampling_params: Any = ...,
        *,
        stream: Literal[True],
        **fields: Any,
    ) -> Iterator[Answer]: ...
    @overload
    def generate(
        self,
        prompt: str | list[str] | None = ...,
        sampling_params: Any = ...,
        *,
        stream: Literal[False] = ...,
        **fields: Any,
    ) -> Any: ...
    def generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        *,
        stream: bool = False,
        **fields: Any,
    ) -> Any:
        """Answers in the shape of the native `/generate`: a dict for one prompt, a list for a list (or n > 1).

        `fields` are those of `/generate`: `input_ids`, `return_logprob`, `logprob_start_len`,
        `top_logprobs_num`, `token_ids_logprob`, `return_text_in_logprobs`, `rid`, `priority`, `extra_key`,
        `cache_salt`, `pin`, … With `stream=True` an iterator of answers, text cumulative unless
        `incremental_streaming_output` is set; list inputs carry an `index`.

        Raises:
            RequestError: a bad prompt or parameter. EngineError: the engine failed.
        """
        body = _body(prompt, sampling_params, fields)
        if stream:
            return self._iterate(body)
        return self._call(self._answers(body))

    async def async_generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        *,
        stream: bool = False,
        **fields: Any,
    ) -> Any:
        """`generate` for async programs: answers, or with `stream=True` an async iterator of them."""
        body = _body(prompt, sampling_params, fields)
        if stream:
            return self._aiterate(body)
        return await self._acall(self._answers(body))

    def batch_generate(self, requests: list[dict[str, Any]]) -> list[Answer]:
        """One answer for each `{"prompt": …, "sampling_params": …}`; other keys as in `generate`."""
        bodies = [
            _body(item.get("prompt"), item.get("sampling_params"), _without(item, "prompt", "sampling_params"))
            for item in requests
        ]

        async def all_of_them() -> list[Answer]:
            return list(await asyncio.gather(*(self._answers(body) for body in bodies)))

        return self._call(all_of_them())

    async def _answers(self, body: GenerateBody) -> Any:
        requests, as_list, rid = parse_generate(body)
        text_of = text_of_tokens(self.hub) if body.return_text_in_logprobs else no_text
        sequences = await self.hub.generate(requests, rid).collect()
        answers = [answer_of(self.hub, s, text_of, bool(body.return_prompt_token_ids)) for s in sequences]
        return answers if as_list else answers[0]

    async def _open_stream(self, body: GenerateBody, begun: list[Stream] | None = None) -> tuple[Stream, bool]:
        requests, as_list, rid = parse_generate(body)
        stream = self.hub.generate(requests, rid)
        if begun is not None:
            begun.append(stream)
        return await stream.open(), as_list

    async def _next(self, stream: Stream, as_list: bool, body: GenerateBody) -> Answer | None:
        try:
            output = await stream.__anext__()
        except StopAsyncIteration:
            return None
        part = output if self.config.server.incremental_streaming_output else None
        text_of = text_of_tokens(self.hub) if body.return_text_in_logprobs else no_text
        answer = answer_of(self.hub, output.sequence, text_of, bool(body.return_prompt_token_ids), part)
        if as_list:
            answer["index"] = output.index
        return answer

    def _iterate(self, body: GenerateBody) -> Iterator[Answer]:
        stream, as_list = self._call(self._open_stream(body))

        def answers() -> Iterator[Answer]:
            try:
                while (answer := self._call(self._next(stream, as_list, body))) is not None:
                    yield answer
            finally:
                # Nobody waits for it: a forgotten iterator may be collected on the hub's own thread.
                if not self._closed:
                    self._submit(stream.aclose())

        return answers()

    async def _aiterate(self, body: GenerateBody) -> AsyncIterator[Answer]:
        begun: list[Stream] = []
        try:
            stream, as_list = await self._acall(self._open_stream(body, begun))
            while (answer := await self._acall(self._next(stream, as_list, body))) is not None:
                yield answer
        finally:
            # On the hub's loop: who is cancelled while the stream is opened does not know whether it is.
            if not self._closed:
                await self._acall(_close(begun))

    # ---- embeddings ----

    def encode(
        self,
        prompt: str | list[str] | None = None,
        *,
        input_ids: list[Any] | None = None,
        dimensions: int | None = None,
    ) -> Any:
        """Embeddings of unit length: `{"embedding", "meta_info"}`, or a list of them for a list."""
        return self._call(self._encode(prompt, input_ids, dimensions))

    async def async_encode(
        self,
        prompt: str | list[str] | None = None,
        *,
        input_ids: list[Any] | None = None,
        dimensions: int | None = None,
    ) -> Any:
        """`encode` for async programs."""
        return await self._acall(self._encode(prompt, input_ids, dimensions))

    async def _encode(self, prompt: Any, input_ids: Any, dimensions: int | None) -> Any:
        requests, as_list = prompts_of(prompt, input_ids)
        for request in requests:
            request.embed = True
        check_dimensions(self.hub, dimensions)
        sequences = await self.hub.generate(requests).collect()
        answers = [
            {
                "embedding": unit_vector(sequence, dimensions).tolist(),
                "meta_info": {"id": sequence.rid, "prompt_tokens": sequence.prompt_tokens},
            }
            for sequence in sequences
        ]
        return answers if as_list else answers[0]

    # ---- control ----

    def flush_cache(self) -> bool:
        """Empty the prefix cache; False when requests are running."""
        return bool(self._call(self.hub.control("flush_cache")))

    def pin(self, prompt: str | None = None, *, ttl: float = PIN_SECONDS, **fields: Any) -> dict[str, Any]:
        """Compute a prompt and keep it in the prefix cache for `ttl` seconds. → `{"id", "tokens", "expires"}`.

        `fields` are those of `/pin`: `input_ids` or `messages` instead of the prompt, `id` of a pin to add to,
        `extra_key`, `cache_salt`. Pins hold a bounded share of the cache; the oldest give way to newer ones, and
        all of them to running requests that find no other memory.

        Raises:
            RequestError: a bad prompt, or one that cannot be pinned. OverloadedError: memory is short.
        """
        body = _converted({"text": prompt, "ttl": ttl, **fields}, PinBody, "pin")
        return self._call(make_pin(self.hub, body))[0]

    def unpin(self, id: str | list[str]) -> int:
        """End pins; unknown ids are ignored. → how many there were"""
        return self._call(remove_pins(self.hub, _converted({"id": id}, UnpinBody, "unpin").id))

    async def async_unpin(self, id: str | list[str]) -> int:
        """`unpin` for async programs."""
        return await self._acall(remove_pins(self.hub, _converted({"id": id}, UnpinBody, "unpin").id))

    def pins(self) -> list[dict[str, Any]]:
        """All pins: `{"id", "tokens", "branches", "expires"}`."""
        return list(self._call(self.hub.control("pins")))

    def get_server_info(self) -> dict[str, Any]:
        """The configuration and the engine's figures, flat."""
        return {**self.config.flat(), **self._call(self.hub.control("server_info"))}

    def get_model_info(self) -> dict[str, Any]:
        """What is served: paths, kind of model, longest context."""
        return model_facts(self.config, self.hub)

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        """End a request (exact id) or all; their answers then finish with the reason `abort`."""

        async def abort() -> None:
            self.hub.abort(rid, abort_all)

        self._call(abort())

    def start_profile(self, **options: Any) -> dict[str, Any]:
        """Begin a trace of the engine's steps (torch profiler). → `{"path", "num_steps"}`.

        Options are the fields of `/start_profile`: `output_dir`, `num_steps` (the trace is written after so many;
        by default when `stop_profile` is called), `activities` (of "CPU" and "GPU"), `with_stack`,
        `record_shapes`.

        Raises:
            RequestError: a bad option, a folder that cannot be written to, or a trace is running already.
        """
        arguments = profile_arguments(profile_body(options))
        return dict(self._call(self.hub.control("start_profile", **arguments)))

    def stop_profile(self) -> dict[str, Any]:
        """Write the trace. → `{"path"}`.

        Raises:
            RequestError: none is running.
        """
        return dict(self._call(self.hub.control("stop_profile")))

    def get_all_child_pids(self) -> list[int]:
        """Process ids of engine and detokenizer; empty when inline."""
        return self.ring.pids() if isinstance(self.ring, ProcessRing) else []

    def shutdown(self) -> None:
        """End the engine. Running requests fail; calling it twice is harmless."""
        self._closed = True
        self._finalizer()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()

    # ---- between the caller's thread and the hub's loop ----

    def _submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self._closed:
            work.close()
            raise EngineDeadError("The engine was shut down.")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def _acall(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._submit(work))


async def _close(streams: list[Stream]) -> None:
    for stream in streams:
        await stream.aclose()


def _body(prompt: Any, sampling_params: Any, fields: dict[str, Any]) -> GenerateBody:
    """The same checks of types as a body over HTTP gets; arrays of ids (numpy, torch) stand for lists."""
    if "text" in fields:
        raise RequestError("Pass the text as `prompt`.", "text")
    if isinstance(sampling_params, SamplingParams):
        sampling_params = msgspec.to_builtins(sampling_params)
    return _converted({"text": prompt, "sampling_params": sampling_params, **fields}, GenerateBody, "generate")


def _converted(values: dict[str, Any], kind: type[B], method: str) -> B:
    """The arguments of a method as a body. Unknown ones that ask for nothing are left out, as by the server."""
    values = {
        name: value
        for name, value in values.items()
        if name in kind.__struct_fields__ or not (value is None or value is False)
    }
    unknown = sorted(set(values) - set(kind.__struct_fields__))
    if unknown:
        raise RequestError(f"Unknown argument {unknown[0]!r} of {method}.", unknown[0])
    plain = {name: _plain(value) for name, value in values.items()}
    for name in plain.keys() - _PROMPTS:
        try:
            _check_strings(plain[name])
        except UnicodeEncodeError as error:
            raise RequestError(f"Argument {name} of {method} is not valid Unicode: {error}.", name) from None
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        text = str(error).replace("$.text", "$.prompt")
        raise RequestError(f"Argument of {method}: {text}.") from None


def _check_strings(value: Any) -> None:
    """Refuse half a surrogate pair, which JSON cannot bring and messages between processes cannot hold.

    Raises:
        UnicodeEncodeError: there is one.
    """
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, dict):
        _check_strings(list(value.values()))
    elif isinstance(value, list):
        for item in value:
            _check_strings(item)


def _plain(value: Any) -> Any:
    """`value` with arrays and tuples as lists, and their numbers as Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [
            _plain(item) if hasattr(item, "tolist") or isinstance(item, tuple | dict) else item for item in value
        ]
    return value


def _without(mapping: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key not in names}


def _shut_down(
    reader: RingReader, loop: asyncio.AbstractEventLoop, hub: Hub, ring: Ring, thread: threading.Thread
) -> None:
    """End everything an engine started; `weakref.finalize` runs it once, at program exit at the latest."""
    reader.stop()
    drains = not hub.running and ring.dead() is None and thread is not threading.current_thread()
    if drains:
        loop.call_soon_threadsafe(ring.to_engine.send, Drain())
    loop.call_soon_threadsafe(hub.fail_all, EngineDeadError("The engine was shut down."))
    ring.close(LEAVING if drains else 0.0)
    loop.call_soon_threadsafe(loop.stop)
    if thread is not threading.current_thread():
        thread.join(5)
    hub.close()
    if not loop.is_running():
        loop.close()
