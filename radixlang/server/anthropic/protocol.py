"""The bodies of Anthropic's Messages API, and the same request as a `ChatBody`.

Unknown fields are ignored (`metadata`, `cache_control`: the prefix cache needs no marks); fields and blocks that
ask for something this version cannot do are refused by name. Must not know how an answer is made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from radixlang.errors import RequestError
from radixlang.sampling_params import MAX_STOPS
from radixlang.server.fields import Count, Int32, Pin, Refused
from radixlang.server.openai.protocol import ChatBody, Message, Thinking
from radixlang.server.openai.structured import JsonSchemaFormat, ResponseFormat
from radixlang.server.web import refuse

REFUSED = {
    "container": "the server runs no code",
    "context_management": "conversations are used as they are sent",
    "mcp_servers": "the server calls no other servers",
}


class TextBlock(msgspec.Struct, tag="text", kw_only=True):
    """Text."""

    text: str


class ThinkingBlock(msgspec.Struct, tag="thinking", kw_only=True):
    """Thoughts of an earlier answer; whether the model sees them again is its chat template's."""

    thinking: str


class RedactedThinkingBlock(msgspec.Struct, tag="redacted_thinking", kw_only=True):
    """Encrypted thoughts, of another server; left out."""


class ToolUseBlock(msgspec.Struct, tag="tool_use", kw_only=True):
    """A call that an earlier answer made."""

    id: str
    name: str
    input: dict[str, Any]


class ImageBlock(msgspec.Struct, tag="image", kw_only=True):
    """An image; refused."""


class DocumentBlock(msgspec.Struct, tag="document", kw_only=True):
    """A document; refused."""


class ToolResultBlock(msgspec.Struct, tag="tool_result", kw_only=True):
    """What a call gave."""

    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock] | None = None


Block = (
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock | ImageBlock | DocumentBlock
)


class MessageParam(msgspec.Struct, kw_only=True):
    """One turn. Turns of one role in a row are one turn."""

    role: Literal["user", "assistant"]
    content: str | list[Block]


class CustomTool(msgspec.Struct, kw_only=True):
    """A tool that the client runs."""

    name: Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,128}$")]
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    type: str | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    """Whether tools are called; `name` is that of `tool`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(msgspec.Struct, kw_only=True):
    """Whether the model shall think, and for how many tokens at most. Without it, it shall not."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Count | None = None


class JsonOutput(msgspec.Struct, kw_only=True):
    """A JSON schema that the answer's text is held to."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, kw_only=True):
    """How much effort an answer is worth, and its form."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonOutput | None = None


