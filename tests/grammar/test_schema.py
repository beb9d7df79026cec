"""The normaliser: drafts, references, combinators, limits and refusals; the bars on the labelled real schemas."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.schema import formats, normalise, pattern
from tests.conftest import SHARED
from tests.grammar.test_schema_property import accepts, library, passes_check

DRAFT4 = "http://json-schema.org/draft-04/schema#"
DRAFT7 = "http://json-schema.org/draft-07/schema#"


def rewritten(schema: Any) -> Any:
    """A validator of the rewritten schema, which must be exact."""
    normalised = normalise(schema)
    assert not normalised.residual, normalised.residual
    return jsonschema_rs.Draft202012Validator(normalised.schema)


def _closed(**properties: Any) -> Any:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _named(name: str, **properties: Any) -> Any:
    properties = {"k": {"enum": [name]}, **properties}
    return {"properties": properties, "additionalProperties": False, "required": list(properties)}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"$schema": DRAFT4, "minimum": 3, "exclusiveMinimum": True}, [4, "x"], [3]),
        ({"minimum": 3, "exclusiveMinimum": True}, [4], [3]),  # no $schema: the draft in which it is well formed
        ({"$schema": DRAFT7, "items": [{"type": "null"}], "additionalItems": False},
         [[], [None]], [[1], [None, 1]]),
        ({"$schema": DRAFT7, "$ref": "#/definitions/a", "maxLength": 1, "definitions": {"a": {"type": "string"}}},
         ["abc"], [1]),
        ({"$ref": "#/$defs/a", "maxLength": 1, "$defs": {"a": {"type": "string"}}}, ["a"], ["abc", 1]),
        ({"$schema": DRAFT4, "const": 1}, [2], []),
        ({"$schema": DRAFT7, "dependencies": {"a": ["b"], "c": {"required": ["d"]}}},
         [{}, {"a": 1, "b": 1}, {"c": 1, "d": 1}, 3], [{"a": 1}, {"c": 1}]),
        ({"$ref": "#/x/y%25z", "x": {"y%z": {"type": "null"}}}, [None], [1]),
        ({"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "null"}}}, [None], [1]),
        ({"$id": "http://x.test/root", "$ref": "other", "$defs": {"a": {"$id": "other", "type": "null"}}},
         [None], [1]),
        ({"$schema": DRAFT4, "$ref": "#a", "definitions": {"x": {"id": "#a", "type": "null"}}}, [None], [1]),
        ({"$dynamicRef": "#n", "$defs": {"a": {"$dynamicAnchor": "n", "type": "null"}}}, [None], [1]),
        ({"properties": {"a": {"$ref": "#"}, "b": {"type": "null"}}, "required": ["b"], "type": "object"},
         [{"b": None}, {"a": {"b": None}, "b": None}], [{"a": {}, "b": None}, {}]),
        ({"type": "object", "$ref": "#/$defs/t", "required": ["c"], "$defs": {"t": {"properties": {"c": {
            "$ref": "#/$defs/t"}}, "minProperties": 0}}}, [{"c": {}}, {"c": {"c": 1}}], [{}]),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, [{"a": 1}], [{"a": 1, "b": 1}, {}, 3]),
        ({"oneOf": [_closed(a={}, c={"type": "null"}), _closed(b={}, c={"type": "null"})]},
         [{"a": 1}, {"b": 1, "c": None}, {"a": 1, "c": None}], [{}, {"c": None}, {"a": 1, "b": 1}, {"c": 1}]),
        ({"oneOf": [_closed(a={}, c={"type": "null"}), _closed(c={}), _closed(b={}, c={})]},
         [{"a": 1}, {"b": 1}, {"b": 1, "c": 1}], [{}, {"c": None}, {"c": 1}, {"a": 1, "b": 1}]),
        ({"oneOf": [_closed(a={}) | {"required": ["a"]}, _closed(b={}) | {"patternProperties": {"^x": {}}}]},
         [{"a": 1}, {}, {"b": 1}, {"x": 1}], [{"a": 1, "b": 1}, {"a": 1, "x": 1}, {"c": 1}]),
        ({"allOf": [_closed(a={}, xa={})], "not": _closed(b={}) | {"patternProperties": {"^x": {}}}},
         [{"a": 1}, {"a": 1, "xa": 1}], [{}, {"xa": 1}, {"a": 1, "x": 1}]),
        ({"allOf": [_closed(a={"type": ["string", "null"]}, b={})],
          "not": {"type": "object", "properties": {"b": {}}, "additionalProperties": {"type": "null"}}},
         [{"a": "x"}, {"a": "x", "b": 1}], [{}, {"a": None}, {"b": 1}, {"c": 1}]),
        ({"oneOf": [{"type": "array", "items": {"const": "a"}}, {"type": "array", "items": {"type": "object"}}]},
         [["a"], [{}, {}]], [[], ["a", {}], [1]]),
        ({"oneOf": [{"type": "array", "items": {"enum": ["a", "b"]}}, {"type": "array", "items": {"const": "c"}}]},
         [["a", "b"], ["c", "c"]], [[], ["a", "c"], ["d"]]),
        # The branches exclude one another as objects, and all allow what is none.
        ({"oneOf": [_named("a", b={"minLength": 1}, c={"minLength": 2}), _named("b", b={"pattern": "x"}, d={}),
                    _named("c", b={"type": "null"}, c={"pattern": "y"})]},
         [{"k": "a", "b": "1", "c": "22"}, {"k": "b", "b": "x", "d": 1}, {"k": "c", "b": None, "c": "y"}],
         [1, None, {"k": "d"}, {"k": "a"}]),
        ({"not": {"type": "object", "required": ["a"]}}, [{}, 1], [{"a": 1}]),
        ({"not": {"enum": [1, "a", None, True, {}]}},
         [2, 0.5, "b", False, [], {"a": 1}], [1, "a", None, True, {}]),
        ({"if": {"properties": {"k": {"const": 1}}, "required": ["k"]}, "then": {"required": ["a"]},
          "else": {"required": ["b"]}}, [{"k": 1, "a": 1}, {"b": 1}], [{"k": 1}, {"k": 2}, {}]),
        ({"type": "object", "propertyNames": {"enum": ["a", "b"]}}, [{"a": 1}, {}], [{"c": 1}]),
        ({"type": "object", "propertyNames": {"pattern": "^a", "maxLength": 2}},
         [{"ab": 1}], [{"abc": 1}, {"b": 1}]),
        ({"type": "object", "patternProperties": {"^a": {"type": "string"}, "b$": {"maxLength": 1}}},
         [{"ab": "x"}, {"cb": 1}], [{"ab": "xy"}, {"ab": 1}, {"cb": "xy"}]),
        ({"type": "object", "properties": {"a": {}, "b": {}}, "maxProperties": 1}, [{}, {"a": 1}, {"z": 1}],
         [{"a": 1, "b": 1}, {"a": 1, "z": 1}]),
        ({"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1}, [{"a": 1}, {"z": 1}], [{}]),
        ({"contains": {"const": 1}, "type": "array", "maxItems": 2}, [[1], [2, 1]], [[], [2], [1, 2, 1]]),
        ({"type": "array", "contains": {"const": 1}, "minContains": 0, "maxContains": 0}, [[], [2]], [[1]]),
        ({"properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}], "unevaluatedProperties": False,
          "type": "object"}, [{"a": 1, "b": 1}], [{"c": 1}]),
        ({"prefixItems": [{"type": "null"}], "unevaluatedItems": False, "type": "array"}, [[None]], [[None, 1]]),
        ({"type": "number", "allOf": [{"multipleOf": 4}, {"multipleOf": 6}]}, [0, 12], [4, 6]),
        ({"type": "string", "pattern": "^(?!ab)", "minLength": 2}, ["ba", "ac"], ["ab", "abc", "a"]),
        ({"type": "string", "pattern": "(?i)^(yes|no)[^a-c]$"}, ["YESd", "no!", "yE\u017f1"], ["ja", "noB"]),
        ({"type": "string", "pattern": "^a(?i:b)(?s:.)c$"}, ["aB\nc", "abxc"], ["Abxc", "abxC"]),
        ({"type": "string", "pattern": "^a(?i)b|c$"}, ["aB", "xC"], ["Ab", "x"]),
        ({"type": "integer", "multipleOf": 86400, "exclusiveMinimum": 0, "maximum": 259200},
         [86400, 259200], [0, 345600, 1]),
        ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, [1], [0]),
        ({"type": "object", "patternProperties": {"^[a-z]{1,5}$": {"type": "boolean"}},
          "additionalProperties": False, "minProperties": 1}, [{"a": True}], [{}, {"A": True}, {"a": 1}]),
        ({"const": {"a": [1, None]}}, [{"a": [1, None]}], [{"a": [1]}, {}]),
        ({"type": "string", "nullable": True}, ["a"], [None]),
        ({}, [1, None, [{}]], []),
        (True, [1], []),
    ],
)  # fmt: skip
def test_meaning_is_kept(schema: Any, right: list[Any], wrong: list[Any]) -> None:
    validator, matcher = rewritten(schema), library(normalise(schema).schema)
    assert not matcher.is_error(), matcher.get_error()
    for value in right:
        assert validator.is_valid(value), value
        assert accepts(matcher, value), value
    for value in wrong:
        assert not validator.is_valid(value), value
        assert not accepts(matcher, value), value


@pytest.mark.parametrize(
    ("schema", "pointer", "keyword"),
    [
        ({"type": "strin"}, "", "type"),
        ({"properties": {"a/b": {"required": True}}}, "/properties/a~1b", "required"),
        ({"items": {"$ref": "#/$defs/nothing"}}, "/items", "$ref"),
        ({"properties": {"a": {"$ref": "http://elsewhere.test/x"}}}, "/properties/a", "$ref"),
        ({"$ref": "#"}, "", "$ref"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "", None),
        ({"allOf": [{"type": "string"}, {"type": "number"}]}, "", None),
        ({"enum": ["\ud800"]}, "", "enum"),
        (False, "", None),
        (3, "", None),
        ({"pattern": "("}, "", "pattern"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"pattern": "("}}}, "/$defs/b", "pattern"),
        ({"items": {"$id": "http://x.test/y", "pattern": "("}}, "/items", "pattern"),
        ({"$ref": 5}, "", "$ref"),
        ({"items": {"$ref": "http://["}}, "/items", "$ref"),
        ({"$id": "http://[", "type": "null"}, "", "$id"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "", "$schema"),
        ({"items": {"const": 1, "exclusiveMinimum": True}}, "/items", "exclusiveMinimum"),
        ({"type": "object", "propertyNames": 5}, "", "propertyNames"),
        ({"if": 5}, "", "if"),
    ],
)
def test_refusals_name_the_place(schema: Any, pointer: str, keyword: str | None) -> None:
    with pytest.raises(GrammarError, match="JSON schema cannot be used: at #") as caught:
        normalise(schema)
    assert (caught.value.pointer, caught.value.keyword, caught.value.status) == (pointer, keyword, 400)


def _needing(schema: Any) -> Any:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


SHORT = {"type": "string", "maxLength": 3}


@pytest.mark.parametrize(
    ("schema", "pointer", "keyword"),
    [
        (_needing({"type": "integer", "minimum": 5, "maximum": 3}), "/properties/a", None),
        (_needing(_needing(_needing(False))), "/properties/a/properties/a", None),
        (_needing({"anyOf": [{"type": "array", "items": False, "minItems": 1}, False]}), "/properties/a", None),
        ({"allOf": [_needing({"type": "null"}), _needing({"type": "string"})]}, "/allOf/0/properties/a", None),
        ({"type": "array", "items": _needing({"$ref": "#"}), "minItems": 1}, "/items", None),
        ({"type": "array", "items": SHORT, "contains": {"type": "integer"}}, "", "contains"),
        ({"type": "array", "items": SHORT, "contains": {"const": "abcd"}}, "", "contains"),
        ({"type": "array", "items": SHORT, "contains": {"const": "abcd"}, "maxItems": 3}, "", "contains"),
        ({"type": "array", "items": SHORT, "contains": {"minLength": 4}, "minContains": 2}, "", "contains"),
        ({"type": "array", "items": _needing(SHORT), "contains": _needing({"type": "null"})}, "", "contains"),
        ({"type": "array", "items": {"type": "integer", "multipleOf": 2}, "minItems": 9, "contains":
          {"type": "integer", "minimum": 3, "maximum": 3}}, "", "contains"),
        (_needing({"type": "array", "prefixItems": [{}], "items": SHORT, "contains": {"type": "null"},
                   "minContains": 2}), "/properties/a", "contains"),
        ({"type": "array", "prefixItems": [{}] * 3, "items": False, "contains": {"const": 1}, "minContains": 4},
         "", None),
        (_needing({"type": "string", "pattern": "^a{5}$", "maxLength": 3}), "/properties/a", "pattern"),
        (SHORT | {"pattern": "^(aa)*$", "minLength": 3}, "", "pattern"),
        (SHORT | {"pattern": "^[a-z]{500}"}, "", "pattern"),
        ({"type": "string", "format": "date", "minLength": 30}, "", "format"),
        ({"type": "string", "pattern": "^a$", "allOf": [{"pattern": "^b"}]}, "", "pattern"),
    ],
)  # fmt: skip
def test_the_impossible_is_refused_where_it_stands(schema: Any, pointer: str, keyword: str | None) -> None:
    with pytest.raises(GrammarError, match="fulfil") as caught:
        normalise(schema)
    assert (caught.value.pointer, caught.value.keyword) == (pointer, keyword)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "array", "items": SHORT, "contains": {"const": "abcd"}, "minContains": 0}, []),
        ({"type": "array", "prefixItems": [{}], "items": SHORT, "contains": {"type": "null"}}, [None]),
        ({"type": "array", "prefixItems": [{}], "contains": {"const": 1}, "minContains": 3}, [1, 1, 1]),
        ({"type": "array", "items": {"$ref": "#"}, "anyOf": [{"contains": {"maxItems": 0}}, {"maxItems": 0}]},
         [[]]),
        (SHORT | {"pattern": "a{2}|b{5}"}, "aa"),
        (SHORT | {"pattern": "^(aa)*$", "minLength": 2}, "aa"),
        ({"type": "string", "pattern": "^(aa|b)*$", "minLength": 3, "maxLength": 3}, "baa"),
    ],
)  # fmt: skip
def test_what_is_nearly_impossible_is_taken(schema: Any, value: Any) -> None:
    normalised = normalise(schema)
    assert jsonschema_rs.Draft202012Validator(normalised.schema).is_valid(value)


def test_the_impossible_in_one_of_several_ways_is_left_out() -> None:
    never = {"type": "array", "items": SHORT, "contains": {"type": "integer"}}
    assert normalise({"anyOf": [never, {"type": "null"}]}).schema == {"type": "null"}
    assert normalise({"properties": {"a": never}}).schema["anyOf"][1]["properties"] == {"a": False}


@pytest.mark.parametrize(
    ("schema", "pointer", "keyword"),
    [
        ({"properties": {"a": {"uniqueItems": True}}}, "/properties/a", "uniqueItems"),
        ({"not": {"properties": {"a": {}}, "additionalProperties": False}}, "/not", "additionalProperties"),
        (
            {"type": "object", "not": {"additionalProperties": False, "patternProperties": {"(?R)": {}}}},
            "/not",
            "additionalProperties",
        ),
        ({"items": {"type": "number", "multipleOf": 123457}}, "/items", "multipleOf"),
        ({"anyOf": [{"type": "array", "contains": {"const": 1}}]}, "/anyOf/0", "contains"),
        ({"type": "string", "format": "regex"}, "", "format"),
        ({"type": "integer", "minimum": 2**53 + 1}, "", "minimum"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "", "exclusiveMinimum"),
    ],
)
def test_residual_keywords_are_named(schema: Any, pointer: str, keyword: str) -> None:
    assert [(r.pointer, r.keyword) for r in normalise(schema).residual] == [(pointer, keyword)]


def test_what_has_no_effect_is_said() -> None:
    schema = {"$schema": DRAFT7, "dependentRequired": {"a": ["b"]}, "requird": ["a"], "format": "colour"}
    warned = " ".join(normalise(schema).warnings)
    assert all(word in warned for word in ("dependentRequired", "requird", "colour"))


@pytest.mark.parametrize(
    ("name", "draft"),
    [
        ("https://json-schema.org/draft-04/schema", 4),
        ("http://json-schema.org/draft-04/hyper-schema#", 4),
        ("https://json-schema.org/draft-07/schema#", 7),
        ("http://json-schema.org/draft/2019-09/schema#", 2019),
        ("http://json-schema.org/schema#", 2020),
        ("https://json-schema.org/schema", 2020),
        ("http://example.com/a-dialect-of-our-own#", 2020),
        ("./dialect.json", 2020),
        ("http://json-schema.org/2019-09/no-dialect#", 2020),
    ],
)
def test_drafts_are_known_by_all_their_names(name: str, draft: int) -> None:
    found = normalise({"$schema": name, "dependentRequired": {"a": ["b"]}, "items": {"uniqueItems": True}})
    said = any("dependentRequired" in warning for warning in found.warnings)
    assert said == (draft < 2019)
    assert any("no known draft" in warning for warning in found.warnings) == ("dialect" in name)
    assert found.checks is not None
    item = found.checks.item(found.checks.root, 0)  # validated as one of a draft that the library knows
    assert found.checks.valid(item, [1])
    assert not found.checks.valid(item, [1, 1])


@pytest.mark.parametrize("required", [["k"], []])
@pytest.mark.parametrize("stated", [{"enum": [f"k{n}" for n in range(30)]}, {"type": "string"}])
@pytest.mark.parametrize("test", [{}, {"required": ["k"]}])
def test_unions_told_apart_by_if_are_exact(required: list[str], stated: Any, test: Any) -> None:
    kinds = [f"k{n}" for n in range(30)]
    branches = [
        {
            "if": {"properties": {"k": {"const": kind}}, **test},
            "then": {"properties": {f"of_{kind}": {"type": "null"}}, "required": [f"of_{kind}"]},
        }
        for kind in kinds
    ]
    schema = {"type": "object", "properties": {"k": stated}, "required": required, "allOf": branches}
    theirs, ours = jsonschema_rs.Draft202012Validator(schema), rewritten(schema)
    all_of_them = {f"of_{kind}": None for kind in kinds}
    for value in (
        {"k": "k3", "of_k3": None}, {"k": "k29", "of_k29": None, "of_k3": 1}, {"k": "k3"}, {"k": "k3", "of_k3": 1},
        {"k": "k3", "of_k4": None}, {"k": "other"}, {}, all_of_them, {"k": "k7", **all_of_them},
    ):  # fmt: skip
        assert ours.is_valid(value) == theirs.is_valid(value), value


def test_one_of_with_a_discriminator_that_only_some_declare_is_exact() -> None:
    kinds = [f"k{n}" for n in range(12)]
    branches: list[Any] = [
        {"properties": {"k": {"enum": [kind]}, "a": {"minimum": n}, "b": {"pattern": kind}}}
        for n, kind in enumerate(kinds)
    ]
    schema = {"type": "object", "properties": {"k": {"enum": kinds}}, "required": ["k"], "oneOf": branches}
    theirs, ours = jsonschema_rs.Draft202012Validator(schema), rewritten(schema)
    for value in ({"k": "k3", "a": 5}, {"k": "k3", "a": 2}, {"k": "k11", "b": "k11"}, {"k": "k11", "b": "k1"}, {}):
        assert ours.is_valid(value) == theirs.is_valid(value), value


def test_key_order_is_that_of_the_schema() -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}, "m": {"type": "string"}}, "required": ["m", "k"]}
    assert list(normalise(schema).schema["properties"]) == ["z", "a", "m", "k"]


def test_keys_of_all_of_come_where_it_stands() -> None:
    base, own = {"properties": {"b": {}}}, {"a": {}}
    first = normalise({"type": "object", "allOf": [base], "properties": own}).schema
    last = normalise({"type": "object", "properties": own, "allOf": [base]}).schema
    assert (list(first["properties"]), list(last["properties"])) == (["b", "a"], ["a", "b"])


def test_the_input_is_not_changed() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"enum": [1]}}}
    before = json.dumps(schema)
    normalise(schema)
    assert json.dumps(schema) == before


def _nested(depth: int) -> Any:
    schema: Any = {}
    for _ in range(depth):
        schema = {"properties": {"a": schema}}
    return schema


def _chain(length: int, link: Callable[[Any], Any]) -> Any:
    """Definitions that refer to the next one each."""
    definitions = {str(i): link({"$ref": f"#/$defs/{i + 1}"}) for i in range(length)}
    return {"$ref": "#/$defs/0", "$defs": {**definitions, str(length): {}}}


@pytest.mark.parametrize(
    "schema",
    [
        _nested(5_000),
        {"enum": list(range(60_000))},
        _chain(3_000, lambda ref: {"properties": {"x": ref}}),
        _chain(50, lambda ref: {"allOf": [ref, ref]}),
        _chain(50, lambda ref: {"anyOf": [ref, ref]}),
        {"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(30)]},
        {"oneOf": [{"properties": {f"a{i}": {"type": "string"}}} for i in range(40)]},
        {"type": "object", "properties": {f"a{i}": {} for i in range(500)}, "minProperties": 250},
        {"type": "object", "patternProperties": {f"(a|b)*{c}(a|b){{12}}": {"type": "string"} for c in "abcd"}},
        {"type": "string", "not": {"pattern": "((a{1,100}){1,100}){1,100}"}},
        {"type": "string", "pattern": "(" * 5_000},
        {"type": "array", "minItems": 10**9},
    ],
    ids=lambda schema: next(iter(schema)),
)  # fmt: skip
def test_hostile_schemas_end_soon(schema: Any) -> None:
    start = time.process_time()
    try:
        text = json.dumps(normalise(schema).schema)
    except GrammarError:
        text = ""
    assert time.process_time() - start < 1.5
    assert len(text) < 2_000_000


FORMAT_STRINGS = [
    "", "a", "2024-02-29", "2023-02-29", "1900-02-29", "2000-02-29", "0000-01-01", "2024-13-01", "12:00:00Z",
    "12:00:00", "23:59:60Z", "22:59:60Z", "24:00:00Z", "12:00:00+01:00", "2024-02-29T12:00:00Z",
    "2024-02-29t12:00:00.5z", "2024-02-30T12:00:00Z", "P1Y", "P1Y2D", "PT1H2M", "P", "PT", "P1W", "P1W2D",
    "a@b.c", "a@b", "@b", "a@", "a..b@c.d", ".a@b.c", "a@-b.c", "a@[127.0.0.1]", "a@[127.0.0.256]",
    "x" * 65 + "@a.b", "a.b", "-a", "a-", "a--b", "ab--c", "a" * 63, "a" * 64, "a." * 127 + "a", "1.2.3.4",
    "1.2.3.256", "01.2.3.4", "::", "::1", "1::", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7", "::ffff:1.2.3.4",
    "1::2::3", "12345::", "fe80::1%25", "http://a.b/c?d=e#f", "http://[::1]:80/", "a:b", "//a/b", "/a", "?x",
    "#y", "http://a b", "%zz", "http://é.x/", "é", "urn:x:y", ":a", "http://a:b@c/d", "/a~0/b~1", "/a~", "a/b",
    "0#", "0/a", "01/a", "1", "{x}", "{x", "a{+x,y*}b", "{x:3}", "}", "{",
    "123e4567-e89b-12d3-a456-426614174000", "123e4567e89b12d3a456426614174000",
    "123e4567-e89b-12d3-a456-42661417400g",
]  # fmt: skip


FORMATS = (
    "date time date-time duration email hostname ipv4 ipv6 uuid uri uri-reference iri iri-reference uri-template "
    "json-pointer relative-json-pointer"
)


@pytest.mark.parametrize("name", FORMATS.split())
def test_formats_allow_nothing_invalid(name: str) -> None:
    found = formats.lookup(name, 2020)
    assert found is not None
    reference = jsonschema_rs.Draft202012Validator({"format": name}, validate_formats=True)
    language = pattern.Language(found.terms)
    ours = {s for s in FORMAT_STRINGS if language.matches(s) and len(s) <= (found.max_length or len(s))}
    theirs = {s for s in FORMAT_STRINGS if reference.is_valid(s)}
    assert ours <= theirs, ours - theirs
    assert ours, "nothing allowed"


def test_a_format_of_a_later_draft_is_an_annotation() -> None:
    assert normalise({"$schema": DRAFT4, "type": "string", "format": "uuid"}).schema == {"type": "string"}


def test_real_schemas() -> None:
    path = SHARED / "data" / "json_schemas" / "schemas.jsonl"
    if not path.exists():
        pytest.skip("the labelled schemas are not here")
    lines = [json.loads(line) for line in path.read_text().strip().split("\n")]
    wrong, refused, residual = [], [], 0
    for line in lines:
        try:
            normalised = normalise(line["schema"])
        except GrammarError as error:
            refused.append((line["id"], str(error)))
            continue
        residual += bool(normalised.residual)
        validator = jsonschema_rs.Draft202012Validator(normalised.schema)
        for test in line["tests"]:
            verdict = validator.is_valid(test["data"])
            if verdict and normalised.checks is not None:
                verdict = passes_check(normalised, test["data"])
            if verdict != test["valid"] and "e+" not in json.dumps(test["data"]):  # draft 4: 1e+20 is no integer
                wrong.append((line["id"], test["origin"], verdict))
    assert len(refused) <= len(lines) * 0.01, refused
    assert residual <= len(lines) * 0.07
    assert not wrong


DRAFTS = [
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
]


@pytest.mark.parametrize("uri", DRAFTS)
@pytest.mark.parametrize("below", [False, True])
def test_a_draft_s_own_schema_may_be_referred_to(uri: str, below: bool) -> None:
    schema: Any = {"$ref": uri} if not below else {"properties": {"s": {"$ref": uri}}, "type": "object"}
    schema["$schema"] = uri
    written = normalise(schema)
    reference = jsonschema_rs.validator_for(schema)
    for value in (
        {"type": "object"},
        {"type": "nope"},
        {"minLength": -1},
        {"properties": {"a": {"type": 5}}},
        {"properties": {"a": {"items": {"maximum": 3}}}},
    ):
        whole = {"s": value} if below else value
        taken = accepts(library(written.schema), whole) and passes_check(written, whole)
        assert taken == reference.is_valid(whole), whole


def test_a_draft_s_own_schema_that_the_author_brings_is_his() -> None:
    uri = "http://json-schema.org/draft-07/schema"
    mine = {"$id": uri, "type": "integer"}
    written = normalise({"$schema": uri + "#", "definitions": {"x": mine}, "allOf": [{"$ref": uri + "#"}]})
    assert written.schema["type"] == "integer"


def test_what_depends_on_where_it_is_entered_from_is_checked_as_a_whole() -> None:
    """By itself the list's items are anything; entered from the root they are integers."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/integers",
        "$ref": "list",
        "$defs": {
            "item": {"$dynamicAnchor": "item", "type": "integer"},
            "list": {
                "$id": "list", "type": "object", "properties": {"items": {"items": {"$dynamicRef": "#item"}}},
                "$defs": {"item": {"$dynamicAnchor": "item"}},
            },
        },
    }  # fmt: skip
    written, reference = normalise(schema), jsonschema_rs.validator_for(schema)
    for value in ({"items": [1, 2]}, {"items": ["a"]}, {"items": [1, None]}, {}):
        assert (accepts(library(written.schema), value) and passes_check(written, value)) == reference.is_valid(
            value
        )


