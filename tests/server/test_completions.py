"""`/v1/completions` through a real HTTP server over the fake engine."""

from __future__ import annotations

from typing import Any

import pytest

from .fakes import BOS, EOS, Live

PATH = "/v1/completions"


def test_answer_shape_and_default_length(server: Live) -> None:
    answer = server.ok(PATH, {"prompt": "x"})
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert len(choice["text"]) == 16
    assert choice["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("[say:a]", ["a"]),
        (["[say:a]", "[say:b]"], ["a", "b"]),
        ([*b"[say:a]"], ["a"]),
        ([[*b"[say:a]"], [*b"[say:b]"]], ["a", "b"]),
    ],
)
def test_prompt_forms(server: Live, prompt: Any, texts: list[str]) -> None:
    answer = server.ok(PATH, {"prompt": prompt})
    assert [c["text"] for c in answer["choices"]] == texts
    assert [c["index"] for c in answer["choices"]] == list(range(len(texts)))


def test_batch_with_samples_is_prompt_major(server: Live) -> None:
    alone = [server.ok(PATH, {"prompt": p})["choices"][0]["text"] for p in ("a", "c")]
    answer = server.ok(PATH, {"prompt": ["a", "c"], "n": 2})
    texts = [c["text"] for c in answer["choices"]]
    assert [texts[0], texts[2]] == alone
    assert answer["usage"]["prompt_tokens"] == 4
    assert answer["usage"]["completion_tokens"] == 64


def test_logprobs_shape(server: Live) -> None:
    choice = server.ok(PATH, {"prompt": "x", "max_tokens": 3, "logprobs": 2})["choices"][0]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert [len(best) for best in logprobs["top_logprobs"]] == [2, 2, 2]
    assert logprobs["text_offset"] == [0, 1, 2]
    assert all(value < 0 for value in logprobs["token_logprobs"])
    bare = server.ok(PATH, {"prompt": "x", "max_tokens": 3, "logprobs": 0})["choices"][0]["logprobs"]
    assert len(bare["tokens"]) == 3
    for n in (21, -1):
        assert server.refused(PATH, {"prompt": "x", "logprobs": n})["param"] == "logprobs"


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_logprobs_scores_the_prompt(server: Live, stream: bool) -> None:
    body = {"prompt": "hey", "echo": True, "logprobs": 1, "max_tokens": 2}
    if stream:
        choices = [c["choices"][0] for c in server.events(PATH, body)]
        text = "".join(c["text"] for c in choices)
        names = ("tokens", "token_logprobs", "text_offset", "top_logprobs")
        logprobs = {name: [item for c in choices for item in c["logprobs"][name]] for name in names}
    else:
        choice = server.ok(PATH, body)["choices"][0]
        text, logprobs = choice["text"], choice["logprobs"]
    assert text.startswith("hey")
    assert len(text) == 5
    assert logprobs["tokens"][:4] == ["<bos>", "h", "e", "y"]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert len(logprobs["tokens"]) == 6
    assert logprobs["text_offset"] == [0, 5, 6, 7, 8, 9]


def test_echo_without_new_tokens(server: Live) -> None:
    choice = server.ok(PATH, {"prompt": "hey", "echo": True, "max_tokens": 0})["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("hey", "length")
    choice = server.ok(PATH, {"prompt": [BOS, *b"hi"], "echo": True, "max_tokens": 0})["choices"][0]
    assert choice["text"] == "<bos>hi"


def test_n_streamed_with_logprobs(server: Live) -> None:
    """S04, as reported: every index ends once, entries match tokens, the usage counts the prompt once."""
    body = {
        "prompt": "Hello!", "n": 2, "logprobs": 0, "max_tokens": 2, "temperature": 1,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    chunks = server.events(PATH, body)
    usage = chunks.pop()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (7, 4)
    entries, reasons = {0: 0, 1: 0}, {0: [], 1: []}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        entries[choice["index"]] += len(choice["logprobs"]["tokens"])
        if choice["finish_reason"] is not None:
            reasons[choice["index"]].append(choice["finish_reason"])
    assert entries == {0: 2, 1: 2}
    assert reasons == {0: ["length"], 1: ["length"]}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prompt": "[say:ab]"}, "stop"),
        ({"prompt": "x", "max_tokens": 4}, "length"),
        ({"prompt": "[say:abc]", "stop": "c"}, "stop"),
    ],
)
def test_how_streams_end(server: Live, fields: dict, reason: str) -> None:
    """S05."""
    choices = [c["choices"][0] for c in server.events(PATH, fields)]
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + [reason]


def test_abort_ends_with_what_there_is(server: Live) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(server.ok, PATH, {"prompt": ["[wait]", "[say:b]"], "rid": "group"})
        server.until(lambda: "group_0" in server.engine.waiting)
        # Neither a prefix nor a longer id matches.
        for other in ("grou", "group_", "group_00", "group_01"):
            server.http.post("/abort_request", json={"rid": other})
        assert not pending.done()
        server.http.post("/abort_request", json={"rid": "group"})
        answer = pending.result()
    assert [c["finish_reason"] for c in answer["choices"]] == ["abort", "stop"]
    assert [c["text"] for c in answer["choices"]] == ["", "b"]


def test_eos_shows_as_matched_stop(server: Live) -> None:
    assert server.ok(PATH, {"prompt": "[eos:2]"})["choices"][0]["matched_stop"] == EOS


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": ""}, None),
        ({"prompt": []}, "empty"),
        ({"prompt": [[]]}, "empty"),
        ({"prompt": ["a", 1]}, "mixture"),
        ({"prompt": [10**9]}, "1000000000"),
        ({"prompt": [10**30]}, "vocabulary"),
        ({"prompt": None}, "prompt"),
        ({}, "prompt"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "best_of": 3}, "best_of"),
        ({"prompt": "x", "stop_token_ids": [10**9], "min_tokens": 3}, "1000000000"),
        ({"prompt": "x", "stop_token_ids": [-1]}, "-1"),
        ({"prompt": "x", "stop_token_ids": ["a"]}, "stop_token_ids"),
        ({"prompt": "x", "min_tokens": 9, "max_tokens": 3}, "min_tokens"),
    ],
)
def test_refusals(server: Live, fields: dict, words: str | None) -> None:
    """S07 among others: bad ids never reach the engine."""
    before = len(server.engine.received)
    if words is None:
        # This tokenizer begins every text with a token of its own, so even the empty one can be continued.
        assert server.ok(PATH, fields)["usage"]["prompt_tokens"] == 1
        return
    assert words in server.refused(PATH, fields)["message"]
    assert len(server.engine.received) == before


def test_a_batch_is_bounded(server: Live) -> None:
    answer = server.post("/v1/completions", {"prompt": ["a"] * 3000, "max_tokens": 1})
    assert answer.status_code == 400
    assert "2048" in answer.json()["error"]["message"]
