"""`/v1/messages` and `/v1/messages/count_tokens`: answers, streams and errors in the shapes of Anthropic's API.

Must not know how the conversation is answered: `answer_chat` does it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixlang.errors import AbortedError, OverloadedError, RadixLangError
from radixlang.parsers.tools import CallDelta
from radixlang.server.anthropic.protocol import CountTokensBody, MessagesBody, chat_body
from radixlang.server.openai.answer import AnswerReader, Part
from radixlang.server.openai.chat import Chat, answer_chat, default_variables, render_messages
from radixlang.server.openai.protocol import finish_of
from radixlang.server.openai.reasoning import template_variables
from radixlang.server.openai.tools import tool_use
from radixlang.server.sse import EventStream
from radixlang.server.stream import Sequence
from radixlang.server.web import ErrorShape, Server, count_tokens, json_response

Event = dict[str, Any]

_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large"}
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
#: (type of a delta, the block's field that it goes on with) by type of block
_DELTAS = {
    "thinking": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "tool_use": ("input_json_delta", "partial_json"),
}


def error_body(error: RadixLangError) -> dict[str, Any]:
    """An error as Anthropic's API has it."""
    kind = "invalid_request_error" if 400 <= error.status < 499 else "api_error"
    if isinstance(error, OverloadedError):
        kind = "overloaded_error"
    return {"type": "error", "error": {"type": _KINDS.get(error.status, kind), "message": str(error)}}


