"""What every tool-call syntax has in common: its interface, what it writes to, and the shape of its grammar."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from radixlang.parsers.reader import Reader, Reading, Steps

MAX_MALFORMED = 16
"""malformed calls in one answer, each of which may be read up to the end; what follows is text"""

Format = dict[str, Any]
"""a part of a structural tag"""


@dataclass(frozen=True)
class Tool:
    """A function that the model may call; `parameters` is the JSON schema of its arguments."""

    name: str
    parameters: Any = field(default_factory=lambda: {"type": "object", "properties": {}})


@dataclass
class CallDelta:
    """News of the call number `index`: its id and name once, and more of its arguments' JSON text."""

    index: int
    id: str
    name: str | None = None
    arguments: str = ""


@dataclass
class Delta:
    """What new text brought: text of the answer, and news of calls."""

    text: str = ""
    calls: list[CallDelta] = field(default_factory=list)


class Output:
    """Collects what a syntax reads. `eager`: arguments are passed on as they are written, which is for texts held
    to a structural tag; otherwise a call comes whole, and a malformed one stays text. `marked`: `triggers[0]`
    begins nothing but a call, so that what is left of one that was cut off is no text."""

    def __init__(self, syntax: Syntax, tools: Mapping[str, Tool] | None, eager: bool, marked: bool) -> None:
        self.syntax = syntax
        self.tools = tools
        self.eager = eager
        self.marked = marked
        self.count = 0
        self._new = Delta()
        self._space = ""
        self._behind_call = False

    def take(self) -> Delta:
        """What is new since the last time."""
        new, self._new = self._new, Delta()
        return new

    # ---- calls ----

    def knows(self, name: str) -> bool:
        return self.tools is None or name in self.tools

    def parameters(self, name: str) -> Any:
        """The schema of a function's arguments; {} where it is not known."""
        tool = self.tools.get(name) if self.tools else None
        return tool.parameters if tool else {}

    def begin(self, name: str, id: str | None = None) -> None:
        """A call begins."""
        call = CallDelta(self.count, id or self.syntax.new_id(name, self.count), name)
        self.count += 1
        self._new.calls.append(call)
        self._space, self._behind_call = "", True

    def arguments(self, text: str) -> None:
        """More of the arguments of the call begun last."""
        calls = self._new.calls
        if calls:
            calls[-1].arguments += text
        else:
            calls.append(CallDelta(self.count - 1, "", None, text))

    def call(self, name: Any, arguments: Any, id: str | None = None) -> bool:
        """A whole call with its arguments as values; False, and nothing done, when it is none."""
        if isinstance(arguments, str):
            arguments = _object(arguments)
        arguments = {} if arguments is None else arguments
        if not isinstance(name, str) or not isinstance(arguments, dict) or not self.knows(name):
            return False
        try:
            text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError):
            return False
        self.begin(name, id)
        self.arguments(text)
        return True

    # ---- text ----

    def say(self, text: str) -> None:
        """Text of the answer. White space next to a call is dropped."""
        if self._behind_call:
            text = text.lstrip()
            if not text:
                return
            self._behind_call = False
        text = self._space + text
        body = text.rstrip()
        self._space = text[len(body) :]
        self._new.text += body

    def end(self) -> None:
        """Nothing follows."""
        self._new.text += self._space
        self._space = ""


