"""Fewer calls to remote APIs: what `@function(num_api_spec_tokens=k)` does.

A completion model is asked for k tokens more than a `gen` needs and without its stops. What it wrote behind the
end of the answer is kept; a later call whose text is a beginning of what the model wrote by itself is answered
from it. Where the two differ, a new call is made: no result depends on a guess.

A chat model writes a whole turn, texts of the program included, in one call of at most k tokens; the blanks are
read out of it by the texts around them.

Wraps a backend for one program; must not know any API.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from radixlang.errors import BackendError
from radixlang.lang.backends.base import Backend, Piece, Prompt
from radixlang.lang.chat_templates import ChatTemplate
from radixlang.lang.choices import ChoicesDecision, ChoicesSamplingMethod
from radixlang.lang.params import SamplingParams

#: how often a chat model may miss the form of a turn
TRIES = 3


def draw_of(params: SamplingParams) -> tuple[float, ...]:
    """What decides how tokens are drawn; text drawn otherwise is no answer to the call."""
    return (
        params.temperature,
        params.top_p,
        params.top_k,
        params.min_p,
        params.frequency_penalty,
        params.presence_penalty,
    )


def is_plain(params: SamplingParams) -> bool:
    """Whether stops and a length are all that shapes the answer."""
    plain = SamplingParams(
        max_new_tokens=params.max_new_tokens,
        stop=params.stop,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        # empty, but perhaps lists where the defaults are tuples
        stop_token_ids=params.stop_token_ids or (),
        stop_regex=params.stop_regex or (),
    )
    return params == plain and not params.stop_token_ids and not params.stop_regex and not params.return_logprob


@dataclass
class Written:
    """What a model wrote, its prompt in front. `ends[i]` is where its token i ends in `text`; what lies before
    `unread` has been given out; `complete`: the model ended by itself."""

    text: str
    ends: list[int]
    unread: int
    draw: tuple[float, ...]
    complete: bool

    def covers(self, prompt: str, draw: tuple[float, ...]) -> bool:
        """Whether the model wrote on behind `prompt`, and nobody has read that yet."""
        return self.unread <= len(prompt) < len(self.text) and self.draw == draw and self.text.startswith(prompt)

    def read(self, start: int, params: SamplingParams) -> tuple[str, str, int] | None:
        """(text, finish reason, tokens) of the answer that begins at `start`; None when the model stopped too
        early to know it."""
        first = bisect_right(self.ends, start)
        last = first + params.max_new_tokens
        limited = last <= len(self.ends)
        end = max(start, self.ends[last - 1] if last else 0) if limited else len(self.text)
        answer = self.text[start:end]
        hits = [at for stop in params.stops if (at := answer.find(stop)) >= 0]
        if hits:
            answer, reason = answer[: min(hits)], "stop"
        elif limited:
            reason = "length"
        elif self.complete:
            reason = "stop"
        else:
            return None
        self.unread = start + len(answer)
        return answer, reason, bisect_right(self.ends, self.unread) - first


class Speculative(Backend):
    """`backend`, asked less often. Holds the surplus of one program's calls."""

    def __init__(self, backend: Backend, num_tokens: int) -> None:
        self.backend = backend
        self.num_tokens = num_tokens
        self.name = backend.name
        self.capabilities = backend.capabilities
        self._written: list[Written] = []
        self._tokens_are_told = backend.capabilities.logprobs

    def chat_template(self) -> ChatTemplate:
        return self.backend.chat_template()

    async def select(
        self, prompt: Prompt, choices: Sequence[str], method: ChoicesSamplingMethod
    ) -> ChoicesDecision:
        return await self.backend.select(prompt, choices, method)

    async def generate(self, prompt: Prompt, params: SamplingParams) -> list[Piece]:
        """One answer, from what was written before or by a new call."""
        if not self.capabilities.completion or not self._tokens_are_told or not is_plain(params):
            return await self.backend.generate(prompt, params)
        draw = draw_of(params)
        for written in self._written:
            if written.covers(prompt.text, draw):
                found = written.read(len(prompt.text), params)
                if found is not None:
                    return [_piece(*found, {"prompt_tokens": 0, "cached_tokens": 0})]
        wide = params.max_new_tokens + self.num_tokens
        more = replace(params, max_new_tokens=wide, stop=(), return_logprob=True)
        piece = (await self.backend.generate(prompt, more))[0]
        tokens = [token[2] for token in piece.meta.pop("output_token_logprobs", ())]
        if "".join(tokens) != piece.text:
            # Without the tokens' texts nobody can tell where `max_new_tokens` end.
            self._tokens_are_told = False
            return await self.backend.generate(prompt, params)
        start = len(prompt.text)
        written = Written(
            text=prompt.text + piece.text,
            ends=list(accumulate(map(len, tokens), initial=start))[1:],
            unread=start,
            draw=draw,
            complete=piece.meta.get("finish_reason", {}).get("type") == "stop",
        )
        found = written.read(start, params)
        if found is None:
            raise BackendError(f"{self.name} ended an answer before its length without saying why.")
        self._written.append(written)
        return [_piece(*found, piece.meta)]

    async def assistant_turn(self, prompt: Prompt, parts: Sequence[str | SamplingParams]) -> list[list[Piece]]:
        """A turn in one call (chat models); completion models answer blank by blank, from the surplus.

        Raises:
            UnsupportedError: a blank needs more than a text: a constraint, several answers, another draw.
            BackendError: the model did not keep to the turn's texts.
        """
        blanks = [part for part in parts if isinstance(part, SamplingParams)]
        if self.capabilities.completion or not blanks:
            return await super().assistant_turn(prompt, parts)
        turn, begun = split_turn(prompt)
        texts = [begun, *parts] if begun else list(parts)
        if texts == blanks[:1]:
            return [await self.backend.generate(turn, blanks[0])]
        if not all(is_plain(blank) and draw_of(blank) == draw_of(blanks[0]) for blank in blanks):
            raise self.unsupported(
                "gens with constraints, several answers or different sampling in one speculative turn",
                "give each its own assistant turn",
            )
        if any(_runs_into(one, two) for one, two in pairwise(texts)):
            raise self.unsupported("a gen right before another in a speculative turn", "give the first a stop")
        pattern = turn_pattern(texts)
        asked = replace(blanks[0], max_new_tokens=self.num_tokens, stop=())
        written = ""
        for _ in range(TRIES):
            piece = (await self.backend.generate(turn, asked))[0]
            written = piece.text.lstrip()
            match = pattern.match(written)
            if match:
                answers = [[_piece(text, "stop", None, {})] for text in match.groups()]
                answers[-1][0].meta = piece.meta  # what the call cost is told once
                return answers
        raise BackendError(
            f"{self.name} did not write the turn in the program's form in {TRIES} tries, but: {written[:200]!r};"
            " show the form in an earlier turn, or raise num_api_spec_tokens."
        )

    async def begin(self, program: str) -> None:
        await self.backend.begin(program)

    async def end(self, program: str) -> None:
        self._written.clear()
        await self.backend.end(program)

    async def cache_prefix(self, text: str) -> None:
        await self.backend.cache_prefix(text)

    async def flush_cache(self) -> bool:
        return await self.backend.flush_cache()

    async def server_info(self) -> dict[str, object] | bool:
        return await self.backend.server_info()


