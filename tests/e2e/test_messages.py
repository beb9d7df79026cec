"""The real `anthropic` client, and the language's backend for it, against the CPU server with the real model."""

from __future__ import annotations

import json

import pytest

import radixlang as sgl

anthropic = pytest.importorskip("anthropic")

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


def test_client(server):
    fields = {"model": "smol", "max_tokens": 24, "messages": QUESTION, "extra_body": {"temperature": 0}}
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        answer = client.messages.create(**fields)
        assert "Paris" in answer.content[0].text
        assert answer.stop_reason == "end_turn"
        with client.messages.stream(**fields) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        assert text == answer.content[0].text == final.content[0].text
        assert final.usage.cache_read_input_tokens > 0
        counted = client.messages.count_tokens(model="smol", messages=QUESTION).input_tokens
        for message in (answer, final):
            assert message.usage.input_tokens + message.usage.cache_read_input_tokens == counted
        assert final.usage.output_tokens == answer.usage.output_tokens

        schema = {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
        }
        tool = {"name": "look_up", "description": "Look a city up.", "input_schema": schema}
        forced = {**fields, "max_tokens": 60, "tools": [tool], "tool_choice": {"type": "any"}}
        called = client.messages.create(**forced)
        assert called.stop_reason == "tool_use"
        assert set(called.content[0].input) == {"city"}
        with client.messages.stream(**forced) as stream:
            assert stream.get_final_message().content[0].input == called.content[0].input


def test_programs_run_through_it(server):
    backend = sgl.Anthropic("smol", base_url=server.url, api_key="none")

    @sgl.function
    def ask(s):
        s += sgl.user(QUESTION[0]["content"])
        s += sgl.assistant("The capital of " + sgl.gen("answer", max_tokens=16, temperature=0, stop="."))

    @sgl.function
    def fill(s):
        s += sgl.user("Name a river as JSON.")
        s += sgl.assistant(sgl.gen("json", max_tokens=60, temperature=0, json_schema=RIVER))

    whole = ask.run(backend=backend)
    assert "Paris" in whole["answer"]
    streamed = ask.run(backend=backend, stream=True)
    assert "".join(streamed.text_iter("answer")) == whole["answer"]
    assert set(json.loads(fill.run(backend=backend)["json"])) == {"name"}


RIVER = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}},
        "required": ["name"],
        "additionalProperties": False,
    }
)
