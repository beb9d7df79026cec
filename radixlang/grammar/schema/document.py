"""A JSON schema as its author wrote it: draft, limits, base URIs, anchors, and where each reference points.

Gives every subschema an identity (`Node`) and a validator of its own. Knows the drafts' differences in how a
schema is *read*; must not know what its keywords mean (compile.py) or how grammars are stated (emit.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, cached_property
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin

import jsonschema_rs

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.schema.checked import MAPS, spelt_out

MAX_DEPTH = 100  # nesting of the schema's JSON; libraries behind us recurse on it
MAX_NODES = 50_000  # JSON values in the schema
MAX_CHARS = 2_000_000  # characters of its keys and strings

_ROOT = "json-schema:///schema"
_URIS = {
    2020: "https://json-schema.org/draft/2020-12/schema",
    2019: "https://json-schema.org/draft/2019-09/schema",
    7: "http://json-schema.org/draft-07/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    4: "http://json-schema.org/draft-04/schema#",
}
_SCHEMAS = {urldefrag(uri)[0]: draft for draft, uri in _URIS.items()}
_NEWEST = 0
_DRAFTS = {"-04/": 4, "-06/": 6, "-07/": 7, "/2019-09/": 2019, "/2020-12/": 2020, "": _NEWEST}
_DRAFT = re.compile(r"https?://json-schema\.org/(?:draft(?=[-/]))?([-/0-9]*)(?:hyper-)?schema#?")
_OLD = re.compile(r"https?://json-schema\.org/draft-0[0-3]/")
_VALIDATORS: dict[int, Any] = {
    4: jsonschema_rs.Draft4Validator,
    6: jsonschema_rs.Draft6Validator,
    7: jsonschema_rs.Draft7Validator,
    2019: jsonschema_rs.Draft201909Validator,
    2020: jsonschema_rs.Draft202012Validator,
}
# Keywords whose value is a schema or a list of schemas, some either; those of `MAPS` map names to schemas.
_ONE = ("additionalProperties", "additionalItems", "not", "if", "then", "else", "contains", "propertyNames",
        "unevaluatedProperties", "unevaluatedItems", "items")  # fmt: skip
_LIST = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMES = frozenset(("$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"))


class Node:
    """One subschema of a document; compared by identity. `base` is the URI that its references resolve against."""

    __slots__ = ("base", "document", "draft", "memo", "pointer", "schema")

    def __init__(self, document: Document, schema: Any, pointer: str, base: str, draft: int) -> None:
        self.document, self.schema, self.pointer, self.base, self.draft = document, schema, pointer, base, draft
        self.memo: Any = None  # what compile.py keeps of it

    def child(self, *path: str | int) -> Node:
        """The subschema at `path` below this one."""
        value = self.schema
        for step in path:
            value = value[step]
        found = self.document.known(value)
        if found is not None:
            return found
        pointer = self.pointer + "".join("/" + escape(str(step)) for step in path)
        return self.document.node(value, pointer, self.base, self.draft)

    def __repr__(self) -> str:
        return f"Node(#{self.pointer})"


class Document:
    """The schema, and the nodes found in it so far.

    Raises:
        GrammarError: too deep, too large, or not a schema of its draft.
    """

    def __init__(self, schema: Any) -> None:
        if not isinstance(schema, dict | bool):
            raise GrammarError("a schema must be an object, true or false.", pointer="")
        names_parts, drafts = _check_size(schema)
        self.schema = schema
        self.foreign = False
        """whether `$schema` names a dialect that is unknown here, and so says nothing of the draft"""
        self.draft = self._find_draft()
        place = "$defs" if self.draft >= 2019 else "definitions"
        known = {
            uri: part
            for draft in drafts
            if draft == self.draft or (draft in (6, 7) and self.draft != 4)
            for uri, part in _metaschemas(draft).items()
        }
        if known and isinstance(schema, dict):
            self.schema = schema = schema | {place: known | schema.get(place, {})}
        self._nodes: dict[int, Node] = {}
        self._resources: dict[str, Node] = {}
        self._anchors: dict[tuple[str, str], Node] = {}
        self._targets: dict[tuple[str, str], Node] = {}
        self._dynamic: dict[str, list[Node]] = {}
        self._registry: Any = None
        self.root = self.node(schema, "", _ROOT, self.draft)
        self._resources[self.root.base] = self.root
        self._resources.setdefault(_ROOT, self.root)
        if names_parts:
            self._index([self.root])
        if known:  # behind the author's own, which stand where both have a name
            self._index([self.root.child(place, uri) for uri in known if schema[place][uri] is known[uri]])

    def known(self, schema: Any) -> Node | None:
        """The node of a subschema that has been met; there is none of a plain true or false."""
        return self._nodes.get(id(schema))

    def node(self, schema: Any, pointer: str, base: str, draft: int) -> Node:
        """The node of the subschema `schema` found at `pointer`; the same object for the same subschema."""
        if isinstance(schema, bool):
            return Node(self, schema, pointer, base, draft)
        found = self.known(schema)
        if found is None:
            if not isinstance(schema, dict):
                raise GrammarError("a schema must be an object, true or false.", pointer=pointer)
            ident = schema.get("id" if draft == 4 else "$id")
            if isinstance(ident, str) and not ident.startswith("#") and not (draft < 2019 and "$ref" in schema):
                draft = _draft_of(schema) or draft  # only a resource of its own may be of another draft
                base = urldefrag(_joined(base, ident, pointer, "id" if draft == 4 else "$id"))[0]
            found = self._nodes[id(schema)] = Node(self, schema, pointer, base, draft)
        return found

    def resolve(self, node: Node, keyword: str = "$ref") -> Node:
        """The node that `node`'s `$ref` (or another keyword) names.

        Raises:
            GrammarError: nothing is there; schemas are never fetched over the network.
        """
        reference = node.schema[keyword]
        if not isinstance(reference, str):
            raise GrammarError("a reference must be a string.", pointer=node.pointer, keyword=keyword)
        found = self._targets.get((node.base, reference))
        if found is None:
            found = self._targets[node.base, reference] = self._resolve(node, keyword, reference)
        return found

    def _resolve(self, node: Node, keyword: str, reference: str) -> Node:
        if reference.startswith("#"):
            uri, fragment = node.base, reference[1:]
        else:
            uri, fragment = urldefrag(_joined(node.base, reference, node.pointer, keyword))
        resource = self._resources.get(uri)
        if resource is None:
            raise GrammarError(
                f"the reference {reference!r} names a schema outside of this document; put it into $defs.",
                pointer=node.pointer,
                keyword=keyword,
            )
        fragment = unquote(fragment)
        is_anchor = fragment and not fragment.startswith("/")
        found = self._anchors.get((uri, fragment)) if is_anchor else self._walk(resource, fragment)
        if found is None:
            raise GrammarError(
                f"the reference {reference!r} points nowhere.", pointer=node.pointer, keyword=keyword
            )
        return found

    def resolve_dynamic(self, node: Node) -> Node | None:
        """The target of `$dynamicRef` or `$recursiveRef`; None where it depends on the dynamic scope."""
        if "$recursiveRef" in node.schema:
            flagged = [n for n in self._dynamic.get("", []) if n.schema.get("$recursiveAnchor") is True]
            if flagged and len(self._resources) > 2:
                return None
            return self._resources.get(node.base, self.root)
        target = self.resolve(node, "$dynamicRef")
        name = target.schema.get("$dynamicAnchor") if isinstance(target.schema, dict) else None
        fragment = urldefrag(node.schema["$dynamicRef"])[1]
        if name == fragment and len(self._dynamic.get(fragment, [])) > 1:
            return None
        return target

    def validator(self, node: Node) -> Any:
        """A jsonschema-rs validator of the node alone; `format` is asserted in every draft."""
        make = _VALIDATORS[node.draft]
        if not isinstance(node.schema, dict):
            return make(node.schema, validate_formats=True)
        if node is self.root:
            return make(self._checked, validate_formats=True)
        if self._registry is None:
            self._registry = jsonschema_rs.Registry([(self.root.base, self._checked)])
        place = f"{self.root.base}#{quote(node.pointer, safe='/~')}"
        return make({"$ref": place}, registry=self._registry, validate_formats=True)

    @cached_property
    def _checked(self) -> Any:
        """The schema as validators read it."""
        whole = spelt_out(self.schema)
        if isinstance(whole, dict) and "$schema" in whole:
            whole["$schema"] = _URIS[self.draft]  # as the library spells it
        return whole

    def _walk(self, resource: Node, fragment: str) -> Node | None:
        value, pointer, base, draft = resource.schema, resource.pointer, resource.base, resource.draft
        if not fragment:
            return resource
        for step in fragment[1:].split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and step in value:
                value = value[step]
            elif isinstance(value, list) and step.isascii() and step.isdigit() and int(step) < len(value):
                value = value[int(step)]
            else:
                return None
            pointer += "/" + escape(step)
            known = self.known(value)
            if known is not None:
                base, draft = known.base, known.draft
        return self.node(value, pointer, base, draft)

    def _index(self, stack: list[Node]) -> None:
        """Find the resources and anchors of these and all subschemas; only documents that name some need it."""
        while stack:
            node = stack.pop()
            schema = node.schema
            if not isinstance(schema, dict):
                continue
            ident = schema.get("id" if node.draft == 4 else "$id")
            if isinstance(ident, str) and not (node.draft < 2019 and "$ref" in schema):
                if ident.startswith("#") and len(ident) > 1:
                    self._anchors.setdefault((node.base, ident[1:]), node)
                else:
                    self._resources.setdefault(node.base, node)
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(schema.get(keyword), str) and node.draft >= 2019:
                    self._anchors.setdefault((node.base, schema[keyword]), node)
            if isinstance(schema.get("$dynamicAnchor"), str):
                self._dynamic.setdefault(schema["$dynamicAnchor"], []).append(node)
            if "$recursiveAnchor" in schema:
                self._dynamic.setdefault("", []).append(node)
            stack.extend(children(node))

    def _find_draft(self) -> int:
        """The draft that `$schema` names; without one, or where it names a dialect of the author's own, the newest
        in which the schema is well formed. Not one in which a keyword of the schema would mean nothing: then it is
        malformed."""
        if isinstance(self.schema, bool):
            return 2020
        stated = _draft_of(self.schema)
        self.foreign = stated is None and "$schema" in self.schema
        if self.foreign and _OLD.match(str(self.schema["$schema"])):
            name = str(self.schema["$schema"])[:100]
            raise GrammarError(
                f"{name!r} is too old; use draft 4, 6, 7, 2019-09 or 2020-12.",
                pointer="",
                keyword="$schema",
            )
        since = 4 if stated else _newest_keyword(self.schema)
        problems = []
        for draft in [stated] if stated else _URIS:
            problem = self._malformed(self.schema, draft)
            if problem is None and draft >= since:
                return draft
            if problem is None:
                break
            problems.append(problem)
        raise problems[0]

    @staticmethod
    def _malformed(schema: dict[str, Any], draft: int) -> GrammarError | None:
        try:
            jsonschema_rs.meta.validate({**schema, "$schema": _URIS[draft]})
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
            return malformed(error, schema)
        return None


def malformed(error: Exception, schema: Any, pointer: str = "") -> GrammarError:
    """The library's finding that `schema` is none, where it says; or else at `pointer`, what it was asked of."""
    sentence = str(getattr(error, "message", error)).split("\n")[0][:200]
    path, keyword, value = getattr(error, "instance_path", []), None, schema
    try:
        for step in path:
            value = value[step]
    except (KeyError, IndexError, TypeError):
        path = []
    # In a subschema with an identifier of its own the library counts from there.
    if path and getattr(error, "instance", None) in (value, path[-1]):
        pointer, keyword = "".join("/" + escape(str(step)) for step in path[:-1]), str(path[-1])
    return GrammarError(f"the schema is malformed: {sentence}.", pointer=pointer, keyword=keyword)


