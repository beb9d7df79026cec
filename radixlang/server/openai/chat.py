"""`/v1/chat/completions`: messages through the model's template, answers in OpenAI's shape.

Must not know tokens beyond their log-probabilities.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixlang.errors import RequestError
from radixlang.server.hub import Hub
from radixlang.server.openai.answer import AnswerReader, deltas_of, message_of
from radixlang.server.openai.protocol import (
    ChatBody,
    Message,
    dress,
    finish_of,
    sampling_of,
    token_text,
    usage_of,
)
from radixlang.server.openai.reasoning import (
    Thoughts,
    behind_thoughts,
    template_variables,
    thinking_budget,
    thoughts_of,
)
from radixlang.server.openai.structured import constraint_of
from radixlang.server.openai.tools import plan_calls, tool_use
from radixlang.server.sse import EventStream
from radixlang.server.stream import GenerateRequest, Stream, TokenLogprobs
from radixlang.server.web import Server, count_tokens, json_response

#: tools of a request from which their schemas are read in a thread
MANY_TOOLS = 8


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


def render_messages(
    hub: Hub,
    messages: list[Message],
    tools: list[dict[str, Any]] | None,
    add_generation_prompt: bool,
    continue_final_message: bool,
    kwargs: dict[str, Any],
) -> str:
    """The prompt of a conversation. Its text decides on the begin-of-text token: none is to be added.

    Raises:
        RequestError: the template refuses the messages.
    """
    if continue_final_message and messages and messages[-1].role != "assistant":
        raise RequestError(
            "continue_final_message needs a last message by the assistant.", "continue_final_message"
        )
    rendered = template_messages(messages)
    reserved = {"messages", "tools", "add_generation_prompt", "continue_final_message"} & set(kwargs)
    if reserved:
        raise RequestError(f"chat_template_kwargs must not hold {min(reserved)!r}.", "chat_template_kwargs")
    text: str = hub.need_tokenizer().apply_chat_template(
        rendered,
        tools=tools,
        add_generation_prompt=add_generation_prompt and not continue_final_message,
        continue_final_message=continue_final_message,
        **kwargs,
    )
    return text


def default_variables(hub: Hub) -> dict[str, Any]:
    """What the server's options give to the template."""
    found: dict[str, Any] = json.loads(hub.config.server.default_chat_template_kwargs)
    return found


@dataclass
class Chat:
    """A conversation that is being answered: the stream of its answers, and what reads each of them."""

    model: str
    rid: str
    stream: Stream
    thoughts: Thoughts
    reader: Callable[[], AnswerReader]


async def answer_chat(server: Server, body: ChatBody, rid: str) -> Chat:
    """Check and encode a conversation; nothing is sent before the stream is opened. `rid`: its name where the body
    gives none.

    Raises:
        RequestError: the conversation cannot be answered as the body asks.
    """
    hub = server.hub
    model = server.check_model(body.model)
    hub.limits.check_kind(embed=False)
    use = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls)
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    sampling = sampling_of(hub, body, limit)
    top = body.top_logprobs or 0
    if top and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true.", "top_logprobs")
    variables = default_variables(hub) | template_variables(body)
    continued = bool(body.continue_final_message)
    prompt = render_messages(
        hub, body.messages, use.shown, body.add_generation_prompt is not False, continued, variables
    )
    constrain = hub.config.grammar.grammar_backend != "none"
    planning = (use, hub.parsers.syntax, constraint_of(body), constrain)
    # The schemas of many tools take a while to be read the first time.
    many = len(use.tools) > MANY_TOOLS
    plan = await asyncio.to_thread(plan_calls, *planning) if many else plan_calls(*planning)
    if use.choice == "required":
        # They would cut the calls, which are all that the answer has.
        sampling.stop, sampling.stop_regex, sampling.stop_token_ids = (), (), ()
    spec = None if plan.constraint is None else hub.limits.spec(*plan.constraint)
    budget = thinking_budget(body, hub.parsers.reasoning is not None)
    thoughts = thoughts_of(hub, prompt, variables, continued)
    if not (plan.thinks and budget is None):
        spec, thoughts = behind_thoughts(hub, spec, thoughts, budget)
    if hub.parsers.need_special(thoughts.format, plan.syntax):
        sampling.skip_special_tokens = False
    ids = await hub.encode(prompt, add_special_tokens=False)
    generate = GenerateRequest(
        input_ids=ids,
        return_logprob=bool(body.logprobs),
        top_logprobs_num=top,
        grammar=spec,
        grammar_param=None if plan.constraint is None else plan.constraint[2],
        param="messages",
    )
    generate.rid = body.rid if body.rid is not None else rid
    stream = hub.generate(dress(generate, body, sampling))

    def reader() -> AnswerReader:
        return AnswerReader(
            thoughts, use, plan, body.separate_reasoning is not False, body.stream_reasoning is not False
        )

    return Chat(model, generate.rid, stream, thoughts, reader)


async def chat_completions(server: Server, request: Request, body: ChatBody) -> Response:
    """`/v1/chat/completions`."""
    hub = server.hub
    chat = await answer_chat(server, body, "chatcmpl-" + uuid.uuid4().hex)
    stream, thoughts = chat.stream, chat.thoughts
    head = {"id": chat.rid, "created": int(time.time()), "model": chat.model}
    if body.stream:
        await stream.peek()
        readers = [chat.reader() for _ in stream.sequences]
        return EventStream(stream, _chunks(hub, request, stream, body, head, readers, thoughts))
    sequences = await stream.collect()
    choices = []
    reasoning = 0
    for sequence in sequences:
        reason, matched = finish_of(sequence.finish_reason)
        answer = chat.reader()
        message = message_of(answer.read(sequence.text, ended=True))
        reasoning += thoughts.tokens(sequence.ids, answer.thought)
        choices.append(
            {
                "index": sequence.index,
                "message": message,
                "logprobs": chat_logprobs(hub, sequence.logprobs),
                "finish_reason": answer.finish(reason),
                "matched_stop": matched,
            }
        )
    usage = usage_of(sequences, reasoning)
    count_tokens(request, usage["prompt_tokens"], usage["completion_tokens"])
    version = {"weight_version": server.config.model.weight_version}
    return json_response(
        {**head, "object": "chat.completion", "choices": choices, "usage": usage, "metadata": version}
    )


async def _chunks(
    hub: Hub,
    request: Request,
    stream: Stream,
    body: ChatBody,
    head: dict[str, Any],
    readers: list[AnswerReader],
    thoughts: Thoughts,
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
            reader = readers[output.index]
            deltas = deltas_of(reader.read(output.text, output.finish_reason is not None))
            if logprobs and not deltas:
                deltas = [{"content": ""}]
            for delta in deltas:
                yield chunk(output.index, delta, logprobs)
                logprobs = None
            if output.finish_reason is not None:
                reason, matched = finish_of(output.finish_reason)
                yield chunk(output.index, {}, finish_reason=reader.finish(reason), matched_stop=matched)
        if options and options.include_usage:
            reasoning = sum(
                thoughts.tokens(s.ids, reader.thought) for s, reader in zip(stream.sequences, readers, strict=True)
            )
            yield {**base, "choices": [], "usage": usage_of(stream.sequences, reasoning)}
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
