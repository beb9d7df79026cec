"""`<|tool_call|>[{"name": …, "arguments": {…}}]<|/tool_call|>`, or `functools[…]`: Phi 4 mini."""

from __future__ import annotations

from radixlang.parsers.reader import Reader, Steps
from radixlang.parsers.tools.syntax import (
    Format,
    Output,
    Syntax,
    Tool,
    quoted,
    read_json_calls,
    schema_format,
    tag,
)


class Phi(Syntax):
    triggers = ("<|tool_call|>", "functools[")
    section = ("<|tool_call|>[", "]<|/tool_call|>")
    separator = ", "

    def read_calls(self, r: Reader, out: Output, trigger: str) -> Steps[bool]:
        r.at += len(trigger.removesuffix("["))
        yield from r.skip_space()
        if not (yield from read_json_calls(r, out)):
            return False
        yield from r.skip_space()
        yield from r.take("<|/tool_call|>")
        return True

    def tag(self, tool: Tool) -> Format:
        return tag(f'{{"name": {quoted(tool.name)}, "arguments": ', schema_format(tool.parameters), "}")
