"""`/v1/chat/completions`: messages through the model's template, answers in OpenAI's shape.

Must not know tokens beyond their log-probabilities.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixlang.errors import RequestError
from radixlang.server.hub import Hub
from radixlang.server.openai.protocol import (
    GRAMMAR,
    ChatBody,
    Message,
    dress,
    finish_of,
    sampling_of,
    token_text,
    usage_of,
)
from radixlang.server.sse import EventStream
from radixlang.server.stream import GenerateRequest, Stream, TokenLogprobs
from radixlang.server.web import Server, count_tokens, json_response


def template_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Messages as plain dictionaries for the chat template.

    Raises:
        RequestError: no messages, a part that is no text, a tool call without a name; says which message.
    """
    if not messages:
        raise RequestError("messages is empty.", "messages")
    for i, message in enumerate(messages):
        for part in message.content if isinstance(message.content, list) else ():
            kind = part.get("type")
            if kind != "text" or not isinstance(part.get("text"), str):
                raise RequestError(
                    f"messages[{i}].content has a part of type {kind!r}; this model takes text parts only.",
                    "messages",
                )
        for k, call in enumerate(message.tool_calls or ()):
            function = call.get("function")
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise RequestError(f"messages[{i}].tool_calls[{k}] has no function name.", "messages")
    return [msgspec.to_builtins(message) for message in messages]


def check_tools(body: ChatBody) -> list[dict[str, Any]] | None:
    """The tools for the template.

    Raises:
        RequestError: a tool that is no function with a name, or a choice that would need a grammar.
    """
    choice = body.tool_choice
    if choice not in (None, "auto", "none"):
        raise RequestError(f"A forced tool_choice needs a grammar: {GRAMMAR}.", "tool_choice")
    for i, tool in enumerate(body.tools or ()):
        function = tool.get("function")
        named = isinstance(function, dict) and isinstance(function.get("name"), str)
        if tool.get("type") != "function" or not named:
            raise RequestError(f"tools[{i}] must be a function with a name.", "tools")
    return body.tools or None


async def encode_messages(
    hub: Hub,
    messages: list[Message],
    tools: list[dict[str, Any]] | None,
    add_generation_prompt: bool,
    continue_final_message: bool,
    kwargs: dict[str, Any] | None,
) -> list[int]:
    """Token ids of a conversation.

    Raises:
        RequestError: the template refuses the messages.
    """
    if continue_final_message and messages and messages[-1].role != "assistant":
        raise RequestError(
            "continue_final_message needs a last message by the assistant.", "continue_final_message"
        )
    rendered = template_messages(messages)
    options = {**json.loads(hub.config.server.default_chat_template_kwargs), **(kwargs or {})}
    reserved = {"messages", "tools", "add_generation_prompt", "continue_final_message"} & set(options)
    if reserved:
        raise RequestError(f"chat_template_kwargs must not hold {min(reserved)!r}.", "chat_template_kwargs")
    text = hub.need_tokenizer().apply_chat_template(
        rendered,
        tools=tools,
        add_generation_prompt=add_generation_prompt and not continue_final_message,
        continue_final_message=continue_final_message,
        **options,
    )
    # The template alone decides on the begin-of-text token.
    return await hub.encode(text, add_special_tokens=False)


async def chat_completions(server: Server, request: Request, body: ChatBody) -> Response:
    """`/v1/chat/completions`."""
    hub = server.hub
    model = server.check_model(body.model)
    hub.limits.check_kind(embed=False)
    tools = check_tools(body)
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    sampling = sampling_of(hub, body, limit)
    top = body.top_logprobs or 0
    if top and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true.", "top_logprobs")
    ids = await encode_messages(
        hub,
        body.messages,
        tools,
        body.add_generation_prompt is not False,
        bool(body.continue_final_message),
        body.chat_template_kwargs,
    )
    generate = GenerateRequest(
        input_ids=ids, return_logprob=bool(body.logprobs), top_logprobs_num=top, param="messages"
    )
    generate.rid = body.rid if body.rid is not None else "chatcmpl-" + uuid.uuid4().hex
    stream = hub.generate(dress(generate, body, sampling))
    head = {"id": generate.rid, "created": int(time.time()), "model": model}
    if body.stream:
        await stream.peek()
        return EventStream(stream, _chunks(hub, request, stream, body, head))
    sequences = await stream.collect()
    choices = []
    for sequence in sequences:
        reason, matched = finish_of(sequence.finish_reason)
        choices.append(
            {
                "index": sequence.index,
                "message": {"role": "assistant", "content": sequence.text, "reasoning_content": None},
                "logprobs": chat_logprobs(hub, sequence.logprobs),
                "finish_reason": reason,
                "matched_stop": matched,
            }
        )
    usage = usage_of(sequences)
    count_tokens(request, usage["prompt_tokens"], usage["completion_tokens"])
    version = {"weight_version": server.config.model.weight_version}
    return json_response(
        {**head, "object": "chat.completion", "choices": choices, "usage": usage, "metadata": version}
    )


async def _chunks(
    hub: Hub, request: Request, stream: Stream, body: ChatBody, head: dict[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    options = body.stream_options
    running_usage = bool(options and options.continuous_usage_stats)
    base = {**head, "object": "chat.completion.chunk"}

    def chunk(index: int, delta: dict[str, Any], logprobs: Any = None, **rest: Any) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None, **rest}
        out = {**base, "choices": [choice]}
        if running_usage:
            out["usage"] = usage_of([stream.sequences[index]])
        return out

    try:
        for sequence in stream.sequences:
            yield chunk(sequence.index, {"role": "assistant", "content": ""})
        async for output in stream:
            logprobs = chat_logprobs(hub, output.logprobs) if output.logprobs else None
            if output.text or logprobs:
                yield chunk(output.index, {"content": output.text}, logprobs)
            if output.finish_reason is not None:
                reason, matched = finish_of(output.finish_reason)
                yield chunk(output.index, {}, finish_reason=reason, matched_stop=matched)
        if options and options.include_usage:
            yield {**base, "choices": [], "usage": usage_of(stream.sequences)}
    finally:
        usage = usage_of(stream.sequences)
        count_tokens(request, usage["prompt_tokens"], usage["completion_tokens"])


def chat_logprobs(hub: Hub, logprobs: TokenLogprobs | None) -> dict[str, Any] | None:
    """Log-probabilities in the chat shape."""
    if logprobs is None:
        return None

    def entry(token: int, value: float | None) -> dict[str, Any]:
        text, data = token_text(hub, token)
        return {"token": text, "logprob": value, "bytes": data}

    content = []
    for token, value, top in zip(logprobs.ids, logprobs.chosen, logprobs.top, strict=True):
        best = [entry(other, best_value) for best_value, other in top or ()]
        content.append({**entry(token, value), "top_logprobs": best})
    return {"content": content}
