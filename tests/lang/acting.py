"""A backend that acts: answers come after set times from a function, without any model or server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from radixlang.lang.backends.base import Backend, Capabilities, Piece, Prompt
from radixlang.lang.chat_templates import ChatTemplate, get_chat_template
from radixlang.lang.choices import ChoicesDecision, ChoicesSamplingMethod
from radixlang.lang.params import SamplingParams


class Acting(Backend):
    """`answer(prompt text)` gives the text or an exception; each word is a token."""

    name = "an actor"
    capabilities = Capabilities(select="logprobs", prefix_cache=True, n=True)

    def __init__(self, answer: Callable[[str], str | Exception], wait: float = 0.01, pace: float = 0.002) -> None:
        self.answer = answer
        self.wait = wait
        self.pace = pace
        self.calls: list[str] = []
        self._seen: list[str] = []

    def chat_template(self) -> ChatTemplate:
        return get_chat_template("chatml")

    def _meta(self, text: str, answer: str) -> dict[str, Any]:
        cached = max((len(_shared(text, seen)) for seen in self._seen), default=0)
        self._seen.append(text + answer)
        return {
            "finish_reason": {"type": "stop"},
            "prompt_tokens": len(text.split()),
            "cached_tokens": len(text[:cached].split()),
            "completion_tokens": len(answer.split()),
        }

    async def generate(self, prompt: Prompt, params: SamplingParams) -> list[Piece]:
        text = "".join([piece.text async for piece in self.stream(prompt, params)])
        return [Piece(text, self._meta(prompt.text, text))]

    async def stream(self, prompt: Prompt, params: SamplingParams) -> AsyncIterator[Piece]:
        self.calls.append(prompt.text)
        await asyncio.sleep(self.wait)
        answer = self.answer(prompt.text)
        if isinstance(answer, Exception):
            raise answer
        words = answer.split(" ")
        for i, word in enumerate(words):
            await asyncio.sleep(self.pace)
            yield Piece(word if i == 0 else f" {word}")
        yield Piece("", self._meta(prompt.text, answer))

    async def select(
        self, prompt: Prompt, choices: Sequence[str], method: ChoicesSamplingMethod
    ) -> ChoicesDecision:
        self.calls.append(prompt.text)
        await asyncio.sleep(self.wait)
        scores = [-1.0 / len(choice) for choice in choices]
        best = max(range(len(choices)), key=scores.__getitem__)
        return ChoicesDecision(
            choices[best], {**self._meta(prompt.text, ""), "normalized_prompt_logprobs": scores}
        )

    async def cache_prefix(self, text: str) -> None:
        await asyncio.sleep(self.wait)
        self._seen.append(text)


def _shared(one: str, two: str) -> str:
    length = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    return one[:length]
