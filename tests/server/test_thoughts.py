"""Thoughts through a real HTTP server over the fake engine, and the endpoints of the parsers themselves."""

import pytest

from radixlang.errors import ConfigError

from .fakes import VOCAB, Live, live, make_hub
from .structuring import CALLS, CHAT, CLOCK, WEATHER, ask, both, spec

# ---- thoughts ----

END = (VOCAB + 1,)
THOUGHT = "<think>\nOne, two.\n</think>\n\nThree."


def test_thoughts_are_told_apart(qwen: Live) -> None:
    message, _ = both(qwen, ask(THOUGHT))
    assert (message["reasoning_content"], message["content"]) == ("One, two.", "Three.")
    usage = qwen.ok(CHAT, ask(THOUGHT))["usage"]
    assert usage["reasoning_tokens"] == 2 + len("\nOne, two.\n")
    chunks = qwen.events(CHAT, ask(THOUGHT, stream_options={"include_usage": True}))
    assert chunks[-1]["usage"]["reasoning_tokens"] == usage["reasoning_tokens"]
    message, _ = both(qwen, ask(THOUGHT, separate_reasoning=False))
    assert (message["reasoning_content"], message["content"]) == (None, THOUGHT)
    message, _ = both(qwen, ask("Plain."))
    assert (message["reasoning_content"], message["content"]) == (None, "Plain.")
    assert qwen.ok(CHAT, ask("Plain."))["usage"]["reasoning_tokens"] == 0


def test_thoughts_in_one_piece(qwen: Live) -> None:
    chunks = qwen.events(CHAT, ask(THOUGHT, stream_reasoning=False))
    thoughts = [
        c["choices"][0]["delta"]["reasoning_content"]
        for c in chunks
        if "reasoning_content" in c["choices"][0]["delta"]
    ]
    assert thoughts == ["One, two."]


def test_a_constraint_begins_behind_the_thoughts(qwen: Live) -> None:
    body = ask(THOUGHT, regex="Three\\.")
    message, _ = both(qwen, body)
    assert message["content"] == "Three."
    assert spec(qwen).thinking_end == END
    assert spec(qwen).thinking_budget is None
    assert spec(qwen).thinking_start == VOCAB  # it may do without
    message, _ = both(qwen, ask("Three.", regex="Three\\."))
    assert (message["reasoning_content"], message["content"]) == (None, "Three.")
    for off in (
        {"enable_thinking": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "none"},
        {"reasoning": {"enabled": False}},
        {"thinking": {"type": "disabled"}},
        {"thinking": False},
    ):
        qwen.ok(CHAT, {**body, **off})
        assert spec(qwen).thinking_end == (), off
    # what the prompt shows comes first
    messages = [{"role": "user", "content": "[say:x]"}, {"role": "assistant", "content": "Thr"}]
    qwen.ok(CHAT, {"messages": messages, "continue_final_message": True, "regex": "ee"})
    assert spec(qwen).thinking_end == ()


def test_a_budget_of_thoughts(qwen: Live) -> None:
    for fields in (
        {"thinking_budget": 7},
        {"max_thinking_tokens": 7},
        {"thinking": {"type": "enabled", "budget_tokens": 7}},
        {"chat_template_kwargs": {"thinking_budget": 7}},
    ):
        qwen.ok(CHAT, ask(THOUGHT, **fields))
        found = spec(qwen)
        assert (found.kind, found.thinking_budget, found.thinking_end) == ("any", 7, END)
    qwen.ok(CHAT, ask(THOUGHT, thinking_budget=7, regex="a"))
    assert (spec(qwen).kind, spec(qwen).thinking_budget) == ("regex", 7)
    qwen.ok(CHAT, ask("x", thinking_budget=7, enable_thinking=False))
    assert spec(qwen) is None


