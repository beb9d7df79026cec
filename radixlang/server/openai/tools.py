"""Tools of a chat request: which may be called, and what an answer with calls must look like.

A forced choice is always held to the schema of the arguments: in the model's own syntax where that can state it,
else as a JSON array. Under `auto` an answer is free until a call begins, and then held to the schema as well.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from radixlang.errors import RequestError
from radixlang.grammar.errors import GrammarError
from radixlang.grammar.schema import Normalised, normalise
from radixlang.grammar.spec import read_json
from radixlang.parsers.tools import Syntax, Tool
from radixlang.parsers.tools.plain_json import PlainJson, calls_schema, standing_alone
from radixlang.parsers.tools.syntax import either, schema_format
from radixlang.server.openai.structured import Constraint

_NAME = re.compile(r"""[^\s"'<>(){}\[\]=,;:|\\]{1,256}""")


_NO_SYNTAX = "the server has no tool-call syntax", "leave strict out, or force the call"


@dataclass(frozen=True)
class ToolUse:
    """`shown` are the tools of the template, `tools` those that may be called. `choice` none, auto or required."""

    shown: list[dict[str, Any]] | None
    tools: list[Tool]
    choice: str
    parallel: bool = True
    strict: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CallPlan:
    """How calls get into an answer: its `constraint`, and the `syntax` by which they are read (None: not at all).
    `eager`: the constraint makes sure that what begins as a call is one. `thinks`: it has room for thoughts.
    `marked` as in the parsers' `Output`; `only`: the answer is nothing but calls."""

    constraint: Constraint | None
    syntax: Syntax | None = None
    eager: bool = False
    thinks: bool = False
    marked: bool = False
    only: bool = False


def check_tools(tools: list[dict[str, Any]] | None) -> list[Tool]:
    """The functions of a request.

    Raises:
        RequestError: a tool that is no function, whose name is taken, or whose name or parameters are malformed;
            says which.
    """
    out: dict[str, Tool] = {}
    for i, tool in enumerate(tools or ()):
        function = tool.get("function")
        if (
            tool.get("type") != "function"
            or not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
        ):
            raise RequestError(f"tools[{i}] must be a function with a name.", "tools")
        name = function["name"]
        if not _NAME.fullmatch(name):
            raise RequestError(
                f"tools[{i}].function.name must be 1 to 256 characters without white space, quotes and brackets.",
                "tools",
            )
        if name in out:
            raise RequestError(
                f"tools[{i}].function.name {name!r} is taken: each tool needs its own name.", "tools"
            )
        parameters = function.get("parameters")
        if parameters is None:
            parameters = {"type": "object", "properties": {}, "additionalProperties": False}
        elif not isinstance(parameters, dict):
            raise RequestError(f"tools[{i}].function.parameters must be a JSON schema.", "tools")
        else:
            parameters = _of_object(parameters, f"tools[{i}].function.parameters")
        out[name] = Tool(name, parameters)
    return list(out.values())


def _of_object(schema: dict[str, Any], where: str) -> dict[str, Any]:
    """The schema of a call's arguments, which takes objects only: what else it may allow is left out."""
    kinds = schema.get("type", "object")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "object" not in kinds:
        raise RequestError(
            f'{where} must describe an object: its type must be "object", not {json.dumps(schema["type"])}.',
            "tools",
        )
    return {**standing_alone(schema), "type": "object"}


def tool_use(tools: list[dict[str, Any]] | None, choice: Any, parallel: bool | None) -> ToolUse:
    """What a request says about tools.

    Raises:
        RequestError: malformed tools, a choice of a tool that is not there, or one that needs tools without any.
    """
    known = check_tools(tools)
    strict = frozenset(tool["function"]["name"] for tool in tools or () if tool["function"].get("strict") is True)
    several = parallel is not False
    if isinstance(choice, dict):
        mode, names = _choice(choice)
        missing = [name for name in names if name not in {tool.name for tool in known}]
        if missing:
            have = ", ".join(tool.name for tool in known) or "none"
            raise RequestError(
                f"tool_choice names the tool {missing[0]!r}; the request has {have}.", "tool_choice"
            )
        allowed = [tool for tool in known if tool.name in names]
        several = several and choice.get("type") == "allowed_tools"
        return ToolUse(tools or None, allowed, mode, several, strict)
    mode = choice or ("auto" if known else "none")
    if mode == "required" and not known:
        raise RequestError("tool_choice 'required' needs tools.", "tool_choice")
    return ToolUse(tools or None, known, mode if known else "none", several, strict)


