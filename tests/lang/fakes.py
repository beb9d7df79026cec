"""A backend without a model: it answers by a function of the prompt, and can hold its answers back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import radixlang as sgl
from radixlang.errors import BackendError
from radixlang.lang.backends.base import Backend, Capabilities, Piece, Prompt
from radixlang.lang.chat_templates import TEMPLATES, ChatTemplate
from radixlang.lang.choices import ChoicesDecision, ChoicesSamplingMethod
from radixlang.lang.params import SamplingParams


def echo(prompt: Prompt, params: SamplingParams) -> str:
    """The last word of the prompt, in brackets."""
    words = prompt.text.split()
    return f"[{words[-1] if words else ''}]"


class FakeBackend(Backend):
    """`together`: calls wait until so many are under way at once (a barrier that opens once)."""

    name = "the fake"

    def __init__(
        self,
        answer: Callable[[Prompt, SamplingParams], str] = echo,
        together: int = 0,
        capabilities: Capabilities = Capabilities(select="logprobs", prefix_cache=True, n=True),
        template: str = "chatml",
    ) -> None:
        self.capabilities = capabilities
        self.answer = answer
        self.together = together
        self.template = TEMPLATES[template]
        self.calls: list[Prompt] = []
        self.params: list[SamplingParams] = []
        self.prefixes: list[str] = []
        self.log: list[str] = []
        self.began: list[str] = []
        self.ended: list[str] = []
        self.aborted = 0
        self.active = 0
        self.most = 0
        self.hang = False
        self._open: asyncio.Event | None = None

    def chat_template(self) -> ChatTemplate:
        return self.template

    async def _hold(self, prompt: Prompt, params: SamplingParams) -> None:
        self.calls.append(prompt)
        self.params.append(params)
        self.log.append("call")
        self.active += 1
        self.most = max(self.most, self.active)
        self._open = self._open or asyncio.Event()
        try:
            if self.together and self.active >= self.together:
                self._open.set()
            if self.hang:
                await asyncio.sleep(3600)
            if self.together:
                await asyncio.wait_for(self._open.wait(), 10)
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.active -= 1

    async def generate(self, prompt: Prompt, params: SamplingParams) -> list[Piece]:
        await self._hold(prompt, params)
        text = self.answer(prompt, params)
        return [Piece(text, {"completion_tokens": 1, "prompt_tokens": len(prompt.text)})] * params.n

    async def stream(self, prompt: Prompt, params: SamplingParams) -> AsyncIterator[Piece]:
        text = self.answer(prompt, params)
        if self.hang:
            yield Piece(text[0], {"n": 1})
        await self._hold(prompt, params)
        for count, letter in enumerate(text, 1):
            yield Piece(letter, {"n": count})
            await asyncio.sleep(0.005)

    async def select(
        self, prompt: Prompt, choices: Sequence[str], method: ChoicesSamplingMethod
    ) -> ChoicesDecision:
        await self._hold(prompt, SamplingParams())
        return ChoicesDecision(choices[-1], {"normalized_prompt_logprobs": [0.0] * len(choices)})

    async def cache_prefix(self, text: str) -> None:
        self.prefixes.append(text)
        self.log.append("prefix")
        await asyncio.sleep(0.01)
        self.log.append("cached")

    async def begin(self, program: str) -> None:
        self.began.append(program)

    async def end(self, program: str) -> None:
        self.ended.append(program)

    async def flush_cache(self) -> bool:
        return True

    async def server_info(self) -> dict[str, Any] | bool:
        return {"fake": True}


def failing(word: str) -> Callable[[Prompt, SamplingParams], str]:
    """An answer that fails where the prompt holds `word`."""

    def answer(prompt: Prompt, params: SamplingParams) -> str:
        if word in prompt.text:
            raise BackendError(f"The fake does not like {word!r}.")
        return echo(prompt, params)

    return answer


def until(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@sgl.function
def ask(s, q, style="short"):
    s += f"{style} {q}" + sgl.gen("a")
