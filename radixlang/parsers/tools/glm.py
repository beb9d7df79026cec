"""`<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`: GLM 4.5 and later."""

from __future__ import annotations

from radixlang.parsers.reader import Reader, Steps
from radixlang.parsers.tools.syntax import Format, Output, Syntax, Tool, sequence, tag
from radixlang.parsers.tools.values import Members, is_plain, is_plain_object, parameter_formats, read_members

END = "</arg_value>"


class Glm(Syntax):
    triggers = ("<tool_call>",)
    separator = "\n"
    line = "\n"
    """what stands between the parts of a call"""

    def read_calls(self, r: Reader, out: Output, trigger: str) -> Steps[bool]:
        r.at += len(trigger)
        yield from r.skip_space()
        name = yield from r.word("<\n")
        if not name:
            return False

        def members(to: Members) -> Steps[bool]:
            while True:
                yield from r.skip_space()
                found = yield from r.take("<arg_key>", "</tool_call>")
                if found != "<arg_key>":
                    return found is not None
                key = yield from r.word("<\n")
                if not key or not (yield from r.take("</arg_key>")):
                    return False
                yield from r.skip_space()
                if not (yield from r.take("<arg_value>")):
                    return False
                if not (yield from to.read(r, key, (END,), out.eager)):
                    return False

        return (yield from read_members(out, name.strip(), members))

    def tag(self, tool: Tool) -> Format:
        line = self.line
        parameters = parameter_formats(
            tool.parameters, lambda key: f"<arg_key>{key}</arg_key>{line}<arg_value>", END, line
        )
        return tag(f"<tool_call>{tool.name}{line}", sequence(*parameters), "</tool_call>")

    def states(self, tool: Tool) -> bool:
        return is_plain(tool.parameters)

    def allows(self, tool: Tool) -> bool:
        return is_plain_object(tool.parameters)


class Glm47(Glm):
    """Without line breaks."""

    separator = ""
    line = ""
