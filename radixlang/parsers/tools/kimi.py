"""`<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`: Kimi K2."""

from __future__ import annotations

import re

from radixlang.parsers.reader import Reader, Steps
from radixlang.parsers.tools.syntax import (
    Format,
    Output,
    Syntax,
    Tool,
    const,
    read_arguments,
    read_section,
    schema_format,
    sequence,
    tag,
)

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_ID = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?$")


class KimiK2(Syntax):
    triggers = (BEGIN,)
    section = (BEGIN, END)

    def new_id(self, name: str, index: int) -> str:
        return f"functions.{name}:{index}"

    def read_calls(self, r: Reader, out: Output, trigger: str) -> Steps[bool]:
        r.at += len(trigger)
        return (yield from read_section(r, out, END, self._call))

    def _call(self, r: Reader, out: Output) -> Steps[bool]:
        if not (yield from r.take(CALL)):
            return False
        written = yield from r.word("<\n")
        match = _ID.match((written or "").strip())
        if not match or not (yield from r.take(ARGUMENTS)):
            return False
        yield from r.skip_space()
        if not (yield from read_arguments(r, out, match[1], match[0])):
            return False
        yield from r.skip_space()
        yield from r.take(CALL_END)
        return True

    def tag(self, tool: Tool) -> Format:
        number = {"type": "regex", "pattern": "[0-9]{1,4}"}
        content = sequence(number, const(ARGUMENTS), schema_format(tool.parameters))
        return tag(f"{CALL}functions.{tool.name}:", content, CALL_END)
