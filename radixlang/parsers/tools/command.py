"""`<|START_ACTION|>[{"tool_call_id": "0", "tool_name": …, "parameters": {…}}]<|END_ACTION|>`: Cohere Command."""

from __future__ import annotations

from collections.abc import Sequence

from radixlang.parsers.reader import Reader, Steps
from radixlang.parsers.tools.syntax import (
    Format,
    Output,
    Syntax,
    Tool,
    const,
    either,
    not_beginning,
    quoted,
    read_json_calls,
    schema_format,
    sequence,
    tag,
)

ACTION = "<|START_ACTION|>"
ANSWERS = (("<|START_TEXT|>", "<|END_TEXT|>"), ("<|START_RESPONSE|>", "<|END_RESPONSE|>"))


class Command(Syntax):
    triggers = (ACTION, *(mark for pair in ANSWERS for mark in pair))
    section = (f"{ACTION}[", "]<|END_ACTION|>")
    separator = ", "
    marked = False

    def read_calls(self, r: Reader, out: Output, trigger: str) -> Steps[bool]:
        r.at += len(trigger)
        if trigger != ACTION:
            return True  # marks around an answer's text
        yield from r.skip_space()
        if not (yield from read_json_calls(r, out)):
            return False
        yield from r.skip_space()
        yield from r.take("<|END_ACTION|>")
        return True

    def tag(self, tool: Tool) -> Format:
        number = {"type": "regex", "pattern": "[0-9]{1,4}"}
        head = const(f'", "tool_name": {quoted(tool.name)}, "parameters": ')
        return tag('{"tool_call_id": "', sequence(number, head, schema_format(tool.parameters)), "}")

    def structural_tag(self, tools: Sequence[Tool], at_least_one: bool = False, parallel: bool = True) -> Format:
        calls = super().structural_tag(tools, True, parallel)
        if at_least_one:
            return calls
        text: Format = {"type": "any_text"}
        answers = [tag(begin, text, end) for begin, end in ANSWERS]
        return either(calls, *answers, not_beginning([ACTION, *(begin for begin, _ in ANSWERS)]))
