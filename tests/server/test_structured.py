"""Structured answers and tool calls through a real HTTP server over the fake engine.

The fake engine says what the prompt tells it to, whatever the constraint: here it is seen that the right
constraint reaches the engine, and that what comes back is read rightly, streamed or not.
"""

import json
import re
from typing import Any

import pytest

from radixlang.errors import RequestError
from radixlang.messages import GrammarSpec
from radixlang.parsers.tools import Tool, find_syntax
from radixlang.server.openai.tools import ToolUse, plan_calls

from .fakes import Live, live
from .structuring import CALLS, CHAT, CLOCK, SCHEMA, WEATHER, ask, both, spec, tag, tool_of

# ---- constraints ----


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            "json_schema",
            SCHEMA,
        ),
        ({"response_format": {"type": "json_object"}}, "json_schema", {"type": "object"}),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema", SCHEMA),
        ({"json_schema": SCHEMA}, "json_schema", SCHEMA),
        ({"json_schema": json.dumps(SCHEMA)}, "json_schema", SCHEMA),
        ({"regex": "a+"}, "regex", None),
        ({"ebnf": "a+"}, "ebnf", None),
        ({"guided_json": SCHEMA}, "json_schema", SCHEMA),
        ({"guided_regex": "a+"}, "regex", None),
        ({"guided_grammar": "a+"}, "ebnf", None),
        ({"guided_choice": ["a", "ß"]}, "choice", ["a", "ß"]),
        ({"structured_outputs": {"choice": ["a"]}}, "choice", ["a"]),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA),
        ({"structured_outputs": {"json_object": True}}, "json_schema", {"type": "object"}),
        ({"structured_outputs": {"regex": "a+"}}, "regex", None),
        ({"structured_outputs": {"grammar": "a+"}}, "ebnf", None),
        (
            {"structural_tag": {"type": "structural_tag", "format": {}}},
            "structural_tag",
            {"type": "structural_tag", "format": {}},
        ),
        (
            {"response_format": {"type": "structural_tag", "format": {"a": 1}}},
            "structural_tag",
            {"type": "structural_tag", "format": {"a": 1}},
        ),
        (
            {"response_format": {"type": "structural_tag", "structures": [{}], "triggers": ["x"]}},
            "structural_tag",
            {"structures": [{}], "triggers": ["x"]},
        ),
    ],
)
def test_every_spelling(server: Live, fields: dict, kind: str, text: Any) -> None:
    for path, body in ((CHAT, ask("x")), ("/v1/completions", {"prompt": ["[say:x]", "[say:y]"]})):
        server.ok(path, {**body, **fields})
        found = spec(server)
        assert found is not None
        assert found.kind == kind
        if text is None:
            assert found.text == "a+"
        else:
            assert json.loads(found.text) == text
            assert list(json.loads(found.text)) == list(text)


def test_no_constraint(server: Live) -> None:
    for fields in (
        {},
        {"response_format": {"type": "text"}},
        {"regex": ""},
        {"json_schema": None},
        {"tools": [CLOCK]},
    ):
        server.ok(CHAT, ask("x", **fields))
        assert spec(server) is None


