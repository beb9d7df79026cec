"""The bound on the shortest text of a schema: never below it, and finite where that is easily told."""

from __future__ import annotations

import math
from typing import Any

import pytest

from radixlang.grammar.measure import measure_schema
from radixlang.grammar.schema import normalise
from radixlang.grammar.schema.shortest import shortest_at_most
from tests.grammar.test_schema_work import SHAPES

VALUES = {"next": {"$ref": "#/$defs/n"}, "v": {"enum": ["abc", 1]}}
NODE = {"type": "object", "properties": VALUES, "required": ["v"]}


@pytest.mark.parametrize(
    ("schema", "finite"),
    [
        (True, True),
        ({"type": "string", "minLength": 300}, True),
        ({"enum": ["é" * 50, "ab\n"]}, True),
        ({"type": "array", "minItems": 7, "items": {"type": "integer", "minimum": 10**9}}, True),
        ({"type": "array", "prefixItems": [{"const": "x" * 40}] * 3, "minItems": 3, "items": False}, True),
        ({"$ref": "#/$defs/n", "$defs": {"n": NODE}}, True),
        ({"anyOf": [{"type": "string", "pattern": "^a{900}$"}, {"type": "array", "minItems": 2}]}, True),
        ({"type": "object", "required": ["a", "b"], "additionalProperties": {"const": "y" * 90}}, True),
        ({"type": "object", "required": ["x1"], "patternProperties": {"^x": {"type": "null"}}}, None),
        ({"type": ["object", "null"], "minProperties": 3}, None),
    ],
)
def test_is_no_less_than_the_shortest_text(schema: Any, finite: bool | None) -> None:
    written = normalise(schema).schema
    bound, least = shortest_at_most(written), measure_schema(written).least
    assert bound >= least
    assert finite is None or (bound < math.inf) is finite


@pytest.mark.parametrize("name", SHAPES)
def test_of_large_schemas(name: str) -> None:
    written = normalise(SHAPES[name](40)).schema
    assert measure_schema(written).least <= shortest_at_most(written) < 1 << 20


def test_a_long_chain_is_not_told_at_a_glance() -> None:
    schema = normalise(SHAPES["definitions that need the next one"](1_500)).schema
    assert shortest_at_most(schema) == math.inf


def test_what_doubles_is_not_small() -> None:
    definitions = {
        f"d{i}": {"type": "array", "minItems": 2, "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(30)
    }
    schema = {"$ref": "#/$defs/d0", "$defs": definitions | {"d30": {"type": "null"}}}
    assert shortest_at_most(schema) > 1 << 30
