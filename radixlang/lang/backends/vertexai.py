"""Gemini models, on Vertex AI or by an API key. Needs the extra `gemini`."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar

from radixlang.errors import BackendError, ConfigError
from radixlang.lang.backends.base import Capabilities, Piece, Prompt
from radixlang.lang.backends.remote import (
    DEFAULT_RETRIES,
    DEFAULT_TIMEOUT,
    RemoteBackend,
    client_library,
    finished,
    split_data_uri,
    text_of,
)
from radixlang.lang.choices import ChoicesDecision, ChoicesSamplingMethod
from radixlang.lang.params import SamplingParams

_REASONS = {"STOP": "stop", "MAX_TOKENS": "length"}


class VertexAI(RemoteBackend):
    """A Gemini model.

    Project and place come from `GCP_PROJECT_ID` and `GCP_LOCATION`; without a project an API key is used
    (`GEMINI_API_KEY` or `GOOGLE_API_KEY`). `client` overrides what the client is made with (`api_key`,
    `vertexai`, `project`, `location`, `http_options`).

    Args:
        safety_settings: category → threshold, or a list of the API's settings.
    """

    vendor: ClassVar[str] = "Google"
    takes = frozenset({"top_k", "frequency_penalty", "presence_penalty"})
    capabilities = Capabilities(
        chat=True, completion=False, json_schema=True, select="json_schema", images=True, n=True
    )

    def __init__(
        self,
        model_name: str,
        safety_settings: Mapping[str, str] | Sequence[Any] | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        max_retries: int = DEFAULT_RETRIES,
        **client: Any,
    ) -> None:
        super().__init__(model_name, None, timeout, max_retries)
        library = client_library("google.genai", "gemini", type(self).__name__)
        self._types = library.types
        if not client.keys() & {"api_key", "vertexai", "project"}:
            project = os.environ.get("GCP_PROJECT_ID")
            key = os.environ.get("GEMINI_API_KEY") or os.environ.get("GOOGLE_API_KEY")
            if project:
                client |= {"vertexai": True, "project": project}
                client.setdefault("location", os.environ.get("GCP_LOCATION"))
            elif key:
                client["api_key"] = key
            else:
                raise ConfigError(f"{self.name}: set GCP_PROJECT_ID and GCP_LOCATION, or GEMINI_API_KEY.")
        # One attempt: without options of its own the client repeats broken connections after up to ten seconds.
        options = {"timeout": int(timeout * 1000), "retry_options": {"attempts": 1}}
        options |= client.pop("http_options", None) or {}
        try:
            self._client = library.Client(http_options=options, **client)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{self.name}: {error}") from error
        if isinstance(safety_settings, Mapping):
            safety_settings = [
                {"category": category, "threshold": threshold} for category, threshold in safety_settings.items()
            ]
        self._safety = list(safety_settings) if safety_settings else None

    async def generate(self, prompt: Prompt, params: SamplingParams) -> list[Piece]:
        """`params.n` answers, each by a call."""
        self.check(prompt, params)
        fields = self._fields(prompt, params)

        async def one() -> Piece:
            answer = await self.attempts(lambda: self._client.aio.models.generate_content(**fields))
            return Piece(_text(answer), self._meta(answer, _reason(answer)))

        return await self.samples(params, one)

    async def stream(self, prompt: Prompt, params: SamplingParams) -> AsyncIterator[Piece]:
        """One answer, piece by piece."""
        self.check(prompt, params)
        fields = self._fields(prompt, params)
        last: Any = None
        reason = None
        opening = self.items(lambda: self._client.aio.models.generate_content_stream(**fields))
        async with aclosing(opening) as chunks:
            async for chunk in chunks:
                last = chunk
                reason = _reason(chunk) or reason
                text = _text(chunk)
                if text:
                    yield Piece(text)
        if last is None or reason is None:
            raise BackendError(f"The stream of {self.name} broke off before the answer's end.")
        yield Piece("", self._meta(last, reason))

    async def select(
        self, prompt: Prompt, choices: Sequence[str], method: ChoicesSamplingMethod
    ) -> ChoicesDecision:
        """The choice that the model writes under a schema."""
        return await self.select_by_schema(prompt, choices, method)

    async def close(self) -> None:
        """Close the client's connections."""
        await self._client.aio.aclose()

    def _fields(self, prompt: Prompt, params: SamplingParams) -> dict[str, Any]:
        values = {key: value for key, value in params.to_vertexai_kwargs().items() if value not in (None, [])}
        for name in ("frequency_penalty", "presence_penalty"):
            if getattr(params, name):
                values[name] = getattr(params, name)
        if params.json_schema is not None:
            values["response_mime_type"] = "application/json"
            values["response_json_schema"] = json.loads(params.schema_text or "{}")
        if self._safety:
            values["safety_settings"] = self._safety
        system = [text_of(turn["content"]) for turn in prompt.messages if turn["role"] == "system"]
        if system:
            values["system_instruction"] = "\n\n".join(system)
        contents = [
            {"role": "model" if turn["role"] == "assistant" else "user", "parts": _parts(turn["content"])}
            for turn in prompt.messages
            if turn["role"] != "system"
        ]
        return {
            "model": self.model_name,
            "contents": contents,
            "config": self._types.GenerateContentConfig(**values),
        }

    def _meta(self, answer: Any, reason: str | None) -> dict[str, Any]:
        if reason is None:
            blocked = getattr(getattr(answer, "prompt_feedback", None), "block_reason", None)
            why = f"the prompt was blocked ({blocked})" if blocked else "there was no candidate"
            raise BackendError(f"{self.name} gave no answer: {why}.")
        usage = answer.usage_metadata
        if usage is None:
            return finished(reason)
        made = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
        return finished(
            reason,
            prompt_tokens=usage.prompt_token_count,
            completion_tokens=made,
            cached_tokens=usage.cached_content_token_count,
        )


def _parts(content: Any) -> list[dict[str, Any]]:
    """A message's content in the API's form."""
    if isinstance(content, str):
        return [{"text": content}]
    parts: list[dict[str, Any]] = []
    for part in content:
        if part["type"] == "text":
            parts.append({"text": part["text"]})
            continue
        url = part["image_url"]["url"]
        data = split_data_uri(url)
        if data is None:
            parts.append({"file_data": {"file_uri": url, "mime_type": "image/*"}})
        else:
            parts.append({"inline_data": {"mime_type": data[0], "data": base64.b64decode(data[1])}})
    return parts


def _text(answer: Any) -> str:
    for candidate in answer.candidates or ():
        parts = (candidate.content.parts if candidate.content else None) or ()
        return "".join(part.text for part in parts if part.text and not part.thought)
    return ""


def _reason(answer: Any) -> str | None:
    for candidate in answer.candidates or ():
        if candidate.finish_reason is not None:
            name = str(getattr(candidate.finish_reason, "value", candidate.finish_reason))
            return _REASONS.get(name, name.lower())
    return None
