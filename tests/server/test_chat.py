"""`/v1/chat/completions` through a real HTTP server over the fake engine."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from .fakes import BOS, CONTEXT, EOS, TEMPLATE, ByteTokenizer, Live, live

CHAT = "/v1/chat/completions"


def ask(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def prompt_of(server: Live) -> str:
    """The last prompt as the engine got it."""
    from radixlang.messages import unpack_ids

    return ByteTokenizer().decode(unpack_ids(server.engine.received[-1].input_ids).tolist(), False)


def test_answer_shape(server: Live) -> None:
    answer = server.ok(CHAT, ask("[say:Hello there]"))
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "fake/model"
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello there", "reasoning_content": None}
    assert (choice["index"], choice["finish_reason"], choice["matched_stop"]) == (0, "stop", EOS)
    assert choice["logprobs"] is None
    usage = answer["usage"]
    assert usage["completion_tokens"] == len("Hello there") + 1
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert answer["metadata"]["weight_version"] == "default"


def test_prompt_has_one_begin_token(server: Live) -> None:
    """S14: the template writes it, so the tokenizer must not add another; a plain prompt has one as well."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "[say:x]"}]
    answer = server.ok(CHAT, {"messages": messages})
    ids = ByteTokenizer().encode(TEMPLATE.render(messages, None, True, False, {}), False)
    assert answer["usage"]["prompt_tokens"] == len(ids)
    assert ids.count(BOS) == 1
    assert prompt_of(server) == "<bos><system>Be brief.\n<user>[say:x]\n<assistant>"
    server.ok("/v1/completions", {"prompt": "[say:x]"})
    assert prompt_of(server) == "<bos>[say:x]"


def test_content_parts_and_roles(server: Live) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "[say:y]"}]
    messages = [{"role": "developer", "content": "d"}, {"role": "user", "content": parts}]
    server.ok(CHAT, {"messages": messages})
    assert prompt_of(server) == "<bos><system>d\n<user>one\n[say:y]\n<assistant>"


def test_multi_turn_with_tools_and_template_arguments(server: Live) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "user", "content": "[say:z]"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    for choice in ("auto", "none"):
        kwargs = {"mood": "calm"}
        body = {"messages": messages, "tools": tools, "tool_choice": choice, "chat_template_kwargs": kwargs}
        assert server.ok(CHAT, body)["choices"][0]["message"]["content"] == "z"
        prompt = prompt_of(server)
        assert prompt.startswith("<bos>tools=[")
        assert "mood=calm" in prompt
        assert '<assistant>{"a": 1}\n<tool>42\n' in prompt


