"""`[TOOL_CALLS][{"name": …, "arguments": {…}}]`, and in newer models `[TOOL_CALLS]NAME[ARGS]{…}`: Mistral."""

from __future__ import annotations

import uuid

from radixlang.parsers.reader import Reader, Steps
from radixlang.parsers.tools.syntax import (
    Format,
    Output,
    Syntax,
    Tool,
    quoted,
    read_arguments,
    read_json_calls,
    schema_format,
    tag,
)

MARK = "[TOOL_CALLS]"


class Mistral(Syntax):
    """Reads both forms; writes the one that `template` (a chat template's source) shows."""

    triggers = (MARK,)

    def __init__(self, template: str = "") -> None:
        self._named = "[ARGS]" in template
        if not self._named:
            self.section = (f"{MARK} [" if f"{MARK} [" in template else f"{MARK}[", "]")
            self.separator = ", "

    def new_id(self, name: str, index: int) -> str:
        """These models' templates insist on nine letters or digits."""
        return uuid.uuid4().hex[:9]

    def read_calls(self, r: Reader, out: Output, trigger: str) -> Steps[bool]:
        r.at += len(trigger)
        yield from r.skip_space()
        if (yield from r.begins("[", "{")):
            return (yield from read_json_calls(r, out))
        name = yield from r.word("[{\n")
        if not name:
            return False
        id = None
        if (yield from r.take("[CALL_ID]")):
            id = yield from r.word("[{\n")
        yield from r.take("[ARGS]")
        yield from r.skip_space()
        return (yield from read_arguments(r, out, name.strip(), id))

    def tag(self, tool: Tool) -> Format:
        if self._named:
            return tag(f"{MARK}{tool.name}[ARGS]", schema_format(tool.parameters), "")
        return tag(f'{{"name": {quoted(tool.name)}, "arguments": ', schema_format(tool.parameters), "}")
