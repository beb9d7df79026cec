"""`<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`: Qwen 3 Coder."""

from __future__ import annotations

from radixlang.parsers.reader import Reader, Steps
from radixlang.parsers.tools.syntax import Format, Output, Syntax, Tool, sequence, tag
from radixlang.parsers.tools.values import Members, is_plain, is_plain_object, parameter_formats, read_members


class QwenCoder(Syntax):
    triggers = ("<tool_call>",)
    separator = "\n"

    def read_calls(self, r: Reader, out: Output, trigger: str) -> Steps[bool]:
        r.at += len(trigger)
        yield from r.skip_space()
        if not (yield from r.take("<function=")):
            return False
        name = yield from r.word(">\n")
        if not name or not (yield from r.take(">")):
            return False

        def members(to: Members) -> Steps[bool]:
            return (yield from self._members(r, to, out.eager))

        if not (yield from read_members(out, name, members)):
            return False
        yield from r.skip_space()
        yield from r.take("</tool_call>")
        return True

    def _members(self, r: Reader, to: Members, eager: bool) -> Steps[bool]:
        ends = ("\n</parameter>",) if eager else ("\n</parameter>", "</parameter>")
        while True:
            yield from r.skip_space()
            found = yield from r.take("<parameter=", "</function>")
            if found != "<parameter=":
                return found is not None
            key = yield from r.word(">\n")
            if not key or not (yield from r.take(">")):
                return False
            yield from r.take("\n")
            if not (yield from to.read(r, key, ends, eager)):
                return False

    def tag(self, tool: Tool) -> Format:
        parameters = parameter_formats(tool.parameters, lambda key: f"<parameter={key}>\n", "\n</parameter>", "\n")
        begin = f"<tool_call>\n<function={tool.name}>\n"
        return tag(begin, sequence(*parameters), "</function>\n</tool_call>")

    def states(self, tool: Tool) -> bool:
        return is_plain(tool.parameters)

    def allows(self, tool: Tool) -> bool:
        return is_plain_object(tool.parameters)
