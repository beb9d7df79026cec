"""The normaliser's work, counted in calls: twice the schema takes about twice as many; and its bounds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import jsonschema_rs
import pytest

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.measure import measure_schema
from radixlang.grammar.schema import automaton, compile, document, normalise, regex
from radixlang.grammar.schema.pattern import Language

SIZE = 60


def calls(function: Callable[[Any], Any], argument: Any) -> int:
    """How many functions written in Python are called."""
    count = 0

    def see(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        function(argument)
    finally:
        sys.setprofile(before)
    return count


def chain(count: int, link: Callable[[dict[str, str], int], Any]) -> dict[str, Any]:
    """Definitions each of which refers to the next one."""
    definitions = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}, i) for i in range(count)}
    return {"$defs": definitions | {f"d{count}": {"type": "string"}}}


SHAPES: dict[str, Callable[[int], Any]] = {
    "properties": lambda n: {"properties": {f"k{i}": {"maxLength": i + 1} for i in range(n)}},
    "required properties": lambda n: {
        "type": "object", "required": [f"k{i}" for i in range(n)],
        "properties": {f"k{i}": {"type": "integer", "minimum": i} for i in range(n)}},
    "the same pattern everywhere": lambda n: {
        "properties": {f"k{i}": {"pattern": "^[a-z]{3,20}-(?!x)[0-9]*$", "maxLength": 30} for i in range(n)}},
    "definitions in a chain": lambda n: {
        "$ref": "#/$defs/d0", **chain(n, lambda next_one, i: {"properties": {"a": next_one, "b": {}}})},
    "definitions that need the next one": lambda n: {
        "$ref": "#/$defs/d0",
        **chain(n, lambda next_one, i: {"type": "object", "properties": {"a": next_one}, "required": ["a"]})},
    "definitions that need one before": lambda n: {
        "properties": {f"p{i}": {"$ref": f"#/$defs/d{n - i}"} for i in range(n)},
        **chain(n, lambda next_one, i: {"type": "object", "properties": {"a": next_one}, "required": ["a"]})},
    "references to references": lambda n: {
        "properties": {f"p{i}": {"$ref": f"#/$defs/d{i}"} for i in range(n)},
        **chain(n, lambda next_one, i: next_one)},
    "anyOf": lambda n: {"anyOf": [{"const": f"v{i}"} for i in range(n)]},
    "allOf": lambda n: {
        "allOf": [{"type": "object", "properties": {f"k{i}": {}}, "required": [f"k{i}"]} for i in range(n)]},
    "prefixItems": lambda n: {
        "type": "array", "prefixItems": [{"type": "integer", "minimum": i} for i in range(n)], "minItems": n},
    "residual keywords": lambda n: {
        "properties": {f"k{i}": {"type": "array", "uniqueItems": True, "items": {}} for i in range(n)}},
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_twice_the_schema_is_twice_the_work(name: str) -> None:
    once, twice = SHAPES[name](SIZE), SHAPES[name](2 * SIZE)
    normalise(once)  # patterns are kept
    assert calls(normalise, twice) < 2.3 * calls(normalise, once)
    small, large = normalise(once).schema, normalise(twice).schema
    measure_schema(small)
    assert calls(measure_schema, large) < 2.3 * calls(measure_schema, small)


@pytest.mark.parametrize(
    "schema",
    [
        {"patternProperties": {f"^x{i}_": {"minimum": i} for i in range(1_000)}},
        {"allOf": [{"properties": {f"k{i}": {}}, "additionalProperties": {"minimum": i}} for i in range(1_000)]},
        {"patternProperties": {f"^x{i}_": {"minimum": i} for i in range(60)},
         "properties": {f"{'k' * 80}{i}": {} for i in range(2_000)}},
    ],
)  # fmt: skip
def test_work_without_measure_is_refused(schema: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile, "MAX_WORK", 1_000_000)
    with pytest.raises(GrammarError, match="combine in too many ways; simplify"):
        normalise(schema)


def test_a_pattern_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    parser = regex._Parser
    monkeypatch.setattr(regex, "_Parser", lambda text: read.append(text) or parser(text))
    normalise({"properties": {f"k{i}": {"pattern": "^read once$", "maxLength": 20} for i in range(20)}})
    assert read == ["^read once$"]


def test_a_string_is_found_without_the_whole_automaton(monkeypatch: pytest.MonkeyPatch) -> None:
    unfolded: list[int] = []
    unfold = automaton.Product._unfold
    monkeypatch.setattr(
        automaton.Product, "_unfold", lambda self, state: unfolded.append(state) or unfold(self, state)
    )
    assert not Language((("^[a-f]{1,20}[0-9]{1,20}q{1,20}$", True),)).empty(3, 50)
    assert len(unfolded) <= 5
    assert Language((("^(?:ab)*$", True),)).empty(3, 3)
    assert Language((("^[a-c]*$", True), ("d", True))).empty()
    assert not Language((("^[a-c]*$", True), ("c", False))).empty(7)


def test_only_documents_that_name_parts_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[Any] = []
    index = document.Document._index
    monkeypatch.setattr(
        document.Document, "_index", lambda self, nodes: searched.append(self.schema) or index(self, nodes)
    )
    normalise({"$id": "http://x.test/whole", "properties": {"id": {"type": "string"}, "$anchor": {}}})
    assert not searched
    named = {"$ref": "#a", "$defs": {"x": {"$anchor": "a", "type": "null"}}}
    normalise(named)
    assert searched == [named]


@pytest.mark.parametrize("count", [3, 300])
def test_many_constants_with_descriptions_are_one_choice(count: int) -> None:
    constants = [{"const": f"v{i}", "description": f"the {i}th"} for i in range(count)]
    normalised = normalise({"oneOf": constants})
    assert not normalised.residual
    assert normalised.schema == {"anyOf": [{"enum": [f"v{i}"]} for i in range(count)]}


def test_branches_with_a_constant_member_exclude_one_another() -> None:
    def branch(kind: str) -> Any:
        return {
            "type": "object",
            "properties": {"kind": {"const": kind}, "of": {"$ref": "#"}},
            "required": ["kind"],
        }

    normalised = normalise({"oneOf": [branch(f"k{i}") for i in range(40)]})
    assert not normalised.residual
    assert len(normalised.schema["$defs"]["s0"]["anyOf"]) == 40


def test_branches_that_need_the_whole_are_compared() -> None:
    def branch(kind: str, **members: Any) -> Any:
        members = {"first": {"$ref": "#"}, "kind": {"const": kind}, **members}
        return {"type": "object", "properties": members, "required": list(members)[kind == "leaf" :]}

    inner = {"kind": "pair", "first": {"kind": "leaf"}}
    normalised = normalise({"oneOf": [branch("leaf"), branch("pair")]})
    assert not normalised.residual
    assert jsonschema_rs.Draft202012Validator(normalised.schema).is_valid({"kind": "pair", "first": inner})
    endless = normalise({"oneOf": [branch("leaf"), branch("pair", again={"$ref": "#/oneOf/1"})]})
    assert "pair" not in str(endless.schema)
