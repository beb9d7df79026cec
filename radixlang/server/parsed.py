"""`/parse_function_call` and `/separate_reasoning`: the parsers for texts that were generated elsewhere."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixlang.errors import ConfigError, RequestError
from radixlang.parsers.reasoning import find_reasoning, parse_reasoning
from radixlang.parsers.tools import find_syntax
from radixlang.server.fields import Refused, Tool
from radixlang.server.openai.tools import check_tools
from radixlang.server.web import Server, json_response, refuse


class ParseCallBody(msgspec.Struct, kw_only=True):
    """Body of `/parse_function_call`. Without a parser's name it is the server's own."""

    text: str
    tools: list[Tool] | None = None
    tool_call_parser: str | None = None


class SeparateBody(msgspec.Struct, kw_only=True):
    """Body of `/separate_reasoning`. Without a parser's name it is the server's own."""

    text: str
    reasoning_parser: str | None = None
    return_blocks: Refused = None


async def parse_function_call(server: Server, request: Request, body: ParseCallBody) -> Response:
    """`/parse_function_call`."""
    syntax = server.hub.parsers.syntax
    if body.tool_call_parser:
        try:
            found = find_syntax(body.tool_call_parser, getattr(server.hub.tokenizer, "chat_template", None))
        except ConfigError as error:
            raise RequestError(
                str(error).replace("--tool-call-parser", "tool_call_parser"), "tool_call_parser"
            ) from None
        syntax = found[1] if found else None
    if syntax is None:
        raise RequestError(
            "This server has no tool-call parser: name one in tool_call_parser.", "tool_call_parser"
        )
    # In a thread: megabytes of text take a while.
    read = await asyncio.to_thread(syntax.parse, body.text, check_tools(body.tools) or None)
    calls = [{"tool_index": call.index, "name": call.name, "parameters": call.arguments} for call in read.calls]
    return json_response({"normal_text": read.text, "calls": calls})


async def separate_reasoning(server: Server, request: Request, body: SeparateBody) -> Response:
    """`/separate_reasoning`."""
    refuse(body, {"return_blocks": "thoughts come as one text"})
    format = server.hub.parsers.reasoning
    if body.reasoning_parser:
        try:
            source = getattr(server.hub.tokenizer, "chat_template", None)
            format = find_reasoning(body.reasoning_parser, source)
        except ConfigError as error:
            raise RequestError(
                str(error).replace("--reasoning-parser", "reasoning_parser"), "reasoning_parser"
            ) from None
    if format is None:
        raise RequestError(
            "This server has no reasoning parser: name one in reasoning_parser.", "reasoning_parser"
        )
    reasoning, text = await asyncio.to_thread(parse_reasoning, format, body.text)
    return json_response({"reasoning_text": reasoning, "text": text})
