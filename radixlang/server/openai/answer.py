"""One chat answer as it arrives: thoughts, text and tool calls, and their shapes in OpenAI's protocol."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from radixlang.parsers.reasoning import ReasoningParser
from radixlang.parsers.tools import CallDelta, ToolParser
from radixlang.server.openai.reasoning import Thoughts
from radixlang.server.openai.tools import CallPlan, ToolUse


@dataclass
class Part:
    """What new text brought."""

    reasoning: str = ""
    content: str = ""
    calls: list[CallDelta] = field(default_factory=list)


class AnswerReader:
    """Reads one answer. `separate`: thoughts are kept out of the content; `stream_reasoning` False: they come in
    one piece, when they have ended."""

    def __init__(
        self,
        thoughts: Thoughts,
        use: ToolUse,
        plan: CallPlan,
        separate: bool = True,
        stream_reasoning: bool = True,
    ) -> None:
        self._thinking: ReasoningParser | None = None
        if thoughts.format is not None:
            self._thinking = ReasoningParser(thoughts.format, thoughts.opened, verbatim=not separate)
        self._calls: ToolParser | None = None
        if plan.syntax is not None:
            self._calls = plan.syntax.parser(use.tools, plan.eager, plan.marked)
        self._only_calls = plan.only
        self._separate = separate
        self._stream_reasoning = stream_reasoning
        self._held = ""
        self.thought = False
        """there were thoughts"""
        self._arguments: list[str] | None = None

    def read(self, text: str, ended: bool) -> Part:
        """The next piece of text; `ended`: the last one."""
        reasoning = ""
        if self._thinking is not None:
            new = [self._thinking.feed(text)] + ([self._thinking.close()] if ended else [])
            reasoning, text = "".join(t.reasoning for t in new), "".join(t.text for t in new)
            self.thought |= bool(reasoning)
        part = Part(content=text)
        if self._calls is not None:
            news = [self._calls.feed(text)] + ([self._calls.close()] if ended else [])
            part = Part("", "".join(n.text for n in news), [call for n in news for call in n.calls])
            if self._only_calls:
                # What is no call is the beginning of one that was cut off.
                part.content = ""
            for call in part.calls:
                if self._arguments is None or call.name is not None:
                    self._arguments = []
                self._arguments.append(call.arguments)
        if not self._separate:
            part.content = reasoning + part.content
        elif self._stream_reasoning or ended or text:
            part.reasoning = self._held + reasoning
            self._held = ""
        else:
            self._held += reasoning
        return part

    def finish(self, reason: str | None) -> str | None:
        """OpenAI's reason for an end. A call that a stop string cut off is none."""
        if reason != "stop" or self._arguments is None:
            return reason
        try:
            json.loads("".join(self._arguments))
        except (ValueError, RecursionError):
            return reason
        return "tool_calls"


def message_of(part: Part) -> dict[str, Any]:
    """The message of a whole answer."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": part.content,
        "reasoning_content": part.reasoning or None,
    }
    calls: list[dict[str, Any]] = []
    for delta in part.calls:
        if delta.name is not None:
            function = {"name": delta.name, "arguments": ""}
            calls.append({"id": delta.id, "index": delta.index, "type": "function", "function": function})
        calls[-1]["function"]["arguments"] += delta.arguments
    if calls:
        message["tool_calls"] = calls
    return message


def deltas_of(part: Part) -> list[dict[str, Any]]:
    """The deltas of a stream that carry `part`."""
    out: list[dict[str, Any]] = []
    if part.reasoning:
        out.append({"reasoning_content": part.reasoning})
    if part.content:
        out.append({"content": part.content})
    for delta in part.calls:
        call: dict[str, Any] = {"index": delta.index, "function": {"arguments": delta.arguments}}
        if delta.name is not None:
            call |= {"id": delta.id, "type": "function"}
            call["function"] = {"name": delta.name, "arguments": delta.arguments}
        out.append({"tool_calls": [call]})
    return out
