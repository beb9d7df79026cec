"""What all remote backends do alike, over the real clients and real HTTP: answers, streams, parameters,
failures."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import radixlang as rl
from radixlang.errors import BackendError, ConfigError, ProgramError, UnsupportedError
from radixlang.lang import loop
from radixlang.lang.backends.base import Piece, Prompt
from radixlang.lang.backends.remote import Cut, RemoteBackend, client_library
from radixlang.lang.choices import token_length_normalized, unconditional_likelihood_normalized
from radixlang.lang.params import SamplingParams
from tests.lang.backends.api import Api

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Hi"}
TURN = Prompt("…", [SYSTEM, USER], role="assistant")
PICTURE = "data:image/png;base64,aGVsbG8="


def need(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"the client {module} is not installed")


def openai(url: str, **options: Any) -> RemoteBackend:
    need("openai")
    from radixlang.lang.backends.openai import OpenAI

    return OpenAI("m", base_url=f"{url}/v1", api_key="k", **options)


def anthropic(url: str, **options: Any) -> RemoteBackend:
    need("anthropic")
    from radixlang.lang.backends.anthropic import Anthropic

    return Anthropic("m", base_url=url, api_key="k", **options)


def gemini(url: str, **options: Any) -> RemoteBackend:
    pytest.importorskip("google.genai")
    from radixlang.lang.backends.vertexai import VertexAI

    return VertexAI("m", http_options={"base_url": url}, api_key="k", **options)


def litellm(url: str, **options: Any) -> RemoteBackend:
    need("litellm")
    from radixlang.lang.backends.litellm import LiteLLM

    return LiteLLM("openai/m", base_url=f"{url}/v1", api_key="k", **options)


MAKERS = [openai, anthropic, gemini, litellm]
every = pytest.mark.parametrize("make", MAKERS, ids=[make.__name__ for make in MAKERS])
Maker = Callable[..., RemoteBackend]


def run(backend: RemoteBackend, work: Callable[[RemoteBackend], Any]) -> Any:
    """`await work(backend)` on a loop of its own; the backend is closed."""

    async def main() -> Any:
        try:
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(main())


def answers(backend: RemoteBackend, prompt: Prompt = TURN, **params: Any) -> list[Piece]:
    return run(backend, lambda b: b.generate(prompt, SamplingParams(**params)))


async def streamed(backend: RemoteBackend, prompt: Prompt = TURN, **params: Any) -> list[Piece]:
    return [piece async for piece in backend.stream(prompt, SamplingParams(**params))]


# ---- answers ----


@every
def test_an_answer_has_its_text_and_its_figures(make: Maker, api: Api) -> None:
    (piece,) = answers(make(api.url))
    assert piece.text == "Hello there"
    assert piece.meta["finish_reason"] == {"type": "stop"}
    assert piece.meta["prompt_tokens"] in (9, 12)
    assert piece.meta["cached_tokens"] in (2, 4)
    assert piece.meta["completion_tokens"] in (2, 3)
    sent = json.dumps(api.requests[0])
    assert "Be brief." in sent
    assert '"Hi"' in sent


@every
def test_a_stream_comes_in_pieces_with_the_figures_at_the_end(make: Maker, api: Api) -> None:
    pieces = run(make(api.url), streamed)
    assert "".join(piece.text for piece in pieces) == "Hello there"
    assert len([piece for piece in pieces if piece.text]) > 1
    assert [bool(piece.meta) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].meta["finish_reason"] == {"type": "stop"}
    assert pieces[-1].meta["completion_tokens"] in (2, 3)
    assert pieces[-1].meta["prompt_tokens"] in (9, 12)


@every
def test_several_answers(make: Maker, api: Api) -> None:
    assert [piece.text for piece in answers(make(api.url), n=3)] == ["Hello there"] * 3


@every
def test_a_schema_is_sent_and_select_uses_one(make: Maker, api: Api) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    backend = make(api.url)
    api.answer = lambda body: '{"choice": "maybe"}'

    async def work(backend: RemoteBackend) -> Any:
        await backend.generate(TURN, SamplingParams(json_schema=schema))
        decision = await backend.select(TURN, ["yes", "maybe"], token_length_normalized)
        api.answer = lambda body: '{"choice": "never"}'
        with pytest.raises(BackendError, match="did not keep to the choices"):
            await backend.select(TURN, ["yes", "maybe"], token_length_normalized)
        with pytest.raises(UnsupportedError, match="choices_method"):
            await backend.select(TURN, ["yes", "maybe"], unconditional_likelihood_normalized)
        return decision

    assert run(backend, work).decision == "maybe"
    assert '"integer"' in json.dumps(api.requests[0])
    assert '"enum": ["yes", "maybe"]' in json.dumps(api.requests[1])


@every
def test_pictures_are_sent(make: Maker, api: Api) -> None:
    content = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": PICTURE}}]
    answers(make(api.url), Prompt("…", [{"role": "user", "content": content}], [PICTURE], role="assistant"))
    sent = json.dumps(api.requests[0])
    assert "aGVsbG8=" in sent
    assert "image/png" in sent


@every
def test_sampling_reaches_the_api(make: Maker, api: Api) -> None:
    answers(make(api.url), temperature=0.25, top_p=0.5, max_new_tokens=7, stop=["END"])
    sent = api.requests[0]
    sent = sent.get("generationConfig", sent)
    assert sent["temperature"] == 0.25
    assert 7 in (sent.get("max_tokens"), sent.get("max_completion_tokens"), sent.get("maxOutputTokens"))
    assert ["END"] in (sent.get("stop"), sent.get("stop_sequences"), sent.get("stopSequences"))


# ---- what they cannot do ----


@every
@pytest.mark.parametrize(
    ("params", "named"),
    [({"regex": "a+"}, "regex"), ({"stop_regex": "a+"}, "stop_regex"), ({"min_new_tokens": 3}, "min_new_tokens")],
)
def test_what_the_api_lacks_is_named_and_nothing_is_sent(
    make: Maker, api: Api, params: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedError, match=rf"m'\) does not support {named}"):
        answers(make(api.url), **params)
    assert api.requests == []


@every
def test_a_call_outside_of_the_assistant_s_turn_is_refused(make: Maker, api: Api) -> None:
    for role, said in ((None, "outside of a turn"), ("user", "in the user turn")):
        with pytest.raises(UnsupportedError, match=said):
            answers(make(api.url), Prompt("x", [USER], role=role))


@every
def test_programs_run_and_text_outside_of_turns_is_not_lost_in_silence(make: Maker, api: Api) -> None:
    def program(outside: str, spec: int | None = None) -> Any:
        @rl.function(num_api_spec_tokens=spec)
        def talk(s: Any) -> None:
            s += outside
            s += rl.system(" Be brief. ")
            s += rl.user("\n Hi \n")
            s += rl.assistant(rl.gen("one"))
            s += rl.user("And?")
            s += rl.assistant("Hello " + rl.gen("two") if spec else rl.gen("two"))

        return talk

    backend = make(api.url)
    state = program("").run(backend=backend)
    assert (state["one"], state["two"]) == ("Hello there", "Hello there")
    state = program("", 20).run(backend=backend)
    assert (state["one"], state["two"]) == ("Hello there", "there")
    state = program("Once upon a time").run(backend=backend)
    with pytest.raises(ProgramError, match="does not support text outside of turns"):
        _ = state["one"]
    assert len(api.requests) == 4
    loop.call(backend.close())


@pytest.mark.parametrize("make", [openai, gemini, litellm])
def test_a_begun_turn_is_refused_where_the_api_does_not_continue_it(make: Maker, api: Api) -> None:
    prompt = Prompt("x", [USER, {"role": "assistant", "content": "Well, "}], role="assistant")
    with pytest.raises(UnsupportedError, match="num_api_spec_tokens"):
        answers(make(api.url), prompt)


def test_a_parameter_that_only_shapes_the_draw_is_left_out_with_one_warning(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    backend = anthropic(api.url)

    async def work(backend: RemoteBackend) -> None:
        for _ in range(2):
            await backend.generate(TURN, SamplingParams(min_p=0.1))

    with caplog.at_level("WARNING"):
        run(backend, work)
    assert [record.getMessage() for record in caplog.records] == [
        "Anthropic('m') has no parameter min_p; it is left out."
    ]


def test_a_missing_key_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    need("anthropic")
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"Anthropic\('m'\): .*ANTHROPIC_API_KEY"):
        rl.Anthropic("m")


@pytest.mark.parametrize("n", [1, 2])
def test_whatever_a_sample_raises_comes_out_as_it_is(api: Api, n: int) -> None:
    async def fails() -> Piece:
        raise TypeError("the client's own")

    with pytest.raises(TypeError, match="the client's own"):
        run(anthropic(api.url), lambda backend: backend.samples(SamplingParams(n=n), fails))


def test_a_client_that_is_not_installed_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'radixlang\[nothing\]'"):
        client_library("no_such_client", "nothing", "X")


# ---- failures ----


@every
@pytest.mark.parametrize("fault", [429, 500, 503])
def test_a_passing_failure_is_tried_again(make: Maker, api: Api, fault: int) -> None:
    api.script = [fault]
    assert answers(make(api.url))[0].text == "Hello there"
    assert len(api.requests) == 2
    api.script = [fault]
    assert "".join(piece.text for piece in run(make(api.url), streamed)) == "Hello there"
    assert len(api.requests) == 4


def test_retry_after_is_obeyed(api: Api) -> None:
    api.script, api.retry_after = [429], "0.6"
    began = time.perf_counter()
    answers(openai(api.url))
    assert 0.6 <= time.perf_counter() - began < 10


def test_a_retry_after_beyond_the_time_limit_is_not_waited_for(api: Api) -> None:
    api.script, api.retry_after = [429], "60"
    began = time.perf_counter()
    with pytest.raises(BackendError, match="answered 429: scripted 429"):
        answers(openai(api.url, timeout=5))
    assert time.perf_counter() - began < 30


@every
def test_a_lasting_failure_says_what_the_api_said(make: Maker, api: Api) -> None:
    api.script = [429] * 3
    with pytest.raises(BackendError, match=r"answered 429 \(3 tries\): .*scripted 429"):
        answers(make(api.url, max_retries=2))
    assert len(api.requests) == 3


@every
def test_a_refusal_is_not_tried_again(make: Maker, api: Api) -> None:
    api.script = [400]
    with pytest.raises(BackendError, match=r"answered 400: .*scripted 400"):
        answers(make(api.url))
    assert len(api.requests) == 1


@every
def test_silence_ends_at_the_time_limit(make: Maker, api: Api) -> None:
    for work in (lambda b: b.generate(TURN, SamplingParams()), streamed):
        api.script = ["hang"]
        began = time.perf_counter()
        with pytest.raises(BackendError, match=r"did not answer within 0\.5 s"):
            run(make(api.url, timeout=0.5, max_retries=0), work)
        assert time.perf_counter() - began < 10


@every
@pytest.mark.parametrize("fault", ["break", "short"])
def test_a_broken_stream_is_an_error_after_what_came(make: Maker, api: Api, fault: str) -> None:
    api.script = [fault]
    seen: list[str] = []

    async def work(backend: RemoteBackend) -> None:
        async for piece in backend.stream(TURN, SamplingParams()):
            seen.append(piece.text)

    with pytest.raises(BackendError, match=r"stream of .*m'\) broke off"):
        run(make(api.url), work)
    assert "".join(seen)
    assert "Hello there".startswith("".join(seen))


@pytest.mark.parametrize("make", [openai, anthropic])
def test_an_error_in_a_stream_is_told(make: Maker, api: Api) -> None:
    api.script = ["error"]
    with pytest.raises(BackendError, match=r"broke off: .*scripted error"):
        run(make(api.url), streamed)


@every
def test_a_server_that_is_not_there(make: Maker) -> None:
    before = threading.active_count()
    began = time.perf_counter()
    with pytest.raises(BackendError, match=r"cannot be reached \(2 tries\)|\(2 tries\): .*Connection error"):
        answers(make("http://127.0.0.1:9", max_retries=1))
    assert time.perf_counter() - began < 5
    assert threading.active_count() == before


@every
def test_a_cancelled_call_leaves_nothing_behind(make: Maker, api: Api) -> None:
    before = threading.active_count()

    async def work(backend: RemoteBackend) -> None:
        api.script = ["hang"]
        task = asyncio.ensure_future(backend.generate(TURN, SamplingParams()))
        while not api.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(make(api.url), work)
    assert threading.active_count() == before


# ---- Anthropic's own ----


def test_anthropic_continues_a_begun_turn(api: Api) -> None:
    api.answer = lambda body: " world" if body["messages"][-1]["content"] == "Hello" else "?"
    prompt = Prompt("x", [USER, {"role": "assistant", "content": "Hello "}], role="assistant")
    assert answers(anthropic(api.url), prompt)[0].text == "world"
    pieces = run(anthropic(api.url), lambda b: streamed(b, prompt))
    assert "".join(piece.text for piece in pieces) == "world"


def test_anthropic_s_stops_of_white_space_are_found_here(api: Api) -> None:
    api.answer = lambda body: "one\ntwo\n\nthree"
    (piece,) = answers(anthropic(api.url), stop=["\n\n", "STOP"])
    assert piece.text == "one\ntwo"
    assert piece.meta["finish_reason"] == {"type": "stop"}
    assert api.requests[0]["stop_sequences"] == ["STOP"]
    pieces = run(anthropic(api.url), lambda b: streamed(b, stop="\n\n"))
    assert "".join(piece.text for piece in pieces) == "one\ntwo"
    assert pieces[-1].meta["finish_reason"] == {"type": "stop"}


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_cut(size: int) -> None:
    def cut(text: str, *stops: str) -> tuple[str, bool]:
        found = Cut(stops)
        shown = ""
        for i in range(0, len(text), size):
            shown += found.feed(text[i : i + size])
            if found.hit:
                return shown, True
        return shown + found.rest(), False

    assert cut("ab\n\ncd", "\n\n") == ("ab", True)
    assert cut("ab\ncd\n", "\n\n") == ("ab\ncd\n", False)
    assert cut("aab", "ab", "aac") == ("a", True)
    assert cut("abc") == ("abc", False)


@pytest.mark.parametrize("make", [openai, anthropic, litellm], ids=["openai", "anthropic", "litellm"])
def test_what_is_no_url_is_not_tried(make: Any) -> None:
    with pytest.raises(ConfigError, match=r"base_url 'notaurl.* is no URL of a server; one looks like http://"):
        make("notaurl")
