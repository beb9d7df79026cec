"""`[{"name": …, "parameters": {…}}]` and nothing else: for models without a syntax of their own whose answer must
be calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from radixlang.parsers.reader import Reader, Steps
from radixlang.parsers.tools.syntax import Output, Syntax, Tool, read_json_calls, read_text


class PlainJson(Syntax):
    triggers = ("[",)

    def read(self, r: Reader, out: Output) -> Steps[None]:
        yield from r.skip_space()
        if not (yield from read_json_calls(r, out)):
            r.at = 0
        yield from read_text(r, out)


def calls_schema(tools: Sequence[Tool], parallel: bool = True) -> dict[str, Any]:
    """The JSON schema of an answer that consists of calls of `tools`."""
    call = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, "parameters": {"$ref": f"#/$defs/tool{i}"}},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for i, tool in enumerate(tools)
    ]
    schema: dict[str, Any] = {
        "type": "array",
        "items": call[0] if len(call) == 1 else {"anyOf": call},
        "minItems": 1,
        "$defs": {f"tool{i}": _moved(tool.parameters, f"#/$defs/tool{i}") for i, tool in enumerate(tools)},
    }
    return schema if parallel else schema | {"maxItems": 1}


def _moved(schema: Any, root: str) -> Any:
    """A schema that has become a part of another: its references to itself are led to `root`."""
    if isinstance(schema, dict):
        return {
            key: root + value[1:]
            if key in ("$ref", "$dynamicRef") and isinstance(value, str) and value.startswith("#")
            else value
            if key in ("const", "enum", "default", "examples")
            else _moved(value, root)
            for key, value in schema.items()
        }
    return [_moved(item, root) for item in schema] if isinstance(schema, list) else schema
