"""Conversations to prompts: whatever a client sends ends in a prompt or in an error that says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from radixlang.errors import ConfigError, RequestError
from radixlang.text.builtin_templates import TEMPLATES
from radixlang.text.chat_template import ChatTemplate, named_template
from tests.conftest import real_tokenizer
from tests.text import toy

USER = {"role": "user", "content": "Hi"}
STRINGS = "{% for m in messages %}[{{ m.role }}|{{ m['content'] }}]{% endfor %}"
PARTS = "{% for m in messages %}{% for p in m['content'] %}<{{ p.text }}>{% endfor %}{% endfor %}"
EITHER = (
    "{% for m in messages %}{% set content = m.content %}{% if content is string %}={{ content }}{% else %}"
    "{% for p in content %}<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}"
)
CALLS = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %};{% endfor %}"
)


def render(source: str, messages: list[Any], **options: Any) -> str:
    extra = options.pop("extra", {})
    settings = {"tools": None, "add_generation_prompt": True, "continue_final_message": False, **options}
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>", "default_bos": ""}).render(
        messages, **settings, extra=extra
    )


def call(arguments: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }


TEXT_PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


@pytest.mark.parametrize(
    ("source", "kind", "from_text", "from_parts"),
    [
        (STRINGS, "string", "[user|Hi]", "[user|a\nb]"),
        (PARTS, "parts", "<Hi>", "<a><b>"),
        (EITHER, "parts", "=Hi", "<a><b>"),
    ],
)
def test_content_is_given_as_the_template_wants_it(
    source: str, kind: str, from_text: str, from_parts: str
) -> None:
    assert ChatTemplate(source, {}).content_format == kind
    assert render(source, [USER]) == from_text
    assert render(source, [{"role": "user", "content": TEXT_PARTS}]) == from_parts
    assert render(source, [{"role": "user"}, {"role": "user", "content": None}]).count("None") == 0


@pytest.mark.parametrize(
    "loop",
    [
        "{% for p in m['content'] | selectattr('type', 'equalto', 'text') %}{% endfor %}",
        "{% for p in m.content[1:] %}{% endfor %}",
        "{% set parts = m.content %}{% for p in parts %}{% endfor %}",
    ],
)
def test_loops_over_content_are_seen_through_filters_slices_and_variables(loop: str) -> None:
    assert ChatTemplate("{% for m in messages %}" + loop + "{% endfor %}", {}).content_format == "parts"


def test_parts_a_text_template_cannot_take() -> None:
    image = {"type": "image_url", "image_url": {"url": "x"}}
    with pytest.raises(RequestError, match=r"messages\[1\].*'image_url'"):
        render(STRINGS, [USER, {"role": "user", "content": [image]}])


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ('{"a": [1, "é"]}', '{"a": [1, "é"]}'),
        ({"a": 1}, '{"a": 1}'),
        ("{", '"{"'),
        ("", '""'),
        ("[1]", '"[1]"'),
        ("null", '"null"'),
    ],
)
def test_tool_call_arguments(arguments: Any, written: str) -> None:
    assert render(CALLS, [USER, call(arguments)]) == f"user:Hi;assistant:{written};"


def test_the_conversation_is_not_changed() -> None:
    messages = [USER, call('{"a": 1}'), {"role": "assistant", "content": TEXT_PARTS}]
    before = json.dumps(messages)
    render(CALLS, messages)
    render(PARTS, messages, continue_final_message=True)
    assert json.dumps(messages) == before


@pytest.mark.parametrize("arguments", ["{", "", "[1]", "null", '{"a": 1}'])
@pytest.mark.parametrize("fixture", ["smollm2_path", "qwen_path"])
def test_a_truncated_tool_call_in_the_history_of_real_models(
    fixture: str, arguments: str, request: pytest.FixtureRequest
) -> None:
    tokenizer = real_tokenizer(request.getfixturevalue(fixture))
    messages = [USER, call(arguments), {"role": "tool", "tool_call_id": "c", "content": "bad"}, USER]
    assert tokenizer.apply_chat_template(messages).endswith("<|im_start|>assistant\n")


def test_a_template_that_cannot_take_text_arguments_is_a_client_error() -> None:
    source = (
        "{% for m in messages %}{% for k in m.tool_calls[0].function.arguments.items() %}{% endfor %}{% endfor %}"
    )
    with pytest.raises(RequestError, match="cannot render") as caught:
        render(source, [call("{")])
    assert caught.value.status == 400


def test_developer_becomes_system_unless_the_template_knows_it() -> None:
    message = {"role": "developer", "content": "x"}
    assert render(STRINGS, [message]) == "[system|x]"
    assert render("{# developer #}" + STRINGS, [message]) == "[developer|x]"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one"),
        ([{"content": "x"}], r"messages\[0\] must be an object with a role"),
        ([USER, "x"], r"messages\[1\] must be an object"),
        ([{"role": "user", "content": 5}], r"messages\[0\].content"),
        ([{"role": "user", "content": [5]}], r"messages\[0\].content"),
        ([{"role": "user", "content": "x", "tool_calls": "f"}], r"messages\[0\].tool_calls"),
    ],
)
def test_malformed_messages(messages: list[Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        render(STRINGS, messages)
    assert caught.value.param == "messages"


def test_what_the_template_says_reaches_the_client() -> None:
    with pytest.raises(RequestError, match="Roles must alternate!"):
        render("{{ raise_exception('Roles must alternate!') }}", [USER])
    with pytest.raises(RequestError, match="not valid"):
        render("{% for %}", [USER])


def test_the_sandbox_holds() -> None:
    for source in ("{{ messages.append(1) }}", "{{ ''.__class__.__mro__[1].__subclasses__() }}"):
        with pytest.raises(RequestError, match="cannot render"):
            render(source, [USER])


def test_helpers_and_layout_that_templates_rely_on() -> None:
    source = (
        "{% for i in range(9) %}\n    {% if i == 2 %}{% break %}{% endif %}\n{{ i }}\n{% endfor %}"
        "{% generation %}g{% endgeneration %}"
        "{{ {'b': '<é>', 'a': 1} | tojson }}{{ strftime_now('%%') }}{{ bos_token }}"
    )
    assert render(source, [USER]) == '0\n1\ng{"b": "<é>", "a": 1}%<s>'
    assert render("{{ [1] | tojson(indent=1) }}", [USER]) == "[\n 1\n]"


def test_extra_variables_reach_the_template_but_cannot_hide_the_conversation() -> None:
    source = "{{ enable_thinking }} {{ messages | length }}"
    assert render(source, [USER], extra={"enable_thinking": False, "messages": []}) == "False 1"


def test_tools_and_generation_prompt() -> None:
    source = "{{ tools | tojson if tools else 'none' }}{{ '>' if add_generation_prompt }}"
    assert render(source, [USER], tools=[{"type": "function"}]) == '[{"type": "function"}]>'
    assert render(source, [USER], tools=[], add_generation_prompt=False) == "none"


@pytest.mark.parametrize("final", ["The capital is ", "", "Hi"])
def test_the_final_message_can_be_continued(final: str) -> None:
    messages = [USER, {"role": "assistant", "content": final}]
    for source in (TEMPLATES["chatml"], "{% set x = 1 %}" + TEMPLATES["chatml"]):
        text = render(source, messages, continue_final_message=True)
        assert text == f"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{final}"
    assert render(PARTS, [{"role": "user", "content": TEXT_PARTS}], continue_final_message=True) == "<a><b"
    with pytest.raises(RequestError, match="cannot be continued"):
        render("nothing", messages, continue_final_message=True)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_built_in_templates(name: str) -> None:
    turns = [
        {"role": "system", "content": "SYS"},
        USER,
        {"role": "assistant", "content": "Yo"},
        {"role": "user", "content": "Go"},
    ]
    text = render(named_template(name), turns)
    assert [text.index(part) for part in ("SYS", "Hi", "Yo", "Go")] == sorted(
        text.index(p) for p in ("SYS", "Hi", "Yo", "Go")
    )
    assert render(named_template(name), [USER]).count("Hi") == 1


def test_formats_of_built_in_templates() -> None:
    turns = [{"role": "system", "content": "S"}, USER]
    assert (
        render(TEMPLATES["gemma-it"], turns) == "<start_of_turn>user\nS\n\nHi<end_of_turn>\n<start_of_turn>model\n"
    )
    assert render(TEMPLATES["llama-3-instruct"], [USER]) == (
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert render(TEMPLATES["mistral"], turns) == "[INST] S\n\nHi[/INST]"
    assert render(TEMPLATES["llama-2"], turns) == "[INST] <<SYS>>\nS\n<</SYS>>\n\nHi [/INST]"
    assert render(TEMPLATES["vicuna_v1.1"], turns) == "S USER: Hi ASSISTANT:"


def test_exactly_one_bos() -> None:
    writes_bos = toy.byte_level("{{ bos_token }}{{ messages[0].content }}")
    built_in = toy.byte_level(TEMPLATES["chatml"])
    for tokenizer in (writes_bos, built_in):
        ids = tokenizer.encode_chat([USER])
        assert ids[0] == tokenizer.bos_id
        assert ids.count(tokenizer.bos_id) == 1
        assert ids == tokenizer.encode(tokenizer.apply_chat_template([USER]), add_special_tokens=False)
    assert toy.byte_level().encode("x").count(writes_bos.bos_id) == 1


def test_a_model_without_template_says_what_to_do() -> None:
    with pytest.raises(RequestError, match="--chat-template") as caught:
        toy.byte_level().encode_chat([USER])
    assert caught.value.status == 400
    assert toy.byte_level().chat_template is None


def test_choice_of_template(tmp_path: Path) -> None:
    jinja, wrapped, bad = tmp_path / "a.jinja", tmp_path / "b.json", tmp_path / "c.jinja"
    jinja.write_text(STRINGS)
    wrapped.write_text(json.dumps({"chat_template": PARTS}))
    bad.write_text("{% for %}")
    assert named_template(str(jinja)) == STRINGS
    assert named_template(str(wrapped)) == PARTS
    for choice, message in [
        ("unheard-of", "chatml"),
        (str(tmp_path / "none.jinja"), "cannot be read"),
        (str(bad), "not valid Jinja"),
    ]:
        with pytest.raises(ConfigError, match=message):
            named_template(choice)
    wrapped.write_text("[]")
    with pytest.raises(ConfigError, match="chat_template"):
        named_template(str(wrapped))
