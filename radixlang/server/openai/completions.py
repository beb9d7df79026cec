"""`/v1/completions`: plain continuation of texts or token ids, in OpenAI's shape.

Must not know chat templates.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from radixlang.errors import RequestError
from radixlang.server.hub import Hub
from radixlang.server.openai.protocol import (
    CompletionBody,
    dress,
    finish_of,
    sampling_of,
    token_text,
    usage_of,
)
from radixlang.server.openai.structured import constraint_of
from radixlang.server.sse import EventStream
from radixlang.server.stream import GenerateRequest, Sequence, Stream, TokenLogprobs
from radixlang.server.web import Server, check_batch, count_tokens, json_response, refuse

DEFAULT_MAX_TOKENS = 16


def prompts_of(prompt: str | list[Any], name: str = "prompt") -> list[GenerateRequest]:
    """One request per prompt: a text, texts, token ids, or lists of them.

    Raises:
        RequestError: an empty list, or kinds are mixed.
    """
    if isinstance(prompt, str):
        return [GenerateRequest(text=prompt, param=name)]
    if not prompt:
        raise RequestError(f"{name} is an empty list.", name)
    if all(isinstance(item, int) for item in prompt):
        return [GenerateRequest(input_ids=prompt, param=name)]
    if all(isinstance(item, str) for item in prompt):
        return [GenerateRequest(text=item, param=name) for item in prompt]
    if all(isinstance(item, list) for item in prompt):
        return [GenerateRequest(input_ids=item, param=name) for item in prompt]
    raise RequestError(f"{name} must hold texts, token ids or lists of token ids, not a mixture.", name)


async def completions(server: Server, request: Request, body: CompletionBody) -> Response:
    """`/v1/completions`."""
    hub = server.hub
    model = server.check_model(body.model)
    hub.limits.check_kind(embed=False)
    refuse(body, dict.fromkeys(("tools", "tool_choice"), "calls are made by /v1/chat/completions"))
    if body.suffix:
        raise RequestError("suffix is not supported: the model writes forward only.", "suffix")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise RequestError("best_of other than n is not supported: all samples are returned.", "best_of")
    sampling = sampling_of(hub, body, DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens)
    requests = prompts_of(body.prompt)
    check_batch(len(requests), "prompt", sampling.n)
    rid = body.rid if body.rid is not None else "cmpl-" + uuid.uuid4().hex
    constraint = constraint_of(body)
    for item in requests:
        dress(item, body, sampling)
        if constraint is not None:
            item.grammar, item.grammar_param = hub.limits.spec(*constraint), constraint[2]
        if body.logprobs is not None:
            item.return_logprob = True
            item.top_logprobs_num = body.logprobs
            item.logprob_start_len = 0 if body.echo else -1
    alone = len(requests) == 1
    if alone:
        requests[0].rid = rid
    stream = hub.generate(requests, None if alone else rid)
    head = {"id": rid, "object": "text_completion", "created": int(time.time()), "model": model}
    if body.stream:
        await stream.peek()
        return EventStream(stream, _chunks(hub, request, stream, body, head))
    sequences = await stream.collect()
    choices = []
    for sequence in sequences:
        shape = LogprobShape(hub) if body.logprobs is not None else None
        text = sequence.text
        if body.echo:
            text = echo_of(hub, sequence) + text
        logprobs = None
        if shape is not None:
            if body.echo and sequence.prompt_logprobs is not None:
                shape.add(sequence.prompt_logprobs)
            if sequence.logprobs is not None:
                shape.add(sequence.logprobs)
            logprobs = shape.take()
        choices.append(_choice(sequence.index, text, logprobs, sequence.finish_reason))
    usage = usage_of(sequences)
    count_tokens(request, usage["prompt_tokens"], usage["completion_tokens"])
    version = {"weight_version": server.config.model.weight_version}
    return json_response({**head, "choices": choices, "usage": usage, "metadata": version})


def _choice(index: int, text: str, logprobs: Any, finish: dict[str, Any] | None) -> dict[str, Any]:
    reason, matched = finish_of(finish)
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": reason,
        "matched_stop": matched,
    }


def echo_of(hub: Hub, sequence: Sequence) -> str:
    """The prompt's text, as given or decoded."""
    if sequence.request.text is not None:
        return sequence.request.text
    if hub.tokenizer is None:
        return ""
    return hub.tokenizer.decode(sequence.prompt_ids.tolist(), skip_special_tokens=False)


async def _chunks(
    hub: Hub, request: Request, stream: Stream, body: CompletionBody, head: dict[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    options = body.stream_options
    running_usage = bool(options and options.continuous_usage_stats)
    shapes = [LogprobShape(hub) for _ in stream.sequences] if body.logprobs is not None else None
    begun: set[int] = set()
    try:
        async for output in stream:
            text, index = output.text, output.index
            first = index not in begun
            begun.add(index)
            if first and body.echo:
                text = echo_of(hub, output.sequence) + text
            logprobs = None
            if shapes is not None:
                prompt = output.sequence.prompt_logprobs
                if first and body.echo and prompt is not None:
                    shapes[index].add(prompt)
                if output.logprobs is not None:
                    shapes[index].add(output.logprobs)
                logprobs = shapes[index].take()
            if text or (logprobs and logprobs["tokens"]) or output.finish_reason is not None:
                chunk = {**head, "choices": [_choice(index, text, logprobs, output.finish_reason)]}
                if running_usage:
                    chunk["usage"] = usage_of([output.sequence])
                yield chunk
        if options and options.include_usage:
            yield {**head, "choices": [], "usage": usage_of(stream.sequences)}
    finally:
        usage = usage_of(stream.sequences)
        count_tokens(request, usage["prompt_tokens"], usage["completion_tokens"])


class LogprobShape:
    """Collects log-probabilities in the completions shape; offsets go on from chunk to chunk."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._offset = 0
        self._new: dict[str, list[Any]] = self._empty()

    @staticmethod
    def _empty() -> dict[str, list[Any]]:
        return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}

    def add(self, logprobs: TokenLogprobs) -> None:
        """Append positions."""
        new = self._new
        for token, value, top in zip(logprobs.ids, logprobs.chosen, logprobs.top, strict=True):
            text, _ = token_text(self._hub, token)
            new["tokens"].append(text)
            new["token_logprobs"].append(value)
            best: dict[str, float] | None = None
            if top is not None:
                best = {}
                for other_value, other in top:
                    # Two tokens can have one text (unfinished characters): the likelier one stands for it.
                    best.setdefault(token_text(self._hub, other)[0], other_value)
            new["top_logprobs"].append(best)
            new["text_offset"].append(self._offset)
            self._offset += len(text)

    def take(self) -> dict[str, list[Any]]:
        """What was added since the last call."""
        new, self._new = self._new, self._empty()
        return new
