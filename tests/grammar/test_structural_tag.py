"""Structural tags: which texts each format takes, and how what is wrong is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.limits import GrammarLimits
from radixlang.grammar.llg import LlguidanceEngine
from radixlang.grammar.structural_tag import MAX_DEPTH, MAX_NODES, to_lark
from radixlang.messages import GrammarSpec

NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}
TEXT = {"type": "any_text"}


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def tag(begin: str, content: Any, end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


@pytest.fixture(scope="module")
def engine(vocabulary):
    return LlguidanceEngine(vocabulary, GrammarLimits())


def takes(engine, vocabulary, value: Any, text: str) -> bool:
    """Whether the tag takes exactly this text; special tokens in it are tokens."""
    state = engine.compile(GrammarSpec("structural_tag", json.dumps(value))).start()
    for part in text.split("\0"):
        ids = [vocabulary.special[part]] if part in vocabulary.special else vocabulary.encode(part)
        if not all(map(state.accept, ids)):
            return False
    return state.can_end


CASES = [
    (const("a b"), ["a b"], ["", "a", "a bc"]),
    (NUMBER, ["12", "-3"], ["1.5", "x"]),
    ({"type": "regex", "pattern": "[ab]/\\d{2}"}, ["a/12", "b/00"], ["a/1", "c/12"]),
    (TEXT, ["", "anything\n\n{<"], []),
    ({"type": "sequence", "elements": [const("x="), NUMBER]}, ["x=4"], ["4", "x="]),
    ({"type": "or", "elements": [const("yes"), const("no"), const("")]}, ["yes", "no", ""], ["yesno"]),
    (tag("<b>", TEXT, "</b>"), ["<b></b>", "<b>x < y</b>"], ["<b>x", "<b>x</b>y", "<b>x</b></b>"]),
    (tag("<n>", NUMBER, ["</n>", "<n/>"]), ["<n>1</n>", "<n>1<n/>"], ["<n>x</n>"]),
    (
        {
            "type": "triggered_tags",
            "triggers": ["<f"],
            "tags": [tag("<f=a>", NUMBER, "</f>"), tag("<f=b>", TEXT, "</f>")],
        },
        ["", "free text", "a<f=a>1</f>b<f=b>x</f>", "<g>"],
        ["<f", "<f=c>1</f>", "<f=a>x</f>", "<f=a>1</f><f"],
    ),
    (
        {"type": "triggered_tags", "triggers": ["<f"], "tags": [tag("<f>", NUMBER, "</f>")], "at_least_one": True},
        ["<f>1</f>", "a<f>1</f>b"],
        ["", "text"],
    ),
    (
        {
            "type": "triggered_tags",
            "triggers": ["<f"],
            "tags": [tag("<f>", NUMBER, "</f>")],
            "stop_after_first": True,
        },
        ["", "text", "a<f>1</f>"],
        ["<f>1</f>b", "<f>1</f><f>2</f>"],
    ),
    (
        {"type": "tags_with_separator", "tags": [tag("(", NUMBER, ")")], "separator": "; "},
        ["", "(1)", "(1); (2); (3)"],
        ["(1)(2)", "(1); "],
    ),
    (
        {"type": "tags_with_separator", "tags": [tag("(", NUMBER, ")")], "separator": "", "at_least_one": True},
        ["(1)", "(1)(2)"],
        [""],
    ),
    (
        {
            "type": "tags_with_separator",
            "tags": [tag("(", NUMBER, ")")],
            "separator": ",",
            "stop_after_first": True,
        },
        ["", "(1)"],
        ["(1),(2)"],
    ),
    (
        {
            "type": "qwen_xml_parameter",
            "json_schema": {
                "type": "object",
                "properties": {
                    "a": {"type": "string"},
                    "b": {"type": "integer"},
                    "c": {"type": "string", "enum": ["x"]},
                },
                "required": ["a"],
            },
        },
        [
            "<parameter=a>\nany <b>\n</parameter>\n",
            "<parameter=a>\n\n</parameter>\n<parameter=b>\n3\n</parameter>\n<parameter=c>\nx\n</parameter>\n",
        ],
        ["", "<parameter=a>\nx\n</parameter>\n<parameter=b>\ny\n</parameter>\n"],
    ),
]


@pytest.mark.parametrize(
    ("format", "good", "bad"), CASES, ids=lambda value: value.get("type") if isinstance(value, dict) else None
)
def test_formats(format: Any, good: list[str], bad: list[str], engine, vocabulary) -> None:
    value = {"type": "structural_tag", "format": format}
    assert [text for text in good if not takes(engine, vocabulary, value, text)] == []
    assert [text for text in bad if takes(engine, vocabulary, value, text)] == []


def test_older_notation(engine, vocabulary) -> None:
    value = {
        "structures": [
            {"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"},
            {"begin": "<g>", "end": "</g>"},
        ],
        "triggers": ["<f", "<g"],
    }
    assert takes(engine, vocabulary, value, 'a <f>1</f> b <g>"x"</g>')
    assert not takes(engine, vocabulary, value, "a <f>x</f>")


def test_special_tokens_are_tokens(engine, vocabulary) -> None:
    value = {"type": "structural_tag", "format": tag("<|im_start|>", NUMBER, "<|im_end|>")}
    assert not takes(engine, vocabulary, value, "<|im_start|>1<|im_end|>")
    assert not takes(engine, vocabulary, value, "\0<|im_start|>\0x")
    state = engine.compile(GrammarSpec("structural_tag", json.dumps(value))).start()
    assert state.accept(vocabulary.special["<|im_start|>"])
    assert state.accept(vocabulary.encode("1")[0])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "must be a JSON object"),
        ({}, "needs `format`"),
        ({"structures": 3, "triggers": []}, "list of objects"),
        ({"format": {"type": "xml"}}, "unknown format type 'xml'"),
        ({"format": {"type": ["or"]}}, "unknown format type"),
        ({"format": 3}, "at #/format"),
        (
            {"format": {"type": "sequence", "elements": [const("a"), {"type": "const_string"}]}},
            "/format/elements/1",
        ),
        ({"format": tag("a", NUMBER, 3)}, "/format/end"),
        ({"format": {"type": "or", "elements": []}}, "not empty"),
        (
            {"format": {"type": "triggered_tags", "triggers": ["x"], "tags": [tag("a", TEXT, "b")]}},
            "/format/tags/0/begin",
        ),
        (
            {"format": {"type": "triggered_tags", "triggers": [""], "tags": [tag("a", TEXT, "b")]}},
            "/format/triggers",
        ),
        ({"format": {"type": "json_schema", "json_schema": {"type": "whole"}}}, "/format/json_schema"),
        (
            {"format": {"type": "json_schema", "json_schema": {"type": "array", "uniqueItems": True}}},
            "uniqueItems",
        ),
        ({"format": {"type": "grammar", "grammar": "x"}}, "unknown format type 'grammar'"),
        ({"format": {**TEXT, "excludes": ["x"]}}, "at #/format/excludes, `excludes` has no meaning"),
        ({"format": TEXT, "at_least_one": True}, "at #/at_least_one"),
        ({"type": "regex", "format": TEXT}, "at #/type"),
        ({"structures": [{"begin": "a", "schem": {}}], "triggers": ["a"]}, "at #/structures/0/schem"),
        ({"structures": [], "triggers": ["a"], "stop": 1}, "at #/stop"),
        ({"format": {**const("a"), "pattern": "b"}}, "/format/pattern"),
        ({"format": {**NUMBER, "style": "xml"}}, "/format/style"),
        *(
            ({"format": {"type": "tags_with_separator", "separator": "", "tags": [inner], **more}}, words)
            for inner, more, words in (
                (tag("a", TEXT, "b"), {"at_least_on": True}, "/format/at_least_on,"),
                (tag("a", TEXT, "b"), {"at_least_one": "yes"}, "/format/at_least_one, `at_least_one` must be"),
                ({**tag("a", TEXT, "b"), "a/b": 1}, {}, "/format/tags/0/a~1b"),
                ({**tag("a", TEXT, "b"), "type": "regex"}, {}, "/format/tags/0/type"),
            )
        ),
        (
            {"format": {"type": "triggered_tags", "triggers": ["a"], "tags": [tag("a", TEXT, "b")], "at_leas": 1}},
            "/format/at_leas,",
        ),
        ({"format": {"type": "or", "elements": [const("a")] * (MAX_NODES + 1)}}, "parts"),
    ],
)
def test_refusals(value: Any, words: str, engine) -> None:
    with pytest.raises(GrammarError) as error:
        engine.compile(GrammarSpec("structural_tag", json.dumps(value)))
    assert words in str(error.value)
    assert error.value.param == "structural_tag"


def test_depth_is_limited(engine) -> None:
    deep: Any = const("a")
    for _ in range(MAX_DEPTH + 1):
        deep = {"type": "sequence", "elements": [deep]}
    with pytest.raises(GrammarError, match="levels"):
        engine.compile(GrammarSpec("structural_tag", json.dumps({"format": deep})))


def test_expressions_mean_what_they_mean_elsewhere(vocabulary) -> None:
    tag = {"format": {"type": "regex", "pattern": "a++b"}}
    with pytest.raises(
        GrammarError, match="at #/format/pattern, regex cannot be held: it uses possessive repeats"
    ):
        to_lark(tag, vocabulary)
