"""`<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>`: GPT-OSS."""

from __future__ import annotations

import re
from collections.abc import Sequence

from radixlang.parsers.reader import Reader, Steps
from radixlang.parsers.tools.syntax import (
    Format,
    Output,
    Syntax,
    Tool,
    either,
    read_arguments,
    schema_format,
    sequence,
    tag,
)

_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")
_NEXT = "<|end|><|start|>assistant"


class Harmony(Syntax):
    """A message of the channel `commentary` with a recipient is a call. Other marks are dropped, what stands
    between them is text; thoughts are the reasoning parser's matter."""

    marked = False
    thoughts = True
    triggers = ("<|channel|>", "<|start|>assistant", "<|end|>", "<|call|>", "<|return|>")

    def read_calls(self, r: Reader, out: Output, trigger: str) -> Steps[bool]:
        r.at += len(trigger)
        if trigger not in ("<|channel|>", "<|start|>assistant"):
            return True
        begin = r.at
        parts: list[str] = []
        if (yield from r.until(("<|message|>",), parts.append)) is None:
            if out.marked:
                return True  # a header that was cut off
            r.at = begin
            return False
        recipient = _RECIPIENT.search("".join(parts))
        if recipient is None:
            return True
        yield from r.skip_space()
        return (yield from read_arguments(r, out, recipient[1]))

    def tag(self, tool: Tool) -> Format:
        # The token behind a call ends the text.
        begin = f"<|channel|>commentary to=functions.{tool.name} <|constrain|>json<|message|>"
        return tag(begin, schema_format(tool.parameters), "")

    def structural_tag(self, tools: Sequence[Tool], at_least_one: bool = False, parallel: bool = True) -> Format:
        """Thoughts and comments, then one call: these models end their turn with it."""
        text: Format = {"type": "any_text"}
        before = {
            "type": "tags_with_separator",
            "tags": [tag(f"<|channel|>{name}<|message|>", text, _NEXT) for name in ("analysis", "commentary")],
            "separator": "",
        }
        last = [self.tag(tool) for tool in tools]
        if not at_least_one:
            last.append(tag("<|channel|>final<|message|>", text, ""))
        return sequence(before, either(*last))
