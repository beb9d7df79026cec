"""The many APIs that LiteLLM speaks. Needs the extra `litellm`."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar

from radixlang.errors import BackendError
from radixlang.lang.backends.base import Capabilities, Piece, Prompt
from radixlang.lang.backends.remote import (
    DEFAULT_RETRIES,
    DEFAULT_TIMEOUT,
    RemoteBackend,
    check_base_url,
    client_library,
    finished,
)
from radixlang.lang.chat_templates import ChatTemplate
from radixlang.lang.choices import ChoicesDecision, ChoicesSamplingMethod
from radixlang.lang.params import SamplingParams


class LiteLLM(RemoteBackend):
    """A model by LiteLLM's name (`"provider/model"`); the provider's own limits come back as its errors.

    `kwargs` go along with every call.
    """

    vendor: ClassVar[str] = "LiteLLM"
    takes = frozenset({"top_k", "frequency_penalty", "presence_penalty"})
    capabilities = Capabilities(
        chat=True, completion=False, json_schema=True, select="json_schema", images=True, n=True
    )

    def __init__(
        self,
        model_name: str,
        chat_template: ChatTemplate | str | None = None,
        api_key: str | None = None,
        organization: str | None = None,
        base_url: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        max_retries: int | None = DEFAULT_RETRIES,
        default_headers: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        limit = DEFAULT_TIMEOUT if timeout is None else timeout
        super().__init__(model_name, chat_template, limit, DEFAULT_RETRIES if max_retries is None else max_retries)
        # Its import would otherwise ask the network for a table of prices.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        self._library = client_library("litellm", "litellm", type(self).__name__)
        check_base_url(base_url)
        headers = dict(default_headers) if default_headers else None
        options = {
            "api_key": api_key,
            "organization": organization,
            "base_url": base_url,
            "extra_headers": headers,
            **kwargs,
        }
        self._options = {key: value for key, value in options.items() if value is not None}

    async def generate(self, prompt: Prompt, params: SamplingParams) -> list[Piece]:
        """`params.n` answers, each by a call: not all providers give several."""
        self.check(prompt, params)
        fields = self._fields(prompt, params)

        async def one() -> Piece:
            answer = await self.attempts(lambda: self._library.acompletion(**fields))
            choice = answer.choices[0]
            return Piece(choice.message.content or "", finished(choice.finish_reason, **_usage(answer)))

        return await self.samples(params, one)

    async def stream(self, prompt: Prompt, params: SamplingParams) -> AsyncIterator[Piece]:
        """One answer, piece by piece."""
        self.check(prompt, params)
        fields = {**self._fields(prompt, params), "stream": True, "stream_options": {"include_usage": True}}
        reason = None
        usage: dict[str, Any] = {}
        async with aclosing(self.items(lambda: self._library.acompletion(**fields))) as chunks:
            async for chunk in chunks:
                usage = _usage(chunk) or usage
                for choice in chunk.choices:
                    reason = choice.finish_reason or reason
                    if choice.delta.content:
                        yield Piece(choice.delta.content)
        if reason is None:
            raise BackendError(f"The stream of {self.name} broke off before the answer's end.")
        yield Piece("", finished(reason, **usage))

    async def select(
        self, prompt: Prompt, choices: Sequence[str], method: ChoicesSamplingMethod
    ) -> ChoicesDecision:
        """The choice that the model writes under a schema."""
        return await self.select_by_schema(prompt, choices, method)

    def _fields(self, prompt: Prompt, params: SamplingParams) -> dict[str, Any]:
        sampling = params.to_litellm_kwargs()
        if params.top_k <= 0:
            del sampling["top_k"]
        if params.json_schema is not None:
            schema = json.loads(params.schema_text or "{}")
            sampling["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": schema, "strict": True},
            }
        known = {key: value for key, value in sampling.items() if value is not None}
        return {
            "model": self.model_name,
            "messages": prompt.messages,
            "timeout": self.timeout,
            "max_retries": 0,
            "num_retries": 0,
            **known,
            **self._options,
        }


def _usage(answer: Any) -> dict[str, Any]:
    usage = getattr(answer, "usage", None)
    if usage is None:
        return {}
    details = getattr(usage, "prompt_tokens_details", None)
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": getattr(details, "cached_tokens", None),
    }