class Syntax:
    """One way to write calls. `read_call` reads, `tag` and the attributes say the same as a structural tag."""

    def __init__(self, template: str = "") -> None:
        """`template`: the chat template's source, for syntaxes of which there are several forms."""

    triggers: ClassVar[tuple[str, ...]]
    """texts at which calls begin; the section or else every tag begins with the first"""
    section: tuple[str, str] = ("", "")
    """what stands around all calls"""
    separator: str = ""
    """what stands between two calls"""

    marked: ClassVar[bool] = True
    """an answer with calls begins with text or `triggers[0]`, and everything that does is free or a call"""

    thoughts: ClassVar[bool] = False
    """the structural tag has room for the thoughts in front of an answer"""

    def read_calls(self, r: Reader, out: Output, trigger: str) -> Steps[bool]:
        """Read the calls at `r.at`, where `trigger` stands, and go behind them. False: there is none."""
        raise NotImplementedError
        yield

    def tag(self, tool: Tool) -> Format:
        """One call of `tool`."""
        raise NotImplementedError

    def states(self, tool: Tool) -> bool:
        """Whether `tag` holds the arguments to everything that the schema says."""
        return True

    def allows(self, tool: Tool) -> bool:
        """Whether `tag` takes at least every call that the schema allows."""
        return self.states(tool)

    def new_id(self, name: str, index: int) -> str:
        """The id of the call number `index`, where the model writes none."""
        return f"call_{uuid.uuid4().hex[:24]}"

    # ---- reading ----

    def read(self, r: Reader, out: Output) -> Steps[None]:
        """A whole answer: text and calls."""
        malformed = 0
        while malformed < MAX_MALFORMED:
            r.commit()
            trigger = yield from r.until(self.triggers, out.say)
            if trigger is None:
                out.end()
                return
            r.at -= len(trigger)
            begin = r.at
            found = yield from self.read_calls(r, out, trigger)
            if out.marked and r.closed and trigger == self.triggers[0]:
                # Only a call that lacks its end waits for the end of the text.
                out.end()
                return
            if not found:
                out.say(trigger)
                r.at = begin + len(trigger)
                malformed += 1
        yield from read_text(r, out)

    def parser(self, tools: Sequence[Tool] | None = None, eager: bool = False, marked: bool = False) -> ToolParser:
        """A parser for one answer. `tools`: those that may be called; None for any. The rest as in `Output`."""
        return ToolParser(self, tools, eager, marked)

    def parse(self, text: str, tools: Sequence[Tool] | None = None) -> Delta:
        """The calls in a complete text."""
        parser = self.parser(tools)
        parts = [parser.feed(text), parser.close()]
        return Delta("".join(part.text for part in parts), [call for part in parts for call in part.calls])

    # ---- constraints ----

    def structural_tag(self, tools: Sequence[Tool], at_least_one: bool = False, parallel: bool = True) -> Format:
        """What a text with calls of `tools` looks like. `at_least_one`: nothing but calls; otherwise free text in
        which calls may stand. `parallel`: several calls may."""
        tags = [self.tag(tool) for tool in tools]
        begin, end = self.section
        calls = {
            "type": "tags_with_separator",
            "tags": tags,
            "separator": self.separator,
            "at_least_one": True,
            "stop_after_first": not parallel,
        }
        if begin:
            tags = [tag(begin, calls, end)]
        if at_least_one:
            return tags[0] if begin else calls
        return {
            "type": "triggered_tags",
            "triggers": [self.triggers[0]],
            "tags": tags,
            "stop_after_first": bool(begin) or not parallel,
        }


class ToolParser:
    """Reads one answer as it arrives."""

    def __init__(self, syntax: Syntax, tools: Sequence[Tool] | None, eager: bool, marked: bool = False) -> None:
        self.out = Output(syntax, None if tools is None else {tool.name: tool for tool in tools}, eager, marked)
        self._reading = Reading(lambda reader: syntax.read(reader, self.out))

    def feed(self, text: str) -> Delta:
        """The next piece of text."""
        self._reading.feed(text)
        return self.out.take()

    def close(self) -> Delta:
        """The text has ended."""
        self._reading.close()
        return self.out.take()


# ---- helpers of syntaxes ----


def tag(begin: str, content: Format, end: str) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def schema_format(schema: Any) -> Format:
    return {"type": "json_schema", "json_schema": schema}


def const(value: str) -> Format:
    return {"type": "const_string", "value": value}


def sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)} if elements else const("")


def either(*elements: Format) -> Format:
    return {"type": "or", "elements": list(elements)} if len(elements) > 1 else elements[0]


def not_beginning(texts: Sequence[str]) -> Format:
    """Any text that begins with none of the given ones."""

    def pattern(rests: Sequence[str]) -> str:
        tree: dict[str, list[str]] = {}
        for rest in rests:
            tree.setdefault(rest[0], []).append(rest[1:])
        options = ["[^" + "".join(map(re.escape, tree)) + r"](?s:.*)"]
        options += [re.escape(letter) + pattern(more) for letter, more in tree.items() if all(more)]
        return f"({'|'.join(options)})?"

    return {"type": "regex", "pattern": pattern(texts)}


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


