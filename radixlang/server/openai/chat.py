"""`/v1/chat/completions`: messages through the model's template, answers in OpenAI's shape.

Must not know tokens beyond their log-probabilities.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from radixlang.errors import RadixLangError, RequestError
from radixlang.log import get_logger
from radixlang.server.hub import Hub
from radixlang.server.openai.protocol import (
    GRAMMAR,
    ChatBody,
    Message,
    check_top_logprobs,
    dress,
    finish_of,
    sampling_of,
    token_text,
    usage_of,
)
from radixlang.server.sse import EventStream
from radixlang.server.stream import GenerateRequest, Stream, TokenLogprobs
from radixlang.server.web import Server, count_tokens, json_response

log = get_logger(__name__)
ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def template_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Messages as chat templates take them: string contents, tool arguments as objects where they are some.

    Raises:
        RequestError: an unknown role, a part that is no text, a tool call without a name; says which message.
    """
    if not messages:
        raise RequestError("messages is empty.", "messages")
    return [_template_message(i, message) for i, message in enumerate(messages)]


def _template_message(i: int, message: Message) -> dict[str, Any]:
    if message.role not in ROLES:
        raise RequestError(f"messages[{i}].role is {message.role!r}; known are {', '.join(ROLES)}.", "messages")
    # Templates know no developer role; it is the newer name of the system's.
    out: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _content(i, message.content),
    }
    for name in ("name", "tool_call_id", "reasoning_content"):
        if getattr(message, name) is not None:
            out[name] = getattr(message, name)
    if message.tool_calls:
        out["tool_calls"] = [_tool_call(i, k, call) for k, call in enumerate(message.tool_calls)]
    return out


def _content(i: int, content: str | list[dict[str, Any]] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content:
        kind = part.get("type")
        if kind != "text" or not isinstance(part.get("text"), str):
            raise RequestError(
                f"messages[{i}].content has a part of type {kind!r}; this model takes text parts only.", "messages"
            )
        texts.append(part["text"])
    return "\n".join(texts)


def _tool_call(i: int, k: int, call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f"messages[{i}].tool_calls[{k}] has no function name.", "messages")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        # A model may have been cut off inside its arguments; the history must stay usable, so what is no
        # object stays text.
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, dict):
            arguments = parsed
    return {**call, "type": "function", "function": {**function, "arguments": arguments or {}}}


def check_tools(body: ChatBody) -> list[dict[str, Any]] | None:
    """The tools for the template.

    Raises:
        RequestError: a tool that is no function with a name, or a choice that would need a grammar.
    """
    choice = body.tool_choice
    if choice not in (None, "auto", "none"):
        if choice == "required" or isinstance(choice, dict):
            raise RequestError(f"A forced tool_choice needs a grammar: {GRAMMAR}.", "tool_choice")
        raise RequestError(f"tool_choice must be 'auto' or 'none', got {choice!r}.", "tool_choice")
    for i, tool in enumerate(body.tools or ()):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict) or not isinstance(function.get("name"), str):
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
    if hub.tokenizer is None:
        raise RequestError("Chat needs a tokenizer; this server runs with --skip-tokenizer-init.", "messages")
    if continue_final_message and messages and messages[-1].role != "assistant":
        raise RequestError("continue_final_message needs a last message by the assistant.", "continue_final_message")
    rendered = template_messages(messages)
    options = {**json.loads(hub.config.server.default_chat_template_kwargs), **(kwargs or {})}
    reserved = {"messages", "tools", "add_generation_prompt", "continue_final_message"} & set(options)
    if reserved:
        raise RequestError(f"chat_template_kwargs must not hold {min(reserved)!r}.", "chat_template_kwargs")
    size = sum(len(message["content"]) for message in rendered)
    try:
        return await hub.in_thread(
            size,
            hub.tokenizer.encode_chat,
            rendered,
            tools=tools,
            add_generation_prompt=add_generation_prompt and not continue_final_message,
            continue_final_message=continue_final_message,
            **options,
        )
    except RadixLangError:
        raise
    except Exception as error:
        # Templates are programs that come with the model and raise what they like about messages they do not
        # expect (roles out of turn, missing keys).
        log.info("the chat template failed", exc_info=error)
        raise RequestError(f"The chat template cannot render these messages: {error}", "messages") from None


async def chat_completions(server: Server, request: Request, body: ChatBody) -> Response:
    """`/v1/chat/completions`."""
    hub = server.hub
    model = server.check_model(body.model)
    hub.limits.check_kind(embed=False)
    tools = check_tools(body)
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    sampling = sampling_of(hub, body, limit)
    top = check_top_logprobs(body.top_logprobs or 0, "top_logprobs")
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
    generate = GenerateRequest(input_ids=ids, return_logprob=bool(body.logprobs), top_logprobs_num=top)
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
