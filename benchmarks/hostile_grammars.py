# ruff: noqa: E501
"""Constraints made to hurt: name → (kind, text). Each must be refused with a sentence or stay within its budget."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def hostile() -> dict[str, tuple[str, str]]:
    """All of them, built anew."""
    out = {name: ("json_schema", json.dumps(schema, ensure_ascii=False)) for name, schema in _schemas()}
    out |= {f"regex: {name}": ("regex", pattern) for name, pattern in _regexes()}
    out |= {name: (kind, text) for name, kind, text in _texts()}
    return out


def _nested(depth: int, of: Any = None) -> Any:
    schema: Any = of or {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    return schema


def _arrays(depth: int, count: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": count}
    return schema


def _object(properties: dict[str, Any], **more: Any) -> Any:
    return {"type": "object", "properties": properties, **more}


def _schemas() -> Iterator[tuple[str, Any]]:
    text, number = {"type": "string"}, {"type": "integer"}
    yield "maxLength 100,000", {"type": "string", "maxLength": 100_000}
    yield "maxLength 10**9", {"type": "string", "maxLength": 10**9}
    yield "minLength = maxLength = 50,000", {"type": "string", "minLength": 50_000, "maxLength": 50_000}
    yield "pattern and maxLength", {"type": "string", "pattern": "^[a-z ]*[0-9]{1,200}$", "maxLength": 5_000}
    yield (
        "maxItems 10,000 of objects",
        {"type": "array", "items": _object({"a": number, "b": text}), "maxItems": 10_000},
    )
    yield "minItems 10**9", {"type": "array", "items": number, "minItems": 10**9}
    yield "nested maxItems 100³", _arrays(3, 100)
    yield "nested maxItems 1000⁶", _arrays(6, 1000)
    yield "500 optional properties", _object({f"p{i}": text for i in range(500)}, additionalProperties=False)
    yield "10,000 properties", _object({f"p{i}": number for i in range(10_000)}, additionalProperties=False)
    yield (
        "10,000 required properties",
        _object({f"p{i}": number for i in range(10_000)}, required=[f"p{i}" for i in range(10_000)]),
    )
    yield "50,000 enum values", {"enum": [f"value {i * 7919 % 50_000} of many" for i in range(50_000)]}
    yield "an enum of large objects", {"enum": [{f"k{j}": [i, j] for j in range(100)} for i in range(200)]}
    yield "one property name of 100,000 characters", _object({"k" * 100_000: number}, required=["k" * 100_000])
    yield "depth 100", _nested(100)
    yield "depth 400", _nested(400)
    yield "allOf of 12 anyOf of 2", {"allOf": [{"anyOf": [_object({f"a{i}": text}, required=[f"a{i}"]),
        _object({f"b{i}": number}, required=[f"b{i}"])]} for i in range(12)]}  # fmt: skip
    yield (
        "allOf of 40 oneOf of 2",
        {"allOf": [{"oneOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(40)]},
    )
    yield (
        "not of 30 nested not",
        {"not": {"anyOf": [{"not": _object({f"k{i}": {"not": text}})} for i in range(30)]}},
    )
    yield "60 if/then/else", {"allOf": [{"if": _object({f"k{i}": {"const": i}}, required=[f"k{i}"]),
        "then": {"required": [f"t{i}"]}, "else": {"required": [f"e{i}"]}} for i in range(60)]}  # fmt: skip
    yield "dependentSchemas in a ring", _object({f"k{i}": text for i in range(40)},
        dependentSchemas={f"k{i}": {"required": [f"k{(i + 1) % 40}"]} for i in range(40)})  # fmt: skip
    yield "$ref to itself", {"$ref": "#"}
    yield (
        "$ref in a ring",
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}},
    )
    yield "a chain of 5,000 $ref", {"$ref": "#/$defs/d0", "$defs": {**{f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(5_000)},
        "d5000": number}}  # fmt: skip
    yield "doubling $ref (2**40)", {"$ref": "#/$defs/d0", "$defs": {**{f"d{i}": _object({"l": {"$ref": f"#/$defs/d{i + 1}"},
        "r": {"$ref": f"#/$defs/d{i + 1}"}}, required=["l", "r"]) for i in range(40)}, "d40": number}}  # fmt: skip
    yield "doubling allOf (2**30)", {"$ref": "#/$defs/d0", "$defs": {**{f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"},
        {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(30)}, "d30": number}}  # fmt: skip
    yield "a required property that recurses", _object({"a": {"$ref": "#"}}, required=["a"])
    yield "mutual required recursion", {"$ref": "#/$defs/a", "$defs": {"a": _object({"b": {"$ref": "#/$defs/b"}}, required=["b"]),
        "b": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}}}  # fmt: skip
    yield "allOf of two trees", {"allOf": [{"$ref": "#/$defs/t"}, {"$ref": "#/$defs/u"}], "$defs": {
        "t": _object({"l": {"$ref": "#/$defs/t"}, "r": {"$ref": "#/$defs/u"}}),
        "u": _object({"l": {"$ref": "#/$defs/u"}, "r": {"$ref": "#/$defs/t"}, "x": number})}}  # fmt: skip
    yield "unsatisfiable types", {"allOf": [text, number]}
    yield "unsatisfiable enum and pattern", {"enum": ["a", "b"], "pattern": "^c"}
    yield "unsatisfiable bounds", {"type": "integer", "minimum": 5, "maximum": 4}
    yield "numbers of 300 digits", {"type": "integer", "minimum": -(10**300), "maximum": 10**300 + 7}
    yield "numbers of 4,000 digits", {"type": "integer", "minimum": -(10**4000), "maximum": 10**4000}
    yield (
        "bounds close together",
        {"type": "number", "minimum": 0.1234567890123, "exclusiveMaximum": 0.1234567890124},
    )
    yield "multipleOf 1e-300", {"type": "number", "multipleOf": 1e-300}
    yield (
        "multipleOf of large primes",
        {"type": "integer", "allOf": [{"multipleOf": p} for p in (99_991, 99_989, 99_971)]},
    )
    yield "multipleOf 2**53 - 111", {"type": "integer", "multipleOf": 2**53 - 111, "minimum": 1}
    yield (
        "multipleOf between its multiples",
        {"type": "integer", "multipleOf": 1_000_003, "minimum": 1, "maximum": 1_000_002},
    )
    yield "propertyNames in a loop", {"type": "object", "propertyNames": {"$ref": "#"}, "minProperties": 1}
    yield (
        "propertyNames by pattern, 50 of them",
        {"type": "object", "propertyNames": {"pattern": "^(a|aa)*b$"}, "minProperties": 50},
    )
    yield (
        "300 overlapping patternProperties",
        {"type": "object", "patternProperties": {f"a.*{i}": {"minimum": i} for i in range(300)}},
    )
    yield "patternProperties of (a|b)*a(a|b){14}", {"type": "object",
        "patternProperties": {f"^(a|b)*{x}(a|b){{14}}$": number for x in "ab"}, "additionalProperties": False}  # fmt: skip
    yield "pattern with look-ahead", {"type": "string", "pattern": "^(?=.*[0-9])(?!.*[xyz]).{8,40}$"}
    yield "pattern (a*)*b", {"type": "string", "pattern": "^(a*)*b$"}
    yield "pattern ((a{1,100}){1,100}){1,100}", {"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"}
    yield (
        "20 patterns at once",
        {"type": "string", "allOf": [{"pattern": f"(.*{chr(97 + i)}){{3}}"} for i in range(20)]},
    )
    yield (
        "uniqueItems of 1,000",
        {"type": "array", "items": {"enum": list(range(1_000))}, "minItems": 1_000, "uniqueItems": True},
    )
    yield (
        "uniqueItems that cannot be",
        {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "uniqueItems": True},
    )
    yield (
        "oneOf of 300 overlapping",
        {"oneOf": [_object({f"k{i}": number}, required=[f"k{i}"]) for i in range(300)]},
    )
    yield "contains, 50 of them", {"type": "array", "allOf": [{"contains": {"const": i}} for i in range(50)]}
    yield "unevaluatedProperties below 10 anyOf", {"allOf": [{"anyOf": [_object({f"a{i}": text}), _object({f"b{i}": text})]}
        for i in range(10)], "unevaluatedProperties": False}  # fmt: skip
    yield "keys with quotes, NUL and emoji", _object({'"\\\u0000\n': number, "👩‍👩‍👧‍👦": text, "e\u0301": number, "é": number},
        required=['"\\\u0000\n', "👩‍👩‍👧‍👦"])  # fmt: skip
    yield "lone surrogates", {"enum": ["\ud800", "\udfff x"]}
    yield "wrong types everywhere", {"type": "objekt", "properties": [], "required": "a"}
    yield "$ref to another host", {"$ref": "http://169.254.169.254/latest/meta-data"}


def _regexes() -> Iterator[tuple[str, str]]:
    yield "(a+)+b", r"(a+)+b"
    yield "((a{1,100}){1,100}){1,100}", r"((a{1,100}){1,100}){1,100}"
    yield "(((a{50}){50}){50}){50}", r"(((a{50}){50}){50}){50}"
    yield "[\\w…]{1,1000}", r"[\w\s.,;:!?'-]{1,1000}"
    yield "(a|b)*a(a|b){20}", r"(a|b)*a(a|b){20}"
    yield "(.*a){12}", r"(.*a){12}"
    yield "(\\w{1,40} ){1,40}", r"(\w{1,40} ){1,40}"
    yield "x{100000}", "x{100000}"
    yield "x{1,1000000000}", "x{1,1000000000}"
    yield "2,000 nested groups", "(" * 2_000 + "a" + ")" * 2_000
    yield "nested alternations", "(" * 30 + "a" + "|b)*" * 30
    yield "20,000 alternatives", "|".join(f"word{i * 7919 % 20_000}x" for i in range(20_000))
    yield "450,000 empty alternatives", "a|" * 450_000
    yield "33,000 optional classes", r"\w?" * 33_000
    yield "100,003 optional letters", "".join(f"[{chr(97 + 3 * i % 26)}]?" for i in range(100_003))
    yield "11,000 loops", "(a|b|c)*x" * 11_000
    yield "look-around", r"(?=a)(?<!b)a.*(?!c)"
    yield "back reference", r"(a+)b\1"
    yield "unfinished", r"([a-z"
    yield "nothing matches", r"[^\s\S]"
    yield "all of Unicode, ignoring case", r"(?i)[\p{L}\p{N}]{1,500}"
    yield "empty loops", r"((a?)*)*((b?)*)*"


def _texts() -> Iterator[tuple[str, str, str]]:
    yield "choice: 20,000", "choice", json.dumps([f"choice {i * 7919 % 20_000}" for i in range(20_000)])
    yield "choice: 10 of 50,000 characters", "choice", json.dumps([chr(97 + i) * 50_000 for i in range(10)])
    yield "choice: none", "choice", "[]"
    yield "ebnf: left recursion", "ebnf", 'root ::= expr\nexpr ::= expr "+" expr | expr "*" expr | [0-9]+'
    yield "ebnf: recursion without end", "ebnf", "root ::= root"
    yield "ebnf: no finite text", "ebnf", 'root ::= "a" root'
    yield "ebnf: ambiguous", "ebnf", 'root ::= s\ns ::= s s s | s s | "a" | ""'
    yield "ebnf: empty loops", "ebnf", 'root ::= (("a"?)*)* root?'
    yield (
        "ebnf: 20,000 rules",
        "ebnf",
        "root ::= r0\n"
        + "\n".join(f'r{i} ::= "{i}" r{i + 1} | "x"' for i in range(20_000))
        + '\nr20000 ::= "end"',
    )
    yield (
        "ebnf: doubling (2**40)",
        "ebnf",
        "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(40)) + '\nr40 ::= "a"',
    )
    yield "ebnf: (((x{1,100}){1,100}){1,100})", "ebnf", "root ::= a{1,100}\na ::= b{1,100}\nb ::= [a-z]{1,100}"
    yield "ebnf: unknown rule", "ebnf", "root ::= nothing"
    yield "ebnf: 3,000 nested brackets", "ebnf", "root ::= " + "(" * 3_000 + '"a"' + ")" * 3_000
    yield "lark: terminal bomb", "ebnf", "start: A\nA: /(a|b)*a(a|b){20}/ | /((x{1,99}){1,99}){1,99}/"
    yield "lark: import of a file", "ebnf", "%import .secret (X)\nstart: X"
    yield "JSON nested 100,000 deep", "json_schema", '{"items":' * 100_000 + "{}" + "}" * 100_000
    yield "JSON that is none", "json_schema", '{"type": "string"'
    yield "JSON of 2 MiB", "json_schema", '{"description": "' + "x" * (2 << 20) + '"}'
    yield "tag: 300 triggers", "structural_tag", json.dumps({"type": "structural_tag", "triggers": [f"<t{i}>" for i in range(300)],
        "structures": [{"begin": f"<t{i}>", "schema": {"type": "object"}, "end": f"</t{i}>"} for i in range(300)]})  # fmt: skip
    yield "tag: 100 heavy schemas", "structural_tag", json.dumps({"type": "structural_tag", "triggers": ["<f"],
        "structures": [{"begin": f"<f{i}>", "schema": _object({f"p{j}": {"type": "string", "maxLength": 500} for j in range(40)}),
        "end": "</f>"} for i in range(100)]})  # fmt: skip
    yield "tag: triggers that begin one another", "structural_tag", json.dumps({"type": "structural_tag",
        "triggers": ["<" * i for i in range(1, 60)], "structures": [{"begin": "<" * i + "x", "schema": {}, "end": ">"}
        for i in range(1, 60)]})  # fmt: skip
