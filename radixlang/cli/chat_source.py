"""Where a chat's answers come from: a running server, or an engine in this process.

Both give the same thing: an iterator of `Piece`s, the last one with the counts. Closing the iterator early
ends the request. Knows nothing of terminals; must not import torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from radixlang.bearer import bearer
from radixlang.cli.options import chat_ids
from radixlang.errors import RadixLangError, from_status
from radixlang.url import check_url

if TYPE_CHECKING:
    import httpx

    from radixlang.llm import Engine

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Piece:
    """New text, and the counts once they are known."""

    text: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class Source(Protocol):
    """Something that answers a conversation."""

    name: str

    def answer(self, messages: Messages, sampling: dict[str, Any]) -> Iterator[Piece]:
        """Stream the next assistant message; `sampling` has the native API's names."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class EngineSource:
    """An engine in this process."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.name = name
        self._engine = engine

    def answer(self, messages: Messages, sampling: dict[str, Any]) -> Iterator[Piece]:
        """Stream the answer. Raises RadixLangError: the request cannot be served."""
        ids = chat_ids(self._engine, messages)
        shown = 0
        stream: Any = self._engine.generate(input_ids=ids, sampling_params=sampling, stream=True)
        try:
            for state in stream:
                meta = state["meta_info"]
                yield Piece(
                    state["text"][shown:],
                    meta["prompt_tokens"],
                    meta["completion_tokens"],
                    meta.get("cached_tokens"),
                )
                shown = len(state["text"])
        finally:
            stream.close()

    def close(self) -> None:
        """Shut the engine down."""
        self._engine.shutdown()


#: native names that the OpenAI API calls otherwise
_OPENAI_NAMES = {"max_new_tokens": "max_tokens", "sampling_seed": "seed"}


class ServerSource:
    """A server with the OpenAI chat API at `url` (with or without `/v1`)."""

    def __init__(self, url: str, api_key: str | None = None, transport: httpx.BaseTransport | None = None) -> None:
        import httpx

        self._url = check_url("--url", url).geturl()
        # No limit on reading: a long prompt on a slow machine may take minutes to its first token.
        self._client = httpx.Client(
            headers=bearer(api_key), timeout=httpx.Timeout(10, read=None), transport=transport, trust_env=False
        )
        try:
            reply = self._client.get(f"{self._url}/v1/models")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RadixLangError(
                f"No server answers at {url} ({error}); start one with `radixlang serve`, or leave --url out."
            ) from None
        self._check(reply.status_code, reply.text)
        try:
            self.name: str = reply.json()["data"][0]["id"]
        except (ValueError, LookupError, TypeError):
            raise RadixLangError(f"{url} is not an OpenAI-compatible server.") from None

    def answer(self, messages: Messages, sampling: dict[str, Any]) -> Iterator[Piece]:
        """Stream the answer. Raises RadixLangError: the server refuses, fails or goes away."""
        import httpx

        # No max_tokens means "to the end of the context", which the native API calls null.
        given = {_OPENAI_NAMES.get(key, key): value for key, value in sampling.items() if value is not None}
        body = {
            **given,
            "model": self.name,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            with self._client.stream("POST", f"{self._url}/v1/chat/completions", json=body) as reply:
                if reply.status_code != 200:
                    self._check(reply.status_code, reply.read().decode(errors="replace"))
                for line in reply.iter_lines():
                    data = line.removeprefix("data:").strip()
                    if line.startswith("data:") and data != "[DONE]":
                        yield self._piece(data)
        except httpx.HTTPError as error:
            raise RadixLangError(f"The connection to {self._url} broke: {error}.") from None

    def _piece(self, data: str) -> Piece:
        try:
            event = json.loads(data)
            if (error := event.get("error")) is not None:
                raise from_status(500, str(error.get("message", error) if isinstance(error, dict) else error))
            usage = event.get("usage") or {}
            choices = event.get("choices") or [{}]
            return Piece(
                (choices[0].get("delta") or {}).get("content") or "",
                usage.get("prompt_tokens"),
                usage.get("completion_tokens"),
                (usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
            )
        except (ValueError, LookupError, TypeError, AttributeError):
            raise RadixLangError(f"{self._url} sent an event that is not understood: {data[:100]!r}.") from None

    def _check(self, status: int, text: str) -> None:
        if status == 200:
            return
        try:
            message = json.loads(text)["error"]["message"]
        except (ValueError, LookupError, TypeError):
            message = f"{self._url} answered with status {status}."
        raise from_status(status, message)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