@pytest.mark.parametrize("arguments", ["{", "", "[1]", "null", '"x"', "{" * 50_000])
def test_damaged_tool_calls_in_the_history_pass(server: Live, arguments: str) -> None:
    """S13: a truncated call of an old turn must not wedge the conversation."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "bad"},
        {"role": "user", "content": "[say:fine]"},
    ]
    response = server.post(CHAT, {"messages": messages})
    if len(arguments) > CONTEXT:
        assert response.status_code == 400
    else:
        assert response.status_code == 200
        assert response.json()["choices"][0]["message"]["content"] == "fine"


def test_continue_final_message(server: Live) -> None:
    messages = [{"role": "user", "content": "[say: done]"}, {"role": "assistant", "content": "I have"}]
    answer = server.ok(CHAT, {"messages": messages, "continue_final_message": True})
    assert answer["choices"][0]["message"]["content"] == " done"
    assert prompt_of(server).endswith("<assistant>I have")
    error = server.refused(CHAT, {"messages": messages[:1], "continue_final_message": True})
    assert error["param"] == "continue_final_message"


def test_stream_shape(server: Live) -> None:
    """S05: reasons are null until the last chunk of a choice."""
    options = {"include_usage": True}
    chunks = server.events(CHAT, ask("[say:Hi you]", stream_options=options))
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert len({c["id"] for c in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1])
    assert text == "Hi you"
    reasons = [c["choices"][0]["finish_reason"] for c in chunks[:-1]]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert chunks[-2]["choices"][0]["delta"] == {}
    assert chunks[-2]["choices"][0]["matched_stop"] == EOS
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 7
    assert all("usage" not in c for c in chunks[:-1])


@pytest.mark.parametrize(
    ("fields", "text", "reason", "matched"),
    [
        ({"max_tokens": 3}, "Hel", "length", None),
        ({"stop": ["lo"]}, "Hel", "stop", "lo"),
        ({"stop": "lo", "no_stop_trim": True}, "Hello", "stop", "lo"),
        ({"stop_token_ids": [ord("o")]}, "Hello", "stop", ord("o")),
        ({"max_completion_tokens": 2, "max_tokens": 4}, "He", "length", None),
        ({"stop": ["@@never@@"]}, "Hello you", "stop", EOS),
    ],
)
def test_ends_agree_streamed_and_not(server: Live, fields: dict, text: str, reason: str, matched: Any) -> None:
    body = ask("[say:Hello you]", **fields)
    choice = server.ok(CHAT, body)["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["matched_stop"]) == (
        text,
        reason,
        matched,
    )
    chunks = [c["choices"][0] for c in server.events(CHAT, body)]
    assert "".join(c["delta"].get("content", "") for c in chunks) == text
    assert (chunks[-1]["finish_reason"], chunks[-1]["matched_stop"]) == (reason, matched)


def test_unfinished_characters_wait(server: Live) -> None:
    chunks = server.events(CHAT, ask("[say:a€\ufffdb]"))
    contents = [c["choices"][0]["delta"].get("content", "") for c in chunks]
    assert "".join(contents) == "a€\ufffdb"
    assert contents.count("") == 2  # the role chunk and the last one


def test_max_tokens_fills_the_context_by_default(server: Live) -> None:
    answer = server.ok(CHAT, ask("x"))
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == CONTEXT


def test_logprobs_shape(server: Live) -> None:
    """S03: top_logprobs is optional; N alternatives for N; the sampled token is no extra."""
    content = server.ok(CHAT, ask("hi", logprobs=True, max_tokens=3))["choices"][0]["logprobs"]["content"]
    assert len(content) == 3
    assert set(content[0]) == {"token", "logprob", "bytes", "top_logprobs"}
    assert content[0]["bytes"] == list(content[0]["token"].encode())
    assert [entry["top_logprobs"] for entry in content] == [[], [], []]
    for n in (0, 2, 20):
        choice = server.ok(CHAT, ask("hi", logprobs=True, top_logprobs=n, max_tokens=3))["choices"][0]
        assert [len(entry["top_logprobs"]) for entry in choice["logprobs"]["content"]] == [n] * 3
    for n in (21, -1, 10**30):
        assert server.refused(CHAT, ask("hi", logprobs=True, top_logprobs=n))["param"] == "top_logprobs"
    server.refused(CHAT, ask("hi", top_logprobs=2))
    assert server.ok(CHAT, ask("hi", top_logprobs=0, max_tokens=1))["choices"][0]["logprobs"] is None


def test_logprob_of_a_torn_character_has_its_bytes(server: Live) -> None:
    content = server.ok(CHAT, ask("[say:€]", logprobs=True))["choices"][0]["logprobs"]["content"]
    assert bytes(b for entry in content[:3] for b in entry["bytes"]).decode() == "€"


def test_n_streamed_with_logprobs_and_usage(server: Live) -> None:
    """S04."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = ask("Hello!", n=2, logprobs=True, max_tokens=4, temperature=1, stream_options=options)
    chunks = server.events(CHAT, body)
    usage = chunks.pop()["usage"]
    entries, reasons, roles = {0: 0, 1: 0}, {0: 0, 1: 0}, {0: 0, 1: 0}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        entries[choice["index"]] += len((choice["logprobs"] or {"content": []})["content"])
        reasons[choice["index"]] += choice["finish_reason"] is not None
        roles[choice["index"]] += "role" in choice["delta"]
        assert chunk["usage"]["prompt_tokens"] == usage["prompt_tokens"]
        assert chunk["usage"]["completion_tokens"] <= 4
    assert entries == {0: 4, 1: 4}
    assert reasons == roles == {0: 1, 1: 1}
    assert usage["completion_tokens"] == 8
    assert usage["prompt_tokens"] == len("<user>Hello!\n<assistant>") + 1


def test_several_choices(server: Live) -> None:
    answer = server.ok(CHAT, ask("Hello", n=3, max_tokens=5, rid="three"))
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
    assert len({c["message"]["content"] for c in answer["choices"]}) == 3
    assert answer["id"] == "three"
    assert answer["usage"]["completion_tokens"] == 15


