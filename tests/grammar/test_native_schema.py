"""JSON schemas and structural tags on our own automata: they allow what llguidance allows, byte by byte."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.grammar import Grammar
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.manager import CanonicalGrammar, GrammarManager
from radixlang.grammar.native import NativeEngine, NativeGrammar
from radixlang.grammar.native.strings import ESCAPED, unwritable
from radixlang.grammar.residual import ResidualGrammar
from radixlang.grammar.tables import automaton_table
from radixlang.grammar.vocabulary import Vocabulary
from radixlang.messages import GrammarSpec
from radixlang.parsers.tools import Tool, find_syntax
from tests.grammar.conftest import allowed

pytest.importorskip("llguidance")

from radixlang.grammar.llg import ESCAPES, LlguidanceEngine

BYTES = Vocabulary([*(bytes([byte]) for byte in range(256)), b""], (256,), lambda text: list(text.encode()))
NATIVE, LIBRARY = NativeEngine(BYTES, GrammarLimits()), LlguidanceEngine(BYTES, GrammarLimits())
MOST = 600
"""places that are compared in one automaton"""


def spec_of(schema: Any) -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(schema))


def native_of(grammar: Grammar) -> NativeGrammar:
    inner = grammar.inner if isinstance(grammar, ResidualGrammar) else grammar
    assert isinstance(inner, NativeGrammar)
    return inner


def closed(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object", "properties": properties, "required": list(required), "additionalProperties": False
    }  # fmt: skip


def compare(spec: GrammarSpec) -> int:
    """Both engines' masks at every place, behind one text that leads there → how many places."""
    grammar = native_of(NATIVE.compile(spec))
    machine = grammar.machine
    start = LIBRARY.compile(spec).start()
    seen, todo, row = {machine.start}, deque([(machine.start, start, b"")]), np.zeros(BYTES.words, np.int32)
    for _ in range(MOST):
        if not todo:
            break
        place, state, text = todo.popleft()
        state.fill(row)
        mine, theirs = allowed(grammar.mask(place)), allowed(row)
        assert mine == theirs, (text, mine - theirs, theirs - mine)
        for byte in mine - {256}:
            after = machine.read(place, bytes([byte]))
            if after not in seen:
                seen.add(after)
                other = state.copy()
                assert other.accept(byte)
                todo.append((after, other, text + bytes([byte])))
    return len(seen)


def accepts(grammar: Grammar, text: str) -> bool:
    state = grammar.start()
    return all(map(state.accept, text.encode())) and state.can_end