ERRORS = ErrorShape(
    "MessagesError",
    {
        "type": "object",
        "required": ["type", "error"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
    error_body,
)


class MessageEvents(EventStream):
    """A stream whose events are named, without a mark at its end."""

    failure = staticmethod(error_body)
    end = b""

    @staticmethod
    def frame(value: Event) -> bytes:
        """One event, named after its type."""
        return b"event: %b\ndata: %b\n\n" % (value["type"].encode(), msgspec.json.encode(value))


async def messages(server: Server, request: Request, body: MessagesBody) -> Response:
    """`/v1/messages`."""
    chat_request = chat_body(body, server.hub.parsers.reasoning is not None)
    chat = await answer_chat(server, chat_request, "msg_" + uuid.uuid4().hex)
    if body.stream:
        await chat.stream.peek()
        return MessageEvents(chat.stream, _events(request, chat))
    (sequence,) = await chat.stream.collect()
    count_tokens(request, sequence.prompt_tokens, sequence.completion_tokens)
    reader, blocks = chat.reader(), Blocks()
    content = content_of([*blocks.feed(reader.read(sequence.text, ended=True)), *blocks.close()])
    return json_response(
        {**_head(chat), "content": content, **_ending(sequence, reader), "usage": _usage(sequence)}
    )


async def count(server: Server, request: Request, body: CountTokensBody) -> Response:
    """`/v1/messages/count_tokens`: the tokens of the prompt that `/v1/messages` would make."""
    hub = server.hub
    chat = chat_body(body, hub.parsers.reasoning is not None)
    server.check_model(chat.model)
    use = tool_use(chat.tools, chat.tool_choice, chat.parallel_tool_calls)
    variables = default_variables(hub) | template_variables(chat)
    prompt = render_messages(hub, chat.messages, use.shown, True, bool(chat.continue_final_message), variables)
    return json_response({"input_tokens": len(await hub.encode(prompt, add_special_tokens=False))})


async def _events(request: Request, chat: Chat) -> AsyncGenerator[Event, None]:
    (sequence,) = chat.stream.sequences
    reader, blocks = chat.reader(), Blocks()
    open_message = {**_head(chat), "content": [], "stop_reason": None, "stop_sequence": None}
    try:
        yield {
            "type": "message_start",
            "message": {**open_message, "usage": {**_usage(sequence), "output_tokens": 0}},
        }
        async for output in chat.stream:
            for event in blocks.feed(reader.read(output.text, output.finish_reason is not None)):
                yield event
        for event in blocks.close():
            yield event
        yield {"type": "message_delta", "delta": _ending(sequence, reader), "usage": _usage(sequence)}
        yield {"type": "message_stop"}
    finally:
        count_tokens(request, sequence.prompt_tokens, sequence.completion_tokens)


class Blocks:
    """Turns what is read of one answer into the events of its content blocks.

    White space alone begins no block: models put it between thoughts, text and calls. Text that came in one
    piece with a call is put before it.
    """

    def __init__(self) -> None:
        self._open: tuple[str, int] | None = None
        self._index = -1
        self._space = ""

    def feed(self, part: Part) -> Iterator[Event]:
        """The events that carry `part`."""
        if part.reasoning and (self._open == ("thinking", 0) or part.reasoning.strip()):
            yield from self._put("thinking", 0, part.reasoning, thinking="", signature="")
        number = self._open[1] if self._open and self._open[0] == "tool_use" else None
        # The rest of an open call comes before anything that would close its block.
        yield from self._calls(call for call in part.calls if call.index == number)
        text = self._space + part.content
        self._space = ""
        if self._open == ("text", 0) or text.strip():
            yield from self._put("text", 0, text, text="")
        else:
            self._space = text
        yield from self._calls(call for call in part.calls if call.index != number)

    def _calls(self, calls: Iterable[CallDelta]) -> Iterator[Event]:
        for call in calls:
            self._space = ""
            yield from self._put("tool_use", call.index, call.arguments, id=call.id, name=call.name, input={})

    def close(self) -> Iterator[Event]:
        """The events at the answer's end. One of white space alone is given as it is."""
        if self._space and self._index < 0:
            yield from self._put("text", 0, self._space, text="")
        yield from self._stop()

    def _put(self, kind: str, number: int, new: str, **start: Any) -> Iterator[Event]:
        if self._open != (kind, number):
            yield from self._stop()
            self._open, self._index = (kind, number), self._index + 1
            block = {"type": kind, **start}
            yield {"type": "content_block_start", "index": self._index, "content_block": block}
        if new:
            name, field = _DELTAS[kind]
            delta = {"type": name, field: new}
            yield {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _stop(self) -> Iterator[Event]:
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._index}
            self._open = None


def content_of(events: Iterable[Event]) -> list[dict[str, Any]]:
    """The content blocks that events add up to. A call whose input was cut off is left out: it must not be run."""
    begun: list[tuple[dict[str, Any], list[str]]] = []
    for event in events:
        if event["type"] == "content_block_start":
            begun.append((event["content_block"], []))
        elif event["type"] == "content_block_delta":
            begun[-1][1].append(event["delta"][_DELTAS[begun[-1][0]["type"]][1]])
    out = []
    for block, pieces in begun:
        text = "".join(pieces)
        if block["type"] != "tool_use":
            out.append({**block, block["type"]: text})
            continue
        try:
            out.append({**block, "input": json.loads(text)})
        except (ValueError, RecursionError):
            continue
    return out


def _head(chat: Chat) -> dict[str, Any]:
    return {"id": chat.rid, "type": "message", "role": "assistant", "model": chat.model}


def _ending(sequence: Sequence, reader: AnswerReader) -> dict[str, Any]:
    """Why an answer ended.

    Raises:
        AbortedError: somebody ended it, for which the API has no reason.
    """
    reason, matched = finish_of(sequence.finish_reason)
    reason = reader.finish(reason)
    if reason == "abort":
        raise AbortedError("The request was aborted before its answer had ended.")
    if reason == "stop" and isinstance(matched, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": matched}
    return {"stop_reason": _REASONS[reason or "stop"], "stop_sequence": None}


def _usage(sequence: Sequence) -> dict[str, int]:
    """Token counts; those of the prompt that came out of the cache are counted apart."""
    cached = sequence.cached_tokens
    return {
        "input_tokens": sequence.prompt_tokens - cached,
        "cache_read_input_tokens": cached,
        "output_tokens": sequence.completion_tokens,
    }
