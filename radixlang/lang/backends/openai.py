"""OpenAI's chat and completion APIs, and all servers that speak them.

Needs the extra `openai`. Servers of this package (and SGLang's) take more than the API has: which kind of server
it is, is asked once, when a call needs to know.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from urllib.parse import urlsplit

from radixlang.errors import BackendError, ConfigError
from radixlang.lang.backends import openai_select
from radixlang.lang.backends.base import Capabilities, Piece, Prompt
from radixlang.lang.backends.remote import (
    DEFAULT_RETRIES,
    DEFAULT_TIMEOUT,
    RemoteBackend,
    begun,
    check_base_url,
    client_library,
    finished,
)
from radixlang.lang.chat_templates import ChatTemplate
from radixlang.lang.choices import ChoicesDecision, ChoicesSamplingMethod
from radixlang.lang.params import SamplingParams

#: OpenAI's models that continue text; all others chat
_COMPLETION_MODELS = ("gpt-3.5-turbo-instruct", "davinci-002", "babbage-002")
#: `owned_by` of servers that take the fields of `_EXTENDED`
_EXTENDED_SERVERS = frozenset({"radixlang", "sglang"})
#: parameter → field of such servers
_EXTENDED = {
    "min_new_tokens": "min_tokens",
    "stop_token_ids": "stop_token_ids",
    "stop_regex": "stop_regex",
    "ignore_eos": "ignore_eos",
    "top_k": "top_k",
    "min_p": "min_p",
}
#: values that OpenAI's API has as its defaults; some of its models refuse the parameters as such
_API_DEFAULTS = {"n": 1, "stop": None, "temperature": 1, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0}


def capabilities(chat: bool, extended: bool) -> Capabilities:
    """What the endpoint for chats or completions can do, with or without the fields of our own server."""
    return Capabilities(
        chat=chat,
        completion=not chat,
        regex=extended,
        json_schema=chat or extended,
        select="json_schema" if chat else "logprobs",
        images=chat,
        logprobs=True,
        n=True,
    )


@dataclass
class TokenUsage:
    """Tokens of all calls so far, as the API counted them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def reset(self) -> None:
        """Begin at 0."""
        self.prompt_tokens = self.completion_tokens = 0


