"""`/generate` and `/encode` through a real HTTP server over the fake engine."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from .fakes import BOS, CONTEXT, EOS, Live, live


def test_answer_has_text_ids_and_meta(server: Live) -> None:
    answer = server.ok("/generate", {"text": "[say:Hello]", "sampling_params": {"max_new_tokens": 20}})
    assert answer["text"] == "Hello"
    assert answer["output_ids"] == [*b"Hello", EOS]
    meta = answer["meta_info"]
    assert meta["finish_reason"] == {"type": "stop", "matched": EOS}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (12, 6, 0)
    assert meta["weight_version"] == "default"
    assert meta["cached_tokens_details"] is None
    assert meta["e2e_latency"] >= 0
    assert meta["num_retractions"] == 0
    assert "input_token_logprobs" not in meta


def test_put_works_and_ids_win_over_text(server: Live) -> None:
    body = {"text": "[say:no]", "input_ids": [*b"[say:yes]"], "return_prompt_token_ids": True}
    response = server.http.put("/generate", json=body)
    assert response.json()["text"] == "yes"
    assert response.json()["prompt_token_ids"] == [*b"[say:yes]"]


def test_length_ends_with_the_limit(server: Live) -> None:
    answer = server.ok("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 4}})
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 4}
    assert len(answer["output_ids"]) == len(answer["text"]) == 4


def test_null_max_new_tokens_fills_the_context(server: Live) -> None:
    answer = server.ok("/generate", {"input_ids": [1] * 990, "sampling_params": {"max_new_tokens": None}})
    assert answer["meta_info"]["completion_tokens"] == CONTEXT - 990


def test_batch_keeps_order_and_spreads_options(server: Live) -> None:
    texts = [f"[say:{word}]" for word in ("one", "two", "three")]
    answers = server.ok("/generate", {"text": texts, "rid": "batch", "sampling_params": {"max_new_tokens": 9}})
    assert [a["text"] for a in answers] == ["one", "two", "three"]
    assert [a["meta_info"]["id"] for a in answers] == ["batch_0", "batch_1", "batch_2"]
    each = [{"max_new_tokens": n} for n in (1, 2, 3)]
    answers = server.ok("/generate", {"text": ["a", "b", "c"], "sampling_params": each})
    assert [len(a["output_ids"]) for a in answers] == [1, 2, 3]
    assert isinstance(server.ok("/generate", {"text": ["[say:x]"]}), list)


def test_n_is_prompt_major(server: Live) -> None:
    params = {"n": 2, "max_new_tokens": 3}
    answers = server.ok("/generate", {"text": ["a", "c"], "sampling_params": params, "rid": "r"})
    assert [a["meta_info"]["id"] for a in answers] == ["r_0", "r_1", "r_2", "r_3"]
    single = [server.ok("/generate", {"text": t, "sampling_params": {"max_new_tokens": 3}})["text"] for t in "ac"]
    assert [answers[0]["text"], answers[2]["text"]] == single
    assert len({a["text"] for a in answers}) > 2  # the samples differ
    sent = server.engine.received[-6:-2]
    assert [(m.rid, m.sample_index) for m in sent] == [("r_0", 0), ("r_1", 1), ("r_2", 0), ("r_3", 1)]


@pytest.mark.parametrize("incremental", [False, True])
def test_stream_is_cumulative_or_incremental(incremental: bool) -> None:
    with live(incremental_streaming_output=incremental) as server:
        body = {"text": "[say:abc]", "return_logprob": True, "sampling_params": {"max_new_tokens": 9}}
        chunks = server.events("/generate", body)
    texts = [c["text"] for c in chunks]
    lengths = [len(c["meta_info"]["output_token_logprobs"]) for c in chunks]
    ids = [c["output_ids"] for c in chunks]
    if incremental:
        assert "".join(texts) == "abc"
        assert [token for part in ids for token in part] == [*b"abc", EOS]
        assert sum(lengths) == 4
    else:
        assert texts[-1] == "abc"
        assert ids[-1] == [*b"abc", EOS]
        assert lengths == [len(i) for i in ids]
    assert [c["meta_info"]["finish_reason"] for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["meta_info"]["finish_reason"]["type"] == "stop"
    assert "index" not in chunks[0]


def test_streamed_batch_carries_indexes(server: Live) -> None:
    chunks = server.events("/generate", {"text": ["[say:ab]", "[say:cd]"]})
    last = {c["index"]: c["text"] for c in chunks}
    assert last == {0: "ab", 1: "cd"}


def test_stream_interval_makes_fewer_chunks(server: Live) -> None:
    params = {"max_new_tokens": 21, "stream_interval": 10}
    lengths = [len(c["output_ids"]) for c in server.events("/generate", {"text": "x", "sampling_params": params})]
    assert lengths[-1] == 21
    assert all(after - before >= 10 for before, after in pairwise(lengths[:-1]))


def test_logprob_shapes(server: Live) -> None:
    body = {
        "text": "hi",
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
        "token_ids_logprob": [5, 7],
        "return_text_in_logprobs": True,
        "sampling_params": {"max_new_tokens": 2},
    }
    answer = server.ok("/generate", body)
    meta = answer["meta_info"]
    prompt = meta["input_token_logprobs"]
    assert [entry[1:] for entry in prompt] == [[BOS, "<bos>"], [ord("h"), "h"], [ord("i"), "i"]]
    assert prompt[0][0] is None
    assert prompt[1][0] == pytest.approx(-0.604, abs=1e-5)
    assert meta["input_top_logprobs"][0] is None
    assert [entry[1] for entry in meta["input_top_logprobs"][1]] == [ord("h"), ord("i")]
    out = meta["output_token_logprobs"]
    assert [entry[1] for entry in out] == answer["output_ids"]
    assert [len(row) for row in meta["output_top_logprobs"]] == [2, 2]
    assert [e[1] for e in meta["output_token_ids_logprobs"][0]] == [5, 7]
    assert meta["output_token_ids_logprobs"][0][1][0] == pytest.approx(-0.07)
    assert meta["output_token_logprobs_length"] == 2


def test_scoring_without_new_tokens(server: Live) -> None:
    body = {"text": "hi", "return_logprob": True, "logprob_start_len": 1, "sampling_params": {"max_new_tokens": 0}}
    answer = server.ok("/generate", body)
    assert answer["text"] == ""
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert answer["meta_info"]["output_token_logprobs"] == []
    assert len(answer["meta_info"]["input_token_logprobs"]) == 2
    last = server.ok("/generate", {**body, "logprob_start_len": 2})["meta_info"]["input_token_logprobs"]
    assert last == [[None, ord("i"), None]]
    assert server.ok("/generate", {**body, "logprob_start_len": 3})["meta_info"]["input_token_logprobs"] == []
    default = server.ok(
        "/generate", {"text": "hi", "return_logprob": True, "sampling_params": {"max_new_tokens": 1}}
    )
    assert default["meta_info"]["input_token_logprobs"] == []
    assert default["meta_info"]["output_token_logprobs"][0][2] is None


def test_namespaces_do_not_run_together(server: Live) -> None:
    pairs = [("ab", "c"), ("a", "bc"), ("abc", None), (None, "abc"), (None, None)]
    names = []
    for key, salt in pairs:
        server.ok("/generate", {"text": "[say:x]", "extra_key": key, "cache_salt": salt})
        names.append(server.engine.received[-1].namespace)
    assert len(set(names)) == len(pairs)
    assert names[-1] == ""


def test_null_in_a_list_is_a_value_left_out(server: Live) -> None:
    """For every field of which a batch may have a list."""
    body = {
        "text": ["[say:x]", "[say:x]"],
        "sampling_params": [None, {"max_new_tokens": 1}],
        "rid": [None, "the second"],
        "return_logprob": [None, True],
        "logprob_start_len": [None, 1],
        "top_logprobs_num": [None, 2],
        "token_ids_logprob": [None, [5]],
        "priority": [None, 3],
        "extra_key": [None, "key"],
        "cache_salt": [None, "salt"],
    }
    server.ok("/generate", {"text": "[say:x]"})
    alone = server.engine.received[-1]
    for fields in (body, {name: list(reversed(value)) for name, value in body.items()}):
        answers = server.ok("/generate", fields)
        first, second = sorted(server.engine.received[-2:], key=lambda request: request.priority)
        for name in ("sampling", "return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob"):
            assert getattr(first, name) == getattr(alone, name), name
        assert (first.priority, first.namespace) == (0, "")
        assert (second.priority, second.namespace, second.token_ids_logprob) == (3, "3:keysalt", (5,))
        assert sorted(answer["meta_info"]["id"] == "the second" for answer in answers) == [False, True]
    nothing = server.ok(
        "/generate", {"text": ["a", "b"], "token_ids_logprob": [None, None], "priority": [None] * 2}
    )
    assert len(nothing) == 2
    server.ok("/generate", {"text": ["a", "b"], "lora_path": [None, None], "return_hidden_states": [False, False]})


def test_stop_string_sends_a_quiet_abort(server: Live) -> None:
    body = {"text": "[say:one STOP two]", "rid": "stopper", "sampling_params": {"stop": ["STOP"]}}
    answer = server.ok("/generate", body)
    assert answer["text"] == "one "
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": "STOP"}
    server.until(lambda: any(a.rid == "stopper" and a.quiet for a in server.engine.aborts))
    assert "stopper" not in server.engine.running
    # The rid is free again, but the engine may still be busy with its old bearer: it gets another name there.
    again = server.ok("/generate", body)
    assert again["text"] == "one "
    assert again["meta_info"]["id"] == "stopper"
    assert server.engine.received[-1].rid != "stopper"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "text or input_ids"),
        ({"text": []}, "empty list"),
        ({"input_ids": []}, "empty"),
        ({"input_ids": [[]]}, "empty"),
        ({"input_ids": [[1], 2]}, "not both"),
        ({"input_ids": [10**9]}, "1000000000"),
        ({"input_ids": [-1]}, "-1"),
        ({"input_ids": [1, True]}, "bool"),
        ({"input_ids": [1] * 2000}, "2000 tokens"),
        ({"text": "x", "sampling_params": {"max_new_tokens": 2000}}, "2002"),
        ({"text": "x", "sampling_params": {"max_new_tokens": "8"}}, "max_new_tokens"),
        ({"text": "x", "sampling_params": {"wrong_key": 1}}, "wrong_key"),
        ({"text": "x", "sampling_params": {"temperature": -1}}, "temperature"),
        ({"text": "x", "sampling_params": {"min_new_tokens": 9, "max_new_tokens": 3}}, "min_new_tokens"),
        ({"text": "x", "sampling_params": {"stop_token_ids": [10**9]}}, "1000000000"),
        ({"text": "x", "sampling_params": {"stop_token_ids": [-1]}}, "-1"),
        ({"text": "x", "sampling_params": {"stop_token_ids": ["a"]}}, "stop_token_ids"),
        ({"text": "x", "sampling_params": {"sampling_seed": 2**64}}, "sampling_seed"),
        ({"text": "x", "sampling_params": {"logit_bias": {"5": int("9" * 320)}}}, "logit_bias of token 5"),
        ({"text": "x", "sampling_params": {"n": 0}}, "n must be"),
        ({"text": "x", "return_logprob": True, "logprob_start_len": 9}, "2 tokens"),
        ({"text": "x", "return_logprob": True, "logprob_start_len": -2}, "-2"),
        ({"text": "x", "return_logprob": True, "top_logprobs_num": 129}, "128"),
        ({"text": "x", "return_logprob": True, "token_ids_logprob": [999]}, "999"),
        ({"text": "x", "priority": 2**40}, "priority"),
        ({"text": "x", "rid": ""}, "rid"),
        ({"text": "x", "image_data": "http://a/b.png"}, "image_data"),
        ({"text": "x", "lora_path": "a"}, "lora_path"),
        ({"text": ["x", "y"], "lora_path": [None, "a"]}, "lora_path"),
        ({"text": "x", "sampling_params": {"n": 100_000}}, "n must be in"),
        ({"text": ["x"] * 20, "sampling_params": {"n": 128}}, "n is 128 for 20 prompts"),
        ({"text": "x", "session_params": {"id": "s"}}, "session_params"),
        ({"text": "x", "custom_logit_processor": "code"}, "custom_logit_processor"),
        ({"text": ["a", "b"], "rid": ["same", "same"]}, "differ"),
        ({"text": ["a", "b"], "rid": ["one"]}, "1 entries for 2"),
        ({"text": "a", "return_logprob": [True]}, "one prompt"),
        ({"text": ["a", "b"], "sampling_params": [{"n": 2}, {"n": 1}]}, "same for all"),
        ({"text": ["a"], "sampling_params": {"n": 2}, "top_logprobs_num": [1]}, "above 1"),
        ({"text": 5}, "text"),
        ({"text": "x", "stream": "yes"}, "stream"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_name_what_is_wrong(server: Live, body: dict, words: str, stream: bool) -> None:
    """S05: also for streams a bad request is a 4xx before the first byte."""
    before = len(server.engine.received)
    error = server.refused("/generate", {"stream": stream, **body})
    assert words in error["message"]
    assert len(server.engine.received) == before


def test_nulls_mean_defaults_and_unknown_fields_are_ignored(server: Live) -> None:
    body = {"text": "[say:ok]", "rid": None, "stream": None, "return_logprob": None, "no_such_field": [1]}
    assert server.ok("/generate", {**body, "sampling_params": {"temperature": None, "stop": None}})["text"] == "ok"
    assert server.ok("/generate", {**body, "lora_path": None, "image_data": []})["text"] == "ok"
    nothing = {"lora_path": [None], "image_data": [[None]], "return_hidden_states": [False]}
    assert server.ok("/generate", {**body, "text": [body["text"]], **nothing})[0]["text"] == "ok"


def test_large_numbers_that_mean_no_bound_are_accepted(server: Live) -> None:
    params = {"top_k": 10**30, "stream_interval": 10**30, "max_new_tokens": 2}
    server.ok("/generate", {"text": "x", "sampling_params": params})
    assert server.engine.received[-1].sampling.top_k == -1


def test_auto_truncation_cuts_prompt_and_answer() -> None:
    with live(allow_auto_truncate=True) as server:
        answer = server.ok("/generate", {"input_ids": [65] * 5000, "sampling_params": {"max_new_tokens": 50}})
        assert answer["meta_info"]["prompt_tokens"] == CONTEXT - 1
        assert answer["meta_info"]["completion_tokens"] == 1


def test_the_pool_limits_a_request_too() -> None:
    with live(info={"max_total_num_tokens": 100}) as server:
        error = server.refused("/generate", {"input_ids": [65] * 90, "sampling_params": {"max_new_tokens": 20}})
        assert "110" in error["message"]
        assert "KV pool of 100 tokens" in error["message"]


def test_running_rid_cannot_be_used_twice(server: Live) -> None:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.ok, "/generate", {"text": "[wait]", "rid": "twice"})
        server.until(lambda: "twice" in server.engine.waiting)
        assert "twice" in server.refused("/generate", {"text": "x", "rid": "twice"})["message"]
        server.refused("/generate", {"text": ["x", "y"], "rid": "twice"})
        server.http.post("/abort_request", json={"rid": "twice"})
        assert first.result()["meta_info"]["finish_reason"]["type"] == "abort"
    server.ok("/generate", {"text": "[say:x]", "rid": "twice"})


def test_engine_refusals_keep_their_status(server: Live) -> None:
    response = server.post("/generate", {"text": "[fail:503]"})
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert server.refused("/generate", {"text": "[fail:503]", "stream": True}, 503)["message"].startswith(
        "Refused"
    )
    assert server.refused("/generate", {"text": "[fail:400]"}, 400)["code"] == 400
    server.refused("/generate", {"text": ["[say:x]", "[fail:500]"]}, 500)


def test_failure_in_mid_stream_is_an_error_event(server: Live) -> None:
    """S05: chunks, then one error event, then [DONE]."""
    chunks = server.events("/generate", {"text": "[mid]"})
    assert chunks[-1]["error"]["message"] == "Broke half-way."
    assert len(chunks[-2]["output_ids"]) == 3
    assert all("error" not in c for c in chunks[:-1])


def test_without_a_tokenizer_ids_go_in_and_out() -> None:
    with live(tokenizer=False, skip_tokenizer_init=True) as server:
        answer = server.ok("/generate", {"input_ids": [*b"[say:hey]"]})
        assert answer["output_ids"] == [*b"hey", EOS]
        assert "text" not in answer
        assert "tokenizer" in server.refused("/generate", {"text": "x"})["message"]
        params = {"stop": "x"}
        assert "stop" in server.refused("/generate", {"input_ids": [1], "sampling_params": params})["message"]
        server.refused("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
        server.refused("/tokenize", {"prompt": "x"})


def test_without_a_tokenizer_the_parsers_still_read_texts_of_others() -> None:
    """So that their flags have an effect beside --skip-tokenizer-init."""
    with live(
        tokenizer=False, skip_tokenizer_init=True, tool_call_parser="qwen", reasoning_parser="qwen3"
    ) as server:
        answer = server.ok("/separate_reasoning", {"text": "<think>One</think>Two"})
        assert answer == {"reasoning_text": "One", "text": "Two"}
        call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
        tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        assert server.ok("/parse_function_call", {"text": call, "tools": tools})["calls"][0]["name"] == "f"


def test_encode(embedder: Live) -> None:
    answer = embedder.ok("/encode", {"text": "hello", "rid": "e"})
    assert answer["meta_info"]["cached_tokens"] == 0
    assert math.isclose(sum(x * x for x in answer["embedding"]), 1, rel_tol=1e-5)
    assert answer["meta_info"]["prompt_tokens"] == 6
    assert answer["meta_info"]["id"] == "e"
    answers = embedder.ok("/encode", {"text": ["hello", "you"], "dimensions": 4})
    assert [len(a["embedding"]) for a in answers] == [4, 4]
    assert "embeddings and generates no text" in embedder.refused("/generate", {"text": "x"})["message"]


def test_encode_on_a_generation_model_says_what_it_is(server: Live) -> None:
    assert "--is-embedding" in server.refused("/encode", {"text": "x"})["message"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (r"\ud800", r"\ud800 (byte 9) is half of a surrogate pair"),
        (r"\ud83d\ude00\uDC00 more", r"\uDC00 (byte 21) is half of a surrogate pair"),
        (r"\\\ud800\n", r"\ud800 (byte 11) is half"),
        (r"\\ud800\q", "JSON is malformed: invalid escape character"),
    ],
)
def test_half_a_surrogate_pair_is_named(server, text: str, words: str) -> None:
    body = b'{"text":"%s"}' % text.encode()
    response = server.http.post("/generate", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert f"The body is not valid JSON: {words}" in response.text.replace("\\\\", "\\")
