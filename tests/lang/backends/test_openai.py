"""What only the OpenAI backend does: completions, select, fields of our own server, usage."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("openai")

from radixlang.errors import BackendError, ConfigError, UnsupportedError
from radixlang.lang.backends.base import Prompt
from radixlang.lang.backends.crusoe import BASE_URL, Crusoe
from radixlang.lang.backends.openai import OpenAI, capabilities
from radixlang.lang.choices import (
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from radixlang.lang.params import SamplingParams
from tests.lang.backends.api import Api

USER = {"role": "user", "content": "Hi"}
TURN = Prompt("…", [USER], role="assistant")


def make(api: Api, chat: bool = True, **options: Any) -> OpenAI:
    return OpenAI("m", chat, base_url=f"{api.url}/v1", api_key="k", **options)


def run(backend: OpenAI, *works: Callable[[OpenAI], Any]) -> list[Any]:
    async def main() -> list[Any]:
        try:
            return [await work(backend) for work in works]
        finally:
            await backend.close()

    return asyncio.run(main())


def generate(prompt: Prompt, **params: Any) -> Callable[[OpenAI], Any]:
    return lambda backend: backend.generate(prompt, SamplingParams(**params))


def echoed(body: dict[str, Any], extra_front: str = "") -> list[dict[str, Any]]:
    """Log-probabilities of an echoed text: a token is a word with the space before it."""
    rows = []
    for text in body["prompt"]:
        words = text.replace(" ", "\0 ").split("\0")
        tokens = ([extra_front] if extra_front else []) + [word for word in words if word]
        values = [None] + [-float(len(token)) for token in tokens[1:]]
        offsets = [sum(map(len, tokens[:i])) for i in range(len(tokens))]
        rows.append({"tokens": tokens, "token_logprobs": values, "text_offset": offsets, "top_logprobs": []})
    return rows


def test_completions_are_made_of_the_text(api: Api) -> None:
    ((piece,),) = run(make(api, chat=False), generate(Prompt("Once upon"), max_new_tokens=5, n=1))
    assert piece.text == "Hello there"
    assert api.requests[0]["prompt"] == "Once upon"
    assert api.requests[0]["max_tokens"] == 5


def test_usage_is_added_up(api: Api) -> None:
    backend = make(api)
    run(backend, generate(TURN), generate(TURN))
    assert (backend.token_usage.prompt_tokens, backend.token_usage.completion_tokens) == (24, 4)
    backend.token_usage.reset()
    assert backend.token_usage.prompt_tokens == 0


@pytest.mark.parametrize("front", ["", "<bos>"])
def test_select_scores_an_echo(api: Api, front: str) -> None:
    api.logprobs = lambda body: echoed(body, front)
    prompt = Prompt("I need a")
    backend = make(api, chat=False)
    (decision,) = run(
        backend, lambda b: b.select(prompt, [" new search engine", " calculator"], token_length_normalized)
    )
    assert decision.decision == " new search engine"
    tokens = decision.meta_info["input_token_logprobs"]
    assert [[token[2] for token in row] for row in tokens] == [[" new", " search", " engine"], [" calculator"]]
    assert decision.meta_info["normalized_prompt_logprobs"] == [pytest.approx(-(4 + 7 + 7) / 3), -11.0]
    assert len(api.requests) == 1
    assert api.requests[0]["max_tokens"] == 0
    (greedy,) = run(make(api, chat=False), lambda b: b.select(prompt, [" abc", " ab"], greedy_token_selection))
    assert greedy.decision == " ab"


def test_a_token_across_the_seam_counts(api: Api) -> None:
    api.logprobs = echoed
    (decision,) = run(
        make(api, chat=False), lambda b: b.select(Prompt("a "), ["bcd", "b"], token_length_normalized)
    )
    assert [row[0][2] for row in decision.meta_info["input_token_logprobs"]] == [" bcd", " b"]


def test_select_without_the_prompt(api: Api) -> None:
    api.logprobs = echoed
    choices = [" long words", " short"]
    (decision,) = run(
        make(api, chat=False), lambda b: b.select(Prompt("x"), choices, unconditional_likelihood_normalized)
    )
    assert len(api.requests) == 2
    assert decision.meta_info["normalized_unconditional_prompt_logprobs"] == [-2.5, -6.0]
    assert decision.decision == " long words"
    with pytest.raises(UnsupportedError, match="their tokens change without the prompt"):
        run(make(api, chat=False), lambda b: b.select(Prompt("x"), ["y"], unconditional_likelihood_normalized))


class Letters:
    """A tokenizer of letters."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