# ---- calls written as JSON objects ----

NAME_KEYS = ("name", "tool_name")
ARGUMENT_KEYS = ("arguments", "parameters")


def read_json_call(r: Reader, out: Output) -> Steps[bool]:
    """One `{"name": …, "arguments": {…}}` at `r.at`; goes behind it. False, and nothing done, if there is none."""
    begin = r.at
    if out.eager:
        if (yield from _stream_json_call(r, out)):
            return True
        r.at = begin
    text = yield from r.json_object()
    value = _object(text) if text else None
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if isinstance(value, dict):
        name = next((value[key] for key in NAME_KEYS if key in value), None)
        arguments = next((value[key] for key in ARGUMENT_KEYS if key in value), None)
        if out.call(name, arguments):
            return True
    r.at = begin
    return False


def read_arguments(r: Reader, out: Output, name: str, id: str | None = None) -> Steps[bool]:
    """The arguments of a call of `name`, an object at `r.at`. False, and nothing done, if they are none."""
    if out.eager:
        if not out.knows(name):
            return False
        if not (yield from r.begins("{")):
            return _begin_cut(r, out, name, id)
        out.begin(name, id)
        yield from r.json_object(out.arguments)
        return True
    text = yield from r.json_object()
    return text is not None and out.call(name, text, id)


def _begin_cut(r: Reader, out: Output, name: str | None, id: str | None = None) -> bool:
    """Give out the call whose text ends behind its name. False, and nothing done, if it does not."""
    if not r.closed or name is None or not out.knows(name):
        return False
    out.begin(name, id)
    return True


def read_text(r: Reader, out: Output) -> Steps[None]:
    """Everything that follows is text."""
    while True:
        out.say(r.data[r.at :])
        r.at = len(r.data)
        r.commit()
        if r.closed:
            out.end()
            return
        yield


def read_section(r: Reader, out: Output, end: str, one: Callable[[Reader, Output], Steps[bool]]) -> Steps[bool]:
    """Calls, each read by `one`, until `end`. What stands behind the last good call is left where it is."""
    found = False
    while True:
        behind = r.at
        yield from r.skip_space()
        if found and (yield from r.take(end)):
            return True
        if not (yield from one(r, out)):
            r.at = behind
            return found
        found = True


def _stream_json_call(r: Reader, out: Output) -> Steps[bool]:
    """As `read_json_call`, passing the arguments on while they are written: the name must stand before them."""
    name: str | None = None
    yield from r.take("{")
    begun = False
    while True:
        yield from r.skip_space()
        key = yield from r.json_string()
        yield from r.skip_space()
        if key is None or not (yield from r.take(":")):
            return begun or _begin_cut(r, out, name)
        yield from r.skip_space()
        if key in ARGUMENT_KEYS and name is not None and not begun:
            if not out.knows(name):
                return False
            if not (yield from r.begins("{")):
                return _begin_cut(r, out, name)
            out.begin(name)
            begun = True
            yield from r.json_object(out.arguments)
        elif (yield from r.begins('"')):
            text = yield from r.json_string()
            name = text if key in NAME_KEYS else name
        else:
            return begun
        yield from r.skip_space()
        mark = yield from r.take(",", "}")
        if mark != ",":
            return begun or (mark is None and _begin_cut(r, out, name))


def read_json_calls(r: Reader, out: Output) -> Steps[bool]:
    """An array of calls, or a single one. What stands behind the last good call is left where it is."""
    if not (yield from r.begins("[")):
        return (yield from read_json_call(r, out))
    r.at += 1
    found = False
    while True:
        yield from r.skip_space()
        behind = r.at
        if not (yield from read_json_call(r, out)):
            r.at = behind
            return found
        found = True
        behind = r.at
        yield from r.skip_space()
        if (yield from r.take(",")) is None:
            break
    if (yield from r.take("]")) is None:
        r.at = behind
    return found