def test_long_chains_of_references_are_not_called_rings() -> None:
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(5_000)} | {"d5000": {"type": "null"}}
    with pytest.raises(GrammarError, match="passes through more than"):
        normalise({"$ref": "#/$defs/d0", "$defs": chain})
    with pytest.raises(GrammarError, match="leads back to itself"):
        normalise({"$ref": "#/$defs/d0", "$defs": {"d0": {"$ref": "#/$defs/d1"}, "d1": {"$ref": "#/$defs/d1"}}})


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({"type": "string", "$ref": "#"}, {"type": "string"}),
        ({"type": "string", "allOf": [{"anyOf": [{"$ref": "#"}]}]}, {"type": "string"}),
        ({"type": "string", "not": {"$ref": "#"}}, None),
        ({"oneOf": [{"$ref": "#"}, {"type": "null"}]}, None),
        ({"$ref": "#/$defs/p", "$defs": {"p": {"not": {"$ref": "#/$defs/p"}}}}, None),
    ],
)
def test_what_applies_itself_without_end_says_nothing_more_or_is_refused(schema: Any, written: Any) -> None:
    """JSON Schema leaves open what it means."""
    if written is not None:
        assert normalise(schema).schema == written
        return
    with pytest.raises(GrammarError, match=r"leads back to itself|no finite value"):
        normalise(schema)
