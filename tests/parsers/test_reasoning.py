"""Thoughts and answers, whole and in pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlang.errors import ConfigError
from radixlang.parsers.reasoning import (
    REASONING,
    ReasoningParser,
    detect_reasoning,
    find_reasoning,
    parse_reasoning,
)

HARMONY = (
    "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>commentary<|message|>One moment."
    "<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
)


def read(name, pieces, opened=None, verbatim=False):
    parser = ReasoningParser(REASONING[name], opened, verbatim)
    parts = [*map(parser.feed, pieces), parser.close()]
    return "".join(part.reasoning for part in parts), "".join(part.text for part in parts)


def test_every_format_reads_its_own_marks() -> None:
    for name, form in REASONING.items():
        if form.inline:
            assert parse_reasoning(form, "a\n</think>\n\nb") == ("", "<think>a\n</think>\n\nb")
            continue
        text = f"{form.start}\nfirst a,\nthen b\n{form.end}\n\nThe answer. "
        assert parse_reasoning(form, text) == (
            "first a,\nthen b",
            "The answer. " if name != "gpt-oss" else "\n\nThe answer. ",
        )
        assert read(name, list(text)) == parse_reasoning(form, text)


def test_open_from_the_first_token() -> None:
    assert parse_reasoning(REASONING["deepseek-r1"], "so\n</think>\nyes") == ("so", "yes")
    assert parse_reasoning(REASONING["qwen3"], "no thoughts </think>") == ("", "no thoughts </think>")
    assert parse_reasoning(REASONING["qwen3"], "  <b> plain") == ("", "  <b> plain")
    assert read("qwen3", ["cut off"], opened=True) == ("cut off", "")
    assert read("deepseek-r1", ["<think>x"], opened=False) == ("", "<think>x")


def test_what_a_request_decides() -> None:
    qwen, v3, r1 = REASONING["qwen3"], REASONING["deepseek-v3"], REASONING["deepseek-r1"]
    assert qwen.begins_open("<|im_start|>assistant\n", {}) is None
    assert qwen.begins_open("<|im_start|>assistant\n<think>\n", {}) is True
    assert qwen.begins_open("<|im_start|>assistant\n<think>\n\n</think>\n\n", {}) is False
    assert qwen.begins_open("assistant\n", {"enable_thinking": False}) is False
    assert v3.begins_open("<｜Assistant｜>", {}) is False
    assert v3.begins_open("<｜Assistant｜>", {"thinking": True}) is None
    assert r1.begins_open("<｜Assistant｜>", {}) is True


def test_thoughts_may_end_with_a_call() -> None:
    text = "<think>hm <|tool_calls_section_begin|><|tool_call_begin|>"
    assert read("kimi_k2", [text]) == ("hm", "<|tool_calls_section_begin|><|tool_call_begin|>")


def test_harmony_channels() -> None:
    call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
    assert read("gpt-oss", [HARMONY]) == ("Easy.", "One moment." + call)
    assert read("gpt-oss", ["<|channel|>final<|message|>Hi"]) == ("", "Hi")


@pytest.mark.parametrize("opened", [None, True, False])
@pytest.mark.parametrize("verbatim", [False, True])
@pytest.mark.parametrize("name", sorted(REASONING))
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_split_gives_the_same(name: str, verbatim: bool, opened: bool | None, data: st.DataObject) -> None:
    form = REASONING[name]
    shards = [
        form.start,
        form.end,
        *form.breaks,
        HARMONY,
        " ",
        "\n",
        "word",
        "<",
        "</thi",
        "<|channel|>",
        "<|end|>",
    ]
    text = "".join(data.draw(st.lists(st.sampled_from(shards), max_size=8)))
    marks = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=20))})
    pieces = [text[a:b] for a, b in itertools.pairwise(marks)]
    whole = read(name, [text], opened, verbatim)
    assert read(name, pieces, opened, verbatim) == whole
    if verbatim and name != "gpt-oss" and not form.inline:
        assert "".join(whole) == text


def test_names() -> None:
    with pytest.raises(ConfigError, match="known are: auto, none, deepseek-r1"):
        find_reasoning("deepseek_r1", None)
    assert find_reasoning("none", "</think>") is None
    assert find_reasoning("auto", None) is None


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{%- if enable_thinking is false %}<think>\n\n</think>{% endif %}", "qwen3"),
        ("<｜Assistant｜>{% if thinking %}<think>{% else %}</think>", "deepseek-v3"),
        ("<｜Assistant｜><think>\n {{ content.split('</think>')[-1] }}", "deepseek-r1"),
        ("<arg_key> </think>", "glm45"),
        ("[THINK]", "mistral"),
        ("<|channel|>analysis", "gpt-oss"),
        ("{{ content }}", None),
        ("<|tool_calls_section_begin|>", None),
    ],
)
def test_format_from_the_template(template: str, name: str | None) -> None:
    assert detect_reasoning(template) == name
