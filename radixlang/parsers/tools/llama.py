"""`{"name": …, "parameters": {…}}` at the beginning of the answer or behind `<|python_tag|>`: Llama 3."""

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

TAG = "<|python_tag|>"


class Llama3(Syntax):
    triggers = (TAG,)
    separator = "; "
    marked = False

    def read(self, r: Reader, out: Output) -> Steps[None]:
        yield from r.skip_space()
        if not ((yield from r.begins("{")) and (yield from self._calls(r, out))):
            r.at = 0
        yield from super().read(r, out)

    def read_calls(self, r: Reader, out: Output, trigger: str) -> Steps[bool]:
        r.at += len(trigger)
        return (yield from self._calls(r, out))

    def _calls(self, r: Reader, out: Output) -> Steps[bool]:
        found = False
        while True:
            behind = r.at
            yield from r.skip_space()
            if found and (yield from r.take(";")):
                yield from r.skip_space()
            if not (yield from read_json_calls(r, out)):
                r.at = behind
                return found
            found = True

    def tag(self, tool: Tool) -> Format:
        return tag(f'{{"name": {quoted(tool.name)}, "parameters": ', schema_format(tool.parameters), "}")

    def structural_tag(self, tools: Sequence[Tool], at_least_one: bool = False, parallel: bool = True) -> Format:
        """An answer is either calls or text."""
        calls = super().structural_tag(tools, True, parallel)
        if at_least_one:
            return calls
        return either(calls, sequence(const(TAG), calls), not_beginning(['{"name": "']))