TAKEN: list[Any] = [
    {"type": "string"},
    {"type": "string", "minLength": 1, "maxLength": 3},
    {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3},
    {"type": "string", "pattern": "ab"},
    {"type": "string", "pattern": "^a|b$"},
    {"type": "string", "pattern": "^[ab]c?$", "minLength": 1, "maxLength": 2},
    {"type": "string", "pattern": "^\\S+\\s?.$"},
    {"type": "string", "pattern": '^[^a\\n"]{2}\\\\"?$'},
    {"type": "string", "pattern": '^[^"\\\\]*$'},
    {"type": "string", "pattern": "^(?!a)b?"},
    {"type": "string", "not": {"enum": ["ab", "c"]}},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "email"},
    {"type": "string", "pattern": "^ab*$", "minLength": 2},
    {"type": "string", "pattern": "^(ab|c)*$", "maxLength": 4},
    {"type": "string", "pattern": "^(ab|c)*d?$", "minLength": 3, "maxLength": 6},
    {"type": "string", "pattern": "(^|,)a", "maxLength": 3},
    {"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b$"}, {"minLength": 3}], "maxLength": 4},
    {"type": "string", "maxLength": 3_000},
    {"type": "object", "patternProperties": {"^x": {"type": "null"}, "é$": {"enum": [1]}}},
    {"type": "object", "properties": {"xa": {"type": "boolean"}, "xé": False}, "required": ["xb"],
     "patternProperties": {"^x": {"type": "null"}}, "additionalProperties": False},
    {"type": "object", "properties": {"y": {}}, "patternProperties": {"^x": False, '"': {"type": "null"}},
     "additionalProperties": {"type": "boolean"}},
    {"type": "object", "propertyNames": {"pattern": "^[a-c]{1,3}$"}, "additionalProperties": {"type": "null"}},
    {"type": "string", "format": "ipv4"},
    {"type": "integer"},
    {"type": "integer", "minimum": 0},
    {"type": "integer", "minimum": -17},
    {"type": "integer", "maximum": 7},
    {"type": "integer", "maximum": -7},
    {"type": "integer", "minimum": -5, "maximum": 105},
    {"type": "integer", "exclusiveMinimum": 13, "exclusiveMaximum": 170.5},
    {"type": "number"},
    {"type": "number", "minimum": 0},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "minimum": -90, "maximum": 90},
    {"type": "number", "maximum": 0},
    {"type": "number", "exclusiveMaximum": -3},
    {"type": ["boolean", "null"]},
    {"enum": ["a", 'b\n"\\/', "é", 1, -2, 1.5, 2.0, True, None, [1, "x"], {"k": []}, {}]},
    closed({}),
    closed({"a": {"type": "null"}, "b": {"type": "null"}, "c": {"type": "null"}}, "b"),
    closed({'é"': {"type": "null"}, "a/b\t": False, "c": {"type": "boolean"}}),
    {"type": "array", "items": {"type": "boolean"}},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "null"}, {"enum": [1]}], "items": {"type": "boolean"}},
    {"type": "array", "prefixItems": [{"type": "null"}, {"enum": [1]}], "items": False, "minItems": 1},
    {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "integer"}, closed({"a": {"type": "null"}})]},
    {"$ref": "#/$defs/x", "$defs": {"x": closed({"a": {"$ref": "#/$defs/y"}, "b": {"$ref": "#/$defs/y"}}, "a"),
                                    "y": closed({"z": {"type": "boolean"}})}},
    {},
    True,
    {"type": "object"},
    {"type": "object", "properties": {"a": {"type": "null"}}},
    {"type": "object", "properties": {"a": {"type": "null"}, "ab": {}, 'c"': {"enum": ["x"]}}, "required": ["ab"]},
    {"type": "object", "properties": {"a": False, "é\n": {}}, "additionalProperties": {"type": "boolean"}},
    {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["z"]},
    {"type": "array"},
    closed({"a/b": {"type": "array"}}),
    {"$defs": {"x": closed({"a": {"$ref": "#/$defs/x"}})}, "$ref": "#/$defs/x"},
    {"$defs": {"x": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/x"}}, {"type": "string"}]}},
     "$ref": "#/$defs/x"},
    {"$defs": {"x": {"type": "object", "properties": {"l": {"$ref": "#/$defs/x"}, "v": {"type": "integer"}},
                     "required": ["v"]}}, "$ref": "#/$defs/x"},
    {"anyOf": [closed({"k": {"const": "a"}, "v": {"type": "string", "maxLength": 1}}, "k"),
               closed({"k": {"enum": ["b", "ab"]}, "w": {"type": "boolean"}}, "k"),
               {"type": "object", "properties": {"k": {"type": "array", "maxItems": 1}}}]},
    {"anyOf": [closed({"v": closed({"a": {"type": "null"}}), "w": {"enum": [1]}}, "v"),
               closed({"v": closed({"b": {"type": "null"}}), "w": {"enum": [2]}}, "v"),
               closed({"v": closed({"a": {"type": "null"}, "b": {"enum": [1]}}), "w": {"enum": [3]}}, "v")]},
    {"anyOf": [{"type": "array", "items": {"type": "array", "items": {"enum": ["a"]}}, "minItems": 1},
               {"type": "array", "items": {"type": "array", "items": {"enum": ["b", 1]}}, "maxItems": 2}]},
    {"enum": [{"k": [1, {"m": "x"}], "l": {}}, {"k": [1, {"m": "y"}]}, [[]], [[], "a"], "a"]},
    {"type": "array", "items": closed({"n": {"type": "string", "maxLength": 2}}), "minItems": 30},
]  # fmt: skip


@pytest.mark.parametrize("schema", TAKEN, ids=json.dumps)
def test_allows_what_the_library_allows(schema) -> None:
    assert NATIVE.supports(spec_of(schema)) is None
    assert compare(spec_of(schema)) > 1


