"""Forced tokens are those of the tokenizer, whatever follows."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from radixlang.grammar.canonical import CanonicalState, certain
from radixlang.grammar.filling import alone
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.llg import LlguidanceEngine
from radixlang.grammar.native import NativeEngine
from radixlang.messages import GrammarSpec
from tests.grammar.conftest import bits, small_vocabulary

RELAXED = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="session")
def engines(request):
    made = {}

    def engine(name: str) -> NativeEngine:
        if name not in made:
            made[name] = NativeEngine(request.getfixturevalue(name), GrammarLimits())
        return made[name]

    return engine


def walk(state: CanonicalState, tokens: list[int], words: int) -> int:
    """Go through the tokens; every forced run must be the next ones. → how many needed no decision."""
    row, free, at = np.zeros(words, np.int32), 0, 0
    while at < len(tokens):
        forced = state.forced()
        assert forced == tokens[at : at + len(forced)]
        state.fill(row)
        here = bits(row)
        assert here[tokens[at]]
        if forced:
            assert tokens[at] == forced[0]
            assert np.count_nonzero(here) == 1
        free += len(forced)
        for token in tokens[at : at + max(1, len(forced))]:
            assert state.accept(token)
        at += max(1, len(forced))
    return free


PIECES = st.one_of(
    st.text("abcdefgorderIdname '\"{}[]:,.-_0123456789\n\té😀", min_size=1, max_size=10),
    st.sampled_from(['"name": ', '", "order_id": "', "  \n", "I'", "ing", " the", "   ", "12", "://", "don't"]),
)


@pytest.mark.parametrize("model", ["vocabulary", "gemma", "qwen"])
@RELAXED
@given(st.lists(st.tuples(st.booleans(), PIECES), min_size=1, max_size=5))
def test_every_text_keeps_the_tokenizers_tokens(engines, model, pieces) -> None:
    engine = engines(model)
    pattern = "".join(re.escape(text) if fixed else f"[{re.escape(text)}]{{0,9}}" for fixed, text in pieces)
    text = "".join(text if fixed else text[:9] for fixed, text in pieces)
    spec, vocabulary = GrammarSpec("regex", pattern), engine.vocabulary
    assume(engine.supports(spec) is None)
    grammar = engine.compile(spec)
    walk(CanonicalState(grammar.start(), vocabulary), vocabulary.encode(text), vocabulary.words)


@pytest.mark.parametrize("model", ["vocabulary", "gemma", "qwen"])
def test_choices(engines, model) -> None:
    engine = engines(model)
    vocabulary = engine.vocabulary
    choices = [
        "positive",
        "positively",
        "negative",
        "not sure",
        "no",
        "",
        " no",
        "日本語",
        "日本",
        "a  b",
        "a   c",
    ]
    grammar = engine.compile(GrammarSpec("choice", json.dumps(choices)))
    for choice in choices:
        state = CanonicalState(grammar.start(), vocabulary)
        walk(state, vocabulary.encode(choice), vocabulary.words)
        assert state.can_end


@pytest.mark.parametrize("model", ["vocabulary", "gemma", "qwen"])
def test_json_of_llguidance(request, model) -> None:
    llg = pytest.importorskip("radixlang.grammar.llg")
    vocabulary = request.getfixturevalue(model)
    schema = {
        "type": "object", "required": ["order_id", "name", "tags"], "additionalProperties": False,
        "properties": {
            "order_id": {"type": "integer"}, "name": {"type": "string"},
            "tags": {"type": "array", "items": {"enum": ["new", "newer", "old"]}},
        },
    }  # fmt: skip
    grammar = llg.LlguidanceEngine(vocabulary, GrammarLimits()).json(schema, False)
    text = json.dumps({"order_id": 12, "name": 'Ada\'s  "x"', "tags": ["new", "newer"]})
    state = CanonicalState(grammar.start(), vocabulary)
    assert walk(state, vocabulary.encode(text), vocabulary.words) >= 5


def test_an_earlier_cut_is_found() -> None:
    # "order" alone is ord|er, but if "derI" may come it is or|derI: nothing is certain.
    vocabulary = small_vocabulary("or", "ord", "er", "derI", "I", "x", "d", "e", "r", "o")
    engine = NativeEngine(vocabulary, GrammarLimits())

    def forced(pattern: str) -> list[int]:
        return CanonicalState(engine.compile(GrammarSpec("regex", pattern)).start(), vocabulary).forced()

    assert forced("order[Ix]") == []
    assert forced("orderx|orderd") == [1, 2]


def test_after_a_rollback_and_in_a_copy(engines) -> None:
    vocabulary = engines("vocabulary").vocabulary
    grammar = engines("vocabulary").compile(GrammarSpec("regex", r"[ab]Hello, world\. [ab]"))
    state = CanonicalState(grammar.start(), vocabulary)
    assert state.forced() == []
    first = vocabulary.encode("a")[0]
    assert state.accept(first)
    forced = state.forced()
    assert vocabulary.encode("aHello, world.")[: len(forced) + 1] == [first, *forced]
    other = state.copy()
    for token in forced[:2]:
        assert state.accept(token)
    assert state.forced() == forced[2:]
    state.rollback(2)
    assert state.forced() == forced == other.forced()
    assert not state.accept(vocabulary.eos_ids[0])
    assert state.forced() == forced


def test_a_special_token_is_forced_where_nothing_else_may_follow(vocabulary) -> None:
    special = vocabulary.special["<|im_start|>"]
    grammar = LlguidanceEngine(vocabulary, GrammarLimits()).lark('start: "ab" <|im_start|> "cd"', "ebnf")
    state = CanonicalState(grammar.start(), vocabulary)
    row = np.zeros(vocabulary.words, np.int32)
    for token in vocabulary.encode("ab"):
        assert state.accept(token)
    state.fill(row)
    assert state.known()[:1] == state.forced()[:1] == [special]
    assert np.flatnonzero(bits(row)).tolist() == [special]


def test_a_special_token_has_no_other_spelling(vocabulary) -> None:
    special = vocabulary.eos_ids[0]
    assert alone(certain([special, 5], b"", None, vocabulary)) == [special]  # type: ignore[arg-type]
    text = vocabulary.encode("end of it")
    assert alone(certain([*text, special], b"", None, vocabulary)) == text  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["vocabulary", "gemma", "qwen"])
def test_drafts_are_what_usually_follows(request, model) -> None:
    llg = pytest.importorskip("radixlang.grammar.llg")
    vocabulary = request.getfixturevalue(model)
    engine = llg.LlguidanceEngine(vocabulary, GrammarLimits())

    def drafted(schema: object) -> str:
        record = {
            "type": "object",
            "properties": {"name": schema},
            "required": ["name"],
            "additionalProperties": False,
        }
        state = CanonicalState(engine.json(record, False).start(), vocabulary)
        forced = state.forced()
        assert state.draft() == [], "what is certain comes first"
        for token in forced:
            assert state.accept(token)
        draft = state.draft()
        assert draft == state.draft() == state.copy().draft()
        return b"".join(vocabulary.tokens[token] for token in [*forced, *draft]).decode()

    assert drafted({"type": "string"}) == '{"name": "'
    for several in ({}, {"type": "boolean"}, {"type": "object"}, {"enum": [True, None, "x"]}):
        assert drafted(several) == '{"name":'


def test_no_draft_where_values_are_checked(vocabulary) -> None:
    llg = pytest.importorskip("radixlang.grammar.llg")
    engine = llg.LlguidanceEngine(vocabulary, GrammarLimits())
    items = {"type": "array", "items": {"type": "string"}, "minItems": 2}
    for schema, some in ((items, True), (items | {"uniqueItems": True}, False)):
        state = CanonicalState(engine.schema(GrammarSpec("json_schema", json.dumps(schema))).start(), vocabulary)
        for token in vocabulary.encode('["a",'):
            assert state.accept(token)
        assert bool(state.draft()) is some
