"""What all remote APIs share: one time limit, one rule for retries, errors in this package's words, and the check
of what a call asks for against what the API offers.

The vendors' clients are told not to retry, so that all APIs behave alike. Must not know any API.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import random
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from radixlang.errors import BackendError, ConfigError, RadixLangError
from radixlang.lang.backends.base import Backend, Piece, Prompt
from radixlang.lang.backends.speculative import Speculative
from radixlang.lang.chat_templates import ChatTemplate, get_chat_template
from radixlang.lang.choices import ChoicesDecision, ChoicesSamplingMethod
from radixlang.lang.params import SamplingParams
from radixlang.log import get_logger
from radixlang.url import check_url

T = TypeVar("T")
log = get_logger(__name__)

DEFAULT_TIMEOUT = 600.0
DEFAULT_RETRIES = 3
#: HTTP statuses, beside 5xx, that may be different next time
_TRANSIENT = frozenset({408, 409, 425, 429})
_LONGEST_WAIT = 8.0
_LONGEST_MESSAGE = 500
#: parameters whose loss would change where an answer ends: refused where an API lacks them …
_NEEDED = ("min_new_tokens", "stop_token_ids", "stop_regex", "ignore_eos")
#: … and those that only shape the draw: left out with one warning
_WANTED = ("top_k", "min_p", "frequency_penalty", "presence_penalty")


def client_library(module: str, extra: str, backend: str) -> Any:
    """The vendor's client, loaded when a backend is made.

    Raises:
        ConfigError: it is not installed; says how to get it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{backend} needs the package {module!r} ({error}); install it with: pip install 'radixlang[{extra}]'"
        ) from error


def check_base_url(url: Any) -> None:
    """Before a client is made: it would try such a server again and again, as one that does not answer.

    Raises:
        ConfigError: it is no URL. None is the API's own.
    """
    if url is not None:
        check_url("base_url", str(url))


def template_of(template: ChatTemplate | str | None) -> ChatTemplate:
    """The language's template by name; the default one for None."""
    if template is None or isinstance(template, str):
        return get_chat_template(template or "default")
    return template


@dataclass(frozen=True)
class Failure:
    """An exception of a client, read: `status` None means that there was no answer."""

    status: int | None
    message: str
    retry_after: float | None = None

    @property
    def transient(self) -> bool:
        return self.status is None or self.status in _TRANSIENT or self.status >= 500

    def wait(self, attempt: int) -> float:
        """Seconds until the next try: what the server says, else twice as long each time."""
        if self.retry_after is not None:
            return self.retry_after
        longest: float = min(_LONGEST_WAIT, 0.5 * 2**attempt)
        return longest * random.uniform(0.5, 1.0)


