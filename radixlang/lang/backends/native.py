"""The part that our own servers share: the native `/generate`, whether over HTTP or in this process.

A subclass only carries bodies and answers. Must not know HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Any

from radixlang.errors import BackendError, RadixLangError
from radixlang.lang.backends.base import Backend, Capabilities, Piece, Prompt
from radixlang.lang.chat_templates import ChatTemplate, JinjaTemplate, template_for
from radixlang.lang.choices import ChoicesDecision, ChoicesSamplingMethod, mean_logprob
from radixlang.lang.params import SamplingParams

#: log-probability options of a call, passed on when they are set
_LOGPROBS = ("return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs")
#: lists of a streamed answer that may come in parts
_GROWING = ("output_token_logprobs", "output_top_logprobs")
#: seconds that what a call of a program leaves in the cache stays pinned, unless the program ends or calls again
_PROGRAM = 300
#: seconds over which ended programs are told together
_GATHER = 0.05
_NOTHING = {"max_new_tokens": 0, "temperature": 0}


class NativeBackend(Backend):
    """A RadixLang runtime."""

    capabilities = Capabilities(
        regex=True, json_schema=True, select="logprobs", images=True, logprobs=True, prefix_cache=True, n=True
    )

    def __init__(self) -> None:
        self._ended: list[str] = []

    @abstractmethod
    async def unpin(self, names: list[str]) -> None:
        """End pins."""

    async def end(self, program: str) -> None:
        """Let go of what the program's calls have left pinned. Programs end in crowds: this waits for others."""
        self._ended.append(program)
        if len(self._ended) > 1:
            return
        try:
            await asyncio.sleep(_GATHER)
        finally:
            names, self._ended = self._ended, []
        # Pins end by themselves as well; nobody waits for this, and the server may be gone.
        with contextlib.suppress(RadixLangError):
            await self.unpin(names)

    @abstractmethod
    async def post(self, body: dict[str, Any]) -> Any:
        """The answer to a body of `/generate`: an object, or a list for a batch."""

    @abstractmethod
    def post_stream(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The answers to a body of `/generate` with `stream`."""

    @abstractmethod
    async def tokenize(self, texts: list[str]) -> list[list[int]]:
        """Token ids, the beginning-of-text token included, as prompts have them."""

    def _body(self, prompt: Prompt, params: SamplingParams) -> dict[str, Any]:
        body: dict[str, Any] = {"text": prompt.text, "sampling_params": params.to_srt_kwargs()}
        for name in _LOGPROBS:
            value = getattr(params, name)
            if value is not None:
                body[name] = value
        body |= _pin(prompt)
        if prompt.images:
            body["image_data"] = prompt.images
        if prompt.videos:
            body["video_data"] = prompt.videos
        return body

    async def generate(self, prompt: Prompt, params: SamplingParams) -> list[Piece]:
        """`params.n` answers."""
        answer = await self.post(self._body(prompt, params))
        answers = answer if isinstance(answer, list) else [answer]
        for each in answers:
            self._check(each["meta_info"])
        return [Piece(each["text"], each["meta_info"]) for each in answers]

    async def stream(self, prompt: Prompt, params: SamplingParams) -> AsyncIterator[Piece]:
        """One answer, piece by piece. Servers may send text so far or what is new; both become what is new."""
        text = ""
        grown: dict[str, list[Any]] = {}
        answers = self.post_stream({**self._body(prompt, params), "stream": True})
        async for answer in answers:
            meta = answer["meta_info"]
            if len(answer["output_ids"]) == meta["completion_tokens"]:
                piece, text = answer["text"][len(text) :], answer["text"]
                grown = {key: meta[key] for key in _GROWING if key in meta}
            else:
                piece = answer["text"]
                text += piece
                for key in _GROWING:
                    if key in meta:
                        grown[key] = [*grown.get(key, ()), *meta[key]]
            self._check(meta)
            yield Piece(piece, {**meta, **grown})

    def _check(self, meta: dict[str, Any]) -> None:
        reason = meta.get("finish_reason")
        if reason is not None and reason["type"] == "abort":
            raise BackendError(f"{self.name} ended a call: {reason.get('message') or 'it was aborted.'}")

    async def cache_prefix(self, text: str) -> None:
        """Compute `text`, and generate nothing."""
        if text:
            await self.post({"text": text, "sampling_params": _NOTHING})

    async def select(
        self, prompt: Prompt, choices: Sequence[str], method: ChoicesSamplingMethod
    ) -> ChoicesDecision:
        """Score all choices in one batch over the cached prompt.

        A choice's tokens are those of prompt and choice together from the first on that is not the prompt's: where
        the two merge at the seam, the merged token is the choice's.
        """
        if prompt.images or prompt.videos:
            raise self.unsupported("select after an image", "ask with gen(…, regex=…) instead")
        start, *whole = await self.tokenize([prompt.text, *(prompt.text + choice for choice in choices)])
        seams = [_same(start, ids) for ids in whole]
        for choice, ids, seam in zip(choices, whole, seams, strict=True):
            if seam == len(ids):
                raise BackendError(f"The choice {choice!r} adds no token to the prompt; its score is undefined.")
        shared = start[: min(seams)]
        if len(shared) > 1:
            await self.post({"input_ids": shared, "sampling_params": _NOTHING, **_pin(prompt)})
        scored = await self._scores(whole, [max(seam - 1, 0) for seam in seams])
        rows = [row[len(row) - (len(ids) - seam) :] for row, ids, seam in zip(scored, whole, seams, strict=True)]
        unconditional = None
        if method.requires_unconditional_logprobs:
            own = [ids[seam:] for ids, seam in zip(whole, seams, strict=True)]
            unconditional = await self._scores(own, [0] * len(own))
        return method(
            choices=list(choices),
            normalized_prompt_logprobs=[mean_logprob(row) for row in rows],
            input_token_logprobs=list(rows),
            output_token_logprobs=[[] for _ in choices],
            unconditional_token_logprobs=None if unconditional is None else list(unconditional),
        )

    async def _scores(self, prompts: list[list[int]], starts: list[int]) -> list[list[Any]]:
        """Log-probabilities of each prompt's tokens from its start on."""
        answers = await self.post(
            {
                "input_ids": prompts,
                "sampling_params": _NOTHING,
                "return_logprob": True,
                "logprob_start_len": starts,
                "return_text_in_logprobs": True,
            }
        )
        return [answer["meta_info"]["input_token_logprobs"] for answer in answers]


def _pin(prompt: Prompt) -> dict[str, Any]:
    """Fields that keep what a program's call leaves in the cache, for the calls that follow it."""
    return {"pin": {"id": prompt.program, "ttl": _PROGRAM}} if prompt.program else {}


def template_of_facts(facts: dict[str, Any], model_path: str) -> ChatTemplate:
    """The server's own template where `/model_info` tells it, else that of the table for the model's path."""
    fallback = template_for(model_path)
    own = facts.get("chat_template")
    if not isinstance(own, dict):
        return fallback
    return JinjaTemplate(own["source"], own["variables"], own["bos"], fallback, **own["options"])


def _same(one: list[int], other: list[int]) -> int:
    """How many tokens the two have in common at the beginning."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
