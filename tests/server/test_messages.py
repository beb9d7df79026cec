"""`/v1/messages` through a real HTTP server over the fake engine, as JSON and by the real `anthropic` client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from radixlang.messages import unpack_ids
from radixlang.parsers.tools import CallDelta
from radixlang.server.anthropic.messages import Blocks, content_of
from radixlang.server.openai.answer import Part

from .fakes import ByteTokenizer, Live, live

PATH = "/v1/messages"
CLOCK = {"name": "clock", "input_schema": {"type": "object", "properties": {"zone": {"type": "string"}}}}
CALL = '<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call>'


@pytest.fixture(scope="module")
def qwen() -> Iterator[Live]:
    """A server that tells calls and thoughts from text."""
    with live(tool_call_parser="qwen", reasoning_parser="qwen3", marks=("<think>", "</think>")) as running:
        yield running


def ask(text: str, **fields: Any) -> dict[str, Any]:
    return {"max_tokens": 200, "messages": [{"role": "user", "content": text}], **fields}


def prompt_of(server: Live) -> str:
    """The last prompt as the engine got it."""
    return ByteTokenizer().decode(unpack_ids(server.engine.received[-1].input_ids).tolist(), False)


def refused(server: Live, body: Any, status: int = 400, path: str = PATH, **kwargs: Any) -> dict[str, str]:
    """The error of a request that must be refused."""
    response = server.post(path, body, **kwargs)
    assert response.status_code == status, (response.status_code, response.text[:300])
    answer = response.json()
    assert answer["type"] == "error"
    assert set(answer["error"]) == {"type", "message"}
    return answer["error"]


def events(server: Live, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream; checks that each bears its name and that nothing else stands there."""
    response = server.post(PATH, {**body, "stream": True})
    assert response.status_code == 200, response.text[:300]
    assert response.headers["content-type"].startswith("text/event-stream")
    out = []
    *blocks, last = response.text.split("\n\n")
    assert last == ""
    for block in blocks:
        name, data = block.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        out.append(value)
    return out


def both(server: Live, body: dict[str, Any]) -> dict[str, Any]:
    """The answer, which the stream must add up to."""
    whole = server.ok(PATH, body)
    first, *middle, ending, last = events(server, body)
    assert first["type"] == "message_start"
    assert (first["message"]["content"], first["message"]["stop_reason"]) == ([], None)
    assert last == {"type": "message_stop"}
    added: list[dict[str, Any]] = []
    inputs: list[str] = []
    open_index = None
    for event in middle:
        kind = event["type"]
        if kind == "content_block_start":
            assert open_index is None
            open_index = event["index"]
            assert open_index == len(added)
            added.append(dict(event["content_block"]))
            inputs.append("")
            continue
        assert event["index"] == open_index
        if kind == "content_block_stop":
            open_index = None
            if added[-1]["type"] == "tool_use":
                added[-1]["input"] = json.loads(inputs[-1])
            continue
        assert kind == "content_block_delta"
        delta = dict(event["delta"])
        assert delta.pop("type") in ("text_delta", "thinking_delta", "input_json_delta")
        ((field, piece),) = delta.items()
        if field == "partial_json":
            inputs[-1] += piece
        else:
            added[-1][field] += piece
    assert open_index is None
    for block in (*added, *whole["content"]):
        block.pop("id", None)
    assert added == whole["content"]
    assert ending["type"] == "message_delta"
    assert ending["delta"] == {name: whole[name] for name in ("stop_reason", "stop_sequence")}
    assert ending["usage"] == whole["usage"]
    return whole


