"""Requests for structured answers, and what came of them, streamed and whole."""

import json
from typing import Any

from radixlang.messages import GrammarSpec

from .fakes import Live

CHAT = "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}, "required": ["b"]}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "maximum": 9}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
CALLS = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)


def tool_of(parameters: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **more}}


def ask(say: str, **fields: Any) -> dict[str, Any]:
    """A request that the fake engine answers with `say`."""
    return {"messages": [{"role": "user", "content": f"[say:{say}]"}], **fields}


def spec(server: Live) -> GrammarSpec | None:
    """The constraint of the last request."""
    return server.engine.received[-1].grammar


def tag(server: Live) -> Any:
    found = spec(server)
    assert found is not None
    assert found.kind == "structural_tag"
    return json.loads(found.text)["format"]


def streamed(server: Live, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """(the message that the deltas make, finish reason); checks what clients rely on."""
    message: dict[str, Any] = {"content": "", "reasoning_content": ""}
    calls: list[dict[str, Any]] = []
    reasons = []
    for chunk in server.events(CHAT, body):
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        reasons.append(choice["finish_reason"])
        message["content"] += delta.get("content") or ""
        message["reasoning_content"] += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(calls)
                assert call["type"] == "function"
                calls.append({"id": call["id"], "index": call["index"], "type": "function"})
                calls[-1]["function"] = {"name": call["function"]["name"], "arguments": ""}
            else:
                assert set(call) == {"index", "function"}
                assert set(call["function"]) == {"arguments"}
            calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    assert set(reasons[:-1]) == {None}
    if calls:
        message["tool_calls"] = calls
    return message, reasons[-1]


def both(server: Live, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """(message, finish reason), which must be the same streamed and whole but for ids."""
    (choice,) = server.ok(CHAT, body)["choices"]
    message = choice["message"]
    again, reason = streamed(server, body)
    assert reason == choice["finish_reason"]
    assert again["content"] == message["content"]
    assert again["reasoning_content"] == (message["reasoning_content"] or "")
    plain = [call["function"] for call in message.get("tool_calls", ())]
    assert [call["function"] for call in again.get("tool_calls", ())] == plain
    return message, reason
