"""Schemas whose patterns look around, against a validator that reads patterns as ECMA-262 does."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError, validators

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.grammar import Grammar
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.llg import LlguidanceEngine
from radixlang.grammar.native import NativeEngine, NativeGrammar
from radixlang.grammar.schema import normalise_text
from radixlang.grammar.vocabulary import Vocabulary
from radixlang.messages import GrammarSpec
from tests.grammar.test_pattern import drawn

BYTES = Vocabulary([*(bytes([b]) for b in range(256)), b'": ', b""], (257,), lambda text: [*text.encode()])
ENGINE = NativeEngine(BYTES, GrammarLimits())
PASSWORD = r"^(?=.*[A-Z])(?=.*\d)(?=.*[a-z]).{4,20}$"
LABEL = r"^(?!-)[A-Za-z0-9-]{1,63}(?<!-)$"
TEXTS = ["".join(text) for n in range(4) for text in itertools.product('ab-é"', repeat=n)]


@cache
def expression(source: str) -> re.Pattern[str]:
    return re.compile(source.replace("$", r"\Z"), re.ASCII)


def fits(source: str, text: str) -> bool:
    return expression(source).search(text) is not None


def check_pattern(_: Any, source: str, value: Any, schema: Any) -> Any:
    if isinstance(value, str) and not fits(source, value):
        yield ValidationError(source)


def check_keys(validator: Any, patterns: Any, value: Any, schema: Any) -> Any:
    if isinstance(value, dict):
        for source, key in itertools.product(patterns, value):
            if fits(source, key):
                yield from validator.descend(value[key], patterns[source])


def check_others(validator: Any, others: Any, value: Any, schema: Any) -> Any:
    for key in value if isinstance(value, dict) else ():
        if not any(fits(source, key) for source in schema.get("patternProperties", ())):
            yield from validator.descend(value[key], others)


ECMA = validators.extend(
    Draft202012Validator,
    {"pattern": check_pattern, "patternProperties": check_keys, "additionalProperties": check_others},
)


def compiled(schema: Any) -> Grammar:
    spec = GrammarSpec("json_schema", json.dumps(schema))
    assert ENGINE.supports(spec) is None
    return ENGINE.compile(spec)


def accepts(grammar: Grammar, value: Any) -> bool:
    state = grammar.start()
    return all(map(state.accept, json.dumps(value, ensure_ascii=False).encode())) and state.can_end


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string", "pattern": PASSWORD}, ["aA1x", "x" * 18 + "1A"], ["aaaa", "aA1", "x" * 19 + "1A"]),
        ({"type": "string", "pattern": PASSWORD, "maxLength": 5}, ["aA1xx"], ["aA1xxx"]),
        ({"type": "string", "pattern": LABEL}, ["a", "a-b", "9" * 63], ["-a", "a-", "9" * 64, ""]),
        ({"type": "string", "pattern": r"^x(?!.*\bno\b)[a-z ]+$"}, ["x not", "xno"], ["x no", "xa no b"]),
        ({"type": "string", "pattern": PASSWORD, "not": {"pattern": LABEL}}, ["aA1-", "aA1 "], ["aA1x"]),
        ({"type": "string", "pattern": r"^((?=a)|b)+((?<=b))?a$"}, ["a", "bba"], ["b", "ca"]),
    ],
)
def test_patterns_beyond_a_plain_one_are_exact(schema: Any, right: list[str], wrong: list[str]) -> None:
    grammar = compiled(schema)
    assert isinstance(grammar, NativeGrammar)  # nothing is left to check
    assert not normalise_text(json.dumps(schema), looks=True).residual
    assert [text for text in right + wrong if accepts(grammar, text)] == right


def test_keys_beyond_a_plain_pattern_are_exact() -> None:
    schema = {
        "type": "object",
        "patternProperties": {PASSWORD: {"const": 1}, r"\bab\b": {"enum": [1, 2]}},
        "additionalProperties": {"const": 3},
        "propertyNames": {"pattern": r"^(?!.*--)"},
    }
    grammar, validator = compiled(schema), ECMA(schema)
    keys = ["aA1x", "ab", "aA1 ab", "abc", "x--y", "ab--", "éab", ""]
    values = [{key: value} for key in keys for value in (1, 2, 3)]
    expected = [value for value in values if validator.is_valid(value)]
    assert [value for value in values if accepts(grammar, value)] == expected
    assert 0 < len(expected) < len(values)
    assert isinstance(grammar, NativeGrammar)


@pytest.mark.parametrize("source", [r"^\d^a$", r"^(?=b)a$"])
def test_a_pattern_that_no_key_fits_is_left_out(source: str) -> None:
    schema = {"type": "object", "patternProperties": {source: {"const": 1}}, "additionalProperties": False}
    for engine in ENGINE, LlguidanceEngine(BYTES, GrammarLimits()):
        grammar = engine.compile(GrammarSpec("json_schema", json.dumps(schema)))
        assert accepts(grammar, {})
        assert not accepts(grammar, {"a": 1})


def test_a_pattern_that_no_string_fulfils_is_refused() -> None:
    with pytest.raises(GrammarError, match="at #/pattern, no string fulfils pattern"):
        normalise_text(json.dumps({"type": "string", "pattern": "^(?=b)a$"}))


def test_words_are_those_of_ascii_where_a_validator_is_asked() -> None:
    grammar = compiled({"enum": ["é", "a", "--"], "pattern": r"(?=\w)"})
    assert [text for text in ("é", "a", "--") if accepts(grammar, text)] == ["a"]
    large = compiled({"type": "string", "pattern": r"^(?=.*\w!)(?=.*b)(?=.*c).{1,900}$"})
    assert not isinstance(large, NativeGrammar)  # its pattern is checked
    assert [text for text in ("bca!", "bcé!") if accepts(large, text)] == ["bca!"]


def test_random_schemas() -> None:
    random_ = random.Random(5)

    def source() -> str:
        inner = drawn(random_, 3, looks=True)
        return f"^{inner}$" if random_.random() < 0.5 else inner

    checked = wrong = 0
    while checked < 60:
        schema: dict[str, Any] = {"type": "string", "pattern": source()}
        if random_.random() < 0.3:
            schema |= {"minLength": random_.randint(0, 2), "maxLength": random_.randint(2, 3)}
        if random_.random() < 0.3:
            schema[random_.choice(["not", "if"])] = {"pattern": source()}
        if "if" in schema:
            schema["then"] = {"maxLength": 1}
        validator = ECMA(schema)
        expected = [text for text in TEXTS if validator.is_valid(text)]
        spec = GrammarSpec("json_schema", json.dumps(schema))
        try:
            if ENGINE.supports(spec) is not None:
                continue
            grammar = ENGINE.compile(spec)
        except GrammarError as error:
            wrong += bool(expected) or "fulfil" not in str(error)
            continue
        found = [text for text in TEXTS if accepts(grammar, text)]
        assert found == expected, schema
        checked += 1
    assert not wrong


@pytest.mark.parametrize(
    "sources",
    [
        ["^x" + "".join([f"(?=.*{chr(97 + i % 26)}{i}{n})" for i in range(200)]) + ".*$" for n in range(40)],
        ["^" + "".join([f"(?!.*{chr(97 + i % 26)}{i}{n}$)" for i in range(200)]) + "[a-z]*$" for n in range(40)],
        [rf"^(?=.*\d)(?=.*[A-Z]).{{8,{10 + n}}}$" for n in range(60)],
    ],
    ids=["ahead", "not ahead", "usual"],
)
def test_many_hostile_patterns_end_soon(sources: list[str]) -> None:
    schema = {"type": "object", "properties": {f"p{n}": {"pattern": one} for n, one in enumerate(sources)}}
    before = time.process_time()
    with suppress(GrammarError):  # "… simplify … patterns that look around"
        ENGINE.supports(GrammarSpec("json_schema", json.dumps(schema)))
    assert time.process_time() - before < 8