def test_answer_shape(server: Live) -> None:
    answer = both(server, ask("[say:Hello there]", system="Be brief.", metadata={"user_id": "u"}))
    assert answer.pop("id").startswith("msg_")
    tokens = answer.pop("usage")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": "fake/model",
        "content": [{"type": "text", "text": "Hello there"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
    }
    assert prompt_of(server) == "<bos><system>Be brief.\n<user>[say:Hello there]\n<assistant>"
    size = len(server.engine.received[-1].input_ids) // 4
    assert tokens == {"input_tokens": size, "cache_read_input_tokens": 0, "output_tokens": len("Hello there") + 1}
    assert server.ok(
        PATH + "/count_tokens",
        {"system": [{"type": "text", "text": "Be brief."}], "messages": ask("[say:Hello there]")["messages"]},
    ) == {"input_tokens": size}


def test_cached_tokens_are_counted_apart() -> None:
    with live() as server:
        server.engine.cached = 9
        usage = both(server, ask("[say:x]"))["usage"]
        size = len(server.engine.received[-1].input_ids) // 4
        assert usage == {"input_tokens": size - 9, "cache_read_input_tokens": 9, "output_tokens": 2}


def test_ends(server: Live) -> None:
    answer = both(server, ask("[say:one two three]", stop_sequences=["thr", "two"]))
    assert answer["content"] == [{"type": "text", "text": "one "}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "two")
    answer = both(server, ask("[say:one two three]", max_tokens=3))
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("max_tokens", None)
    assert both(server, ask("[say:]"))["content"] == []
    assert both(server, ask("[say:  ]"))["content"] == [{"type": "text", "text": "  "}]


def test_sampling(server: Live) -> None:
    server.ok(PATH, ask("[say:x]", temperature=0.5, top_p=0.9, top_k=7, max_tokens=11, stop_sequences=["q"]))
    sampling = server.engine.received[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert (sampling.max_new_tokens, tuple(sampling.stop)) == (11, ("q",))


def test_the_history_reaches_the_template(server: Live) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "b"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "redacted_thinking", "data": "xx"},
                {"type": "text", "text": "c"},
                {"type": "tool_use", "id": "t1", "name": "clock", "input": {"zone": "UTC"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "noon"}]},
                {"type": "text", "text": "[say:z]"},
            ],
        },
    ]
    answer = both(
        server, {"max_tokens": 9, "messages": messages, "tools": [CLOCK], "tool_choice": {"type": "none"}}
    )
    assert answer["content"] == [{"type": "text", "text": "z"}]
    head, _, rest = prompt_of(server).partition("\n")
    shown = json.loads(head.removeprefix("<bos>tools="))
    assert shown == [{"type": "function", "function": {"name": "clock", "parameters": CLOCK["input_schema"]}}]
    assert rest == '<user>a\nb\n<assistant>c{"zone": "UTC"}\n<tool>noon\n<user>[say:z]\n<assistant>'


def test_an_assistant_at_the_end_is_continued(server: Live) -> None:
    body = ask("[say:x]")
    body["messages"].append({"role": "assistant", "content": "The answer is "})
    assert both(server, body)["content"] == [{"type": "text", "text": "x"}]
    assert prompt_of(server).endswith("<assistant>The answer is ")


def test_thoughts_and_calls(qwen: Live) -> None:
    said = f"[say:<think>\nThe clock.\n</think>\n\nI look.\n{CALL}\n{CALL}]"
    answer = both(qwen, ask(said, tools=[CLOCK], thinking={"type": "adaptive"}))
    call = {"type": "tool_use", "name": "clock", "input": {"zone": "UTC"}}
    kinds = [block["type"] for block in answer["content"]]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    assert answer["content"][0]["thinking"].strip() == "The clock."
    assert answer["content"][1]["text"].strip() == "I look."
    assert answer["content"][2:] == [call, call]
    assert answer["stop_reason"] == "tool_use"


def test_a_call_that_was_cut_off_is_left_out(qwen: Live) -> None:
    body = ask(f"[say:{CALL}]", tools=[CLOCK], max_tokens=50)
    answer = qwen.ok(PATH, body)
    assert (answer["content"], answer["stop_reason"]) == ([], "max_tokens")
    assert events(qwen, body)[-2]["delta"]["stop_reason"] == "max_tokens"


def test_a_call_is_one_block_whatever_comes_with_its_end() -> None:
    blocks = Blocks()
    parts = [
        Part(calls=[CallDelta(0, "a", "clock", '{"zo')]),
        Part(content="\n", calls=[CallDelta(0, "a", None, 'ne": "UTC"}'), CallDelta(1, "b", "clock", "{")]),
        Part(content=" So.", calls=[CallDelta(1, "b", None, "}")]),
    ]
    made = content_of([*(event for part in parts for event in blocks.feed(part)), *blocks.close()])
    assert made == [
        {"type": "tool_use", "id": "a", "name": "clock", "input": {"zone": "UTC"}},
        {"type": "tool_use", "id": "b", "name": "clock", "input": {}},
        {"type": "text", "text": " So."},
    ]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "clock"}])
def test_forced_calls_are_constrained(qwen: Live, choice: dict[str, Any]) -> None:
    answer = both(qwen, ask(f"[say:{CALL}]", tools=[CLOCK], tool_choice=choice))
    assert (answer["content"][0]["name"], answer["stop_reason"]) == ("clock", "tool_use")
    assert qwen.engine.received[-1].grammar is not None