SCALARS = st.one_of(
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "string"}, {"enum": ["a", 1, "ab"]}]),
    st.builds(
        lambda kind, low, size: {"type": kind, "minimum": low, "maximum": low + size},
        st.sampled_from(["integer", "number"]), st.integers(-120, 120), st.integers(0, 150),
    ),
    st.builds(
        lambda kind, key, bound: {"type": kind, key: bound},
        st.sampled_from(["integer", "number"]),
        st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]), st.integers(-120, 120),
    ),
    st.builds(lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more},
              st.integers(0, 2), st.integers(0, 3)),
    st.builds(lambda source, most: {"type": "string", "pattern": source} | ({"maxLength": most} if most else {}),
              st.sampled_from(["^a", "b$", "^[a-c]{2,4}$", "^(a|bc)*$", "[^a]", "^.{2,3}$", "a.*b", "^\\w\\d?$"]),
              st.sampled_from([0, 0, 1, 3])),
)  # fmt: skip


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.sampled_from(["a", "b", "c", 'd"'])
    return st.one_of(
        st.builds(lambda named, some, more: closed(named, *some) | {"additionalProperties": more},
                  st.dictionaries(keys, inner, max_size=3), st.sets(keys, max_size=2),
                  st.one_of(st.booleans(), inner)),
        st.builds(lambda item, low, more: {"type": "array", "items": item, "minItems": low}
                  | ({} if more is None else {"maxItems": low + more}),
                  inner, st.integers(0, 2), st.one_of(st.none(), st.integers(0, 2))),
        st.builds(lambda some: {"anyOf": some}, st.lists(inner, min_size=1, max_size=3)),
    )  # fmt: skip


VALUES = st.recursive(
    st.sampled_from([None, True, 0, -3, 7, 50, 0.5, "", "a", "ab", "é", "abc"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=1)
    ),
    max_leaves=3,
)


@settings(
    max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True
)
@given(schema=st.recursive(SCALARS, nested, max_leaves=5), values=st.lists(VALUES, min_size=6, max_size=10))
def test_generated_schemas(schema: Any, values: list[Any]) -> None:
    try:
        reason = NATIVE.supports(spec_of(schema))
    except GrammarError:  # no value fulfils it
        with pytest.raises(GrammarError):
            LIBRARY.compile(spec_of(schema))
        return
    if reason is not None:
        assert (
            "undeclared keys" in reason
            or "any value" in reason
            or "beside a length" in reason
            or "no text" in reason
        )
        return
    compare(spec_of(schema))
    grammar, reference = NATIVE.compile(spec_of(schema)), jsonschema_rs.validator_for(schema)
    for value in values:
        assert accepts(grammar, json.dumps(value, ensure_ascii=False)) == reference.is_valid(value), value


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (closed({"a": {"type": "integer", "multipleOf": 3}}), "no automaton states multipleOf at /properties/a"),
        ({"type": "number", "minimum": 0.5}, "minimum is no whole number at its root"),
        ({"type": "string", "pattern": "^\\p{L}$"}, "the pattern at its root is not taken: it cannot be compared"),
        ({"type": "string", "pattern": "^ab*$", "minLength": 200}, "a minLength of more than 100 stands beside"),
        ({"type": "string", "maxLength": 10_000}, "maxLength counts to more than 8,000 at its root"),
        ({"type": "string", "pattern": "^[ab]*a[ab]{12}$"}, "it has too many states to compare"),
        (
            closed({str(i): {"type": "string", "pattern": f"^[ab]*a[ab]{{8}}{i}$"} for i in range(40)}),
            "its patterns need more than 8,000 states",
        ),
        (
            closed({str(i): {"type": "string", "maxLength": 7900 + i} for i in range(7)}),
            "the lengths of its strings, beside patterns too, make more than 48,000 states",
        ),
        (
            {"type": "string", "pattern": "^([a-z]{1,9} [A-Z]?)*$", "maxLength": 8_000},
            "the lengths of its strings, beside patterns too, make more than 48,000 states",
        ),
        (
            {"type": "array", "items": {"type": "integer", "minimum": 7, "maximum": 10**15}, "minItems": 900},
            "it needs more than 200,000 nodes",
        ),
        (
            {"type": "array", "items": {"enum": [{"a" * 60: i} for i in range(9)]}, "minItems": 900},
            "it needs more than 200,000 nodes",
        ),
        (
            {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 99,
             "$defs": {"x": {"enum": [*range(400)]}}},
            "it needs more than 200,000 nodes",
        ),
        ({"type": "string", "pattern": "^[^\\w]\x01?$"}, "it writes control characters"),
        (
            {"type": "array", "minItems": 1500, "items": {"type": "string", "minLength": 1900}},
            "its shortest text has more than 1,048,576 bytes",
        ),
        ({"enum": ["\x7f"]}, "a constant at its root holds the character U\\+007F"),
    ],
)  # fmt: skip
def test_says_why_it_does_not_take_a_schema(schema, reason) -> None:
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(NATIVE.supports(spec_of(schema)))


