"""xgrammar behind our interface: the same kinds, nothing ignored, and what it cannot take is named."""

from __future__ import annotations

import importlib.util
import json
import os
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from radixlang.config import Config
from radixlang.errors import ConfigError
from radixlang.grammar import ENGINES
from radixlang.grammar.canonical import CanonicalState
from radixlang.grammar.errors import GrammarError
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.manager import GrammarManager
from radixlang.grammar.residual import ResidualGrammar
from radixlang.grammar.schema import normalise
from radixlang.grammar.vocabulary import Vocabulary
from radixlang.messages import GrammarSpec
from tests.grammar.conftest import allowed, passes, small_vocabulary
from tests.grammar.test_schema_property import SCHEMAS, VALUES, _schemas, unordered

EXAMPLES = int(os.environ.get("RADIXLANG_SCHEMA_EXAMPLES", "60"))

installed = importlib.util.find_spec("xgrammar") is not None
needed = pytest.mark.skipif(not installed, reason="xgrammar is not installed: pip install 'radixlang[xgrammar]'")


def made(vocabulary: Vocabulary) -> Any:
    from radixlang.grammar.xgr import XgrammarEngine

    return XgrammarEngine(vocabulary, GrammarLimits())


@pytest.fixture(scope="module")
def engine(vocabulary) -> Any:
    return made(vocabulary)


BYTES = Vocabulary([*(bytes([i]) for i in range(256)), b""], (256,), lambda text: list(text.encode()))


@pytest.fixture(scope="module")
def of_bytes() -> Any:
    return made(BYTES)


def takes(engine: Any, state: Any, text: str) -> bool:
    row = np.zeros(engine.vocabulary.words, np.int32)
    for token in engine.vocabulary.encode(text):
        state.fill(row)
        assert state.accept(token) == (token in allowed(row))
        if token not in allowed(row):
            return False
    return state.can_end


def holds(engine: Any, spec: GrammarSpec, text: str) -> bool:
    state = engine.compile(spec).start()
    return all(map(state.accept, engine.vocabulary.encode(text))) and state.can_end


# ---- without the package


def test_chosen_without_the_package(monkeypatch) -> None:
    monkeypatch.setattr("radixlang.registry.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"--grammar-backend xgrammar needs .*radixlang\[xgrammar\]"):
        Config.from_flat(model_path="m", grammar_backend="xgrammar").resolve()
    Config.from_flat(model_path="m", grammar_backend="auto").resolve()


def test_auto_never_takes_it() -> None:
    assert "xgrammar" in ENGINES
    assert "xgrammar" not in ENGINES.always()


# ---- kinds


@needed
@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (GrammarSpec("regex", r"[a-c]+\w(?i:X)$"), "abcx"),
        (GrammarSpec("choice", '["yes", "n\\"o", "日本"]'), 'n"o'),
        (GrammarSpec("ebnf", 'root ::= "a" ("b" | [0-9])+'), "ab7"),
        (GrammarSpec("json_schema", '{"type": "object"}'), '{"a": [1, {"b": null}]}'),
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
    assert takes(engine, other, text)


@needed
@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec("regex", "("), GrammarSpec("regex", "(?=a)b"), GrammarSpec("regex", r"a\bb"),
        GrammarSpec("regex", "(a)\\1"), GrammarSpec("regex", "a$b"), GrammarSpec("regex", r"[^\s\S]"),
        GrammarSpec("regex", "(" * 500 + "a" + ")" * 500), GrammarSpec("regex", "(a{1000}){2000}"),
        GrammarSpec("ebnf", "root ::= nowhere"), GrammarSpec("ebnf", "((("), GrammarSpec("ebnf", 'a ::= "a"'),
        GrammarSpec("ebnf", 'root ::= "a" root'), GrammarSpec("ebnf", "root ::= root"), GrammarSpec("ebnf", "::="),
        GrammarSpec("ebnf", 'root ::= "a" (="b")'), GrammarSpec("ebnf", 'root ::= [b-a]'),
        GrammarSpec("ebnf", 'root ::= "a"\nroot ::= "b"'), GrammarSpec("ebnf", 'root ::= "\\q"'),
        GrammarSpec("ebnf", 'start: "a"'), GrammarSpec("ebnf", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000),
        GrammarSpec("choice", "[]"), GrammarSpec("choice", '["\\ud800"]'),
        GrammarSpec("choice", f'["{"a" * 160_000}"]'),
        GrammarSpec("structural_tag", '{"format": {"type": "any_text"}}'),
        GrammarSpec("json_schema", "false"),
        GrammarSpec("json_schema", '{"type": "string", "minLength": 1000000000}'),
    ],
)  # fmt: skip
def test_what_is_refused_says_what_it_is(spec) -> None:
    manager = GrammarManager(lambda: BYTES, "xgrammar", workers=1)
    named = spec.kind.replace("json_schema", "json.schema|JSON schema")
    try:
        with pytest.raises(GrammarError, match=named) as caught:
            manager.get(spec).result()
        assert caught.value.status == 400
        assert "\n" not in str(caught.value)
    finally:
        manager.close()


