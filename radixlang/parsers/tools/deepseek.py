"""Calls between `<｜tool▁calls▁begin｜>` and `<｜tool▁calls▁end｜>`: DeepSeek V3, R1 and V3.1."""

from __future__ import annotations

from radixlang.parsers.reader import Reader, Steps
from radixlang.parsers.tools.syntax import (
    Format,
    Output,
    Syntax,
    Tool,
    read_arguments,
    read_section,
    schema_format,
    tag,
)

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, BETWEEN, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


class DeepSeekV31(Syntax):
    """`NAME<｜tool▁sep｜>{…}`."""

    triggers = (BEGIN,)
    section = (BEGIN, END)
    before, behind = "", ""
    """what stands around the arguments"""

    def read_calls(self, r: Reader, out: Output, trigger: str) -> Steps[bool]:
        r.at += len(trigger)
        return (yield from read_section(r, out, END, self._call))

    def _call(self, r: Reader, out: Output) -> Steps[bool]:
        if not (yield from r.take(CALL)):
            return False
        name = yield from self._name(r)
        if not name or not (yield from read_arguments(r, out, name)):
            return False
        yield from r.skip_space()
        if self.behind:
            yield from r.take(self.behind.strip())
            yield from r.skip_space()
        yield from r.take(CALL_END)
        return True

    def _name(self, r: Reader) -> Steps[str | None]:
        """The name, with `r.at` at the arguments."""
        name = yield from r.word("<\n{")
        if not name or not (yield from r.take(BETWEEN)):
            return None
        yield from r.skip_space()
        return name.strip()

    def tag(self, tool: Tool) -> Format:
        begin = f"{CALL}{tool.name}{BETWEEN}"
        return tag(begin, schema_format(tool.parameters), CALL_END)


class DeepSeekV3(DeepSeekV31):
    """`function<｜tool▁sep｜>NAME`, and the arguments as a block of Markdown."""

    separator = "\n"
    before, behind = "\n```json\n", "\n```"

    def _name(self, r: Reader) -> Steps[str | None]:
        if not (yield from r.take("function" + BETWEEN)):
            return None
        name = yield from r.word("\n{")
        yield from r.skip_space()
        yield from r.take("```json", "```")
        yield from r.skip_space()
        return name and name.strip()

    def tag(self, tool: Tool) -> Format:
        begin = f"{CALL}function{BETWEEN}{tool.name}{self.before}"
        return tag(begin, schema_format(tool.parameters), self.behind + CALL_END)
