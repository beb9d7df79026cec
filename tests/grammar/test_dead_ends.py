"""Schemas whose texts used to end where nothing fits, and constants that are hard to write."""

from __future__ import annotations

import json
import logging
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.grammar import Grammar
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.llg import LlguidanceEngine
from radixlang.messages import GrammarSpec


@pytest.fixture(scope="module")
def engine(vocabulary):
    return LlguidanceEngine(vocabulary, GrammarLimits())


def _walk(grammar: Grammar, vocabulary: Any, seed: int) -> str | None:
    """A text drawn at random, one that soon ends where it may; None if it did not."""
    state, row, rng, out = grammar.start(), np.zeros(vocabulary.words, np.int32), random.Random(seed), []
    for _ in range(4000):
        state.fill(row)
        choice = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        ending = [t for t in choice if t in vocabulary.eos_ids or vocabulary.tokens[t] in (b'"', b"}", b"]")]
        token = int(rng.choice(ending if ending and rng.random() < 0.3 else choice))
        if state.accept(token):
            out.append(token)
            if token in vocabulary.eos_ids:
                return b"".join(vocabulary.tokens[t] for t in out).decode()
        else:
            undone = state.backtrack()
            del out[len(out) - undone :]
    return None


TWO = {"type": "array", "uniqueItems": True, "items": {"enum": [1, 2]}, "minItems": 2}


@pytest.mark.parametrize(
    "schema",
    [
        TWO,
        {"type": "object", "properties": {"a": TWO}, "required": ["a"], "additionalProperties": False},
        {"type": "array", "uniqueItems": True, "items": {"type": "string", "pattern": "^[ab]$"}, "minItems": 2},
        {"type": "array", "uniqueItems": True, "items": {"type": "integer", "minimum": 1, "maximum": 12},
         "minItems": 12},
        {"type": "object", "properties": {f"k{i}": {"type": "boolean"} for i in range(30)},
         "additionalProperties": False, "minProperties": 15, "maxProperties": 20},
        {"type": "string", "format": "idn-email", "maxLength": 20},
        {"type": "integer", "minimum": 2**60, "maximum": 2**60 + 5},
        {"type": "integer", "minimum": 2**53 + 2, "maximum": 2**53 + 9},
        {"type": ["integer", "null"], "maximum": -(2**60), "minimum": -(2**60) - 3},
        {"enum": ["\x01", "x", {"\x7f": "\x1f"}]},
    ],
)  # fmt: skip
def test_random_texts_end_and_are_valid(engine, vocabulary, schema: Any) -> None:
    grammar = engine.compile(GrammarSpec("json_schema", json.dumps(schema)))
    for seed in range(6):
        text = _walk(grammar, vocabulary, seed)
        assert text is not None
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    ("schema", "pointer", "keyword"),
    [
        ({"items": TWO | {"minItems": 3}, "minItems": 1, "type": "array"}, "/items", "uniqueItems"),
        ({"enum": [123456789012345678901234567890, "x"]}, "", "enum"),
        ({"type": "object", "properties": {"a": {"const": 2**53 + 1}}}, "/properties/a", "const"),
        ({"items": {"const": ["\ud800"]}}, "/items", "const"),
        ({"items": {"type": "string", "pattern": r"^(a|b)\1$"}}, "/items", "pattern"),
        ({"type": "string", "pattern": r"^(?<x>[ab]+)c\k<x>$"}, "", "pattern"),
    ],
)
def test_what_cannot_be_held_is_refused_where_it_stands(engine, schema: Any, pointer: str, keyword: str) -> None:
    with pytest.raises(GrammarError) as caught:
        engine.compile(GrammarSpec("json_schema", json.dumps(schema)))
    assert (caught.value.pointer, caught.value.keyword) == (pointer, keyword)


def test_large_integers_are_held_digit_by_digit(engine, vocabulary) -> None:
    schema = {"type": "integer", "minimum": 2**60, "maximum": 2**60 + 5}
    state = engine.compile(GrammarSpec("json_schema", json.dumps(schema))).start()
    assert all(map(state.accept, vocabulary.encode("1152921504606846")))
    assert not all(map(state.accept, vocabulary.encode("000")))


def test_keywords_without_effect_are_logged(engine, caplog) -> None:
    with caplog.at_level(logging.INFO, "radixlang"):
        engine.compile(GrammarSpec("json_schema", json.dumps({"type": "object", "requierd": ["a"]})))
    assert "requierd" in caplog.text
