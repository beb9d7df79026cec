"""Structural tags: free text with constrained regions, turned into a Lark grammar.

Two notations are read: `{"structures": [{begin, schema, end}], "triggers": [...]}`, and
`{"type": "structural_tag", "format": {...}}` with the formats of the table in `_Lark`. A trigger is a text (or a
special token) at which a region begins; text that holds a trigger must go on as one of its tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.limits import too_long
from radixlang.grammar.rust_regex import as_rust

if TYPE_CHECKING:
    from radixlang.grammar.vocabulary import Vocabulary

_MEMBERS: dict[str, tuple[str, ...]] = {
    "const_string": ("value",),
    "json_schema": ("json_schema", "style"),
    "regex": ("pattern",),
    "any_text": (),
    "sequence": ("elements",),
    "or": ("elements",),
    "tag": ("begin", "content", "end"),
    "triggered_tags": ("triggers", "tags", "at_least_one", "stop_after_first"),
    "tags_with_separator": ("tags", "separator", "at_least_one", "stop_after_first"),
    "qwen_xml_parameter": ("json_schema",),
}
"""type of a format → its members; the methods of `_Lark` say what they mean"""

_SAYS_NOTHING = frozenset({"title", "description", "default", "examples", "$comment", "deprecated"})
_BARE = frozenset({"type", "enum"}) | _SAYS_NOTHING
_PARAMETERS = (
    frozenset({"type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema"})
    | _SAYS_NOTHING
)
"""keywords of the schema of `qwen_xml_parameter` that are held, or say nothing"""

STYLES = ("json", "qwen_xml", "qwen_xml_parameter")

ANY = r"(?s:.*)"
MAX_NODES = 20_000
MAX_DEPTH = 64


def to_lark(value: Any, vocabulary: Vocabulary, any_whitespace: bool = False) -> str:
    """The Lark grammar of a structural tag.

    Raises:
        GrammarError: names the JSON pointer of what is wrong.
    """
    return _Lark(vocabulary, any_whitespace).grammar(format_of(value))


def format_of(value: Any) -> Any:
    """Either notation as a format."""
    if not isinstance(value, dict):
        raise GrammarError("structural_tag must be a JSON object", "", param="structural_tag")
    if value.get("type", "structural_tag") != "structural_tag":
        raise GrammarError("the type of a structural tag must be structural_tag", "/type", param="structural_tag")
    if "format" in value:
        _check_members(value, ("format",), "")
        return value["format"]
    if "structures" not in value:
        raise GrammarError(
            "structural_tag needs `format`, or `structures` and `triggers`", "", param="structural_tag"
        )
    structures, triggers = value["structures"], value.get("triggers")
    _check_members(value, ("structures", "triggers"), "")
    if not isinstance(structures, list) or not all(isinstance(item, dict) for item in structures):
        raise GrammarError("`structures` must be a list of objects", "/structures", param="structural_tag")
    for i, item in enumerate(structures):
        _check_members(item, ("begin", "schema", "end"), f"/structures/{i}")
    tags = [
        {
            "type": "tag",
            "begin": item.get("begin"),
            "content": {"type": "json_schema", "json_schema": item.get("schema", {})},
            "end": item.get("end", ""),
        }
        for item in structures
    ]
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


def _check_members(value: dict[str, Any], known: Sequence[str], at: str) -> None:
    """Refuse what would be ignored: it may be a constraint, misspelt. `type` is always known."""
    for name in value:
        if name != "type" and name not in known:
            what = f"there are {', '.join(known)}" if known else "there is only `type`"
            pointer = f"{at}/{name.replace('~', '~0').replace('/', '~1')}"
            raise GrammarError(f"`{name}` has no meaning here; {what}", pointer, param="structural_tag")


class _Lark:
    """Collects the rules of one grammar."""

    def __init__(self, vocabulary: Vocabulary, any_whitespace: bool) -> None:
        self._vocabulary = vocabulary
        self._any_whitespace = any_whitespace
        self._rules: list[str] = []
        self._nodes = 0
        names = sorted(filter(None, vocabulary.special), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, names))) if names else None
        self._formats: dict[str, Callable[[dict[str, Any], str, int], str]] = {
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "regex": self._regex,
            "any_text": self._any_text,
            "sequence": self._sequence,
            "or": self._or,
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._tags_with_separator,
            "qwen_xml_parameter": self._qwen_xml,
        }

    def grammar(self, value: Any) -> str:
        body = self._node(value, "/format", 0)
        return "%llguidance {}\n" + "\n".join([f"start: {body}", *self._rules]) + "\n"

    # ---- helpers ----

    def _node(self, value: Any, at: str, depth: int) -> str:
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_DEPTH:
            raise self._error(f"the tag has more than {MAX_NODES} parts or {MAX_DEPTH} levels", at)
        if not isinstance(value, dict):
            raise self._error("a format must be an object", at)
        kind = value.get("type")
        method = self._formats.get(kind) if isinstance(kind, str) else None
        if method is None:
            known = ", ".join(sorted(self._formats))
            raise self._error(f"unknown format type {kind!r}; known are {known}", at)
        _check_members(value, _MEMBERS[str(kind)], at)
        return method(value, at, depth)

    def _error(self, message: str, at: str) -> GrammarError:
        return GrammarError(message, at, param="structural_tag")

    def _rule(self, body: str) -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name

    def _lexeme(self, body: str, lazy: bool = False) -> str:
        # Only rules may be lazy, and only capitals make a lexeme.
        name = f"{'l' if lazy else 'L'}{len(self._rules)}"
        self._rules.append(f"{name}{'[lazy]' if lazy else ''}: {body}")
        return name

    def _strings(self, value: dict[str, Any], key: str, at: str) -> list[str]:
        items = value.get(key)
        if not isinstance(items, list) or not items or not all(isinstance(x, str) and x for x in items):
            raise self._error(f"`{key}` must be a list of texts that are not empty", f"{at}/{key}")
        return items

    def _string(self, value: dict[str, Any], key: str, at: str) -> str:
        item = value.get(key)
        if not isinstance(item, str):
            raise self._error(f"`{key}` must be a text", f"{at}/{key}")
        return item

    def _only(self, schema: dict[str, Any], known: frozenset[str], at: str) -> None:
        extra = next((key for key in schema if key not in known), None)
        if extra is not None:
            raise self._error(f"`{extra}` cannot be held in this notation", at)

    def _flag(self, value: dict[str, Any], key: str, at: str) -> bool:
        item = value.get(key)
        if item is not None and not isinstance(item, bool):
            raise self._error(f"`{key}` must be true or false", f"{at}/{key}")
        return item is True

    def _nodes_of(self, value: dict[str, Any], key: str, at: str, depth: int) -> list[str]:
        items = value.get(key)
        if not isinstance(items, list) or not items:
            raise self._error(f"`{key}` must be a list that is not empty", f"{at}/{key}")
        return [self._node(item, f"{at}/{key}/{i}", depth + 1) for i, item in enumerate(items)]

    def text(self, value: str) -> str:
        """A literal, special tokens named in it as tokens."""
        return " ".join(self._pieces(value)) or '""'

    def _pieces(self, value: str) -> list[str]:
        pieces, end = [], 0
        for match in self._special.finditer(value) if self._special else ():
            if match.start() > end:
                pieces.append(_quoted(value[end : match.start()]))
            pieces.append(f"<[{self._vocabulary.special[match.group()]}]>")
            end = match.end()
        if end < len(value):
            pieces.append(_quoted(value[end:]))
        return pieces

    def _text_until(self, end: str) -> str:
        """Any text, up to and including the first `end`."""
        pieces = self._pieces(end)
        if not pieces:
            return self._lexeme(f"/{ANY}/")
        if pieces[0].startswith("<["):
            return " ".join([self._lexeme(f"/{ANY}/"), *pieces])
        return " ".join([self._lexeme(f"/{ANY}/ {pieces[0]}", lazy=True), *pieces[1:]])

    # ---- formats ----

    def _const_string(self, value: dict[str, Any], at: str, depth: int) -> str:
        return self.text(self._string(value, "value", at))

    def _json_schema(self, value: dict[str, Any], at: str, depth: int) -> str:
        style = value.get("style", "json")
        if style not in STYLES:
            raise self._error(f"`style` must be one of {', '.join(STYLES)}", f"{at}/style")
        if style != "json":
            return self._qwen_xml(value, at, depth)
        return self._rule(f"%json {self._schema(value.get('json_schema'), f'{at}/json_schema')}")

    def _schema(self, schema: Any, at: str) -> str:
        from radixlang.grammar.llg import json_options
        from radixlang.grammar.schema import normalise_text

        try:
            normalised = normalise_text(json.dumps(schema))
        except GrammarError as error:
            raise self._error(str(error).removesuffix("."), at) from None
        if normalised.residual:
            first = normalised.residual[0]
            message = (
                f"the schema cannot be stated as a grammar ({first.keyword} at {first.pointer or 'the root'})"
            )
            raise self._error(message, at)
        options = {"x-guidance": json_options(self._any_whitespace, normalised.schema)}
        inner = normalised.schema
        if not isinstance(inner, dict):
            inner = {} if inner else {"not": {}}
        return json.dumps(inner | options, ensure_ascii=False)

    def _regex(self, value: dict[str, Any], at: str, depth: int) -> str:
        from llguidance import regex_to_lark

        pattern = self._string(value, "pattern", at)
        if reason := too_long(pattern):
            raise self._error(f"the pattern is too large: {reason}", f"{at}/pattern")
        try:
            return self._lexeme(f"/{regex_to_lark(as_rust(pattern))}/")
        except GrammarError as error:
            raise self._error(str(error).removesuffix("."), f"{at}/pattern") from None

    def _any_text(self, value: dict[str, Any], at: str, depth: int) -> str:
        return self._lexeme(f"/{ANY}/")

    def _sequence(self, value: dict[str, Any], at: str, depth: int) -> str:
        return self._rule(" ".join(self._nodes_of(value, "elements", at, depth)))

    def _or(self, value: dict[str, Any], at: str, depth: int) -> str:
        return self._rule(" | ".join(self._nodes_of(value, "elements", at, depth)))

    def _tag(self, value: dict[str, Any], at: str, depth: int) -> str:
        return self._rule(f"{self.text(self._string(value, 'begin', at))} {self._inside(value, at, depth)}")

    def _inside(self, value: dict[str, Any], at: str, depth: int) -> str:
        """Content and end of a tag."""
        ends = value.get("end", "")
        ends = ends if isinstance(ends, list) else [ends]
        if not ends or not all(isinstance(end, str) for end in ends):
            raise self._error("`end` must be a text or a list of texts", f"{at}/end")
        content = value.get("content")
        if isinstance(content, dict) and content.get("type") == "any_text":
            return self._rule(" | ".join(self._text_until(end) for end in ends))
        body = self._node(content, f"{at}/content", depth + 1)
        return f"{body} {self._rule(' | '.join(self.text(end) for end in ends))}" if any(ends) else body

    def _tags(self, value: dict[str, Any], at: str) -> list[dict[str, Any]]:
        tags = value.get("tags")
        if not isinstance(tags, list) or not tags or not all(isinstance(tag, dict) for tag in tags):
            raise self._error("`tags` must be a list of tags that is not empty", f"{at}/tags")
        for i, tag in enumerate(tags):
            if tag.get("type", "tag") != "tag":
                raise self._error(f"only a tag may stand here, not a {tag['type']!r}", f"{at}/tags/{i}/type")
            _check_members(tag, _MEMBERS["tag"], f"{at}/tags/{i}")
        return tags

    def _triggered_tags(self, value: dict[str, Any], at: str, depth: int) -> str:
        triggers = self._strings(value, "triggers", at)
        groups: dict[str, list[str]] = {trigger: [] for trigger in triggers}
        for i, tag in enumerate(self._tags(value, at)):
            here = f"{at}/tags/{i}"
            begin = self._string(tag, "begin", here)
            trigger = max((t for t in triggers if begin.startswith(t)), key=len, default=None)
            if trigger is None:
                raise self._error(f"no trigger begins the tag {begin!r}", f"{here}/begin")
            rest = self._pieces(begin[len(trigger) :])
            groups[trigger].append(self._rule(" ".join([*rest, self._inside(tag, here, depth + 1)])))
        regions = []
        for trigger, tags in groups.items():
            if tags:
                regions.append(self._rule(f"{self._text_until(trigger)} {self._rule(' | '.join(tags))}"))
        region = self._rule(" | ".join(regions))
        tail = self._lexeme(f"/{ANY}/")
        once, least = self._flag(value, "stop_after_first", at), self._flag(value, "at_least_one", at)
        if once:
            return region if least else self._rule(f"{region} | {tail}")
        return self._rule(f"{region}{'+' if least else '*'} {tail}")

    def _tags_with_separator(self, value: dict[str, Any], at: str, depth: int) -> str:
        tags = [self._tag(tag, f"{at}/tags/{i}", depth + 1) for i, tag in enumerate(self._tags(value, at))]
        tag = self._rule(" | ".join(tags))
        separator = self._pieces(self._string(value, "separator", at))
        if self._flag(value, "stop_after_first", at):
            body = tag
        else:
            body = f"{tag} ({' '.join([*separator, tag])})*"
        return self._rule(body if self._flag(value, "at_least_one", at) else f"({body})?")

    def _qwen_xml(self, value: dict[str, Any], at: str, depth: int) -> str:
        """`<parameter=NAME>\\nVALUE\\n</parameter>` for each property; texts are bare, other values JSON."""
        schema = value.get("json_schema")
        if not isinstance(schema, dict):
            raise self._error("`json_schema` must be an object", f"{at}/json_schema")
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise self._error("`properties` must be an object and `required` a list", f"{at}/json_schema")
        self._only(schema, _PARAMETERS, f"{at}/json_schema")
        parts = []
        for name, inner in properties.items():
            here = f"{at}/json_schema/properties/{name}"
            definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
            bare = isinstance(inner, dict) and inner.get("type") == "string"
            if bare:
                self._only(inner, _BARE, here)
            if bare and "enum" in inner:
                body = self._rule(" | ".join(_quoted(str(item)) for item in inner["enum"])) + r' "\n</parameter>"'
            elif bare:
                body = self._lexeme(f"/{ANY}/ " + _quoted("\n</parameter>"), lazy=True)
            else:
                full = {**definitions, **inner} if isinstance(inner, dict) else inner
                body = self._rule(f"%json {self._schema(full, here)}") + r' "\n</parameter>"'
            rule = self._rule(f'{_quoted(f"<parameter={name}>" + chr(10))} {body} "\\n"')
            parts.append(rule if name in required else f"({rule})?")
        return self._rule(" ".join(parts) if parts else '""')


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def literal_pieces(texts: Sequence[str]) -> str:
    """Alternatives of literals, for a Lark rule."""
    return " | ".join(map(_quoted, texts))