def children(node: Node) -> Iterator[Node]:
    """The subschemas directly below a node, wherever its draft keeps some."""
    schema = node.schema
    for keyword in _ONE:
        if isinstance(schema.get(keyword), dict | bool):
            yield node.child(keyword)
    for keyword in _LIST:
        if isinstance(schema.get(keyword), list):
            for index in range(len(schema[keyword])):
                yield node.child(keyword, index)
    for keyword in MAPS:
        if isinstance(schema.get(keyword), dict):
            for name, value in schema[keyword].items():
                if isinstance(value, dict | bool):
                    yield node.child(keyword, name)


def escape(step: str) -> str:
    """One step of a JSON pointer."""
    return step.replace("~", "~0").replace("/", "~1")


def _joined(base: str, reference: str, pointer: str, keyword: str) -> str:
    try:
        return urljoin(base, reference) if reference else base
    except ValueError as error:
        raise GrammarError(f"{reference!r} is no address ({error}).", pointer=pointer, keyword=keyword) from None


_SINCE = (
    dict.fromkeys(("const", "contains", "propertyNames"), 6)
    | dict.fromkeys(("if", "then", "else"), 7)
    | dict.fromkeys(("dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties"), 2019)
    | dict.fromkeys(("minContains", "maxContains", "$recursiveRef"), 2019)
    | dict.fromkeys(("prefixItems", "$dynamicRef"), 2020)
)
"""the first draft in which a keyword constrains"""


