"""Structured answers and tool calls of a real model, asked for with the real client."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Literal

import httpx
import openai
import pytest

pydantic = pytest.importorskip("pydantic")


class Person(pydantic.BaseModel):
    name: str
    age: int
    role: Literal["engineer", "doctor"] | None


class Team(pydantic.BaseModel):
    lead: Person
    members: list[Person] = pydantic.Field(max_length=2)


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "clock",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    },
}
QUESTION = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("model", [Person, Team])
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_pydantic_models(client, model, temperature):
    answer = client.beta.chat.completions.parse(
        model="smol",
        messages=[{"role": "user", "content": "Alice, 34, is an engineer and leads Bob, 51, a doctor. As JSON."}],
        response_format=model,
        temperature=temperature,
        seed=3,
        max_tokens=400,
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, model)


def test_pydantic_model_streamed(client):
    with client.beta.chat.completions.stream(
        model="smol",
        messages=[{"role": "user", "content": "Alice, 34, is an engineer. As JSON."}],
        response_format=Person,
        temperature=0,
        max_tokens=200,
    ) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Person)


def check(call, schema=WEATHER["function"]["parameters"]):
    jsonschema = pytest.importorskip("jsonschema")
    assert call.id.startswith("call_")
    assert call.function.name == "get_weather"
    jsonschema.validate(json.loads(call.function.arguments), schema)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_forced_calls(client, choice, temperature):
    answer = client.chat.completions.create(
        model="smol",
        messages=QUESTION,
        tools=[WEATHER],
        tool_choice=choice,
        parallel_tool_calls=False,
        temperature=temperature,
        seed=1,
        max_tokens=200,
    )
    (call,) = answer.choices[0].message.tool_calls
    check(call)
    assert answer.choices[0].finish_reason == "tool_calls"
    assert not answer.choices[0].message.content


def test_forced_calls_streamed(client):
    fields = {
        "model": "smol",
        "messages": QUESTION,
        "tools": [WEATHER],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_tokens": 200,
    }
    whole = client.chat.completions.create(**fields).choices[0].message.tool_calls[0].function
    names, arguments, ids = [], "", []
    for chunk in client.chat.completions.create(**fields, stream=True):
        for call in chunk.choices[0].delta.tool_calls or ():
            assert call.index == 0
            names += [call.function.name] if call.function.name else []
            ids += [call.id] if call.id else []
            arguments += call.function.arguments or ""
    assert (names, arguments) == ([whole.name], whole.arguments)
    assert len(ids) == 1
    with client.beta.chat.completions.stream(**fields) as stream:
        final = stream.get_final_completion()
    check(final.choices[0].message.tool_calls[0])


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_calls_are_not_forced(client, choice):
    answer = client.chat.completions.create(
        model="smol", messages=QUESTION, tools=[WEATHER, CLOCK], tool_choice=choice, temperature=0, max_tokens=20
    )
    assert answer.choices[0].message.content


def test_a_conversation_with_a_call(client):
    messages = list(QUESTION)
    answer = client.chat.completions.create(
        model="smol", messages=messages, tools=[WEATHER], tool_choice="required", temperature=0, max_tokens=200
    )
    message = answer.choices[0].message
    messages.append(message)
    messages += [
        {"role": "tool", "tool_call_id": c.id, "content": "It is 21 degrees."} for c in message.tool_calls
    ]
    answer = client.chat.completions.create(
        model="smol", messages=messages, tools=[WEATHER], temperature=0, max_tokens=30
    )
    assert answer.choices[0].message.content


def test_other_spellings(client, server):
    def ask(**fields):
        answer = client.chat.completions.create(
            model="smol",
            messages=[{"role": "user", "content": "Is water wet?"}],
            max_tokens=60,
            temperature=0,
            extra_body=fields,
        )
        return answer.choices[0].message.content

    assert ask(guided_choice=["yes", "no"]) in ("yes", "no")
    assert ask(structured_outputs={"choice": ["yes", "no"]}) in ("yes", "no")
    assert ask(regex=r"[A-Z]{3}-\d{2}").replace("-", "").isalnum()
    assert ask(ebnf='root ::= "a" | "b"') in ("a", "b")
    assert isinstance(json.loads(ask(response_format={"type": "json_object"}, max_tokens=300)), dict)
    body = {"text": "x", "sampling_params": {"json_schema": '{"enum": ["left", "right"]}', "max_new_tokens": 20}}
    assert json.loads(httpx.post(server.url + "/generate", json=body).json()["text"]) in ("left", "right")


@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_constraint_is_a_400(client, stream):
    for fields, words in (
        ({"regex": "("}, "regex"),
        ({"json_schema": {"type": "whole"}}, "type"),
        ({"structural_tag": {"type": "structural_tag", "format": {"type": "x"}}}, "unknown format"),
    ):
        with pytest.raises(openai.BadRequestError, match=words):
            client.chat.completions.create(model="smol", messages=QUESTION, extra_body=fields, stream=stream)


@pytest.fixture(scope="module")
def hermes(smollm2_path, tmp_path_factory):
    from tests.e2e.conftest import Server

    running = Server(
        smollm2_path,
        "--served-model-name",
        "smol",
        "--tool-call-parser",
        "hermes",
        log=tmp_path_factory.mktemp("hermes") / "log",
    )
    yield openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)
    assert running.stop() == 0, running.output


def test_calls_in_a_syntax(hermes):
    system = {"role": "system", "content": 'To call a function write <tool_call>\n{"name": "get_weather", "arg'}
    for temperature in (0, 1):
        for stream in (False, True):
            fields = {
                "model": "smol",
                "messages": [system, *QUESTION],
                "tools": [WEATHER],
                "tool_choice": "required",
                "parallel_tool_calls": False,
                "temperature": temperature,
                "max_tokens": 200,
            }
            if stream:
                with hermes.beta.chat.completions.stream(**fields) as events:
                    final = events.get_final_completion()
            else:
                final = hermes.chat.completions.create(**fields)
            check(final.choices[0].message.tool_calls[0])


def test_free_text_may_hold_calls(hermes):
    """What this small model makes of it is not known; if it begins a call, that is one."""
    example = (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "unit": "celsius"}}\n</tool_call>'
    )
    messages = [
        {"role": "user", "content": "What is the weather in Rome, in celsius?"},
        {"role": "assistant", "content": example},
        {"role": "user", "content": "It is 20 degrees there. What is the weather in Paris, in celsius?"},
    ]
    calls = 0
    for seed in range(4):
        answer = hermes.chat.completions.create(
            model="smol", messages=messages, tools=[WEATHER], temperature=0.7, seed=seed, max_tokens=120
        )
        choice = answer.choices[0]
        for call in choice.message.tool_calls or ():
            calls += 1
            if choice.finish_reason == "tool_calls":
                check(call)
        assert "<tool_call>" not in choice.message.content
    assert calls


@pytest.mark.parametrize("name", ["extract", "tools"])
def test_examples(server, name, capsys):
    path = Path(__file__).parents[2] / "examples" / f"{name}.py"
    example = importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, path))
    example.__spec__.loader.exec_module(example)
    example.main(server.url)
    said = capsys.readouterr().out
    assert ("birth_year=" if name == "extract" else "add({'a': ") in said
