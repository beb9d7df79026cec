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
        "$defs": {f"tool{i}": _alone(tool.parameters, str(i)) for i, tool in enumerate(tools)},
    }
    return schema if parallel else schema | {"maxItems": 1}


def _alone(schema: Any, name: str) -> Any:
    """A schema that may become a part of another: with an id its references to itself stay its own."""
    if not isinstance(schema, dict):
        return schema
    old = "draft-04" in str(schema.get("$schema"))
    id = schema.get("id" if old else "$id")
    id = id if isinstance(id, str) and not id.startswith("#") else f"tool:{name}"
    return {**standing_alone(schema), "$id": id, **({"id": id} if old else {})}


def standing_alone(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, to which keywords may be added: drafts 4 to 7 know nothing beside a reference."""
    if "$ref" in schema and any(f"draft-0{n}" in str(schema.get("$schema")) for n in (4, 6, 7)):
        kept: dict[str, Any] = {key: schema[key] for key in ("$schema", "definitions", "$defs") if key in schema}
        return {**kept, "allOf": [{"$ref": schema["$ref"]}]}
    return schema
