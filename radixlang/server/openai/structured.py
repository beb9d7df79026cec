"""Fields that say what an answer must look like: `response_format`, and the spellings of other servers.

All lead to one `Constraint`. Must not know how it is compiled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from radixlang.errors import RequestError
from radixlang.server.fields import Refused
from radixlang.server.web import refuse

Schema = str | bool | dict[str, Any]
"""a JSON schema, or its JSON text"""

Choices = Annotated[list[str], Meta(min_length=1, max_length=100_000)]


class Constraint(NamedTuple):
    """`kind` and `text` as `GrammarSpec` has them; `param` is the client's field."""

    kind: str
    text: str
    param: str


class JsonSchemaFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A named JSON schema. It is always held to; `strict` changes nothing."""

    schema: bool | dict[str, Any] | None = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What an answer must look like. `schema` may stand beside `json_object`; a structural tag is either `format`,
    or `structures` and `triggers`."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"] = "text"
    json_schema: JsonSchemaFormat | None = None
    schema: bool | dict[str, Any] | None = None
    format: dict[str, Any] | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of these."""

    json: Schema | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    whitespace_pattern: Refused = None


class StructuredFields(msgspec.Struct, kw_only=True):
    """Fields of both kinds of completion; at most one of them may be given."""

    response_format: ResponseFormat | None = None
    json_schema: Schema | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: Refused = None
    guided_decoding_backend: Annotated[str | None, Meta(extra_json_schema={"enum": ["auto", None]})] = None
    grammar: Refused = None
    extra_body: Refused = None


_REFUSED = {
    "grammar": "a grammar is `ebnf` here",
    "extra_body": "its members belong into the body itself",
}
_WHITESPACE = "constrained JSON has fixed separators; --constrained-json-any-whitespace frees them for the server"

_FIELDS = {
    "json_schema": "json_schema",
    "regex": "regex",
    "ebnf": "ebnf",
    "structural_tag": "structural_tag",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "ebnf",
}
_STRUCTURED = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "ebnf",
    "structural_tag": "structural_tag",
}


def constraint_of(body: StructuredFields) -> Constraint | None:
    """The constraint of a body, None if there is none.

    Raises:
        RequestError: there are two, or one is incomplete; names the fields.
    """
    refuse(body, {"guided_whitespace_pattern": _WHITESPACE, **_REFUSED})
    if body.guided_decoding_backend not in (None, "", "auto"):
        raise RequestError(
            f"guided_decoding_backend {body.guided_decoding_backend!r} is not supported: --grammar-backend "
            "chooses the engine for the whole server; leave it out, or say auto.",
            "guided_decoding_backend",
        )
    found = list(_constraints(body))
    if len(found) > 1:
        names = " and ".join(item.param for item in found[:2])
        raise RequestError(f"{names} exclude each other: an answer takes one constraint.", found[1].param)
    return found[0] if found else None


def _constraints(body: StructuredFields) -> Iterator[Constraint]:
    if body.response_format is not None:
        yield from _response_format(body.response_format)
    for name, kind in _FIELDS.items():
        yield from _field(getattr(body, name), kind, name)
    outer = body.structured_outputs
    if outer is not None:
        refuse(outer, {"whitespace_pattern": _WHITESPACE})
        found = [
            constraint
            for name, kind in _STRUCTURED.items()
            for constraint in _field(getattr(outer, name), kind, f"structured_outputs.{name}")
        ]
        if outer.json_object:
            found.append(Constraint("json_schema", _ANY_OBJECT, "structured_outputs.json_object"))
        if not found:
            raise RequestError(
                f"structured_outputs needs one of {', '.join(_STRUCTURED)} and json_object.", "structured_outputs"
            )
        yield from found


_MEMBERS: dict[str, tuple[str, ...]] = {
    "text": (),
    "json_object": ("schema",),
    "json_schema": ("json_schema",),
    "structural_tag": ("format", "structures", "triggers"),
}
"""what may stand beside a format's type"""

_ANY_OBJECT = '{"type": "object"}'


def _field(value: Any, kind: str, param: str) -> Iterator[Constraint]:
    if value is not None and value != "":
        yield Constraint(kind, value if isinstance(value, str) else _text(value, param), param)


def _text(value: Any, param: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise RequestError(f"{param} is nested too deeply.", param) from None


def _response_format(given: ResponseFormat) -> Iterator[Constraint]:
    param = "response_format"
    for name in ("json_schema", "schema", "format", "structures", "triggers"):
        if getattr(given, name) is not None and name not in _MEMBERS[given.type]:
            raise RequestError(f"response_format of type {given.type} takes no {name}.", param)
    if given.type == "json_object":
        text = _ANY_OBJECT if given.schema is None else _text(given.schema, param)
        yield Constraint("json_schema", text, param)
    elif given.type == "json_schema":
        if given.json_schema is None or given.json_schema.schema is None:
            raise RequestError("response_format of type json_schema needs json_schema.schema.", param)
        yield Constraint("json_schema", _text(given.json_schema.schema, param), param)
    elif given.type == "structural_tag":
        tag: dict[str, Any]
        if given.format is not None:
            tag = {"type": "structural_tag", "format": given.format}
        elif given.structures is not None and given.triggers is not None:
            tag = {"structures": given.structures, "triggers": given.triggers}
        else:
            raise RequestError(
                "response_format of type structural_tag needs format, or structures and triggers.", param
            )
        yield Constraint("structural_tag", _text(tag, param), param)
