"""Generated schemas over all keywords: the rewritten schema means the same, and the library accepts nothing else.

The reference is jsonschema-rs on the schema as it was generated. A longer run: `pytest --slow`, or
RADIXLANG_SCHEMA_EXAMPLES=20000.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.schema import Normalised, normalise
from tests.grammar.conftest import passes

llguidance = pytest.importorskip("llguidance")

EXAMPLES = int(os.environ.get("RADIXLANG_SCHEMA_EXAMPLES", "250"))
OPTIONS = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "json_allowed_escapes": 'nrbtf\\"',
}
KEYS = ["a", "b", "c", "ab", "xa"]
STRINGS = ["", "a", "b", "ab", "ba", "abc", "xa", "1", "é", "2024-02-29", "aXb"]
PATTERNS = ["^a", "b$", "ab", "^x?a$", "^[a-c]+$", "", "^(a|b)$", "[^a]", "^.{2,3}$", "a.*b", "^\\w$", "^(?!a)b?"]
NUMBERS: list[Any] = [0, 1, 2, 3, -1, 10, 0.5, 1.5, 2.25, -0.5, 100]
SCALARS = st.one_of(st.sampled_from(STRINGS), st.sampled_from(NUMBERS), st.sampled_from([None, True, False]))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=8,
)  # fmt: skip
TYPES = ["null", "boolean", "number", "integer", "string", "array", "object"]
SMALL = st.integers(0, 4)
COUNT = st.integers(0, 3)


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    many = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from(KEYS), inner, max_size=3)
    names = st.lists(st.sampled_from(KEYS), max_size=3, unique=True)
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": st.one_of(
            st.sampled_from(TYPES), st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True)
        ),
        "enum": st.lists(VALUES, min_size=1, max_size=4),
        "const": VALUES,
        "minimum": st.sampled_from(NUMBERS),
        "maximum": st.sampled_from(NUMBERS),
        "exclusiveMinimum": st.sampled_from(NUMBERS),
        "exclusiveMaximum": st.sampled_from(NUMBERS),
        "multipleOf": st.sampled_from([1, 2, 3, 0.5, 0.25, 1.5, 99991]),
        "minLength": SMALL,
        "maxLength": SMALL,
        "pattern": st.sampled_from(PATTERNS),
        "items": inner,
        "prefixItems": many,
        "minItems": COUNT,
        "maxItems": COUNT,
        "uniqueItems": st.booleans(),
        "contains": inner,
        "minContains": COUNT,
        "maxContains": COUNT,
        "unevaluatedItems": inner,
        "properties": named,
        "required": names,
        "additionalProperties": inner,
        "patternProperties": st.dictionaries(st.sampled_from(PATTERNS), inner, max_size=2),
        "propertyNames": inner,
        "minProperties": COUNT,
        "maxProperties": COUNT,
        "dependentRequired": st.dictionaries(st.sampled_from(KEYS), names, max_size=2),
        "dependentSchemas": st.dictionaries(st.sampled_from(KEYS), inner, max_size=2),
        "unevaluatedProperties": inner,
        "allOf": many,
        "anyOf": many,
        "oneOf": many,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "$ref": st.sampled_from(["#", "#/$defs/p", "#/$defs/q"]),
    }
    chosen = st.lists(st.sampled_from(sorted(keywords)), max_size=4, unique=True)
    return chosen.flatmap(lambda keys: st.fixed_dictionaries({key: keywords[key] for key in keys}))


SCHEMAS = st.recursive(st.one_of(st.booleans(), _schemas(st.booleans())), _schemas, max_leaves=6)


class _Bytes:
    eos_token_id, bos_token_id = 256, None
    tokens = [bytes([i]) for i in range(256)] + [b"\xff[256]"]
    special_token_ids = (256,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


TOKENIZER = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))


def library(schema: Any) -> Any:
    text = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=OPTIONS)
    return llguidance.LLMatcher(TOKENIZER, text, limits=llguidance.LLParserLimits(verbose_errors=False))


def accepts(matcher: Any, value: Any) -> bool:
    state = matcher.deep_copy()
    data = list(json.dumps(value, ensure_ascii=False).encode())
    return state.try_consume_tokens(data) == len(data) and state.is_accepting()


def unordered(value: Any) -> bool:
    """Whether the order of keys cannot matter."""
    if isinstance(value, dict):
        return len(value) < 2 and all(map(unordered, value.values()))
    return not isinstance(value, list) or all(map(unordered, value))


def parts(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema and all objects in it. (No key of a value, nor of a map of schemas, is a keyword.)"""
    if isinstance(schema, dict):
        yield schema
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from parts(each)


