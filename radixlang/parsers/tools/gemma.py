"""`<|tool_call>call:NAME{key:<|"|>text<|"|>,other:1}<tool_call|>`: Gemma 4 and FunctionGemma."""

from __future__ import annotations

import json
import math
import re
from typing import Any, ClassVar

from radixlang.parsers.reader import Reader, Steps
from radixlang.parsers.tools.syntax import (
    Format,
    Output,
    Syntax,
    Tool,
    const,
    either,
    schema_format,
    sequence,
    tag,
)
from radixlang.parsers.tools.values import (
    is_plain_object,
    properties_of,
    required_of,
    resolved,
    types_of,
    with_definitions,
)

MAX_DEPTH = 8
MAX_PARTS = 1_000
"""of one tool: a structural tag may have 20,000, and some of these are five of its"""
_WORD = re.compile(r"[^,:{}\[\]]+")
_NOTES = {"title", "description", "default", "examples", "type"}


class Gemma4(Syntax):
    triggers = ("<|tool_call>",)
    quote: ClassVar[str] = '<|"|>'
    end: ClassVar[str] = "<tool_call|>"

    def read_calls(self, r: Reader, out: Output, trigger: str) -> Steps[bool]:
        """A call is given out whole: its values are no JSON."""
        r.at += len(trigger)
        if not (yield from r.take("call:")):
            return False
        name = yield from r.word("{\n")
        if not name:
            return False
        parts: list[str] = []
        while True:
            found = yield from r.until((self.end, self.quote), parts.append)
            if found != self.quote:
                break
            parts.append(self.quote)
            if (yield from r.until((self.quote,), parts.append)) is None:
                return False
            parts.append(self.quote)
        if found is None:
            return False
        try:
            value, rest = _Notation("".join(parts).strip(), self.quote).value(0)
        except (ValueError, IndexError, RecursionError):
            return False
        return not rest and isinstance(value, dict) and out.call(name.strip(), value)

    def tag(self, tool: Tool) -> Format:
        return tag(f"{self.triggers[0]}call:{tool.name}", self._object(tool.parameters, tool.parameters), self.end)

    def states(self, tool: Tool) -> bool:
        return self._parts(tool.parameters, tool.parameters, 0) <= MAX_PARTS

    # ---- formats ----

    def _object(self, schema: Any, root: Any) -> Format:
        required = required_of(schema)
        members = {name: self._member(name, inner, root) for name, inner in properties_of(schema).items()}
        first = [members[name] for name in members if name in required]
        parts: list[Format] = [const("{")]
        for i, one in enumerate(first):
            parts += [const(","), one] if i else [one]
        optional = [one for name, one in members.items() if name not in required]
        if first:
            parts += [either(sequence(const(","), one), const("")) for one in optional]
        elif optional:
            options = [
                sequence(one, *(either(sequence(const(","), other), const("")) for other in optional[i + 1 :]))
                for i, one in enumerate(optional)
            ]
            parts.append(either(*options, const("")))
        return sequence(*parts, const("}"))

    def _member(self, name: str, schema: Any, root: Any) -> Format:
        return sequence(const(f"{name}:"), self._value(schema, root))

    def _value(self, schema: Any, root: Any) -> Format:
        schema = resolved(schema, root)
        if not isinstance(schema, dict):
            return schema_format(schema)
        if "anyOf" in schema:
            return either(*(self._value(part, root) for part in schema["anyOf"]))
        types = types_of(schema, root)
        if types == {"string"}:
            values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
            if values:
                return either(*(const(f"{self.quote}{value}{self.quote}") for value in values))
            return tag(self.quote, {"type": "any_text"}, self.quote)
        if types == {"array"}:
            item = tag("", self._value(schema["items"], root), "")
            items = {"type": "tags_with_separator", "tags": [item], "separator": ","}
            return sequence(const("["), items, const("]"))
        if types == {"object"}:
            return self._object(schema, root)
        return schema_format(with_definitions(schema, root))

    def _parts(self, schema: Any, root: Any, depth: int) -> float:
        """How many parts the formats above have; infinitely many where they do not say all that the schema says,
        and where there are too many to be written down."""
        schema = resolved(schema, root)
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return math.inf
        inner: list[tuple[Any, int]] = []
        """schemas, and how often each is written down"""
        values = 0
        if "anyOf" in schema:
            plain = set(schema) <= _NOTES | {"anyOf"}
            inner = [(one, 1) for one in schema["anyOf"]]
        elif (types := types_of(schema, root)) == {"string"}:
            plain = set(schema) <= _NOTES | {"enum", "const"}
            values = len(schema.get("enum", ()))
        elif types == {"array"}:
            plain = set(schema) <= _NOTES | {"items"}
            inner = [(schema.get("items"), 1)]
        elif types == {"object"} or depth == 0:
            properties = properties_of(schema)
            plain = is_plain_object(schema) and all(_WORD.fullmatch(name) for name in properties)
            # Where none has to be there, each may be the first: it stands behind all before it as well.
            grows = not required_of(schema)
            inner = [(one, 1 + i * grows) for i, one in enumerate(properties.values())]
        else:
            plain = bool(types) and not types & {"string", "array", "object"}
        parts: float = 1 + values if plain else math.inf
        for one, times in inner:
            if parts > MAX_PARTS:
                return math.inf
            parts += times * self._parts(one, root, depth + 1)
        return parts


class FunctionGemma(Gemma4):
    triggers = ("<start_function_call>",)
    quote = "<escape>"
    end = "<end_function_call>"


class _Notation:
    """Reads values in this notation: bare keys, texts between quote marks, the rest as JSON has it."""

    def __init__(self, text: str, quote: str) -> None:
        self._text = text
        self._quote = quote

    def value(self, at: int) -> tuple[Any, str]:
        """(the value, what stands behind it)."""
        value, at = self._value(at)
        return value, self._text[at:].strip()

    def _value(self, at: int) -> tuple[Any, int]:
        text, quote = self._text, self._quote
        at = self._space(at)
        if text.startswith(quote, at):
            end = text.index(quote, at + len(quote))
            return text[at + len(quote) : end], end + len(quote)
        if text[at] == "{":
            return self._members(at + 1)
        if text[at] == "[":
            items: list[Any] = []
            at = self._space(at + 1)
            while text[at] != "]":
                value, at = self._value(at)
                items.append(value)
                at = self._comma(at, "]")
            return items, at + 1
        if text[at] == '"':
            value, end = json.JSONDecoder().raw_decode(text, at)
            return value, end
        match = _WORD.match(text, at)
        if match is None:
            raise ValueError("a value is missing")
        return json.loads(match.group().strip().replace("None", "null")), match.end()

    def _members(self, at: int) -> tuple[dict[str, Any], int]:
        text = self._text
        members: dict[str, Any] = {}
        at = self._space(at)
        while text[at] != "}":
            if text.startswith(self._quote, at) or text[at] == '"':
                key, at = self._value(at)
            else:
                match = _WORD.match(text, at)
                if match is None:
                    raise ValueError("a key is missing")
                key, at = match.group().strip(), match.end()
            at = self._space(at)
            if text[at] != ":":
                raise ValueError("a colon is missing")
            members[str(key)], at = self._value(at + 1)
            at = self._comma(at, "}")
        return members, at + 1

    def _comma(self, at: int, end: str) -> int:
        at = self._space(at)
        if self._text[at] == ",":
            return self._space(at + 1)
        if self._text[at] != end:
            raise ValueError("a comma is missing")
        return at

    def _space(self, at: int) -> int:
        while at < len(self._text) and self._text[at].isspace():
            at += 1
        return at