class RemoteBackend(Backend):
    """Base of the backends for APIs over the network.

    Attributes:
        timeout: seconds that a call may take, retries included; of a stream, until its first piece and between
            pieces.
        prefill: whether the API continues an assistant turn that the program has begun.
        takes: the parameters of `_NEEDED` and `_WANTED` that the API has.
    """

    vendor: ClassVar[str]
    prefill: bool = False
    takes: frozenset[str] = frozenset()

    def __init__(self, model_name: str, template: ChatTemplate | str | None, timeout: float, retries: int) -> None:
        self.model_name = model_name
        self.name = f"{type(self).__name__}({model_name!r})"
        self.timeout = timeout
        self.max_retries = retries
        self._template = template_of(template)
        self._warned: set[str] = set()

    def chat_template(self) -> ChatTemplate:
        """The template that was asked for, else the default one: only completion models see its text."""
        return self._template

    def client_errors(self) -> tuple[type[Exception], ...]:
        """The client's exceptions; one of them without a status means that there was no answer, or half of one."""
        return (OSError, *transport_errors())

    def speculative(self, num_tokens: int) -> Backend:
        """Answers later calls of one program from earlier ones (`speculative.py`)."""
        return Speculative(self, num_tokens)

    # ---- what a call asks for ----

    def check(self, prompt: Prompt, params: SamplingParams) -> None:
        """Refuse what the API cannot do.

        Raises:
            UnsupportedError: says what, and what to do instead.
        """
        can = self.capabilities
        if params.regex is not None and not can.regex:
            raise self.unsupported("regex (or a dtype)", "use json_schema or choices, or a RadixLang server")
        if params.json_schema is not None and not can.json_schema:
            raise self.unsupported("json_schema", "ask for JSON in the prompt, or use a RadixLang server")
        if params.return_logprob and not can.logprobs:
            raise self.unsupported("return_logprob", "leave it out, or use a RadixLang server")
        if params.return_logprob and params.logprob_start_len not in (None, -1):
            raise self.unsupported("logprob_start_len", "leave it out, or use a RadixLang server")
        if prompt.images and not can.images:
            raise self.unsupported("images", "describe the picture in words, or use another model")
        if prompt.videos:
            raise self.unsupported("videos", "send pictures of it with image(…)")
        defaults = SamplingParams()
        for name in (*_NEEDED, *_WANTED):
            value = getattr(params, name)
            if name in self.takes or value == getattr(defaults, name) or value in ((), []):
                continue
            if name in _NEEDED:
                raise self.unsupported(name, "leave it out, or use a RadixLang server")
            if name not in self._warned:
                self._warned.add(name)
                log.warning("%s has no parameter %s; it is left out.", self.name, name)
        if can.chat and not can.completion:
            self._check_turn(prompt)

    def _check_turn(self, prompt: Prompt) -> None:
        if prompt.role != "assistant":
            where = f"in the {prompt.role} turn" if prompt.role else "outside of a turn"
            raise self.unsupported(
                f"a call {where}", "chat models answer as the assistant: write s += assistant(gen(…))"
            )
        if begun(prompt) and not self.prefill:
            raise self.unsupported(
                "text before gen in an assistant turn",
                "put gen first in its turn, or let one call write the turn: @function(num_api_spec_tokens=128)",
            )

        if self._says_more(prompt):
            raise self.unsupported("text outside of turns", "put it into s.system(…), s.user(…) or s.assistant(…)")

    def _says_more(self, prompt: Prompt) -> bool:
        """Whether the program's text has something that its messages do not have."""
        if prompt.images or prompt.videos:
            return False
        turns = [{**turn, "content": text_of(turn["content"])} for turn in prompt.messages]
        text = begun(prompt)
        rendered = self._template.begin(turns[:-1] if text else turns, prompt.role or "") + text
        return _visible(prompt.text) > _visible(rendered)  # messages have lost white space

    # ---- calls ----

    async def attempts(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of `call`, tried again where that may help, all within the time limit.

        Raises:
            BackendError: the API refused, failed too often, cannot be reached or took too long.
        """
        clock = asyncio.get_running_loop()
        deadline = clock.time() + self.timeout
        for attempt in itertools.count():
            try:
                async with asyncio.timeout_at(deadline):
                    return await call()
            except Exception as error:
                if isinstance(error, TimeoutError) and clock.time() >= deadline:
                    raise self._late() from error
                failure = self._read(error)
                if failure is None:
                    raise
                wait = failure.wait(attempt)
                if not failure.transient or attempt >= self.max_retries or clock.time() + wait >= deadline:
                    raise self._error(failure, attempt + 1) from error
            log.info("%s: %s; trying again in %.1f s.", self.name, failure.message, wait)
            await asyncio.sleep(wait)
        raise AssertionError("unreachable")

    async def items(self, opening: Callable[[], Awaitable[Any]]) -> AsyncGenerator[Any, None]:
        """What a stream yields. Until its first item has come it is opened again like any other call.

        Raises:
            BackendError: as for `attempts`; it broke off; an item took longer than the time limit.
        """

        async def first() -> tuple[Any, AsyncIterator[Any], Any]:
            stream = await opening()
            try:
                source = aiter(stream)
                return stream, source, await anext(source, None)
            except BaseException:
                await _close(stream)
                raise

        stream, source, item = await self.attempts(first)
        try:
            while item is not None:
                yield item
                async with asyncio.timeout(self.timeout):
                    item = await anext(source, None)
        except TimeoutError as error:
            raise self._late() from error
        except Exception as error:
            failure = self._read(error)
            if failure is None:
                raise
            raise BackendError(f"The stream of {self.name} broke off: {failure.message}") from error
        finally:
            await _close(stream)

    async def samples(self, params: SamplingParams, one: Callable[[], Awaitable[Piece]]) -> list[Piece]:
        """`params.n` answers from an API that gives one: as many calls at the same time."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_unwrapped(one())) for _ in range(params.n)]
        return [_result(task) for task in tasks]

    def _read(self, error: Exception) -> Failure | None:
        """`error` as a failure of the API; None when it is something else."""
        if isinstance(error, RadixLangError):
            return None
        status = getattr(error, "status_code", None) or getattr(error, "code", None)
        if not isinstance(status, int):
            if not isinstance(error, self.client_errors()):
                return None
            status = None
        return Failure(status, _message(error), _retry_after(error))

    def _error(self, failure: Failure, attempts: int) -> BackendError:
        tries = f" ({attempts} tries)" if attempts > 1 else ""
        if failure.status is None:
            return BackendError(f"{self.name} cannot be reached{tries}: {failure.message}")
        return BackendError(f"{self.name} answered {failure.status}{tries}: {failure.message}")

    def _late(self) -> BackendError:
        return BackendError(
            f"{self.name} did not answer within {self.timeout:g} s; give the backend a longer timeout=…"
        )

    # ---- select without log-probabilities ----

    async def select_by_schema(
        self, prompt: Prompt, choices: Sequence[str], method: ChoicesSamplingMethod
    ) -> ChoicesDecision:
        """The choice that the model writes when a JSON schema allows nothing else: its most likely way through the
        choices, without scores.

        Raises:
            UnsupportedError: the method compares scores with those of another prompt.
            BackendError: the API let something else through.
        """
        if method.requires_unconditional_logprobs:
            raise self.unsupported(f"choices_method={method}", "use token_length_normalized")
        schema = {
            "type": "object",
            "properties": {"choice": {"type": "string", "enum": list(choices)}},
            "required": ["choice"],
            "additionalProperties": False,
        }
        room = 64 + max(len(json.dumps(choice)) for choice in choices)
        wanted = SamplingParams(max_new_tokens=room, temperature=0.0, json_schema=schema)
        answer = (await self.generate(prompt, wanted))[0]
        chosen = ""
        with suppress(ValueError, TypeError, KeyError):
            chosen = json.loads(answer.text)["choice"]
        if chosen not in choices:
            wrote = answer.text[:100]
            raise BackendError(f"{self.name} did not keep to the choices of a select; it wrote {wrote!r}.")
        return ChoicesDecision(chosen, answer.meta)


# ---- helpers of the backends ----


def transport_errors() -> tuple[type[Exception], ...]:
    """The errors of the HTTP libraries below the clients, which come through while a stream is read."""
    bases = (("httpx", "TransportError"), ("httpx2", "TransportError"), ("aiohttp", "ClientError"))
    return tuple(getattr(sys.modules[name], base) for name, base in bases if name in sys.modules)


def begun(prompt: Prompt) -> str:
    """Text that the open turn already has."""
    last = prompt.messages[-1] if prompt.role is not None and prompt.messages else None
    if last is None or last["role"] != prompt.role:
        return ""
    return last["content"] if isinstance(last["content"], str) else text_of(last["content"])


def text_of(content: Any) -> str:
    """The text of a message's content."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content if part.get("type") == "text")


class Cut:
    """Ends a text before the first of `stops`, for APIs that do not take them: `feed` gives what is safe to show,
    `rest` what was held back because a stop might have begun with it. `hit` says that there is nothing to come."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.hit = False

    def feed(self, text: str) -> str:
        """The text that is known to stand before any stop."""
        text = self._held + text
        hits = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if hits:
            self.hit, self._held = True, ""
            return text[: min(hits)]
        longest = max(map(len, self._stops), default=1)
        tails = (text[len(text) - size :] for size in range(min(longest - 1, len(text)), 0, -1))
        self._held = next((tail for tail in tails if any(stop.startswith(tail) for stop in self._stops)), "")
        return text[: len(text) - len(self._held)]

    def rest(self) -> str:
        """What was held back, once the text has ended."""
        held, self._held = self._held, ""
        return held


def split_data_uri(url: str) -> tuple[str, str] | None:
    """(media type, base64 text) of a data URI; None for other URLs."""
    if not url.startswith("data:"):
        return None
    head, _, data = url[len("data:") :].partition(",")
    return head.partition(";")[0] or "image/png", data


def finished(reason: str, **values: Any) -> dict[str, Any]:
    """Meta of a finished answer in the shape of the native API; values that are None are left out."""
    known = {key: value for key, value in values.items() if value is not None}
    return {"finish_reason": {"type": reason}, **known}


def _visible(text: str) -> int:
    return sum(map(len, text.split()))


async def _close(stream: Any) -> None:
    close = getattr(stream, "aclose", None) or getattr(stream, "close", None)
    if close is not None:
        with suppress(Exception):
            await close()


async def _unwrapped(call: Awaitable[Piece]) -> Piece | Exception:
    """Errors as values: a task group would wrap them."""
    try:
        return await call
    except Exception as error:
        return error


def _result(task: asyncio.Task[Piece | Exception]) -> Piece:
    result = task.result()
    if isinstance(result, Exception):
        raise result
    return result


def _message(error: Exception) -> str:
    body = getattr(error, "body", None)
    if isinstance(body, dict):
        inner = body.get("error", body)
        text = inner.get("message") if isinstance(inner, dict) else inner
    else:
        text = getattr(error, "message", None)
    text = " ".join(str(text or error or type(error).__name__).split()) or type(error).__name__
    return text[:_LONGEST_MESSAGE]


def _retry_after(error: Exception) -> float | None:
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        # The other form, a date, is rare, and our own pace does as well.
        return max(0.0, float(headers.get("retry-after", "")))
    except ValueError:
        return None
