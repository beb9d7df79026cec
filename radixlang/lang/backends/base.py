"""The interface that every backend of the language implements, and the data that crosses it.

Everything is async and runs on the language's one event loop. A backend knows calls, not programs: it is handed
a prompt and parameters, and never the state of a program.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from radixlang.errors import UnsupportedError
from radixlang.lang.chat_templates import ChatTemplate
from radixlang.lang.choices import ChoicesDecision, ChoicesSamplingMethod
from radixlang.lang.params import SamplingParams


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do. `select` says by which means, `prefix_cache` whether announcing a prefix helps."""

    chat: bool = True
    completion: bool = True
    regex: bool = False
    json_schema: bool = False
    select: Literal["logprobs", "logit_bias", "json_schema", "regex", "none"] = "none"
    images: bool = False
    logprobs: bool = False
    prefix_cache: bool = False
    n: bool = False


@dataclass
class Prompt:
    """What a call is made with.

    Attributes:
        text: everything so far, as the chat template renders it.
        messages: the same as OpenAI-style messages: the finished turns, then the open one's text if it has any.
        images, videos: sources in the order in which they appear.
        program: id of the program, the same for all its calls and forks.
        role: role of the open turn; None outside of turns.
    """

    text: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    images: list[Any] = field(default_factory=list)
    videos: list[Any] = field(default_factory=list)
    program: str = ""
    role: str | None = None


@dataclass
class Piece:
    """Text of an answer: all of it, or what is new of a stream. `meta` of a finished one has `finish_reason`,
    `prompt_tokens`, `completion_tokens`, `cached_tokens` and log-probabilities where the backend knows them."""

    text: str
    meta: dict[str, Any] = field(default_factory=dict)


class Backend(ABC):
    """A place where calls go.

    Errors of a call are `RadixLangError`s whose sentence names the backend; they reach the program where it reads
    the value. A coroutine that is cancelled, or a stream that is closed, must give the request up.
    """

    name: str
    capabilities: Capabilities

    @abstractmethod
    def chat_template(self) -> ChatTemplate:
        """How turns become text."""

    @abstractmethod
    async def generate(self, prompt: Prompt, params: SamplingParams) -> list[Piece]:
        """`params.n` answers."""

    async def stream(self, prompt: Prompt, params: SamplingParams) -> AsyncIterator[Piece]:
        """One answer, piece by piece; the last one has its meta. By default it comes in one piece."""
        for piece in await self.generate(prompt, params):
            yield piece

    async def select(
        self, prompt: Prompt, choices: Sequence[str], method: ChoicesSamplingMethod
    ) -> ChoicesDecision:
        """The choice that continues the prompt best by `method`.

        Raises:
            UnsupportedError: the backend tells no log-probabilities and has no other means.
        """
        raise self.unsupported("select", "use gen(…), and compare the text in the program")

    async def assistant_turn(self, prompt: Prompt, parts: Sequence[str | SamplingParams]) -> list[list[Piece]]:
        """A whole turn in one call: constants and blanks, answers for the blanks (`num_api_spec_tokens` on chat
        models). By default each blank is a call of its own, with the text before it."""
        answers: list[list[Piece]] = []
        written = ""
        for part in parts:
            if isinstance(part, str):
                written += part
                continue
            answers.append(await self.generate(extended(prompt, written), part))
            written += answers[-1][0].text
        return answers

    def speculative(self, num_tokens: int) -> Backend:
        """A backend for one program that asks for `num_tokens` more than needed and answers later calls from them.
        A prefix cache makes this pointless, hence the default."""
        return self

    async def cache_prefix(self, text: str) -> None:
        """Compute `text` now: calls that begin with it follow."""
        return

    async def begin(self, program: str) -> None:
        """A program starts."""
        return

    async def end(self, program: str) -> None:
        """A program has ended."""
        return

    async def flush_cache(self) -> bool:
        """Empty the backend's cache; False when it has none or is busy."""
        return False

    async def server_info(self) -> dict[str, Any] | bool:
        """The backend's configuration and state; False when it tells none."""
        return False

    async def close(self) -> None:
        """Release connections."""
        return

    def unsupported(self, what: str, instead: str) -> UnsupportedError:
        """The error for a capability that this backend lacks."""
        return UnsupportedError(f"{self.name} does not support {what}; {instead}.")


def extended(prompt: Prompt, text: str) -> Prompt:
    """`prompt` with `text` appended to its open turn."""
    if not text:
        return prompt
    messages = [dict(message) for message in prompt.messages]
    if prompt.role is not None:
        last = messages[-1] if messages else None
        if last is not None and last["role"] == prompt.role and isinstance(last["content"], str):
            last["content"] += text
        else:
            messages.append({"role": prompt.role, "content": text})
    return Prompt(prompt.text + text, messages, prompt.images, prompt.videos, prompt.program, prompt.role)