class OpenAI(RemoteBackend):
    """A model behind OpenAI's API.

    Args:
        is_chat_model: chat or completion endpoint; None: by the model's name.
        chat_template: how turns become text for a completion model, a name or a template.
        is_azure: the client is Azure's.
        extended: the server takes the fields of this package's server (`regex`, `top_k`, `continue_final_message`,
            …); None: asks the server when a call needs one.
        timeout: seconds that a call may take, retries included.
        max_retries: further tries after 429, 5xx and broken connections.
        args, kwargs: go to the client (`api_key`, `base_url`, …).
    """

    vendor: ClassVar[str] = "OpenAI"
    extra: ClassVar[str] = "openai"

    def __init__(
        self,
        model_name: str,
        is_chat_model: bool | None = None,
        chat_template: ChatTemplate | str | None = None,
        is_azure: bool = False,
        *args: Any,
        extended: bool | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        max_retries: int = DEFAULT_RETRIES,
        **kwargs: Any,
    ) -> None:
        super().__init__(model_name, chat_template, timeout, max_retries)
        self._library = client_library("openai", self.extra, type(self).__name__)
        check_base_url(kwargs.get("base_url"))
        client = self._library.AsyncAzureOpenAI if is_azure else self._library.AsyncOpenAI
        try:
            self._client = client(*args, timeout=timeout, max_retries=0, **kwargs)
        except self._library.OpenAIError as error:
            raise ConfigError(f"{self.name}: {error}") from error
        self.is_chat_model = model_name not in _COMPLETION_MODELS if is_chat_model is None else is_chat_model
        host = urlsplit(str(self._client.base_url)).hostname or ""
        #: OpenAI's own API has no `max_tokens` for chats any more; other servers may have only that
        self._is_vendor = is_azure or host.endswith("openai.com")
        self._extended = False if self._is_vendor and extended is None else extended
        self._echoes = True  # until the server refuses to echo a prompt with log-probabilities
        self.token_usage = TokenUsage()
        self._set_capabilities()

    def _set_capabilities(self) -> None:
        """What the server is known to take; while that is unknown, nothing is refused."""
        extended = self._extended is not False
        self.prefill = self.is_chat_model and extended
        self.takes = frozenset({"frequency_penalty", "presence_penalty", *(_EXTENDED if extended else ())})
        self.capabilities = capabilities(self.is_chat_model, extended)

    def client_errors(self) -> tuple[type[Exception], ...]:
        """The client's own, and those below it."""
        return (*super().client_errors(), self._library.APIError)

    # ---- calls ----

    async def generate(self, prompt: Prompt, params: SamplingParams) -> list[Piece]:
        """`params.n` answers of one call."""
        create, fields = await self._call(prompt, params)
        answer = await self.attempts(lambda: create(**fields))
        usage = self._count(answer.usage)
        if not answer.choices:
            raise BackendError(f"{self.name} answered without any choice.")
        pieces: list[Piece] = []
        for choice in answer.choices:
            text = (choice.message.content or "") if self.is_chat_model else choice.text
            # What the call cost stands in the first answer, so that sums come out right.
            cost = {} if pieces else usage
            pieces.append(Piece(text, finished(choice.finish_reason, **cost, **self._logprobs(choice, params))))
        return pieces

    async def stream(self, prompt: Prompt, params: SamplingParams) -> AsyncIterator[Piece]:
        """One answer, piece by piece."""
        create, fields = await self._call(prompt, replace(params, n=1))
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
        reason = None
        usage: dict[str, Any] = {}
        told: dict[str, list[Any]] = {}
        async with aclosing(self.items(lambda: create(**fields))) as chunks:
            async for chunk in chunks:
                if getattr(chunk, "usage", None):
                    usage = self._count(chunk.usage)
                for choice in chunk.choices:
                    text = (choice.delta.content or "") if self.is_chat_model else choice.text
                    reason = choice.finish_reason or reason
                    for key, values in self._logprobs(choice, params).items():
                        told.setdefault(key, []).extend(values)
                    if text:
                        yield Piece(text)
        if reason is None:
            raise BackendError(f"The stream of {self.name} broke off before the answer's end.")
        yield Piece("", finished(reason, **usage, **told))

    async def select(
        self, prompt: Prompt, choices: Sequence[str], method: ChoicesSamplingMethod
    ) -> ChoicesDecision:
        """By the log-probabilities of an echoed prompt where the API tells them, else by biased tokens; chat
        models write their choice under a schema."""
        if self.is_chat_model:
            return await self.select_by_schema(prompt, choices, method)
        self.check(prompt, SamplingParams())
        if self._echoes:
            decision = await openai_select.by_echo(self, prompt.text, list(choices), method)
            if decision is not None:
                return decision
            self._echoes = False
        return await openai_select.by_logit_bias(self, prompt.text, list(choices), method)

    async def completion(self, **fields: Any) -> Any:
        """A call of the completion endpoint; what it cost is counted.

        Raises:
            BackendError: as for `attempts`.
        """
        answer = await self.attempts(lambda: self._client.completions.create(model=self.model_name, **fields))
        self._count(answer.usage)
        return answer

    def is_refusal(self, error: BaseException | None) -> bool:
        """Whether the API did not want the request as it was (status 400 or 422)."""
        return isinstance(error, self._library.BadRequestError | self._library.UnprocessableEntityError)

    async def close(self) -> None:
        """Close the client's connections."""
        await self._client.close()

    # ---- one request ----

    async def _call(
        self, prompt: Prompt, params: SamplingParams
    ) -> tuple[Callable[..., Awaitable[Any]], dict[str, Any]]:
        """The client's method and its arguments."""
        self.check(prompt, params)
        if await self._needs_extension(prompt, params):
            self.check(prompt, params)
        fields: dict[str, Any] = {"model": self.model_name, **self._sampling(params)}
        extra: dict[str, Any] = {}
        for name, field in _EXTENDED.items():
            value = getattr(params, name)
            if name in self.takes and value != getattr(SamplingParams(), name) and value not in ((), []):
                extra[field] = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
        if params.regex is not None:
            extra["regex"] = params.regex
        if params.json_schema is not None:
            fields["response_format"] = _json_format(params)
        if not self.is_chat_model:
            if "response_format" in fields:
                extra["response_format"] = fields.pop("response_format")
            create = self._client.completions.create
            fields["prompt"] = prompt.text
        else:
            create = self._client.chat.completions.create
            fields["messages"] = prompt.messages
            if begun(prompt):
                extra |= {"continue_final_message": True, "add_generation_prompt": False}
        if extra:
            fields["extra_body"] = extra
        return create, fields

    async def _needs_extension(self, prompt: Prompt, params: SamplingParams) -> bool:
        """Whether the call uses more than the API has; finds out what the server takes when that was not known."""
        names = [name for name in _EXTENDED if getattr(params, name) != getattr(SamplingParams(), name)]
        schema = params.json_schema is not None and not self.is_chat_model
        if params.regex is None and not names and not schema and not (self.is_chat_model and begun(prompt)):
            return False
        if self._extended is None:
            models = await self.attempts(self._client.models.list)
            self._extended = any(model.owned_by in _EXTENDED_SERVERS for model in models.data)
            self._set_capabilities()
        return True

    def _sampling(self, params: SamplingParams) -> dict[str, Any]:
        values = params.to_openai_kwargs()
        unused = "max_tokens" if self._is_vendor and self.is_chat_model else "max_completion_tokens"
        del values[unused]
        if self._is_vendor:
            values = {key: value for key, value in values.items() if _API_DEFAULTS.get(key, ...) != value}
        if values.get("stop", ...) is None:
            del values["stop"]
        if params.return_logprob:
            top = params.top_logprobs_num or 0
            values |= {"logprobs": True, "top_logprobs": top} if self.is_chat_model else {"logprobs": top}
        return values

    def _logprobs(self, choice: Any, params: SamplingParams) -> dict[str, Any]:
        """Log-probabilities in the shape of the native API: `[value, token id (unknown here), text]`."""
        told = getattr(choice, "logprobs", None)
        if not params.return_logprob or told is None:
            return {}
        if self.is_chat_model:
            tokens = told.content or ()
            own = [[token.logprob, None, token.token] for token in tokens]
            top = [[[one.logprob, None, one.token] for one in token.top_logprobs or ()] for token in tokens]
        else:
            rows = zip(told.token_logprobs or (), told.tokens or (), strict=True)
            own = [[value, None, text] for value, text in rows]
            top = [[[value, None, text] for text, value in (row or {}).items()] for row in told.top_logprobs or ()]
        if not own:
            return {}
        values: dict[str, Any] = {"output_token_logprobs": own}
        if params.top_logprobs_num:
            values["output_top_logprobs"] = top
        return values

    def _count(self, usage: Any) -> dict[str, Any]:
        """Adds what a call cost; returns it as meta."""
        if usage is None:
            return {}
        self.token_usage.prompt_tokens += usage.prompt_tokens
        self.token_usage.completion_tokens += usage.completion_tokens or 0
        details = getattr(usage, "prompt_tokens_details", None)
        return {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens or 0,
            "cached_tokens": getattr(details, "cached_tokens", None),
        }


def _json_format(params: SamplingParams) -> dict[str, Any]:
    schema = json.loads(params.schema_text or "{}")
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
