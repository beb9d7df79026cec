"""Anthropic's Messages API. Needs the extra `anthropic`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, ClassVar

from radixlang.errors import BackendError, ConfigError
from radixlang.lang.backends.base import Capabilities, Piece, Prompt
from radixlang.lang.backends.remote import (
    DEFAULT_RETRIES,
    DEFAULT_TIMEOUT,
    Cut,
    RemoteBackend,
    check_base_url,
    client_library,
    finished,
    split_data_uri,
    text_of,
)
from radixlang.lang.choices import ChoicesDecision, ChoicesSamplingMethod
from radixlang.lang.params import SamplingParams

#: the API's reasons in the words of the others
_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length"}
#: values that the API has as its defaults: not sent, because some of its models refuse the parameters as such
_API_DEFAULTS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "stop_sequences": []}


class Anthropic(RemoteBackend):
    """A Claude model.

    An assistant turn that the program has begun is sent as the answer's beginning; models that do not continue it
    say so. `args` and `kwargs` go to the client (`api_key`, `base_url`, …).
    """

    vendor: ClassVar[str] = "Anthropic"
    prefill = True
    takes = frozenset({"top_k"})
    capabilities = Capabilities(
        chat=True, completion=False, json_schema=True, select="json_schema", images=True, n=True
    )

    def __init__(
        self,
        model_name: str,
        *args: Any,
        timeout: float = DEFAULT_TIMEOUT,
        max_retries: int = DEFAULT_RETRIES,
        **kwargs: Any,
    ) -> None:
        super().__init__(model_name, "claude", timeout, max_retries)
        self._library = client_library("anthropic", "anthropic", type(self).__name__)
        check_base_url(kwargs.get("base_url"))
        try:
            self._client = self._library.AsyncAnthropic(*args, timeout=timeout, max_retries=0, **kwargs)
        except self._library.AnthropicError as error:
            raise ConfigError(f"{self.name}: {error}") from error
        found = (getattr(self._client, name, None) for name in ("api_key", "auth_token", "credentials"))
        if not any(found) and "default_headers" not in kwargs:  # the client would say so at the first call
            raise ConfigError(f"{self.name}: give api_key=… or set ANTHROPIC_API_KEY.")

    def client_errors(self) -> tuple[type[Exception], ...]:
        """The client's own, and those below it."""
        return (*super().client_errors(), self._library.APIError)

    async def generate(self, prompt: Prompt, params: SamplingParams) -> list[Piece]:
        """`params.n` answers, each by a call."""
        self.check(prompt, params)
        fields, lead, stops = self._fields(prompt, params)

        async def one() -> Piece:
            answer = await self.attempts(lambda: self._client.messages.create(**fields))
            text = "".join(block.text for block in answer.content if block.type == "text")
            cut = Cut(stops)
            text = cut.feed(text.removeprefix(lead)) + cut.rest()
            return Piece(text, _meta("stop_sequence" if cut.hit else answer.stop_reason, answer.usage))

        return await self.samples(params, one)

    async def stream(self, prompt: Prompt, params: SamplingParams) -> AsyncIterator[Piece]:
        """One answer, piece by piece."""
        self.check(prompt, params)
        fields, lead, stops = self._fields(prompt, params)
        cut = Cut(stops)
        begun: Any = None
        ended: Any = None
        opening = self.items(lambda: self._client.messages.create(**fields, stream=True))
        async with aclosing(opening) as events:
            async for event in events:
                if event.type == "message_start":
                    begun = event.message.usage
                elif event.type == "content_block_delta" and event.delta.type == "text_delta":
                    text, lead = cut.feed(event.delta.text.removeprefix(lead)), ""
                    if text:
                        yield Piece(text)
                    if cut.hit:
                        yield Piece("", _meta("stop_sequence", begun))
                        return
                elif event.type == "message_delta":
                    ended = event
        if ended is None or ended.delta.stop_reason is None:
            raise BackendError(f"The stream of {self.name} broke off before the answer's end.")
        meta = _meta(ended.delta.stop_reason, begun or ended.usage)
        yield Piece(cut.rest(), {**meta, "completion_tokens": ended.usage.output_tokens})

    async def select(
        self, prompt: Prompt, choices: Sequence[str], method: ChoicesSamplingMethod
    ) -> ChoicesDecision:
        """The choice that the model writes under a schema."""
        return await self.select_by_schema(prompt, choices, method)

    async def close(self) -> None:
        """Close the client's connections."""
        await self._client.close()

    def _fields(self, prompt: Prompt, params: SamplingParams) -> tuple[dict[str, Any], str, list[str]]:
        """Arguments of the call; white space with which the answer may begin: the API takes no turn that ends in
        white space, so what the program's turn ended with is left to the model and taken off again; and the stops
        that are ours to find, because the API takes none of white space alone."""
        values = params.to_anthropic_kwargs()
        fields: dict[str, Any] = {"model": self.model_name, "max_tokens": values.pop("max_tokens")}
        values = {key: value for key, value in values.items() if _API_DEFAULTS[key] != value}
        stops = values.pop("stop_sequences", [])
        visible = [stop for stop in stops if stop.strip()]
        if visible:
            fields["stop_sequences"] = visible
        if params.json_schema is not None:
            schema = json.loads(params.schema_text or "{}")
            values["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        if values:
            # Not as arguments: which of them the client's method has depends on its version.
            fields["extra_body"] = values
        turns = list(prompt.messages)
        system = [text_of(turn["content"]) for turn in turns if turn["role"] == "system"]
        if system:
            fields["system"] = "\n\n".join(system)
        fields["messages"] = [
            {"role": turn["role"], "content": _content(turn["content"])}
            for turn in turns
            if turn["role"] != "system"
        ]
        lead = ""
        last = fields["messages"][-1] if fields["messages"] else None
        if last is not None and last["role"] == "assistant" and isinstance(last["content"], str):
            begun = last["content"]
            last["content"] = begun.rstrip()
            lead = begun[len(last["content"]) :]
        return fields, lead, [stop for stop in stops if not stop.strip()]


def _content(content: Any) -> Any:
    """A message's content in the API's form."""
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for part in content:
        if part["type"] == "text":
            parts.append({"type": "text", "text": part["text"]})
            continue
        url = part["image_url"]["url"]
        data = split_data_uri(url)
        source = (
            {"type": "url", "url": url}
            if data is None
            else {"type": "base64", "media_type": data[0], "data": data[1]}
        )
        parts.append({"type": "image", "source": source})
    return parts


def _meta(reason: str | None, usage: Any) -> dict[str, Any]:
    cached = getattr(usage, "cache_read_input_tokens", None) or 0
    made = getattr(usage, "cache_creation_input_tokens", None) or 0
    return finished(
        _REASONS.get(reason or "", reason or "stop"),
        prompt_tokens=(usage.input_tokens or 0) + cached + made,
        completion_tokens=usage.output_tokens,
        cached_tokens=cached,
    )
