"""`<minimax:tool_call><invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke></minimax:tool_call>`:
MiniMax M2."""

from __future__ import annotations

from radixlang.parsers.reader import Reader, Steps
from radixlang.parsers.tools.syntax import Format, Output, Syntax, Tool, read_section, sequence, tag
from radixlang.parsers.tools.values import Members, is_plain, is_plain_object, parameter_formats, read_members

END = "</parameter>"


class MiniMax(Syntax):
    triggers = ("<minimax:tool_call>",)
    section = ("<minimax:tool_call>\n", "</minimax:tool_call>")

    def read_calls(self, r: Reader, out: Output, trigger: str) -> Steps[bool]:
        r.at += len(trigger)
        return (yield from read_section(r, out, "</minimax:tool_call>", self._call))

    def _call(self, r: Reader, out: Output) -> Steps[bool]:
        name = yield from _name(r, "<invoke name=")
        if not name:
            return False

        def members(to: Members) -> Steps[bool]:
            while True:
                yield from r.skip_space()
                if (yield from r.take("</invoke>")):
                    return True
                key = yield from _name(r, "<parameter name=")
                if not key or not (yield from to.read(r, key, (END,), out.eager)):
                    return False

        return (yield from read_members(out, name, members))

    def tag(self, tool: Tool) -> Format:
        parameters = parameter_formats(tool.parameters, lambda key: f'<parameter name="{key}">', END, "\n")
        return tag(f'<invoke name="{tool.name}">\n', sequence(*parameters), "</invoke>\n")

    def states(self, tool: Tool) -> bool:
        return is_plain(tool.parameters)

    def allows(self, tool: Tool) -> bool:
        return is_plain_object(tool.parameters)


def _name(r: Reader, begin: str) -> Steps[str | None]:
    """The name in an opening tag, quoted or not."""
    if not (yield from r.take(begin)):
        return None
    name = yield from r.word(">\n")
    if not name or not (yield from r.take(">")):
        return None
    return name.strip("\"'")