@needed
@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        ('root ::= "a" | b # or\nb ::=\n  [^a-y\\]]{2} "\\x41\\u00e9"?', ["a", "zz", "!!Aé"], ["b", "z", "]]"]),
        ('root ::= root "a" | "b"', ["b", "baa"], ["", "a"]),
        ('root ::= Regex ("a") 1x\nRegex ::= "b"\n1x ::= ""', ["ba"], ["a", "b"]),
        ("root ::= x*\nx ::= . [-a] [a-]", ["", "\n-a", "éa-"], ["a", "éb-"]),
        ('root ::= "a" | "b" x\nx ::= y "c"\ny ::= x | x x', ["a"], ["b", "bc"]),
        ('root ::= ("" | "a"){0,3} "c"{2,}', ["cc", "aaccc"], ["c", "aaaacc"]),
    ],
)
def test_gbnf(of_bytes, grammar, right, wrong) -> None:
    spec = GrammarSpec("ebnf", grammar)
    assert [text for text in right if not holds(of_bytes, spec, text)] == []
    assert [text for text in wrong if holds(of_bytes, spec, text)] == []


@needed
def test_forced_text_is_the_tokenizers(engine) -> None:
    vocabulary = engine.vocabulary
    schema = {
        "type": "object",
        "properties": {"order_id": {"type": "integer"}, "name": {"type": "string"}},
        "required": ["order_id", "name"],
        "additionalProperties": False,
    }
    grammar = engine.compile(GrammarSpec("json_schema", json.dumps(schema)))
    tokens = vocabulary.encode(json.dumps({"order_id": 12, "name": "Ada"}))
    state, row, free, at = CanonicalState(grammar.start(), vocabulary), np.zeros(vocabulary.words, np.int32), 0, 0
    while at < len(tokens):
        forced = state.forced()
        assert forced == tokens[at : at + len(forced)]
        state.fill(row)
        assert tokens[at] in allowed(row)
        free += len(forced)
        for token in tokens[at : at + max(1, len(forced))]:
            assert state.accept(token)
        at += max(1, len(forced))
    assert free >= 5
    assert state.finished


@needed
def test_masks_hold_real_tokens_only() -> None:
    vocabulary = small_vocabulary("a", "b", "ab", b"\xff")
    state = made(vocabulary).compile(GrammarSpec("ebnf", "root ::= .*")).start()
    row = np.zeros(vocabulary.words, np.int32)
    state.fill(row)
    assert allowed(row) == {0, 1, 2, 4}
    assert state.can_end
    assert not state.finished


# ---- schemas


@needed
@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True
)
@given(schema=SCHEMAS, p=_schemas(st.booleans()), q=SCHEMAS, values=st.lists(VALUES, min_size=6, max_size=14))
@example({"type": "string", "pattern": "^a", "minLength": 2}, {}, {}, ["ab", "a", "b", 'a"'])
@example({"multipleOf": 0.5}, {}, {}, [0.5, 1, 1.25, -2.5])
@example({"type": "object", "properties": {"a": {"type": "null"}}}, {}, {}, [{"a": None}, {"a": 1}, {"b": 1}])
@example({"type": "integer", "multipleOf": 3, "minimum": 4}, {}, {}, [3, 6, 7])
def test_generated_schemas_keep_their_meaning(of_bytes, schema: Any, p: Any, q: Any, values: list[Any]) -> None:
    if isinstance(schema, dict):
        schema = {**schema, "$defs": {"p": p, "q": q}}
    try:
        reference = jsonschema_rs.validator_for(schema)
        normalise(schema)
    except (ValueError, GrammarError):
        assume(False)
    try:
        grammar = of_bytes.compile(GrammarSpec("json_schema", json.dumps(schema)))
    except GrammarError as error:
        raise AssertionError(f"{schema} is refused: {error}") from error
    assert isinstance(grammar, ResidualGrammar)
    for value in values:
        state = grammar.inner.start()
        taken = all(map(state.accept, json.dumps(value, ensure_ascii=False).encode())) and state.can_end
        right = reference.is_valid(value)
        if taken and grammar.checks is not None:
            taken = passes(grammar.checks, value)
        assert right or not taken, ("wrong accept", value)
        assert taken or not right or not unordered(value), ("wrong reject", value)


@needed
def test_a_key_cannot_be_spelt_otherwise(of_bytes) -> None:
    spec = GrammarSpec("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}}')
    for text in ('{"\\u0061": "x"}', '{"a": 1, "\\u0061": "x"}', '{"a": 1, "a": "x"}', '{"b": "\t"}', '{"a": 01}'):
        assert not holds(of_bytes, spec, text), text
    for text in ('{"a": 1}', '{"a": 1, "b": "x\\n\\"é"}', "{}"):
        assert holds(of_bytes, spec, text), text


@needed
def test_free_white_space(of_bytes) -> None:
    schema = '{"type": "object", "properties": {"a": {"items": {"type": "null"}, "type": "array"}}}'
    spec = GrammarSpec("json_schema", schema, any_whitespace=True)
    for text in ('{"a":[null,null]}', '{ "a" :\n[ null ,\tnull ] , "b": {} }'):
        assert holds(of_bytes, spec, text), text


@needed
def test_keywords_that_no_rule_states_are_checked_or_refused(of_bytes) -> None:
    text = '{"type": "object", "properties": {"a": {"type": "number", "multipleOf": 0.7}}, "required": ["a"]}'
    grammar = of_bytes.compile(GrammarSpec("json_schema", text))
    state = grammar.start()
    assert all(map(state.accept, b'{"a": 0.8'))
    assert not state.accept(ord("}"))
    assert state.backtrack() == 0
    assert state.revises
    with pytest.raises(GrammarError, match="/properties/a/multipleOf") as caught:
        of_bytes.compile(GrammarSpec("json_schema", text, refuse_residual=True))
    assert (caught.value.pointer, caught.value.keyword) == ("/properties/a", "multipleOf")