def _newest_keyword(schema: Any) -> int:
    """The first draft in which all keywords of a schema constrain that do so in any."""
    newest, todo = 4, [schema]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += [each for each in one if isinstance(each, dict)]
        elif isinstance(one, dict):
            for key, value in one.items():
                newest = max(newest, _SINCE.get(key, 4))
                if key in MAPS and isinstance(value, dict):
                    todo += [each for each in value.values() if isinstance(each, dict)]
                elif key in _ONE or key in _LIST:
                    todo.append(value)
    return newest


def _draft_of(schema: Any) -> int | None:
    """The draft that `$schema` names, None where it names none that is known. Schemas of all drafts are found with
    either scheme, and with an empty fragment or none; a hyper-schema validates as the schema of its draft does."""
    name = schema.get("$schema") if isinstance(schema, dict) else None
    found = _DRAFT.fullmatch(name) if isinstance(name, str) else None
    return _DRAFTS.get(found[1]) if found else None


@cache
def _metaschemas(draft: int) -> dict[str, Any]:
    """What a draft says of schemas, itself a schema with parts, by their URIs."""
    uri = _URIS[draft]
    whole: dict[str, Any] = jsonschema_rs.bundle({"$schema": uri, "allOf": [{"$ref": uri}]})  # type: ignore[assignment]
    found: dict[str, Any] = whole["$defs" if "$defs" in whole else "definitions"]
    return found


def _check_size(schema: Any) -> tuple[bool, set[int]]:
    """Enforce the limits without recursion; says whether any subschema may name itself (id or anchor), other than
    the whole by its URI, and which drafts' own schemas are referred to."""
    nodes = chars = depth = 0
    named = False
    drafts = set[int]()
    level = [schema]
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise GrammarError(
                f"it is nested more than {MAX_DEPTH} levels deep; use $ref to flatten it.", pointer=""
            )
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                reference = value.get("$ref")
                if isinstance(reference, str) and reference.startswith("http"):
                    drafts.update([draft] if (draft := _SCHEMAS.get(urldefrag(reference)[0])) else [])
                for key in value:
                    chars += len(key)
                    if key in _NAMES and not isinstance(value[key], dict):  # that would be a property
                        is_uri = key in ("$id", "id") and not str(value[key]).startswith("#")
                        named = named or not (is_uri and value is schema)
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
            elif isinstance(value, str):
                chars += len(value)
        nodes += len(level)
        if nodes > MAX_NODES or chars > MAX_CHARS:
            raise GrammarError(
                f"it is too large (limits: {MAX_NODES:,} values and {MAX_CHARS:,} characters).", pointer=""
            )
        level = below
    return named, drafts
