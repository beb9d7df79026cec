"""`<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen 2.5 and Qwen 3."""

from __future__ import annotations

from radixlang.parsers.reader import Reader, Steps
from radixlang.parsers.tools.syntax import Format, Output, Syntax, Tool, quoted, read_json_call, schema_format, tag


class Hermes(Syntax):
    triggers = ("<tool_call>",)
    separator = "\n"

    def read_calls(self, r: Reader, out: Output, trigger: str) -> Steps[bool]:
        r.at += len(trigger)
        yield from r.skip_space()
        if not (yield from read_json_call(r, out)):
            return False
        yield from r.skip_space()
        yield from r.take("</tool_call>")
        return True

    def tag(self, tool: Tool) -> Format:
        begin = f'<tool_call>\n{{"name": {quoted(tool.name)}, "arguments": '
        return tag(begin, schema_format(tool.parameters), "}\n</tool_call>")