def test_cached_tokens_are_reported() -> None:
    with live() as server:
        server.engine.cached = 7
        usage = server.ok(CHAT, ask("[say:x]"))["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 7
        twice = server.ok("/v1/completions", {"prompt": ["aaaaaaaaaa", "bbbbbbbbbb"], "n": 2})["usage"]
        assert twice["prompt_tokens_details"]["cached_tokens"] == 14
        meta = server.ok("/generate", {"text": "[say:xyz]"})["meta_info"]
        assert meta["cached_tokens_details"] == {"device": 7, "host": 0}


def test_sampling_defaults_come_from_the_model_unless_told() -> None:
    config = {"temperature": 0.3, "top_k": 7, "repetition_penalty": 1.1, "max_length": 5}
    with live(generation_config=config) as server:
        server.ok(CHAT, ask("[say:x]", top_k=3))
        sampling = server.engine.received[-1].sampling
        assert (sampling.temperature, sampling.top_k, sampling.repetition_penalty) == (0.3, 3, 1.1)
        server.ok("/generate", {"text": "[say:x]"})
        assert server.engine.received[-1].sampling.temperature == 1.0
    with live(generation_config=config, sampling_defaults="openai") as server:
        server.ok(CHAT, ask("[say:x]"))
        assert server.engine.received[-1].sampling.temperature == 1.0


def test_all_sampling_fields_arrive(server: Live) -> None:
    fields = {
        "temperature": 0, "top_p": 0.5, "top_k": 4, "min_p": 0.1, "min_tokens": 2, "seed": 9, "stop": ["q"],
        "frequency_penalty": 1, "presence_penalty": -1, "repetition_penalty": 1.2, "logit_bias": {"5": -2},
        "stop_regex": "zz+", "ignore_eos": True, "skip_special_tokens": False, "max_tokens": 5, "priority": 3,
    }  # fmt: skip
    server.ok(CHAT, ask("hi", **fields))
    message = server.engine.received[-1]
    sampling = message.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.0, 0.5, 4, 0.1)
    assert (sampling.min_new_tokens, sampling.sampling_seed, sampling.stop) == (2, 9, ("q",))
    assert (sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty) == (1, -1, 1.2)
    assert (sampling.logit_bias, sampling.stop_regex, sampling.ignore_eos) == ({5: -2.0}, ("zz+",), True)
    assert (sampling.skip_special_tokens, sampling.max_new_tokens, message.priority) == (False, 5, 3)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": []}, "empty"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role: Invalid enum value 'king'"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"content": "x"}]}, "role"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "The user speaks first"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "image_url"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [{}]}]}, "function name"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [{"type": "other"}]}, "tools[0]"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 10**6}, "1000 tokens"),
        ({"min_tokens": 10**6}, "min_tokens"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"seed": 2**70}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 40}, "32"),
        ({"logit_bias": {"900": 1}}, "900"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"stream_options": 3}, "stream_options"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"lora_path": "x"}, "lora_path"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals(server: Live, fields: dict, words: str, stream: bool) -> None:
    assert words in server.refused(CHAT, {**ask("x"), "stream": stream, **fields})["message"]


def test_unknown_model_is_a_404(server: Live) -> None:
    for path, body in ((CHAT, ask("x")), ("/v1/completions", {"prompt": "x"}), ("/tokenize", {"prompt": "x"})):
        assert server.refused(path, {**body, "model": "gpt-9"}, 404)["code"] == "model_not_found"
    assert server.ok(CHAT, ask("[say:x]", model="fake/model"))["model"] == "fake/model"


def test_template_arguments_of_the_server_are_defaults() -> None:
    with live(default_chat_template_kwargs='{"mood": "calm"}') as server:
        server.ok(CHAT, ask("[say:x]"))
        assert "mood=calm" in prompt_of(server)
        server.ok(CHAT, ask("[say:x]", chat_template_kwargs={"mood": "wild"}))
        assert "mood=wild" in prompt_of(server)


def test_requests_are_logged_when_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("radixlang.server.hub")
    logger.addHandler(caplog.handler)
    logger.setLevel(logging.INFO)
    try:
        with live(log_requests=True) as server:
            server.ok("/generate", {"text": "[say:abc]" + "x" * 800, "rid": "logged"})
            server.http.get("/health_generate")
        lines = list(dict.fromkeys(r.getMessage() for r in caplog.records if r.name == logger.name))
        assert len(lines) == 2
        assert lines[0].startswith("received 'logged': '[say:abc]xxx")
        assert "x" * 501 not in lines[0]
        assert lines[1].startswith("finished 'logged': {'type': 'stop'")
        assert lines[1].endswith("'abc'")
    finally:
        logger.removeHandler(caplog.handler)


def test_a_request_has_the_same_place_whatever_endpoint_takes_it(server: Live) -> None:
    """Its namespace in the prefix cache, its pin there, and its priority: none may be lost on the way."""
    place = {"extra_key": "a", "cache_salt": "b", "priority": 3, "pin": {"id": "p"}}
    chat = {"messages": [{"role": "user", "content": "[say:x]"}]}
    for path, body in (
        ("/v1/chat/completions", chat),
        ("/v1/completions", {"prompt": "[say:x]"}),
        ("/v1/messages", chat | {"max_tokens": 4}),
        ("/generate", {"text": "[say:x]"}),
    ):
        server.ok(path, body | place)
        message = server.engine.received[-1]
        assert (message.namespace, message.priority) == ("1:ab", 3), path
        assert message.pin is not None, path
        assert (message.pin.name, message.pin.seconds) == ("p", 300.0), path
        refused = server.http.post(path, json=body | {"pin": {"id": "p", "ttl": 0}})
        assert refused.status_code == 400
        assert "pin.ttl" in refused.text