def _choice(choice: dict[str, Any]) -> tuple[str, list[str]]:
    """(mode, names) of a choice that names tools."""
    if choice.get("type") == "allowed_tools":
        inner = choice.get("allowed_tools")
        given = inner if isinstance(inner, dict) else choice
        mode, listed = given.get("mode", "auto"), given.get("tools")
        if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
            raise RequestError(
                "tool_choice of type allowed_tools needs a mode, auto or required, and a list of tools.",
                "tool_choice",
            )
        return mode, [_named(item) for item in listed]
    if choice.get("type") != "function":
        raise RequestError(
            'tool_choice must be "auto", "none", "required" or {"type": "function", "function": {"name": …}}.',
            "tool_choice",
        )
    return "required", [_named(choice)]


def _named(item: Any) -> str:
    function = item.get("function", item) if isinstance(item, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise RequestError("tool_choice must give the function's name.", "tool_choice")
    return name


def plan_calls(use: ToolUse, syntax: Syntax | None, answer: Constraint | None, constrain: bool = True) -> CallPlan:
    """How this request's calls are made and read. `answer`: the constraint on the answer, where it has one;
    `constrain`: whether this server takes constraints.

    Raises:
        RequestError: two constraints, or a schema that cannot be used (names tool, pointer and keyword).
    """
    try:
        return _plan_calls(use, syntax, answer, constrain)
    except RecursionError:
        raise RequestError("The parameters of the tools are nested too deeply.", "tools") from None


def _plan_calls(use: ToolUse, syntax: Syntax | None, answer: Constraint | None, constrain: bool) -> CallPlan:
    if use.choice == "none":
        return CallPlan(answer)
    if use.choice == "required":
        if answer is not None:
            raise RequestError(
                f"A forced tool_choice and {answer.param} exclude each other: the answer would have to be both.",
                "tool_choice",
            )
        return _forced(use, syntax)
    if syntax is not None and constrain:
        return _free(use, syntax, answer)
    for tool in use.tools:
        _normalised(tool)
        if tool.name in use.strict:
            why, remedy = _NO_SYNTAX if constrain else ("--grammar-backend is none", "leave strict out")
            raise RequestError(
                f"The strict tool {tool.name!r} cannot be held under tool_choice auto ({why}): {remedy}.", "tools"
            )
    return CallPlan(answer, syntax)


def _forced(use: ToolUse, syntax: Syntax | None) -> CallPlan:
    exact = [not _normalised(tool).residual for tool in use.tools]
    if syntax is not None and all(exact) and all(map(syntax.states, use.tools)):
        tag = syntax.structural_tag(use.tools, at_least_one=True, parallel=use.parallel)
        return CallPlan(_tag(tag), syntax, True, syntax.thoughts, marked=True, only=not syntax.thoughts)
    schema = calls_schema(use.tools, use.parallel)
    return CallPlan(
        Constraint("json_schema", json.dumps(schema, ensure_ascii=False), "tools"), PlainJson(), True, only=True
    )


def _free(use: ToolUse, syntax: Syntax, answer: Constraint | None) -> CallPlan:
    tools = []
    for tool in use.tools:
        normalised = _normalised(tool)
        strict = tool.name in use.strict
        if strict and normalised.residual:
            first = normalised.residual[0]
            raise RequestError(
                f"The schema of the tool {tool.name!r} cannot be held exactly under tool_choice auto (at "
                f"{first.pointer or 'the root'}, {first.keyword}): leave strict out, or force the call.",
                "tools",
            )
        held = Tool(tool.name, normalised.schema) if normalised.residual else tool
        if held is not tool and _normalised(held).residual:
            return CallPlan(answer, syntax)
        if strict and not syntax.states(held):
            raise RequestError(
                f"The schema of the tool {tool.name!r} cannot be held exactly in the model's own call syntax: "
                "leave strict out, or force the call.",
                "tools",
            )
        if not syntax.allows(held):
            return CallPlan(answer, syntax)
        tools.append(held)
    if answer is None:
        tag = syntax.structural_tag(tools, parallel=use.parallel)
        return CallPlan(_tag(tag), syntax, True, syntax.thoughts, marked=True)
    if answer.kind != "json_schema" or not syntax.marked:
        return CallPlan(answer, syntax)
    schema = read_json(answer.text, answer.param)
    if normalise(schema).residual:
        return CallPlan(answer, syntax)
    calls = syntax.structural_tag(tools, at_least_one=True, parallel=use.parallel)
    return CallPlan(_tag(either(calls, schema_format(schema))), syntax, True)


def _tag(format: dict[str, Any]) -> Constraint:
    tag = {"type": "structural_tag", "format": format}
    return Constraint("structural_tag", json.dumps(tag, ensure_ascii=False), "tools")


def _normalised(tool: Tool) -> Normalised:
    try:
        return _read_schema(json.dumps(tool.parameters, ensure_ascii=False))
    except GrammarError as error:
        what = str(error).removeprefix("The JSON schema cannot be used: ")
        message = f"The parameters of the tool {tool.name!r} cannot be used: {what}"
        raise GrammarError(message, param="tools") from None


@lru_cache(512)
def _read_schema(text: str) -> Normalised:
    """Clients send the same tools again and again."""
    return normalise(json.loads(text))