def test_free_white_space_is_not_ours() -> None:
    spec = GrammarSpec("json_schema", '{"type": "null"}', any_whitespace=True)
    assert "white space is free" in str(NATIVE.supports(spec))


def test_schemas_that_are_wrong_are_refused_as_ever() -> None:
    for schema in (
        {"type": "nul"},
        {"type": "null", "const": 1},
        {"$ref": "#/x"},
        {"type": "string", "minLength": -1},
    ):
        messages = []
        for engine in (NATIVE, LIBRARY):
            with pytest.raises(GrammarError) as caught:
                engine.supports(spec_of(schema)) or engine.compile(spec_of(schema))
            messages.append(str(caught.value))
        assert messages[0] == messages[1]


def test_numbers_that_no_double_holds_are_refused() -> None:
    grammar = NATIVE.compile(spec_of({"type": "array", "items": {"type": "number"}}))
    assert accepts(grammar, "[1e308, 0.5]")
    assert not accepts(grammar, "[1e309, 0.5]")
    state = grammar.start()
    assert all(map(state.accept, b"[1e30"))
    assert not state.accept(ord("9"))
    assert state.backtrack() == 0
    row = np.zeros(BYTES.words, np.int32)
    state.fill(row)
    assert allowed(row) & set(b"89") == set(b"8")
    assert isinstance(NATIVE.compile(spec_of({"type": "number", "minimum": 0, "maximum": 9})), NativeGrammar)


@pytest.mark.parametrize("engine", [NATIVE, LIBRARY])
def test_sets_without_quotes_and_backslashes(engine) -> None:
    """The library by itself lets `\\"` through where a set has the control characters and no quote."""
    grammar = engine.compile(spec_of({"type": "string", "pattern": '^[^"\\\\]{2}$'}))
    assert accepts(grammar, '"\\nx"')
    assert not any(accepts(grammar, text) for text in ('"x\\""', '"x\\\\"', '"x""'))


def test_sets_without_quotes_and_backslashes_in_keys() -> None:
    keys = {"type": "object", "patternProperties": {'^[^"]+$': {"type": "null"}}, "additionalProperties": False}
    grammar = LIBRARY.compile(spec_of(keys))
    assert accepts(grammar, '{"a": null}')
    assert not accepts(grammar, '{"a\\"": null}')


def test_escapes_are_those_of_the_library() -> None:
    assert set(ESCAPED.values()) == set(ESCAPES)
    assert {code: json.dumps(chr(code))[2:-1] for code in ESCAPED} == ESCAPED