class CountTokensBody(msgspec.Struct, kw_only=True):
    """Body of `/v1/messages/count_tokens`: what a prompt is made of."""

    messages: list[MessageParam]
    model: str | None = None
    system: str | list[TextBlock] | None = None
    tools: list[CustomTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    # refused
    container: Refused = None
    context_management: Refused = None
    mcp_servers: Refused = None


class MessagesBody(CountTokensBody, kw_only=True):
    """Body of `/v1/messages`."""

    max_tokens: Annotated[int, Meta(ge=1)]
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    stop_sequences: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    # beyond Anthropic: the request's place in the prefix cache and in the queue
    extra_key: str | None = None
    cache_salt: str | None = None
    pin: Pin | None = None
    priority: Int32 | None = None


def chat_body(body: CountTokensBody, parsed: bool) -> ChatBody:
    """The request as a chat request. `parsed`: the server tells thoughts from text.

    Raises:
        RequestError: something that this version cannot do; names the field or the block.
    """
    refuse(body, REFUSED)
    choice = body.tool_choice or ToolChoice(type="auto")
    format = body.output_config.format if body.output_config else None
    if format is not None and choice.type in ("any", "tool"):
        raise RequestError(
            f"tool_choice {choice.type} and output_config.format exclude each other: an answer cannot be both.",
            "tool_choice",
        )
    chat = ChatBody(
        messages=conversation(body),
        model=body.model,
        tools=_tools(body.tools or []) or None,
        tool_choice=_choice(choice, bool(body.tools)),
        parallel_tool_calls=not choice.disable_parallel_tool_use,
        thinking=_thinking(body.thinking, parsed),
        reasoning_effort=body.output_config.effort if body.output_config else None,
        continue_final_message=bool(body.messages) and body.messages[-1].role == "assistant",
    )
    if format is not None:
        schema = JsonSchemaFormat(schema=format.schema)
        chat.response_format = ResponseFormat(type="json_schema", json_schema=schema)
    if isinstance(body, MessagesBody):
        chat.max_tokens, chat.stream, chat.stop = body.max_tokens, body.stream, body.stop_sequences
        chat.temperature, chat.top_p, chat.top_k = body.temperature, body.top_p, body.top_k
        chat.extra_key, chat.cache_salt = body.extra_key, body.cache_salt
        chat.pin, chat.priority = body.pin, body.priority
    return chat


def conversation(body: CountTokensBody) -> list[Message]:
    """System text and turns as messages of a chat: the results of calls are messages of their own.

    Raises:
        RequestError: no turns, or a block that cannot stand where it stands; says which.
    """
    if not body.messages:
        raise RequestError("messages must hold at least one message.", "messages")
    out: list[Message] = []
    if body.system:
        texts = [body.system] if isinstance(body.system, str) else [block.text for block in body.system]
        out.append(Message(role="system", content=_content(texts)))
    names: dict[str, str] = {}
    for role, turns in groupby(enumerate(body.messages), key=lambda turn: turn[1].role):
        blocks = [
            (f"messages[{i}].content[{k}]", block)
            for i, message in turns
            for k, block in enumerate(_blocks(message.content))
        ]
        if role == "assistant":
            out.append(_assistant(blocks, names))
        else:
            out += _user(blocks, names)
    if out[-1].role == "assistant" and out[-1].tool_calls:
        raise RequestError(
            "The last message makes a tool_use: a message with its tool_result must follow.", "messages"
        )
    return out


def _blocks(content: str | Sequence[Block]) -> Sequence[Block]:
    return [TextBlock(text=content)] if isinstance(content, str) else content


def _content(texts: list[str]) -> str | list[dict[str, Any]]:
    """How the parts of a text are put together is the template's."""
    return "".join(texts) if len(texts) < 2 else [{"type": "text", "text": text} for text in texts]


def _assistant(blocks: list[tuple[str, Block]], names: dict[str, str]) -> Message:
    """An answer; notes the names of its calls by id."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for path, block in blocks:
        match block:
            case TextBlock(text=text):
                texts.append(text)
            case ThinkingBlock(thinking=thinking):
                thoughts.append(thinking)
            case RedactedThinkingBlock():
                pass
            case ToolUseBlock(id=id, name=name, input=arguments):
                function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
                calls.append({"id": id, "type": "function", "function": function})
                names[id] = name
            case _:
                raise _misplaced(path, block, "the user's messages")
    return Message(
        role="assistant",
        content=None if calls and not texts else _content(texts),
        tool_calls=calls or None,
        reasoning_content="".join(thoughts) or None,
    )


def _user(blocks: list[tuple[str, Block]], names: dict[str, str]) -> Iterator[Message]:
    texts: list[str] = []
    results = False
    for path, block in blocks:
        match block:
            case TextBlock(text=text):
                texts.append(text)
            case ToolResultBlock(tool_use_id=id):
                if id not in names:
                    raise RequestError(f"{path}: no tool_use before it has the id {id!r}.", "messages")
                if texts:
                    yield Message(role="user", content=_content(texts))
                    texts = []
                results = True
                yield Message(role="tool", content=_result(path, block), name=names[id], tool_call_id=id)
            case _:
                raise _misplaced(path, block, "the assistant's messages")
    if texts or not results:
        yield Message(role="user", content=_content(texts))


def _result(path: str, block: ToolResultBlock) -> str | list[dict[str, Any]]:
    texts = []
    for k, part in enumerate(_blocks(block.content or "")):
        if not isinstance(part, TextBlock):
            raise _misplaced(f"{path}.content[{k}]", part, "")
        texts.append(part.text)
    return _content(texts)


def _misplaced(path: str, block: Block, where: str) -> RequestError:
    kind = block.__struct_config__.tag
    if isinstance(block, ImageBlock | DocumentBlock):
        return RequestError(f"{path} is of type {kind}: this model takes text only.", "messages")
    return RequestError(f"{path} is of type {kind}, which belongs into {where}.", "messages")


def _tools(tools: list[CustomTool]) -> list[dict[str, Any]]:
    names: set[str] = set()
    out = []
    for i, tool in enumerate(tools):
        if tool.type not in (None, "custom"):
            raise RequestError(
                f"tools[{i}] is of type {tool.type!r}: the server runs no tools; only custom ones are taken.",
                "tools",
            )
        if tool.input_schema is None or tool.input_schema.get("type", "object") != "object":
            raise RequestError(f'tools[{i}].input_schema must be a JSON schema of type "object".', "tools")
        if tool.name in names:
            raise RequestError(f"tools[{i}].name {tool.name!r} is taken: each tool needs its own name.", "tools")
        names.add(tool.name)
        function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
        if tool.description is not None:
            function["description"] = tool.description
        if tool.strict is not None:
            function["strict"] = tool.strict
        out.append({"type": "function", "function": function})
    return out


def _choice(choice: ToolChoice, tools: bool) -> Any:
    if choice.type in ("any", "tool") and not tools:
        raise RequestError(f"tool_choice {choice.type} needs tools.", "tool_choice")
    if choice.type == "tool":
        if choice.name is None:
            raise RequestError("tool_choice tool needs the tool's name.", "tool_choice")
        return {"type": "function", "function": {"name": choice.name}}
    return {"auto": None, "any": "required", "none": "none"}[choice.type]


def _thinking(config: ThinkingConfig | None, parsed: bool) -> Thinking:
    if config is None:
        return Thinking(type="disabled")
    if config.type == "enabled" and not parsed:
        raise RequestError("thinking enabled needs a server with a --reasoning-parser.", "thinking")
    return Thinking(type=config.type, budget_tokens=config.budget_tokens if config.type == "enabled" else None)