def applies_itself(schema: Any) -> bool:
    """Whether a subschema applies itself to the value that it is applied to, which never ends. JSON Schema leaves
    open what that means (core, 9.4.1); with a negation on the way it is a paradox, and validators differ."""
    within: set[int] = set()
    ends: set[int] = set()

    def goes_on(part: Any) -> bool:
        if not isinstance(part, dict) or id(part) in ends:
            return False
        if id(part) in within:
            return True
        within.add(id(part))
        applied = [part[key] for key in ("not", "if", "then", "else") if key in part]
        applied += [each for key in ("allOf", "anyOf", "oneOf") for each in part.get(key, ())]
        applied += part.get("dependentSchemas", {}).values()
        if "$ref" in part:
            name = part["$ref"].removeprefix("#").removeprefix("/$defs/")
            applied.append(schema["$defs"][name] if name else schema)
        found = any(map(goes_on, applied))
        ends.add(id(part))
        return found

    return any(map(goes_on, parts(schema)))


def passes_check(normalised: Normalised, value: Any) -> bool:
    checks = normalised.checks
    assert checks is not None
    return passes(checks, value)


def check(schema: Any, values: list[Any]) -> None:
    try:
        reference = jsonschema_rs.validator_for(schema)
    except ValueError:
        assume(False)
    try:
        normalised = normalise(schema)
    except GrammarError as refusal:
        error = str(refusal)
    else:
        error = ""
    assume(not applies_itself(schema))
    if error:
        assert "fulfil" in error or "fewer different items" in error
        assert not any(reference.is_valid(value) for value in values)
        return
    rewritten = jsonschema_rs.Draft202012Validator(normalised.schema)
    matcher = library(normalised.schema)
    if matcher.is_error():
        reason = matcher.get_error()
        assert any(known in reason for known in ("nsatisfiable", "limit", "circular references")), reason
        matcher = None
    for value in values:
        right = reference.is_valid(value)
        ours = rewritten.is_valid(value)
        if normalised.checks is None:
            assert ours == right, value
        else:
            assert ours or not right, ("too narrow", value)
            assert (ours and passes_check(normalised, value)) == right, value
        if matcher is None:
            assert not right or normalised.residual
        elif not ours:
            # Exclusive bounds, which the library takes for inclusive ones, are noted for the check.
            caught = normalised.checks is not None and not passes_check(normalised, value)
            assert caught or not accepts(matcher, value), ("wrong accept", value)
        elif unordered(value):
            assert accepts(matcher, value), ("wrong reject", value)


ROOT, P, Q = ({"$ref": name} for name in ("#", "#/$defs/p", "#/$defs/q"))


@pytest.mark.parametrize(
    ("schema", "p", "q", "endless"),
    [
        (ROOT, {}, {}, True),
        ({"allOf": [True, {"anyOf": [P]}]}, {"if": Q}, {"dependentSchemas": {"a": ROOT}}, True),
        ({"items": {"not": P}}, {"oneOf": [P]}, {}, True),
        ({"items": ROOT, "properties": {"a": {"allOf": [ROOT]}}}, {}, {}, False),
        ({**P, "not": Q}, Q, {"contains": ROOT}, False),
    ],
)
def test_what_applies_itself(schema: Any, p: Any, q: Any, endless: bool) -> None:
    assert applies_itself({**schema, "$defs": {"p": p, "q": q}}) is endless


@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True
)
@given(schema=SCHEMAS, p=_schemas(st.booleans()), q=SCHEMAS, values=st.lists(VALUES, min_size=6, max_size=14))
@example({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {}, {}, [{"a": 1}, {"a": 1, "b": 1}, {}, 1])
def test_generated_schemas_keep_their_meaning(schema: Any, p: Any, q: Any, values: list[Any]) -> None:
    if isinstance(schema, dict):
        schema = {**schema, "$defs": {"p": p, "q": q}}
    check(schema, values)


@pytest.mark.slow
@settings(max_examples=12_000, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(schema=SCHEMAS, p=_schemas(st.booleans()), q=SCHEMAS, values=st.lists(VALUES, min_size=10, max_size=20))
def test_many_generated_schemas(schema: Any, p: Any, q: Any, values: list[Any]) -> None:
    if isinstance(schema, dict):
        schema = {**schema, "$defs": {"p": p, "q": q}}
    check(schema, values)
