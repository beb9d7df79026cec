"""How short the texts of grammars are, and that long forced text costs no time."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.llg import LlguidanceEngine
from radixlang.grammar.measure import measure_lark, measure_regex, measure_schema
from radixlang.messages import GrammarSpec

LONG = {"type": "array", "minItems": 300, "items": {"const": "xy" * 1000}}


@pytest.fixture(scope="module")
def engine(vocabulary):
    return LlguidanceEngine(vocabulary, GrammarLimits())


@pytest.mark.parametrize(
    ("text", "least", "stretch"),
    [
        ('start: "ab" | "c"', 1, 2),
        ('start: a{3}\na: b b{2,5}\nb: "xy" "z"?', 18, 18),
        ('start: "a" start B | "b"\nB: /c{40}/', 1, 42),
        ('start: ("a" | /b{9}/)+ ["c"] // "comment"\n', 1, 9),
        ('start: a~4..9 "(" %json {"const": "abc"} \na: "\\"x|"', 22, 22),
        ("start: start", 0, 0),
    ],
)
def test_lark_is_measured(text: str, least: int, stretch: int) -> None:
    sizes = measure_lark(text)
    assert sizes.least == least
    assert sizes.stretch == stretch


@pytest.mark.parametrize(
    ("pattern", "least", "stretch"),
    [("a{3}b?", 3, 3), ("(a{2}){50}|b", 1, 100), ("(?:x{70})?", 0, 70), ("(", 0, 0)],
)
def test_expressions_are_measured(pattern: str, least: int, stretch: int) -> None:
    assert measure_regex(pattern)[:2] == (least, stretch)


def test_schemas_are_measured_through_recursion() -> None:
    schema = {
        "$defs": {
            "a": {"type": "array", "minItems": 4, "items": {"$ref": "#/$defs/b"}},
            "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "string", "minLength": 10}]},
        },
        "type": "object",
        "properties": {"key": {"$ref": "#/$defs/b"}, "more": {"enum": ["x" * 99, 1]}},
        "required": ["key"],
    }
    sizes = measure_schema(schema)
    assert 20 <= sizes.least <= 26
    assert sizes.stretch == 101


def test_recursion_is_seen() -> None:
    assert measure_lark('start: a b\na: b\nb: "x"').recursive is False
    assert measure_lark('start: a\na: b?\nb: "x" a').recursive is True


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ('root ::= "a" root', False),
        ("root ::= root", False),
        ('root ::= a\na ::= "x" b | c\nb ::= "y" a\nc ::= c | b', False),
        ('root ::= "a" (b | "c" root)+\nb ::= [0-9] root{2,3}', False),
        ('start: "a" start', False),
        ('start: "a" start | /b/', True),
        ('root ::= "a" root | "b"', True),
        ('root ::= "a" root?', True),
        ('root ::= "a" root{0,2}', True),
        ('start: "a" start{,2}', True),
        ('start: "a" start~0..2', True),
        ('start: "a" start\n | ""', True),
        ('root ::= "a" b*\nb ::= "x" b', True),
        ('root ::= a | b\na ::= "x" a\nb ::= "(" root ")" | c\nc ::= "d"', True),
    ],
)
def test_grammars_without_a_finite_text_are_refused(engine, text: str, ends: bool) -> None:
    if ends:
        engine.compile(GrammarSpec("ebnf", text))
        return
    with pytest.raises(GrammarError, match=r"ebnf cannot be compiled: no finite text fulfils it\.$"):
        engine.compile(GrammarSpec("ebnf", text))


def test_whether_long_chains_end_is_seen() -> None:
    rules = [f'a{i}: "x" a{i + 1} | "y" a0' for i in range(1000)]
    assert measure_lark("\n".join(["start: a0", *rules, "a1000: a0"])).endless
    assert not measure_lark("\n".join(["start: a0", *rules, 'a1000: a0 | "z"'])).endless


def test_long_chains_of_references_are_measured() -> None:
    rules = [f'a{i}: "x" a{i + 1}' for i in range(5000)]
    assert measure_lark("\n".join(["start: a0", *rules, 'a5000: "y"']))[:2] == (5001, 5001)
    definitions = {f"s{i}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/s{i + 1}"}], "minItems": 1}
                   for i in range(5000)}  # fmt: skip
    assert measure_schema({"$ref": "#/$defs/s0", "$defs": definitions}).least == 10_000


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("ebnf", 'root ::= a{1000}\na ::= b{1000}\nb ::= "x"{1000}'),
        ("ebnf", 'root ::= a{200}\na ::= b{200}\nb ::= "x"{200}'),
        ("regex", "a{1000000000}"),
        ("regex", "(?:a|b){0,1000000000}"),
        ("json_schema", json.dumps({"properties": {"a": LONG | {"minItems": 5000}}, "required": ["a"],
                                    "type": "object"})),
        ("json_schema", json.dumps({"type": "array", "minItems": 10**6})),
    ],
)  # fmt: skip
def test_texts_no_context_holds_are_refused_at_once(engine, kind: str, text: str) -> None:
    began = time.process_time()
    with pytest.raises(GrammarError, match="too large") as caught:
        engine.compile(GrammarSpec(kind, text))
    assert time.process_time() - began < 0.5
    if kind == "json_schema":
        assert caught.value.keyword == "minItems"


@pytest.mark.parametrize(
    ("pattern", "most"),
    [
        ("abc", 0), ("a?b*c", 2), ("a?bc?d*", 2), ("(a?b*)(?:c|d?){0,9}x", 4), ("(abc)?x", 1), ("^a?$", 1),
        ("(x|a?b?c?d)+", 3), ("(?:one|two|three|)x?", 1), ("(?:a?b?c?x|a?b?c?d?y)z?", 5), ("a?(b?c?x)?", 4),
        (r"\p{L}?\PL?[\p{Lu}_]?", 3), (r"\x{41}?\x{42}*", 4),
    ],
)  # fmt: skip
def test_parts_that_may_be_left_out_are_counted(pattern: str, most: int) -> None:
    assert measure_regex(pattern).optional == most


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("regex", r"\w?" * 10_000, "10,000 parts of an expression in a row"),
        ("regex", r"\p{L}?" * 9_000, "9,000 parts"),
        ("ebnf", "start: /" + "[ab]?" * 5_000 + "/", "5,000 parts"),
        ("json_schema", json.dumps({"type": "string", "pattern": "[ab]?" * 5_000}), "5,000 parts"),
        ("json_schema", json.dumps({"type": "string", "pattern": "ab|" * 40_000}), "at #/pattern, the pattern"),
        ("structural_tag", json.dumps({"format": {"type": "regex", "pattern": r"\w?" * 5_000}}), "5,000 parts"),
        ("structural_tag", json.dumps({"format": {"type": "regex", "pattern": "ab|" * 40_000}}), "most 100,000"),
        ("regex", "[ab]?" * 900, "500,000 steps of work"),
    ],
)  # fmt: skip
def test_large_expressions_are_refused_soon(engine, kind: str, text: str, words: str) -> None:
    began = time.process_time()
    with pytest.raises(GrammarError, match="too large") as caught:
        engine.compile(GrammarSpec(kind, text))
    assert words in str(caught.value)
    assert "cannot be read" not in str(caught.value)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("ebnf", 'root ::= a{100}\na ::= b{100}\nb ::= "x"{100}'),
        ("ebnf", 'root ::= "x" | "xx" c{3000}\nc ::= "x"{300}'),
        ("regex", "x{9000}"),
        ("ebnf", 'root ::= "xx" root c | "yy"\nc ::= "z"{300}'),
        ("json_schema", json.dumps(LONG)),
        ("json_schema", json.dumps({"$defs": {"a": LONG}, "$ref": "#/$defs/a"})),
        ("structural_tag", json.dumps({"format": {"type": "json_schema", "json_schema": LONG}})),
    ],
)
def test_long_forced_text_costs_no_time(engine, vocabulary, kind: str, text: str) -> None:
    began = time.process_time()
    state, row = engine.compile(GrammarSpec(kind, text)).start(), np.zeros(vocabulary.words, np.int32)
    for _ in range(8):
        assert state.forced() == []
        assert state.draft() == []
        state.fill(row)
        token = int(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[-1])
        assert state.accept(token)
    assert time.process_time() - began < 1


def test_a_choice_ends_a_stretch(engine) -> None:
    words = {"type": "string"}
    keys = [f"a_rather_long_name_of_a_member_{i}" for i in range(100)]
    for value in (
        words,
        {"type": "integer"},
        {"type": "number", "minimum": 0},
        {"enum": [1, 2]},
        {"type": "boolean"},
    ):
        schema = {"type": "object", "properties": dict.fromkeys(keys, value), "required": keys}
        sizes = measure_schema(schema | {"additionalProperties": False})
        assert sizes.least > 3000
        assert 38 <= sizes.stretch <= 48
    for value in ({"const": 1}, {"type": "null"}, {"type": "string", "maxLength": 0}):
        schema = {"type": "object", "properties": dict.fromkeys(keys, value), "required": keys}
        assert measure_schema(schema).stretch > 3000
    tag = 'start: "<call>" %json {"type": "array", "minItems": 90, "items": {"type": "string", "minLength": 50}}'
    assert measure_lark(tag)[:4] == (6 + 90 * 54, 7, 0, False)
    record = {"type": "object", "properties": dict.fromkeys(keys, words), "required": keys}
    assert len(engine.json(record, False).start().forced()) > 5