def test_thinking_and_its_budget(qwen: Live) -> None:
    qwen.ok(PATH, ask("[say:x]", thinking={"type": "enabled", "budget_tokens": 20}))
    assert qwen.engine.received[-1].grammar.thinking_budget == 20
    qwen.ok(PATH, ask("[say:x]"))
    assert qwen.engine.received[-1].grammar is None


def test_an_output_format_is_held(server: Live) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    format = {"type": "json_schema", "schema": schema}
    server.ok(PATH, ask('[say:{"a": 1}]', output_config={"format": format}))
    grammar = server.engine.received[-1].grammar
    assert (grammar.kind, json.loads(grammar.text)) == ("json_schema", schema)


USE = {"type": "tool_use", "id": "t", "name": "n", "input": {}}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://x.invalid/a.png"}}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": None}, "max_tokens: Expected `int`"),
        ({"max_tokens": 0}, "max_tokens: Expected `int` >= 1"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0] is of type image"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]},
            "messages[0].content[0]: no tool_use before it has the id 't'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "t"}]}]},
            "belongs into the assistant's messages",
        ),
        (
            {"messages": [{"role": "assistant", "content": [USE]}]},
            "tool_result must follow",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0] is of type 'web_search"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [CLOCK, CLOCK]}, "tools[1].name 'clock' is taken"),
        ({"tool_choice": {"type": "any"}}, "tool_choice any needs tools"),
        ({"tool_choice": {"type": "tool", "name": "x"}, "tools": [CLOCK]}, "names the tool 'x'"),
        ({"tool_choice": {"type": "tool"}, "tools": [CLOCK]}, "needs the tool's name"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "--reasoning-parser"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers is not supported"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"max_tokens": 10_000}, "max_tokens"),
    ],
)  # fmt: skip
def test_refusals_name_the_thing(server: Live, fields: dict[str, Any], words: str) -> None:
    error = refused(server, ask("x") | fields)
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]


def test_errors_in_the_shape_of_the_api(server: Live) -> None:
    assert refused(server, ask("x", model="other"), 404)["type"] == "not_found_error"
    assert refused(server, ask("[fail:503]"), 503)["type"] == "overloaded_error"
    assert refused(server, ask("[fail:500]"), 500)["type"] == "api_error"
    assert refused(server, ask("[mid]"), 500)["type"] == "api_error"
    assert refused(server, ask("x", model="other"), 404, PATH + "/count_tokens")["type"] == "not_found_error"
    *_, last = events(server, ask("[mid]"))
    assert last == {"type": "error", "error": {"type": "api_error", "message": "Broke half-way."}}


def test_an_aborted_answer_is_an_error() -> None:
    with live() as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(refused, server, ask("[wait]"), 499)
        server.until(lambda: server.engine.waiting)
        assert server.post("/abort_request", {"abort_all": True}).status_code == 200
        assert asked.result()["type"] == "api_error"


def test_keys() -> None:
    with live(api_key="secret") as server:
        assert refused(server, ask("x"), 401)["type"] == "authentication_error"
        wrong = {"headers": {"x-api-key": "secre"}}
        assert refused(server, ask("x"), 401, **wrong)["type"] == "authentication_error"
        for headers in ({"x-api-key": "secret"}, {"authorization": "Bearer secret", "x-api-key": "other"}):
            assert server.post(PATH, ask("[say:x]"), headers=headers).status_code == 200


# ---- the client ----


def test_client(qwen: Live) -> None:
    anthropic = pytest.importorskip("anthropic")
    with anthropic.Anthropic(base_url=qwen.base, api_key="none", max_retries=0) as client:
        fields = {
            "model": "default",
            "max_tokens": 200,
            "messages": [{"role": "user", "content": f"[say:<think>hm</think>I look. {CALL}]"}],
            "tools": [CLOCK],
            "thinking": {"type": "adaptive"},
        }
        answer = client.messages.create(**fields)
        with client.messages.stream(**fields) as stream:
            assert "".join(stream.text_stream).strip() == "I look."
            final = stream.get_final_message()
        for message in (answer, final):
            assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
            assert message.content[2].input == {"zone": "UTC"}
            assert (message.stop_reason, message.usage.output_tokens) == ("tool_use", answer.usage.output_tokens)
        counted = client.messages.count_tokens(model="default", messages=fields["messages"], tools=[CLOCK])
        assert counted.input_tokens == answer.usage.input_tokens
        with pytest.raises(anthropic.NotFoundError, match="'other' does not exist"):
            client.messages.create(**{**fields, "model": "other"})
        broken = {**fields, "messages": [{"role": "user", "content": "[mid]"}]}
        with pytest.raises(anthropic.APIStatusError, match="Broke half-way"):
            list(client.messages.create(**broken, stream=True))