def split_turn(prompt: Prompt) -> tuple[Prompt, str]:
    """The prompt without the text of its open turn, and that text."""
    last = prompt.messages[-1] if prompt.messages else None
    if last is None or prompt.role is None or last["role"] != prompt.role or not isinstance(last["content"], str):
        return prompt, ""
    begun = last["content"]
    return replace(prompt, text=prompt.text.removesuffix(begun), messages=prompt.messages[:-1]), begun


def turn_pattern(parts: Sequence[str | SamplingParams]) -> re.Pattern[str]:
    """Matches a turn from its beginning; a group for each blank.

    A blank ends before its first stop, which the model may have written or not before the text that follows, or
    else where the text that follows begins. What comes after the last blank may be missing.
    """
    last = max(i for i, part in enumerate(parts) if not isinstance(part, str))
    pattern = ""
    for i, part in enumerate(parts[: last + 1]):
        if isinstance(part, str):
            pattern += re.escape(part.lstrip() if i == 0 else part)
        elif part.stops:
            stops = "|".join(map(re.escape, part.stops))
            pattern += f"((?:(?!{stops}).)*)" + (f"(?:{stops})?" if i < last else "")
        elif i < last:
            pattern += "(.*?)"
        else:
            tail = "".join(str(text) for text in parts[last + 1 :]).strip()
            pattern += rf"(.*?)(?:\s*{re.escape(tail)}\s*)?\Z" if tail else "(.*)"
    return re.compile(pattern, re.DOTALL)


def _runs_into(one: str | SamplingParams, two: str | SamplingParams) -> bool:
    return isinstance(one, SamplingParams) and isinstance(two, SamplingParams) and not one.stops


def _piece(text: str, reason: str, tokens: int | None, meta: dict[str, object]) -> Piece:
    known = {} if tokens is None else {"completion_tokens": tokens}
    return Piece(text, {**meta, "finish_reason": {"type": reason}, **known})