def test_select_by_bias_where_nothing_is_echoed(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixlang.lang.backends.openai_select.encoding_of", lambda backend: Letters())

    def answer(body: dict[str, Any]) -> str:
        return max(chr(int(token)) for token in body["logit_bias"])

    api.script, api.answer = [400], answer
    backend = make(api, chat=False)
    select = lambda choices: lambda b: b.select(Prompt("p"), choices, token_length_normalized)  # noqa: E731
    first, second = run(backend, select(["abx", "aby", "acz"]), select(["same", "same"]))
    assert first.decision == "acz"
    assert second.decision == "same"
    # One refused echo, then only where choices differ: at the second letter, and no more.
    assert len(api.requests) == 2
    assert api.requests[1]["logit_bias"] == {str(ord("b")): 100, str(ord("c")): 100}
    assert api.requests[1]["prompt"] == [ord("p"), ord("a")]
    api.answer = lambda body: "!"
    with pytest.raises(BackendError, match="against the bias"):
        run(make(api, chat=False), lambda b: _forced(b, ["ab", "cd"]))


async def _forced(backend: OpenAI, choices: list[str]) -> Any:
    backend._echoes = False
    return await backend.select(Prompt("p"), choices, token_length_normalized)


def test_our_own_server_is_recognised_and_takes_more(api: Api) -> None:
    api.owned_by = "radixlang"
    begun = Prompt("…", [USER, {"role": "assistant", "content": "Well, "}], role="assistant")
    run(
        make(api),
        generate(TURN, regex="[ab]+", top_k=3, stop_regex="x+"),
        generate(begun),
    )
    assert api.requests[0]["regex"] == "[ab]+"
    assert api.requests[0]["top_k"] == 3
    assert api.requests[0]["stop_regex"] == "x+"
    assert api.requests[1]["continue_final_message"] is True
    assert api.requests[1]["add_generation_prompt"] is False
    assert "regex" not in api.requests[1]


def test_what_a_server_takes_can_be_said(api: Api) -> None:
    run(make(api, extended=True), generate(TURN, min_new_tokens=2))
    assert api.requests[0]["min_tokens"] == 2
    with pytest.raises(UnsupportedError, match="regex"):
        run(make(api, extended=False), generate(TURN, regex="a"))


def test_the_vendor_gets_no_parameter_that_is_at_its_default() -> None:
    backend = OpenAI("gpt-x", api_key="k")
    assert backend._sampling(SamplingParams()) == {"max_completion_tokens": 128}
    assert backend._sampling(SamplingParams(temperature=0.0, stop="a")) == {
        "max_completion_tokens": 128,
        "temperature": 0.0,
        "stop": ["a"],
    }
    assert "max_tokens" in OpenAI("gpt-3.5-turbo-instruct", api_key="k")._sampling(SamplingParams())
    assert OpenAI("gpt-3.5-turbo-instruct", api_key="k").is_chat_model is False


def test_log_probabilities_come_in_the_native_shape(api: Api) -> None:
    api.logprobs = lambda body: [
        {
            "tokens": ["Hello", " there"],
            "token_logprobs": [-0.5, -1.5],
            "top_logprobs": [{"Hello": -0.5}, {" there": -1.5}],
            "text_offset": [0, 5],
        }
    ]
    ((piece,),) = run(make(api, chat=False), generate(Prompt("x"), return_logprob=True, top_logprobs_num=1))
    assert piece.meta["output_token_logprobs"] == [[-0.5, None, "Hello"], [-1.5, None, " there"]]
    assert piece.meta["output_top_logprobs"] == [[[-0.5, None, "Hello"]], [[-1.5, None, " there"]]]
    assert not math.isnan(piece.meta["output_token_logprobs"][0][0])


def test_keys_are_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "CRUSOE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        OpenAI("m")
    with pytest.raises(ConfigError, match="CRUSOE_API_KEY"):
        Crusoe("m")
    monkeypatch.setenv("CRUSOE_API_KEY", "k")
    assert str(Crusoe("m")._client.base_url).rstrip("/") == BASE_URL


def test_azure_is_another_client() -> None:
    backend = OpenAI(
        "m", is_azure=True, api_key="k", azure_endpoint="https://x.example.com", api_version="2024-10-21"
    )
    assert type(backend._client).__name__ == "AsyncAzureOpenAI"
    assert "max_completion_tokens" in backend._sampling(SamplingParams())


def test_capabilities_are_those_of_the_table(api: Api) -> None:
    assert make(api, extended=True).capabilities == capabilities(True, True)
    assert make(api, chat=False, extended=False).capabilities == capabilities(False, False)
