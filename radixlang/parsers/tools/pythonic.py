"""`[f(a=1, b="x"), g()]` at the beginning of the answer: Llama 4 and the small models of Llama 3.2; between
`<|tool_call_start|>` and `<|tool_call_end|>`: LFM 2."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

from radixlang.parsers.reader import Reader, Steps
from radixlang.parsers.tools.syntax import (
    Format,
    Output,
    Syntax,
    Tool,
    const,
    either,
    not_beginning,
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

_WORDS = {"true": True, "false": False, "null": None}
MAX_OPTIONAL = 16
"""arguments that may be left out where none is required: the alternatives grow with the square"""


class Lfm2(Syntax):
    """The list stands between marks."""

    triggers: ClassVar[tuple[str, ...]] = ("<|tool_call_start|>",)
    end: ClassVar[str] = "<|tool_call_end|>"
    section = ("<|tool_call_start|>[", "]<|tool_call_end|>")
    separator = ", "

    def read_calls(self, r: Reader, out: Output, trigger: str) -> Steps[bool]:
        r.at += len(trigger)
        yield from r.skip_space()
        if not ((yield from r.begins("[")) and (yield from self._calls(r, out))):
            return False
        yield from r.take(self.end)
        return True

    def _calls(self, r: Reader, out: Output) -> Steps[bool]:
        """The list at `r.at`. A call is given out when its bracket closes."""
        begin = r.at
        r.at += 1
        found = False
        while True:
            yield from r.skip_space()
            text = yield from _expression(r)
            call = _call(text) if text else None
            if call is None or not out.call(*call):
                break
            found = True
            begin = r.at
            yield from r.skip_space()
            mark = yield from r.take(",", "]")
            if mark == "]":
                return True
            if mark is None:
                break
        r.at = begin
        return found

    def tag(self, tool: Tool) -> Format:
        schema = tool.parameters
        required = set(required_of(schema))
        given = [
            sequence(const(f"{name}="), _value_format(inner, schema))
            for name, inner in _in_order(schema, required)
        ]
        return tag(f"{tool.name}(", sequence(*_listed(given, len(required))), ")")

    def states(self, tool: Tool) -> bool:
        properties = properties_of(tool.parameters)
        named = all(name.isidentifier() for name in properties)
        optional = len(properties) if not required_of(tool.parameters) else 0
        return is_plain_object(tool.parameters) and named and optional <= MAX_OPTIONAL


class Pythonic(Lfm2):
    """The list is the whole answer, marks or not."""

    marked = False
    triggers = ("<|python_start|>", "<|python_tag|>")
    end = "<|python_end|>"

    def read(self, r: Reader, out: Output) -> Steps[None]:
        yield from r.skip_space()
        if not ((yield from r.begins("[")) and (yield from self._calls(r, out))):
            r.at = 0
        yield from super().read(r, out)

    def structural_tag(self, tools: Sequence[Tool], at_least_one: bool = False, parallel: bool = True) -> Format:
        """An answer is either a list of calls or text."""
        tags = [self.tag(tool) for tool in tools]
        # The bracket belongs to the first call: text is told from a list of calls by both together.
        first = either(*(one | {"begin": "[" + one["begin"]} for one in tags))
        more = {"type": "tags_with_separator", "tags": tags, "separator": ", ", "at_least_one": True}
        rest = either(sequence(const(", "), more), const(""))
        calls = sequence(first, rest, const("]")) if parallel else sequence(first, const("]"))
        return calls if at_least_one else either(calls, not_beginning([f"[{tool.name}(" for tool in tools]))


def _in_order(schema: Any, required: set[str]) -> list[tuple[str, Any]]:
    """Arguments, those that must be given first."""
    return sorted(properties_of(schema).items(), key=lambda item: item[0] not in required)


def _listed(given: list[Format], required: int) -> list[Format]:
    """Arguments with commas between them, all but the first `required` of which may be left out."""
    comma = const(", ")

    def rest(index: int) -> list[Format]:
        tail = [either(sequence(comma, one), const("")) for one in given[max(index, required) :]]
        return [part for one in given[index:required] for part in (comma, one)] + tail

    if required:
        return [given[0], *rest(1)]
    return [either(*(sequence(one, *rest(i + 1)) for i, one in enumerate(given)), const(""))] if given else []


def _value_format(schema: Any, root: Any) -> Format:
    """A value as Python writes it; inside of lists and objects as JSON does, which is read as well."""
    known = resolved(schema, root)
    if isinstance(known, dict) and set(known) <= {"anyOf", "title", "description", "default"} and "anyOf" in known:
        return either(*(_value_format(part, root) for part in known["anyOf"]))
    types = types_of(schema, root)
    if types == {"boolean"} and not {"enum", "const"} & set(known):
        return either(const("True"), const("False"))
    if types == {"null"}:
        return const("None")
    return schema_format(with_definitions(schema, root))


# ---- reading ----


def _expression(r: Reader) -> Steps[str | None]:
    """The text of a Python call at `r.at`, told by its brackets and strings; goes behind it."""
    position, depth, quote = r.at, 0, ""
    while True:
        while position < len(r.data):
            letter = r.data[position]
            if quote:
                if letter == "\\":
                    if position + 1 == len(r.data):
                        break
                    position += 1
                elif letter == quote:
                    quote = ""
            elif letter in "\"'":
                quote = letter
            elif letter in "([{":
                depth += 1
            elif letter in ")]}":
                depth -= 1
                if depth <= 0:
                    if depth < 0:
                        return None
                    text, r.at = r.data[r.at : position + 1], position + 1
                    return text
            elif not depth and not (letter.isidentifier() or letter.isdigit() or letter in ". "):
                return None
            position += 1
        if r.closed:
            return None
        yield


def _call(text: str) -> tuple[str, dict[str, Any]] | None:
    """Name and arguments of a call with keywords only."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            node = ast.parse(text.strip(), mode="eval").body
        if not isinstance(node, ast.Call) or node.args:
            return None
        arguments = {word.arg: _value(word.value) for word in node.keywords if word.arg is not None}
        return (ast.unparse(node.func), arguments) if len(arguments) == len(node.keywords) else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.Name(id=name) if name in _WORDS:
            return _WORDS[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            names = [_value(key) if key is not None else None for key in keys]
            if not all(isinstance(name, str) for name in names):
                raise ValueError("keys must be texts")
            return dict(zip(names, map(_value, values), strict=True))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
    raise ValueError("no constant")