def test_native_constraints(server: Live) -> None:
    for field, value in (
        ("json_schema", json.dumps(SCHEMA)),
        ("regex", "a"),
        ("ebnf", "a"),
        ("structural_tag", "{}"),
    ):
        server.ok("/generate", {"text": "[say:x]", "sampling_params": {field: value}})
        assert spec(server) == GrammarSpec(field, value)
    error = server.refused("/generate", {"text": "x", "sampling_params": {"json_schema": SCHEMA}})
    assert error["param"] == "json_schema"


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format", "json_schema.schema"),
        ({"response_format": {"type": "structural_tag"}}, "response_format", "triggers"),
        ({"response_format": {"type": "xml"}}, "response_format", "xml"),
        ({"regex": "a", "ebnf": "b"}, "ebnf", "regex and ebnf exclude"),
        ({"guided_json": SCHEMA, "response_format": {"type": "json_object"}}, "guided_json", "exclude"),
        ({"json_schema": "{"}, "json_schema", "not valid JSON"),
        ({"guided_choice": []}, "guided_choice", "length >= 1"),
        ({"guided_choice": [1]}, "guided_choice", "str"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "any-whitespace"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice", "exclude"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tool_choice": "required", "tools": [CLOCK], "regex": "a"}, "tool_choice", "regex exclude"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}, "tools": [CLOCK]},
            "tool_choice",
            "has clock",
        ),
        ({"tool_choice": {"type": "function"}, "tools": [CLOCK]}, "tool_choice", "name"),
        ({"tool_choice": {"type": "custom"}, "tools": [CLOCK]}, "tool_choice", "must be"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": 3}}]}, "tools", "parameters"),
        ({"thinking_budget": 5}, "thinking_budget", "--reasoning-parser"),
        ({"structured_outputs": {"foo": 1}}, "structured_outputs", "foo"),
        ({"structured_outputs": {"regex": "a", "foo": 1}}, "structured_outputs", "foo"),
        ({"structured_outputs": {}}, "structured_outputs", "needs one of"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs", "needs one of"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs", "needs one of"),
        ({"response_format": {"type": "json_object", "strict": True}}, "response_format", "strict"),
        ({"response_format": {"type": "json_object", "json_schema": {}}}, "response_format", "no json_schema"),
        ({"response_format": {"type": "text", "schema": SCHEMA}}, "response_format", "no schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"shema": {}}}}, "response_format", "shema"),
        ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend", "--grammar-backend"),
        ({"grammar": 'root ::= "a"'}, "grammar", "ebnf"),
        ({"extra_body": {"regex": "a"}}, "extra_body", "into the body"),
        ({"reasoning_effort": "zz"}, "reasoning_effort", "one of none, minimal"),
        ({"reasoning": {"effort": "zz"}}, "reasoning.effort", "'zz'"),
        ({"reasoning": {"max_tokens": 3}}, "reasoning", "max_tokens"),
        ({"thinking": {"type": "enabled", "budget": 3}}, "thinking", "budget"),
        ({"tools": [CLOCK, WEATHER, CLOCK]}, "tools", "tools[2].function.name 'clock' is taken"),
        *(
            ({"tools": [tool_of(parameters)], "tool_choice": choice}, "tools", "must describe an object")
            for parameters in ({"type": "integer", "maximum": 3}, {"type": ["array", "null"]}, {"type": "obj"})
            for choice in ("auto", "required", "none")
        ),
        ({"tools": [tool_of({"properties": {"a": {"type": "whole"}}})]}, "tools", "/properties/a"),
        ({"tools": [tool_of({}, strict=True)]}, "tools", "has no tool-call syntax"),
    ],
)
def test_refusals(server: Live, fields: dict, param: str, words: str) -> None:
    error = server.refused(CHAT, ask("x", **fields))
    assert (error["param"], words in error["message"]) == (param, True), error


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, "response_format"),
        (CHAT, {"regex": "a+"}, "regex"),
        (CHAT, {"tools": [WEATHER], "tool_choice": "required"}, "tools"),
        (CHAT, {}, None),
        ("/v1/completions", {"ebnf": 'root ::= "a"'}, "ebnf"),
        ("/generate", {"sampling_params": {"json_schema": json.dumps(SCHEMA)}}, "json_schema"),
        ("/generate", {}, None),
    ],
)
def test_what_the_engine_cannot_compile_is_named(server: Live, path: str, fields: dict, param: str | None) -> None:
    say = "[fail:400]"
    body = {"messages": [{"role": "user", "content": say}]} if path == CHAT else {"prompt": say}
    error = server.refused(path, {"text": say, **fields} if path == "/generate" else {**body, **fields})
    assert (error["message"], error["param"]) == ("Refused by the fake engine.", param)


def test_a_bad_tool_schema_names_the_place(server: Live, qwen: Live) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "whole"}}}}}
    for where, choice in ((server, "required"), (qwen, "auto")):
        error = where.refused(CHAT, ask("x", tools=[tool], tool_choice=choice))
        assert error["param"] == "tools"
        assert "'f'" in error["message"]
        assert "/properties/a" in error["message"]


