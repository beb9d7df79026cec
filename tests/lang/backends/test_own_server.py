"""The OpenAI backend on a real server of ours with a real model: programs, select, streams, speculation,
failures."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

import radixlang as rl
from radixlang.cli.main import main
from radixlang.errors import ProgramError
from radixlang.lang import loop
from radixlang.lang.choices import greedy_token_selection, unconditional_likelihood_normalized
from tests.e2e.conftest import Server


@pytest.fixture(scope="module")
def server(smollm2_path: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(smollm2_path, "--served-model-name", "smol", log=tmp_path_factory.mktemp("remote") / "log")
    yield running
    assert running.stop() == 0, running.output


def remote(server: Server, chat: bool = True, **options: Any) -> Any:
    options = {"base_url": f"{server.url}/v1", "api_key": "none", "max_retries": 0, **options}
    return rl.OpenAI("smol", is_chat_model=chat, chat_template="chatml", **options)


@rl.function
def ask(s: Any, question: str) -> None:
    s += rl.user(question)
    s += rl.assistant(rl.gen("answer", max_tokens=24))


def test_chat_completion_and_native_agree(server: Server) -> None:
    question = "What is the capital of France? Answer in one sentence."
    native = rl.RuntimeEndpoint(server.url)
    backends = [native, remote(server), remote(server, chat=False)]
    states = [ask.run(question, backend=backend, temperature=0) for backend in backends]
    texts = [state["answer"] for state in states]
    assert "Paris" in texts[0]
    assert texts[1] == texts[0]
    streamed = ask.run(question, backend=backends[1], temperature=0, stream=True)
    assert "".join(streamed.text_iter("answer")) == texts[1]
    assert streamed.get_meta_info("answer")["prompt_tokens"] > 10
    assert backends[1].token_usage.completion_tokens > 0


@pytest.mark.parametrize("method", [None, greedy_token_selection, unconditional_likelihood_normalized])
def test_select_scores_are_those_of_the_native_backend(server: Server, method: Any) -> None:
    @rl.function
    def pick(s: Any) -> None:
        s += "The capital of France is"
        s += rl.gen("city", choices=[" Paris", " Berlin", " New York City"], choices_method=method)

    results = []
    for backend in (rl.RuntimeEndpoint(server.url), remote(server, chat=False)):
        state = pick.run(backend=backend)
        results.append((state["city"], state.get_meta_info("city")["normalized_prompt_logprobs"]))
    assert results[0][0] == results[1][0]
    assert method is unconditional_likelihood_normalized or results[0][0] == " Paris"
    assert results[1][1] == pytest.approx(results[0][1], abs=2e-3)


def test_speculation_saves_calls_and_keeps_the_answers(server: Server) -> None:
    def program(spec: int | None) -> Any:
        @rl.function(num_api_spec_tokens=spec)
        def count(s: Any) -> None:
            s += "1, 2, 3, 4, 5," + rl.gen("a", max_tokens=12, stop=",")
            s += "," + rl.gen("b", max_tokens=12, stop=",") + "," + rl.gen("c", max_tokens=12, stop=",")

        return count

    counts, texts = [], []
    for spec in (None, 32):
        state = program(spec).run(backend=remote(server, chat=False), temperature=0)
        texts.append([state["a"], state["b"], state["c"]])
        metas = [state.get_meta_info(name) for name in "abc"]
        counts.append(sum(meta["prompt_tokens"] > 0 for meta in metas))
    assert texts[0] == texts[1] == [" 6", " 7", " 8"]
    assert counts == [3, 1]


def test_trace_takes_a_server(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "hello.py"
    file.write_text(
        "import radixlang as sgl\n"
        "@sgl.function\n"
        "def hello(s):\n"
        "    s += sgl.user('Say hello.')\n"
        "    s += sgl.assistant(sgl.gen('answer', max_tokens=4))\n"
        "hello.run()\n"
    )
    out = tmp_path / "page.html"
    assert main(["trace", str(file), "--backend", server.url, "-o", str(out)]) == 0
    assert "Say hello." in out.read_text()
    assert rl.global_config.default_backend is None


def test_a_server_that_vanishes_is_a_clear_error_in_time(smollm2_path: Any, tmp_path: Any) -> None:
    running = Server(smollm2_path, "--served-model-name", "smol", log=tmp_path / "log")
    try:
        loop.get_loop()
        before = {thread.name for thread in threading.enumerate()}
        backend = remote(running, timeout=20)

        @rl.function
        def long(s: Any) -> None:
            s += rl.user("Tell me a long story about the sea and its ships.")
            s += rl.assistant(rl.gen("story", max_tokens=2000, ignore_eos=True))

        state = long.run(backend=backend, stream=True)
        pieces = state.text_iter("story")
        next(pieces)
        for child in running.children():
            os.kill(child, signal.SIGKILL)
        running.process.kill()
        began = time.perf_counter()
        with pytest.raises(ProgramError, match=r"(?s)OpenAI\('smol'\).*test_own_server.py:"):
            list(pieces)
        assert time.perf_counter() - began < 20
        loop.call(backend.close())
        deadline = time.monotonic() + 5
        while {thread.name for thread in threading.enumerate()} - before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert {thread.name for thread in threading.enumerate()} <= before
    finally:
        running.stop(signal.SIGKILL)