def test_thoughts_then_calls(qwen: Live) -> None:
    body = ask("<think>Hm <tool_call></think>" + CALLS, tools=[WEATHER, CLOCK], tool_choice="required")
    message, reason = both(qwen, body)
    assert (message["reasoning_content"], message["content"], reason) == ("Hm <tool_call>", "", "tool_calls")
    assert len(message["tool_calls"]) == 2
    assert spec(qwen).thinking_end == END


def test_harmony() -> None:
    text = (
        "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>commentary to=functions.clock "
        "<|constrain|>json<|message|>{}"
    )
    with live(tool_call_parser="gpt-oss", reasoning_parser="gpt-oss") as server:
        message, reason = both(server, ask(text, tools=[CLOCK], tool_choice="required"))
        assert (message["reasoning_content"], message["content"], reason) == ("Easy.", "", "tool_calls")
        assert message["tool_calls"][0]["function"] == {"name": "clock", "arguments": "{}"}
        assert spec(server).thinking_end == ()
        final = "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
        message, _ = both(server, ask(final, regex="Yes\\."))
        assert (message["reasoning_content"], message["content"]) == ("So.", "Yes.")
        assert spec(server).thinking_end == tuple(b"<|channel|>final<|message|>")


# ---- the parsers' own endpoints and options ----


def test_parse_endpoints(server: Live, qwen: Live) -> None:
    body = {"text": "Hm. " + CALLS, "tools": [WEATHER, CLOCK], "tool_call_parser": "qwen25"}
    for where, given in ((server, body), (qwen, {**body, "tool_call_parser": None})):
        answer = where.ok("/parse_function_call", given)
        assert answer["normal_text"] == "Hm."
        assert answer["calls"][0] == {
            "tool_index": 0,
            "name": "get_weather",
            "parameters": '{"city": "Rome", "days": 2}',
        }
    assert "known are" in server.refused("/parse_function_call", {**body, "tool_call_parser": "x"})["message"]
    assert "name one" in server.refused("/parse_function_call", {"text": "x"})["message"]
    answer = server.ok("/separate_reasoning", {"text": "One</think>Two", "reasoning_parser": "deepseek-r1"})
    assert answer == {"reasoning_text": "One", "text": "Two"}
    assert "known are" in server.refused("/separate_reasoning", {"text": "x", "reasoning_parser": "x"})["message"]
    assert "name one" in server.refused("/separate_reasoning", {"text": "x"})["message"]


def test_what_is_served_is_told(server: Live, qwen: Live) -> None:
    info = qwen.http.get("/model_info").json()
    assert (info["reasoning_parser"], info["tool_call_parser"]) == ("qwen3", "qwen")
    info = server.http.get("/model_info").json()
    assert (info["reasoning_parser"], info["tool_call_parser"]) == (None, None)


@pytest.mark.parametrize("flag", ["tool_call_parser", "reasoning_parser"])
def test_unknown_parsers_end_the_start(flag: str) -> None:
    with pytest.raises(ConfigError, match=f"--{flag.replace('_', '-')} 'x'.* known are: auto, none, "):
        make_hub(**{flag: "x"})[2].resolve()


@pytest.mark.parametrize("name", ["qwen3", "kimi", "mistral", "deepseek-v3"])
def test_a_model_without_marks_answers_at_once(name: str) -> None:
    with live(tool_call_parser="hermes", reasoning_parser=name) as server:
        on = {"enable_thinking": True}
        message, _ = both(server, ask("Yes.", regex="Yes\\.", **on))
        assert (message["reasoning_content"], message["content"]) == (None, "Yes.")
        assert (spec(server).thinking_end, spec(server).thinking_start) == ((), None)
        error = server.refused(CHAT, ask("x", thinking_budget=4, **on))
        assert (error["param"], "no token" in error["message"]) == ("thinking_budget", True)
    with live(reasoning_parser="deepseek-r1") as server:  # always begins inside its thoughts
        message, _ = both(server, ask("Hm.</think>Yes.", regex="Yes\\."))
        assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")
        assert spec(server).thinking_end == tuple(b"</think>")