TOOLS = [
    Tool("weather", closed({"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}}, "city")),
    Tool("add", closed({"a": {"type": "number"}, "b": {"type": "boolean"}}, "a", "b")),
]


def tag_of(format: dict[str, Any]) -> GrammarSpec:
    return GrammarSpec("structural_tag", json.dumps({"type": "structural_tag", "format": format}))


@pytest.mark.parametrize("name", ["hermes", "llama3", "pythonic", "mistral", "deepseekv3", "phi4"])
@pytest.mark.parametrize("parallel", [True, False])
def test_forced_calls(name, parallel) -> None:
    found = find_syntax(name, None)
    assert found is not None
    spec = tag_of(found[1].structural_tag(TOOLS, at_least_one=True, parallel=parallel))
    assert NATIVE.supports(spec) is None
    assert compare(spec) > 50
    free = tag_of(found[1].structural_tag(TOOLS, parallel=parallel))
    assert "does not take this structural tag: it holds" in str(NATIVE.supports(free))


def test_other_tags() -> None:
    one = {"type": "tag", "begin": "<a>", "content": {"type": "const_string", "value": "x"}, "end": ["</a>", "!"]}
    two = {"type": "json_schema", "json_schema": {"type": "integer", "minimum": 0, "maximum": 20}}
    some = {"type": "tags_with_separator", "tags": [one], "separator": "; "}
    for format in (
        one,
        two,
        some,
        {"type": "or", "elements": [one, {"type": "sequence", "elements": [two, one]}]},
    ):
        assert compare(tag_of(format)) > 2
    assert accepts(NATIVE.compile(tag_of(some)), "<a>x!; <a>x</a>")
    assert accepts(NATIVE.compile(tag_of(some)), "")
    special = Vocabulary(BYTES.tokens, (256,), BYTES.encode, special={"<a>": 255})
    assert "the special token <a>" in str(NativeEngine(special, GrammarLimits()).supports(tag_of(one)))
    with pytest.raises(GrammarError, match="`sep` has no meaning here"):
        NATIVE.supports(tag_of(some | {"sep": ""}))
    with pytest.raises(GrammarError, match="cannot be stated as a grammar"):
        NATIVE.supports(tag_of({"type": "json_schema", "json_schema": {"type": "array", "uniqueItems": True}}))


@pytest.mark.parametrize("deep", [False, True])
def test_tags_whose_texts_begin_like_calls_are_not_ours(deep) -> None:
    """A text that goes on by itself where JSON beside it calls something: found before, not by some text."""
    string = {"type": "json_schema", "json_schema": {"type": "string"}}
    other: dict[str, Any] = {"type": "const_string", "value": '"'}
    tags = {"type": "tags_with_separator", "separator": ",", "tags": [
        {"type": "tag", "begin": '{"name": ', "content": string, "end": "}"}]}  # fmt: skip
    for format in (
        {"type": "or", "elements": [string, other]},
        {"type": "sequence", "elements": [tags, {"type": "json_schema", "json_schema": {"type": "object"}}]},
    ):
        if deep:
            format = {"type": "sequence", "elements": [{"type": "const_string", "value": "text: "}, format]}
        assert "it may call something and go on by itself" in str(NATIVE.supports(tag_of(format)))
        LIBRARY.compile(tag_of(format))


def test_patterns_need_characters_that_no_token_writes() -> None:
    """Beside a length, and of keys: what cannot be written is no way on."""
    for lacking in ("é", "F", "\\"):
        tokens = [b"" if byte in lacking.encode() else bytes([byte]) for byte in range(256)]
        engine = NativeEngine(Vocabulary([*tokens, b""], (256,), BYTES.encode), GrammarLimits())
        other = "\\" + lacking if lacking == "\\" else lacking
        source = f"^(a{other}|b)c*$"
        string = {"type": "string", "pattern": source, "maxLength": 4}
        keys = {"type": "object", "patternProperties": {source: {"type": "null"}}, "additionalProperties": False}
        for schema, begun in ((string, b'"'), (keys, b'{"')):
            assert NATIVE.supports(spec_of(schema)) is None
            state, row = engine.compile(spec_of(schema)).start(), np.zeros(BYTES.words, np.int32)
            assert all(map(state.accept, begun))
            state.fill(row)
            assert allowed(row) == set(b"b")
        hopeless = {"type": "string", "pattern": f"a{other}", "maxLength": 4}
        assert "no string fulfils the pattern" in str(engine.supports(spec_of(hopeless)))


@pytest.mark.parametrize("missing", [b"", b"\xf1\xf4", b"\xe0\xf0", b"\xc3", b"\\", b"nA"])
def test_characters_that_no_token_writes(missing) -> None:
    writable = np.ones(256, np.bool_)
    writable[list(missing)] = False
    found = {code for low, high in unwritable(writable) for code in range(low, high + 1)}
    spelt = {code: json.dumps(chr(code))[1:-1] if code in ESCAPED else chr(code) for code in range(0x11_0000)}
    lost = {code for code, text in spelt.items() if set(text.encode(errors="surrogatepass")) & set(missing)}
    assert found == lost


def test_many_alternatives_that_go_on_differently() -> None:
    values = [{"a": [1, {"b": f"x{i}"}], "c": [i]} for i in range(600)]
    grammar = NATIVE.compile(spec_of({"enum": values}))
    assert all(accepts(grammar, json.dumps(value)) for value in values[::97])
    assert not accepts(grammar, json.dumps(values[7] | {"c": [8]}))


def test_schemas_get_tables_for_a_device(vocabulary) -> None:
    schema = closed({"mood": {"enum": ["good", "bad"]}, "note": {"type": "string"}}, "mood", "note")
    manager = GrammarManager(lambda: vocabulary)
    grammar = manager.get(spec_of(schema)).result(30)
    assert isinstance(grammar, CanonicalGrammar)
    assert isinstance(grammar.inner, NativeGrammar)
    table = automaton_table(grammar.inner)
    assert table is not None
    text = '{"mood": "bad", "note": "a \\"b\\" é"}'
    tokens = vocabulary.encode(text)
    state = table.after([vocabulary.tokens[token] for token in tokens])
    assert allowed(table.masks[table.mask_row[state]]) == set(vocabulary.eos_ids)
    manager.close()


def test_masks_of_a_real_vocabulary(vocabulary) -> None:
    """Where the library has not narrowed a forced stretch to its canonical token, both allow the same tokens."""
    native, library = NativeEngine(vocabulary, GrammarLimits()), LlguidanceEngine(vocabulary, GrammarLimits())
    numbers = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 500}}
    strings = {"name": {"type": "string", "maxLength": 40}, "note": {"type": "string"}}
    schema = closed({**strings, "n": numbers}, "name")
    one, two = native.compile(spec_of(schema)).start(), library.compile(spec_of(schema)).start()
    mine, theirs = np.zeros(vocabulary.words, np.int32), np.zeros(vocabulary.words, np.int32)
    same = 0
    for token in vocabulary.encode(
        '{"name": "José \\"J.\\" O\'Hara, 日本", "note": "two\\nlines", "n": [12, 500, 3]}'
    ):
        one.fill(mine)
        two.fill(theirs)
        assert not (theirs & ~mine).any()
        same += np.array_equal(mine, theirs)
        assert np.array_equal(mine, theirs) or len(allowed(theirs)) == 1
        assert one.accept(token)
        assert two.accept(token)
    assert same > 20
    assert (one.finished, two.finished) == (True, True)


def test_characters_that_no_token_writes_are_left_out() -> None:
    """Patterns are left with what can be finished."""
    for missing, lost in (
        (b"x", [(0x78, 0x78)]),
        (b"n", [(10, 10), (0x6E, 0x6E)]),
        (b"\n", []),
        (b"\xe2\xc3", [(0xC0, 0xFF), (0x2000, 0x2FFF)]),
        (b"\xf4", [(0x100000, 0x10FFFF)]),
        (b"\x80", [(0x80, 0x10FFFF)]),
    ):
        writable = np.ones(256, np.bool_)
        writable[list(missing)] = False
        assert list(unwritable(writable)) == lost
    words = [bytes([byte]) for byte in range(256) if byte not in b"xy\xe2"]
    some = NativeEngine(Vocabulary([*words, b""], (len(words),), lambda text: []), GrammarLimits())
    spec = spec_of({"type": "string", "pattern": "^(a|x|b(y|c)|€)*$", "maxLength": 3})
    assert some.supports(spec) is None
    grammar = native_of(some.compile(spec))
    place = grammar.machine.read(grammar.machine.start, b'"')
    assert {words[token] for token in allowed(grammar.mask(place))} == {b"a", b"b", b'"'}
    place = grammar.machine.read(place, b"ab")
    assert {words[token] for token in allowed(grammar.mask(place))} == {b"c"}
    assert "no string fulfils" in str(
        some.supports(spec_of({"type": "string", "allOf": [{"pattern": "x"}, {"pattern": "y"}]}))
    )


@pytest.mark.parametrize("engine", [NATIVE, LIBRARY])
def test_a_server_may_refuse_what_no_grammar_states(engine) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
    }
    assert engine.compile(spec_of(schema)) is not None
    with pytest.raises(GrammarError, match="this server refuses such schemas") as caught:
        engine.compile(GrammarSpec("json_schema", json.dumps(schema), refuse_residual=True))
    assert (caught.value.pointer, caught.value.keyword) == ("/properties/a", "uniqueItems")
