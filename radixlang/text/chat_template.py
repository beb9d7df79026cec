"""Conversations to prompt text with a model's Jinja template, in a sandbox.

What templates expect of their surroundings (helpers, argument objects, content as text or as parts) is settled
here, so that whatever a client sends ends in a prompt or in a RequestError. Must not know tokenizers or HTTP.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from radixlang.errors import ConfigError, RequestError
from radixlang.text.builtin_templates import TEMPLATES


class _TemplateRefusal(jinja2.TemplateError):
    """Raised by a template through `raise_exception`."""


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks training targets; here it only passes its body on."""

    tags = {"generation"}  # noqa: RUF012 - the name and form the library prescribes

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise _TemplateRefusal(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it: no HTML escapes, non-ASCII letters kept, keys in the given order."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _now
    return environment


class ChatTemplate:
    """One compiled template. `variables` are visible to it (`bos_token`, ...)."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        """Raises RequestError when the template is not valid Jinja."""
        self.source = source
        self.variables = dict(variables)
        environment = _environment()
        try:
            self._tree = environment.parse(source)
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            message = f"The model's chat template is not valid ({error}): give another one with --chat-template."
            raise RequestError(message) from error

    @cached_property
    def content_format(self) -> str:
        """ "parts" when the template loops over a message's content, else "string"."""
        return "parts" if _loops_over_content(self._tree) else "string"

    @cached_property
    def _takes_strings(self) -> bool:
        """Whether a template that loops over parts also asks if the content is a plain string."""
        tests = {test.name for test in self._tree.find_all(nodes.Test)}
        return bool(tests & {"string", "iterable", "sequence", "mapping"})

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        extra: Mapping[str, Any],
    ) -> str:
        """The prompt text. With `continue_final_message` it ends with the last message's content, its turn left
        open, and no new turn is begun. `extra` cannot hide the conversation itself.

        Raises:
            RequestError: says which message is malformed, or what the template said.
        """
        prepared = self._prepare(messages)
        marker = ""
        if continue_final_message:
            add_generation_prompt = False
            marker = f"end-of-message-{uuid.uuid4().hex}"
            _append(prepared[-1], marker)
        context = {
            **self.variables,
            **extra,
            "messages": prepared,
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = self._template.render(context)
        except _TemplateRefusal as error:
            raise RequestError(f"The chat template refuses this conversation: {error}", "messages") from error
        except RecursionError as error:
            raise RequestError(
                "The conversation is nested too deeply for the chat template.", "messages"
            ) from error
        except Exception as error:  # template code can fail in any way; whatever it is, these messages caused it
            message = f"The chat template cannot render this conversation ({type(error).__name__}: {error})."
            raise RequestError(message, "messages") from error
        if not marker:
            return text
        head, found, _ = text.rpartition(marker)
        if not found:
            raise RequestError(
                "The chat template leaves the final message out, so it cannot be continued.", "messages"
            )
        return head

    def _prepare(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        if not messages:
            raise RequestError("messages must hold at least one message.", "messages")
        return [self._prepare_one(index, message) for index, message in enumerate(messages)]

    def _prepare_one(self, index: int, message: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(f"messages[{index}] must be an object with a role.", "messages")
        one = {key: value for key, value in message.items() if value is not None}
        if one["role"] == "developer" and "developer" not in self.source:
            one["role"] = "system"
        one["content"] = self._content(index, one.get("content"))
        calls = one.pop("tool_calls", None)
        if calls:
            if not isinstance(calls, Sequence) or not all(isinstance(call, Mapping) for call in calls):
                raise RequestError(f"messages[{index}].tool_calls must be a list of objects.", "messages")
            one["tool_calls"] = [_parsed_call(call) for call in calls]
        return one

    def _content(self, index: int, content: Any) -> Any:
        """The content as the template wants it: text parts are joined by line ends for a template of strings."""
        if isinstance(content, Sequence) and not isinstance(content, str):
            for part in content:
                if not isinstance(part, (str, Mapping)):
                    raise RequestError(f"messages[{index}].content holds a part that is no object.", "messages")
            if self.content_format == "parts":
                return [
                    {"type": "text", "text": part} if isinstance(part, str) else dict(part) for part in content
                ]
            return "\n".join(_text_of(index, part) for part in content)
        if content is not None and not isinstance(content, str):
            raise RequestError(f"messages[{index}].content must be a string or a list of parts.", "messages")
        if self.content_format == "string" or self._takes_strings:
            return content or ""
        return [{"type": "text", "text": content}] if content else []


def _text_of(index: int, part: str | Mapping[str, Any]) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text")
    if part.get("type", "text") not in ("text", "input_text", "output_text") or not isinstance(text, str):
        kind = part.get("type", "without text")
        raise RequestError(
            f"messages[{index}].content holds a part of type {kind!r}, which this model cannot read.", "messages"
        )
    return text


def _parsed_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """The call with its arguments as an object where their JSON is one; a damaged string stays text, so that one
    truncated call in the history does not end the conversation."""
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return dict(call)
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return dict(call)
    if not isinstance(arguments, dict):
        return dict(call)
    return {**call, "function": {**function, "arguments": arguments}}


def _append(message: dict[str, Any], marker: str) -> None:
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + marker
        return
    for position in range(len(content) - 1, -1, -1):
        if isinstance(content[position].get("text"), str):
            content[position] = {**content[position], "text": content[position]["text"] + marker}
            return
    content.append({"type": "text", "text": marker})


def _loops_over_content(tree: nodes.Template) -> bool:
    """Whether any `for` runs over `message.content`, directly, filtered, sliced or through a variable."""
    names: set[str] = set()

    def is_content(node: nodes.Node) -> bool:
        match node:
            case nodes.Name(name=name):
                return name in names
            case nodes.Getattr(attr="content"):
                return True
            case nodes.Getitem(arg=nodes.Const(value="content")):
                return True
            case nodes.Filter(node=inner) if inner is not None:
                return is_content(inner)
            case nodes.Getitem(node=inner, arg=nodes.Slice()):
                return is_content(inner)
            case _:
                return False

    for assign in tree.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name) and is_content(assign.node):
            names.add(assign.target.name)
    macro_arguments = {
        argument.name
        for macro in tree.find_all(nodes.Macro)
        for argument in macro.args
        if argument.name == "content"
    }
    names |= macro_arguments
    return any(is_content(loop.iter) for loop in tree.find_all(nodes.For))


def no_template(source: str) -> RequestError:
    return RequestError(
        f"The model {source} has no chat template: start the server with --chat-template (a name such as chatml, "
        "or a .jinja file), or use /v1/completions.",
        "messages",
    )


def named_template(choice: str) -> str:
    """Jinja source for `--chat-template`: a built-in name, a `.jinja` file, or a `.json` file with the source
    under `chat_template`. Raises ConfigError naming what can be given, also when the source is not valid."""
    source = TEMPLATES.get(choice)
    if source is not None:
        return source
    path = Path(choice)
    if path.suffix not in (".jinja", ".jinja2", ".j2", ".json"):
        names = ", ".join(sorted(TEMPLATES))
        raise ConfigError(f"--chat-template {choice!r} is neither a .jinja or .json file nor one of {names}.")
    try:
        source = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            value = json.loads(source)
            source = value.get("chat_template") if isinstance(value, dict) else None
    except (OSError, ValueError) as error:
        raise ConfigError(f"--chat-template {choice} cannot be read: {error}.") from error
    if not isinstance(source, str):
        raise ConfigError(f"--chat-template {choice} must be an object with the Jinja source under chat_template.")
    try:
        _environment().parse(source)
    except jinja2.TemplateError as error:
        raise ConfigError(f"--chat-template {choice} is not valid Jinja: {error}.") from error
    return source
