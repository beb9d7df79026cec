"""Arguments written one by one, as XML-like syntaxes and Python calls do: texts bare, other values as JSON.

What a bare text means depends on the schema of its parameter. The same rule stands here twice: `Members` reads
values, `parameter_formats` says what they look like.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from radixlang.parsers.reader import Reader, Sink, Steps
from radixlang.parsers.tools.syntax import Format, Output, const, either, quoted, schema_format, sequence, tag

_NOTES = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "nullable")
)
_PLAIN_OBJECT = _NOTES | {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "$defs",
    "definitions",
    "$schema",
}
_PLAIN_TEXT = _NOTES | {"type", "enum", "const"}


def properties_of(schema: Any) -> dict[str, Any]:
    """Name → schema of the arguments that may be given; those that are only required accept anything."""
    if not isinstance(schema, dict):
        return {}
    found = schema.get("properties")
    required = required_of(schema)
    items = found.items() if isinstance(found, dict) else ()
    out = {name: inner for name, inner in items if inner is not False or name in required}
    for name in required:
        out.setdefault(name, {})
    return out


def required_of(schema: Any) -> list[str]:
    names = schema.get("required") if isinstance(schema, dict) else None
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def resolved(schema: Any, root: Any) -> Any:
    """The schema that a chain of local references leads to."""
    for _ in range(16):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        found: Any = root
        for part in reference[2:].split("/"):
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        schema = found
    return schema


def types_of(schema: Any, root: Any) -> set[str]:
    """The JSON types a value may have; empty where that is not plain to see."""
    schema = resolved(schema, root)
    if not isinstance(schema, dict):
        return set()
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind, "null"} if schema.get("nullable") is True else {kind}
    if isinstance(kind, list):
        return {item for item in kind if isinstance(item, str)}
    for key in ("enum", "const"):
        if key in schema:
            values = schema[key] if key == "enum" and isinstance(schema[key], list) else [schema[key]]
            return {_type_of(value) for value in values}
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            parts = [types_of(part, root) for part in schema[key]]
            return set().union(*parts) if parts and all(parts) else set()
    return set()


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, (int, float)):
        return "number" if isinstance(value, float) and not value.is_integer() else "integer"
    return "array" if isinstance(value, list) else "object"


_PYTHON_WORDS = {"True": True, "False": False, "None": None}


def typed(text: str, types: set[str]) -> Any:
    """The value that a bare text means for a parameter of these types; the text itself if it fits none."""
    if types == {"string"}:
        return text
    bare = text.strip()
    value: Any
    try:
        value = json.loads(bare, parse_constant=_refused)
    except (ValueError, RecursionError):
        if bare not in _PYTHON_WORDS:
            return text
        value = _PYTHON_WORDS[bare]
    kind = _type_of(value)
    fits = not types or kind in types or (kind == "integer" and "number" in types)
    return text if "string" in types and not fits else value


def _refused(word: str) -> Any:
    raise ValueError(word)


class Members:
    """Writes arguments as one JSON object to a sink."""

    def __init__(self, schema: Any, sink: Sink) -> None:
        self.schema = schema
        self._properties = properties_of(schema)
        self._sink = sink
        self._seen: set[str] = set()

    def types(self, name: str) -> set[str]:
        return types_of(self._properties.get(name, {}), self.schema)

    def key(self, name: str) -> None:
        """A member begins; its value must follow."""
        self._sink(("{" if not self._seen else ", ") + quoted(name) + ": ")
        self._seen.add(name)

    def value(self, name: str, value: Any) -> None:
        """A whole member. One that was given already is left out."""
        if name not in self._seen:
            text = json.dumps(value, ensure_ascii=False)
            self.key(name)
            self._sink(text)

    def close(self) -> None:
        self._sink("}" if self._seen else "{}")

    def read(self, r: Reader, name: str, ends: tuple[str, ...], eager: bool) -> Steps[bool]:
        """The bare value at `r.at` up to one of `ends`; goes behind that. False when the text ends before."""
        types = self.types(name)
        if types == {"string"} and name not in self._seen:
            self.key(name)
            self._sink('"')
            end = yield from r.until(ends, lambda text: self._sink(quoted(text)[1:-1]))
            if end is not None:
                self._sink('"')
            return end is not None
        text = ""
        while True:
            parts: list[str] = []
            end = yield from r.until(ends, parts.append)
            text += "".join(parts)
            if end is None:
                return False
            # A text inside a JSON value may look like the end.
            if not eager or text.lstrip()[:1] not in ("{", "[", '"') or _is_json(text):
                break
            text += end
        self.value(name, typed(text, types))
        return True


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def read_members(
    out: Output, name: str, read: Callable[[Members], Steps[bool]], id: str | None = None
) -> Steps[bool]:
    """One call whose arguments `read` writes to the `Members` it is given. False if it is none, or malformed."""
    if not out.knows(name):
        return False
    schema = out.parameters(name)
    if out.eager:
        out.begin(name, id)
        members = Members(schema, out.arguments)
        if (yield from read(members)):
            members.close()
        return True
    parts: list[str] = []
    members = Members(schema, parts.append)
    if not (yield from read(members)):
        return False
    members.close()
    out.begin(name, id)
    out.arguments("".join(parts))
    return True


# ---- the same as formats ----


def is_plain_object(schema: Any) -> bool:
    """Whether the arguments are held to the schema by holding each to its own."""
    if not isinstance(schema, dict):
        return schema is True
    return set(schema) <= _PLAIN_OBJECT and schema.get("type", "object") == "object"


def is_plain(schema: Any) -> bool:
    """Whether `parameter_formats` says everything that a schema of arguments says."""
    return is_plain_object(schema) and all(_is_plain_value(v, schema) for v in properties_of(schema).values())


def _is_plain_value(schema: Any, root: Any) -> bool:
    types = types_of(schema, root)
    if "string" not in types:
        return True
    schema = resolved(schema, root)
    if types == {"string"}:
        return set(schema) <= _PLAIN_TEXT
    # A text or null is told apart; other mixtures are not.
    options = schema.get("anyOf") or schema.get("oneOf") or [schema]
    plain = all(set(resolved(option, root)) <= _NOTES | {"type"} for option in options)
    return types == {"string", "null"} and plain and set(schema) <= _NOTES | {"type", "anyOf", "oneOf"}


def value_format(schema: Any, root: Any, end: str) -> Format:
    """One bare value and the `end` behind it."""
    types = types_of(schema, root)
    if "string" in types:
        known = resolved(schema, root)
        values = known.get("enum") or ([known["const"]] if "const" in known else [])
        if values and all(isinstance(value, str) for value in values):
            return sequence(either(*map(const, values)), const(end))
        return tag("", {"type": "any_text"}, end)
    return sequence(schema_format(with_definitions(schema, root)), const(end))


def with_definitions(schema: Any, root: Any) -> Any:
    """A part of a schema that can stand alone; the definitions only where it may need them: they can be large."""
    if not isinstance(schema, Mapping) or not isinstance(root, Mapping) or '"$ref"' not in json.dumps(schema):
        return schema
    return {**{key: root[key] for key in ("$defs", "definitions") if key in root}, **schema}


def parameter_formats(schema: Any, open: Callable[[str], str], end: str, tail: str = "") -> list[Format]:
    """One format for each argument, in the order of the schema: `open(name)`, its value, `end` and `tail`."""
    required = required_of(schema)
    out = []
    for name, inner in properties_of(schema).items():
        one = sequence(const(open(name)), value_format(inner, schema, end), *([const(tail)] if tail else []))
        out.append(one if name in required else either(one, const("")))
    return out
