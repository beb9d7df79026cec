"""llguidance behind our interface."""

from __future__ import annotations

import json

import numpy as np
import pytest

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.limits import GrammarLimits
from radixlang.messages import GrammarSpec
from tests.grammar.conftest import allowed

pytest.importorskip("llguidance")
from radixlang.grammar.llg import LlguidanceEngine, LlguidanceState

SCHEMA = {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"],
    "additionalProperties": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def engine(vocabulary) -> LlguidanceEngine:
    return LlguidanceEngine(vocabulary, GrammarLimits())


def takes(engine: LlguidanceEngine, state: LlguidanceState, text: str) -> bool:
    row = np.zeros(engine.vocabulary.words, np.int32)
    for token in engine.vocabulary.encode(text):
        state.fill(row)
        if token not in allowed(row):
            assert not state.copy().accept(token) or state.forced()
            return False
        assert state.accept(token)
    return state.can_end


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('{"a": 1}', True), ('{"a": 1, "b": "x\\n"}', True), ('{"a":1}', False), ('{"b": "x", "a": 1}', False),
        ('{"\\u0061": 1}', False), ('{"a": 1, "b": "\\u0061"}', False), ('{"a": 1.5}', False), ('{"a": 1', False),
    ],
)  # fmt: skip
def test_json_with_fixed_separators(engine, text, right) -> None:
    assert takes(engine, engine.json(SCHEMA, False).start(), text) == right


def test_json_laid_out_freely(engine) -> None:
    for text in ('{"a":1}', '{ "a" :\n1 }', json.dumps({"a": 1, "b": ""}, indent=2)):
        assert takes(engine, engine.json(SCHEMA, True).start(), text)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (GrammarSpec("regex", "[a-c]+x"), "abcx"),
        (GrammarSpec("choice", '["yes", "n\\"o", "日本"]'), 'n"o'),
        (GrammarSpec("ebnf", 'root ::= "a" ("b" | [0-9])+'), "ab7"),
        (GrammarSpec("ebnf", 'start: "a" B+\nB: /[0-9]/'), "a77"),
    ],
)
def test_kinds(engine, spec, text) -> None:
    state = engine.compile(spec).start()
    other = state.copy()
    assert takes(engine, state, text)
    assert not other.can_end
    assert state.accept(engine.vocabulary.eos_ids[0])
    assert state.finished
    state.rollback(1 + len(engine.vocabulary.encode(text)))
    assert takes(engine, state, text)


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec("regex", "("), GrammarSpec("ebnf", "root ::= nowhere"), GrammarSpec("ebnf", "((("),
        GrammarSpec("choice", "[1"),
        GrammarSpec("choice", "[]"), GrammarSpec("regex", "(?=a)b"),
    ],
)  # fmt: skip
def test_what_is_refused_says_what_it_is(engine, spec) -> None:
    with pytest.raises(GrammarError, match=spec.kind) as caught:
        engine.compile(spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("nested", [False, True])
def test_what_only_the_library_finds_impossible_is_said_in_our_words(engine, nested: bool) -> None:
    schema = {"type": "string", "pattern": "^(a|b)*a(a|b){12}$", "allOf": [{"pattern": "^[ab]*c"}]}
    if nested:
        schema = {"type": "array", "items": schema, "minItems": 1}
    with pytest.raises(GrammarError, match=r"at #, no value can fulfil it: its patterns") as caught:
        engine.compile(GrammarSpec("json_schema", json.dumps(schema)))
    assert "Regex" not in str(caught.value)


def test_a_reference_to_itself_is_refused(engine) -> None:
    with pytest.raises(Exception, match=r"constraint|compiled"):
        engine.json({"$ref": "#"}, False)


def test_the_end_of_a_checked_value_is_taken_back_alone(engine) -> None:
    spec = GrammarSpec("json_schema", '{"type": "array", "items": {"type": "integer"}, "uniqueItems": true}')
    state, tokens = engine.compile(spec).start(), engine.vocabulary.encode("[1, 2]")
    assert all(map(state.accept, [*tokens, engine.vocabulary.eos_ids[0]]))
    state.rollback(1)
    assert state.can_end
    assert state.accept(engine.vocabulary.eos_ids[0])
    state.rollback(1 + len(tokens))
    assert takes(engine, state, "[2, 1]")


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string", "pattern": "((/[a-z]+)*)/", "maxLength": 512}, '"x/a/"', ['"xa"', f'"/{"a" * 512}"']),
        ({"type": "object", "patternProperties": {"^G|^M": {"type": "null"}, "additionalProperties": {}}},
         '{"Go": null, "x": 1}', ['{"Go": 1}', '{"additionalPropertiesGo": 1, "GadditionalProperties": 1}']),
        ({"type": ["string", "null"], "pattern": "^a(^b)?$"}, '"a"', ['"b"', '"ab"']),
    ],
)  # fmt: skip
def test_patterns_that_the_library_does_not_compare_are_checked(engine, schema, right, wrong) -> None:
    grammar = engine.compile(GrammarSpec("json_schema", json.dumps(schema)))
    for text in (right, *wrong):
        state = grammar.start()
        taken = all(map(state.accept, engine.vocabulary.encode(text))) and state.can_end
        assert taken == (text == right), text


def test_patterns_left_to_the_check_are_refused_where_that_is_asked_for(engine) -> None:
    schema = {"type": "string", "pattern": "((/[a-z]+)*)/", "maxLength": 512}
    with pytest.raises(GrammarError, match=r"at #/pattern, .*refuses such schemas"):
        engine.compile(GrammarSpec("json_schema", json.dumps(schema), refuse_residual=True))


@pytest.mark.parametrize("count", [300, 1_000])
def test_objects_of_many_optional_properties(engine, vocabulary, count: int) -> None:
    properties = {f"k{i}": {"type": "number", "multipleOf": 0.5} for i in range(count)}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    state = engine.compile(GrammarSpec("json_schema", json.dumps(schema))).start()
    for token in vocabulary.encode(f'{{"k7": 1.5, "k{count - 1}": 2}}'):
        assert state.accept(token)
    assert state.can_end