@pytest.mark.parametrize(
    ("path", "field", "value", "words"),
    [
        *(("/generate", name, "a", "inside sampling_params") for name in ("json_schema", "regex", "ebnf")),
        ("/generate", "structural_tag", {"format": {}}, "inside sampling_params"),
        ("/generate", "response_format", {"type": "json_object"}, "sampling_params.json_schema"),
        ("/generate", "structured_outputs", {"regex": "a"}, "sampling_params"),
        ("/generate", "guided_regex", "a", "sampling_params"),
        ("/generate", "tools", [CLOCK], "/v1/chat/completions"),
        ("/v1/completions", "tools", [CLOCK], "/v1/chat/completions"),
        ("/v1/completions", "tool_choice", "required", "/v1/chat/completions"),
    ],
)
def test_what_stands_in_the_wrong_place(server: Live, path: str, field: str, value: Any, words: str) -> None:
    prompt = "text" if path == "/generate" else "prompt"
    error = server.refused(path, {prompt: "x", field: value})
    assert (error["param"], words in error["message"]) == (field, True), error


def test_arguments_are_objects(server: Live) -> None:
    reference = {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {}}}
    for parameters, rest in (
        ({"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"type": "integer"}}}),
        ({"type": ["object", "null"]}, {}),
        ({"anyOf": [{"required": ["a"]}, {"type": "integer"}]},) * 2,
        ({**reference, "$ref": "#/definitions/a"}, {**reference, "allOf": [{"$ref": "#/definitions/a"}]}),
    ):
        server.ok(CHAT, ask("x", tools=[tool_of(parameters)], tool_choice="required"))
        held = json.loads(spec(server).text)["$defs"]["tool0"]
        assert held == {**rest, "type": "object", "$id": "tool:0"}


def test_no_engine_holds_a_strict_tool() -> None:
    with live(tool_call_parser="qwen", grammar_backend="none") as bare:
        error = bare.refused(CHAT, ask("x", tools=[strict_of(WEATHER)]))
        assert (error["param"], "--grammar-backend is none" in error["message"]) == ("tools", True)
        assert "force the call" not in error["message"]


# ---- tools ----


def test_forced_calls_without_a_syntax(server: Live) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    body = ask("x", tools=[WEATHER, CLOCK])
    server.ok(CHAT, {**body, "tool_choice": named})
    schema = json.loads(spec(server).text)
    assert schema["maxItems"] == 1
    assert schema["items"]["properties"]["name"] == {"const": "get_weather"}
    assert schema["$defs"]["tool0"] == WEATHER["function"]["parameters"] | {"$id": "tool:0"}
    server.ok(CHAT, {**body, "tool_choice": "required"})
    schema = json.loads(spec(server).text)
    assert len(schema["items"]["anyOf"]) == 2
    assert "maxItems" not in schema
    server.ok(CHAT, {**body, "tool_choice": "required", "parallel_tool_calls": False})
    assert json.loads(spec(server).text)["maxItems"] == 1


def test_forced_calls_are_read(qwen: Live) -> None:
    body = ask(
        CALLS, tools=[WEATHER, CLOCK], tool_choice="required", chat_template_kwargs={"enable_thinking": False}
    )
    message, reason = both(qwen, body)
    assert reason == "tool_calls"
    assert message["content"] == ""
    assert [call["index"] for call in message["tool_calls"]] == [0, 1]
    assert all(re.fullmatch(r"call_[0-9a-f]{24}", call["id"]) for call in message["tool_calls"])
    first, second = (call["function"] for call in message["tool_calls"])
    assert first == {"name": "get_weather", "arguments": '{"city": "Rome", "days": 2}'}
    assert second == {"name": "clock", "arguments": "{}"}
    assert tag(qwen)["type"] == "tags_with_separator"
    assert spec(qwen).thinking_end == ()


def test_a_call_cut_by_the_limit_says_so(qwen: Live) -> None:
    body = ask(CALLS, tools=[WEATHER], tool_choice="required", max_tokens=65, enable_thinking=False)
    message, reason = both(qwen, body)
    assert reason == "length"
    assert message["tool_calls"][0]["function"]["arguments"] == CALLS[CALLS.index('{"city') : 65]


def test_free_calls(qwen: Live) -> None:
    message, reason = both(qwen, ask("Let me see.\n" + CALLS, tools=[WEATHER, CLOCK]))
    assert (message["content"], reason) == ("Let me see.", "tool_calls")
    assert len(message["tool_calls"]) == 2
    found = tag(qwen)
    assert found["type"] == "triggered_tags"
    assert found["triggers"] == ["<tool_call>"]
    assert found["tags"][0]["content"]["json_schema"] == WEATHER["function"]["parameters"]
    message, reason = both(qwen, ask("Just text", tools=[WEATHER]))
    assert (message["content"], reason, "tool_calls" in message) == ("Just text", "stop", False)


def test_no_calls_when_none_are_wanted(qwen: Live) -> None:
    message, reason = both(qwen, ask(CALLS, tools=[WEATHER], tool_choice="none"))
    assert (message["content"], reason) == (CALLS, "stop")
    assert spec(qwen) is None


def test_allowed_tools(qwen: Live) -> None:
    names = [{"type": "function", "function": {"name": "clock"}}]
    for choice in (
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": names}},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "clock"}]},
    ):
        qwen.ok(CHAT, ask("x", tools=[WEATHER, CLOCK], tool_choice=choice))
        assert [one["begin"] for one in tag(qwen)["tags"]] == ['<tool_call>\n{"name": "clock", "arguments": ']


def test_calls_or_a_structured_answer(qwen: Live) -> None:
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    qwen.ok(CHAT, ask("x", tools=[WEATHER], response_format=format))
    calls, answer = tag(qwen)["elements"]
    assert calls["at_least_one"] is True
    assert answer == {"type": "json_schema", "json_schema": SCHEMA}


def strict_of(tool: dict[str, Any]) -> dict[str, Any]:
    return {**tool, "function": {**tool["function"], "strict": True}}


def test_stop_strings_leave_forced_calls_alone(qwen: Live) -> None:
    body = ask(CALLS, tools=[WEATHER, CLOCK], stop=["Ro"], stop_regex="[0-9]", enable_thinking=False)
    message, reason = both(qwen, {**body, "tool_choice": "required"})
    assert (len(message["tool_calls"]), reason) == (2, "tool_calls")
    message, reason = both(qwen, body)  # a free call is cut, and the answer says by what
    assert reason == "stop"
    assert message["tool_calls"][0]["function"]["arguments"] == '{"city": "'
    assert qwen.ok(CHAT, body)["choices"][0]["matched_stop"] == "Ro"


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_a_cut_call_leaves_no_marks(qwen: Live, choice: str) -> None:
    begun = CALLS.index("get_weather") + len('get_weather"')
    for length in range(len("<tool_call>"), len(CALLS)):
        body = ask(CALLS, tools=[WEATHER, CLOCK], tool_choice=choice, max_tokens=length, enable_thinking=False)
        (answer,) = qwen.ok(CHAT, body)["choices"]
        message = answer["message"]
        calls = [call["function"] for call in message.get("tool_calls", ())]
        assert answer["finish_reason"] == "length"
        # Under auto the beginning of a second mark may be text.
        assert message["content"] == "" or (choice == "auto" and "<tool_call>".startswith(message["content"]))
        assert bool(calls) == (length >= begun), length
        if calls:
            assert calls[0]["name"] == "get_weather"
            assert '{"city": "Rome", "days": 2}'.startswith(calls[0]["arguments"])
    for length in (30, 70, 100):
        both(
            qwen, ask(CALLS, tools=[WEATHER, CLOCK], tool_choice=choice, max_tokens=length, enable_thinking=False)
        )


@pytest.mark.parametrize("name", ["none", "llama3", "deepseekv3", "kimi_k2", "gpt-oss", "qwen3_coder"])
def test_no_cut_of_forced_calls_shows(name: str) -> None:
    texts = {
        "none": '[{"name": "clock", "parameters": {}}]',
        "llama3": '{"name": "clock", "parameters": {}}',
        "deepseekv3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>clock\n```json\n{}\n```",
        "kimi_k2": "<|tool_calls_section_begin|>"
        "<|tool_call_begin|>functions.clock:0<|tool_call_argument_begin|>{}",
        "gpt-oss": "<|channel|>commentary to=functions.clock <|constrain|>json<|message|>{}",
        "qwen3_coder": "<tool_call>\n<function=clock>\n</function>\n</tool_call>",
    }
    with live(tool_call_parser=name) as server:
        size, called = len(texts[name].encode()), False
        for length in range(len("<|channel|>") if name == "gpt-oss" else 1, size):
            body = ask(texts[name], tools=[CLOCK], tool_choice="required", max_tokens=length)
            message = server.ok(CHAT, body)["choices"][0]["message"]
            assert message["content"] == "", length
            assert called <= bool(message.get("tool_calls")), length
            called = bool(message.get("tool_calls"))
        assert called


def test_schemas_that_no_grammar_states() -> None:
    unique = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": unique}}
    strict = strict_of(tool)
    with live(tool_call_parser="qwen") as server:
        server.ok(CHAT, ask("x", tools=[tool]))
        assert "uniqueItems" not in spec(server).text
        error = server.refused(CHAT, ask("x", tools=[strict]))
        assert "uniqueItems" in error["message"]
        server.ok(CHAT, ask("x", tools=[strict], tool_choice="required"))
        assert spec(server).kind == "json_schema"
        assert "uniqueItems" in spec(server).text
    with live(tool_call_parser="qwen3_coder") as server:
        pattern = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a+$"}}}
        tool = {"type": "function", "function": {"name": "f", "parameters": pattern}}
        server.ok(CHAT, ask("x", tools=[tool]))
        assert tag(server)["tags"][0]["begin"] == "<tool_call>\n<function=f>\n"  # the pattern is left out
        assert "own call syntax" in server.refused(CHAT, ask("x", tools=[strict_of(tool)]))["message"]
        either = {"type": "function", "function": {"name": "f", "parameters": {"anyOf": [pattern, unique]}}}
        server.ok(CHAT, ask("x", tools=[either]))
        assert spec(server) is None
        server.ok(CHAT, ask("x", tools=[tool], tool_choice="required"))
        assert spec(server).kind == "json_schema"


def test_many_answers_have_calls_of_their_own(qwen: Live) -> None:
    answer = qwen.ok(CHAT, ask(CALLS, tools=[WEATHER, CLOCK], n=3))
    ids = {call["id"] for choice in answer["choices"] for call in choice["message"]["tool_calls"]}
    assert len(ids) == 6


def test_log_probabilities_of_calls_are_all_there(qwen: Live) -> None:
    body = ask(CALLS, tools=[WEATHER, CLOCK], logprobs=True)
    whole = qwen.ok(CHAT, body)["choices"][0]["logprobs"]["content"]
    chunks = qwen.events(CHAT, body)
    parts = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["logprobs"]]
    assert [entry for part in parts for entry in part["content"]] == whole


def test_a_server_without_constraints_still_reads() -> None:
    with live(tool_call_parser="qwen", grammar_backend="none") as server:
        message, reason = both(server, ask(CALLS, tools=[WEATHER, CLOCK]))
        assert (len(message["tool_calls"]), reason) == (2, "tool_calls")
        assert spec(server) is None
        text = '<tool_call>{"name": "nobody"}</tool_call>'
        message, reason = both(server, ask(text, tools=[WEATHER]))
        assert (message["content"], reason) == (text, "stop")


def test_arguments_that_contain_themselves_for_ever_are_the_clients_fault() -> None:
    loop = {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}, {"type": "string"}]}}}
    use = ToolUse(None, [Tool("f", loop)], "auto")
    for name in ("pythonic", "glm45", "qwen3_coder"):
        with pytest.raises(RequestError, match="nested too deeply"):
            plan_calls(use, find_syntax(name, None)[1], None)
