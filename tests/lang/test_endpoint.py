"""The HTTP backend against servers that are absent, vanish, hang, or answer with errors."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import radixlang as sgl
from radixlang.errors import BackendError, ConfigError, ProgramError
from radixlang.lang import loop
from radixlang.lang.backends import runtime_endpoint
from radixlang.lang.backends.base import Piece, Prompt
from radixlang.lang.chat_templates import TEMPLATES, JinjaTemplate
from radixlang.lang.params import SamplingParams

META = {"finish_reason": None, "prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 0}


class Handler(BaseHTTPRequestHandler):
    """`act` answers `/generate`."""

    act: Callable[[BaseHTTPRequestHandler], None]
    healthy = True
    keys: list[str | None] = []  # noqa: RUF012

    def do_GET(self) -> None:
        type(self).keys.append(self.headers["Authorization"])
        if self.path == "/health" and not self.healthy:
            self.close_connection = True
            return
        self.reply(200, {"model_path": "some/Qwen2-7B-Instruct"})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).act(self)

    def reply(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, *lines: str) -> None:
        self.send_response(200)
        self.end_headers()
        for line in lines:
            self.wfile.write(f"data: {line}\n\n".encode())

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def server(monkeypatch) -> Iterator[tuple[str, type[Handler]]]:
    monkeypatch.setattr(runtime_endpoint, "PATIENCE", 0.3)
    handler = type("Mine", (Handler,), {"keys": []})
    running = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    running.daemon_threads = True
    thread = threading.Thread(target=running.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}", handler
    running.shutdown()
    thread.join()
    running.server_close()


@sgl.function
def program(s):
    s += "x" + sgl.gen("y")


def test_an_absent_server_is_found_at_once():
    with pytest.raises(BackendError, match=r"http://127\.0\.0\.1:9 cannot be reached .* is it running"):
        sgl.RuntimeEndpoint("http://127.0.0.1:9/")
    with pytest.raises(
        ConfigError, match=r"base_url 'localhost:30000' is no URL of a server; one looks like http://"
    ):
        sgl.RuntimeEndpoint("localhost:30000")


def test_the_key_is_sent_and_the_template_is_found_by_the_path(server):
    url, handler = server
    endpoint = sgl.RuntimeEndpoint(url, api_key="secret")
    assert handler.keys == ["Bearer secret"]
    assert endpoint.get_model_name() == "some/Qwen2-7B-Instruct"
    assert endpoint.chat_template() is TEMPLATES["qwen"]
    assert sgl.RuntimeEndpoint(url + "/v1", chat_template_name="gemma-it").chat_template() is TEMPLATES["gemma-it"]


def test_errors_of_the_server_are_told(server):
    url, handler = server
    handler.act = lambda self: self.reply(400, {"error": {"message": "That is too long."}})
    with pytest.raises(ProgramError, match="answered 400: That is too long"):
        program.run(backend=sgl.RuntimeEndpoint(url))["y"]
    handler.act = lambda self: self.reply(500, "rubbish")
    with pytest.raises(ProgramError, match="answered 500"):
        program.run(backend=sgl.RuntimeEndpoint(url))["y"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_breaks_off(server, stream):
    url, handler = server
    backend = sgl.RuntimeEndpoint(url)

    def half(self):
        self.stream(json.dumps({"text": "a", "output_ids": [1], "meta_info": META}))
        self.close_connection = True

    handler.act = half if stream else lambda self: setattr(self, "close_connection", True)
    with pytest.raises(ProgramError, match=r"broke the connection|closed a stream"):
        program.run(backend=backend, stream=stream)["y"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_hangs_is_noticed_by_its_health(server, stream):
    url, handler = server
    backend = sgl.RuntimeEndpoint(url)
    release = threading.Event()
    handler.act = lambda self: release.wait(10)
    handler.healthy = False
    began = time.monotonic()
    try:
        with pytest.raises(ProgramError, match=r"has not answered .* /health fails"):
            program.run(backend=backend, stream=stream)["y"]
    finally:
        release.set()
    assert time.monotonic() - began < 5


def test_a_slow_answer_of_a_healthy_server_is_waited_for(server):
    url, handler = server

    def slow(self):
        time.sleep(1.0)
        self.reply(200, {"text": "ok", "meta_info": {**META, "finish_reason": {"type": "stop"}}})

    handler.act = slow
    assert program.run(backend=sgl.RuntimeEndpoint(url))["y"] == "ok"


def streamed(url: str) -> list[Piece]:
    backend = sgl.RuntimeEndpoint(url)

    async def read() -> list[Piece]:
        return [piece async for piece in backend.stream(Prompt("x"), SamplingParams())]

    return loop.call(read())


@pytest.mark.parametrize("cumulative", [True, False])
def test_text_so_far_and_new_text_are_both_understood(server, cumulative):
    url, handler = server
    chunks = []
    for count in (1, 2, 3):
        first = 0 if cumulative else count - 1
        chunks.append(
            json.dumps(
                {
                    "text": "abc"[first:count],
                    "output_ids": [7, 8, 9][first:count],
                    "meta_info": {
                        **META,
                        "completion_tokens": count,
                        "output_token_logprobs": [[-1.0, 7, None], [-2.0, 8, None], [-3.0, 9, None]][first:count],
                    },
                }
            )
        )
    handler.act = lambda self: self.stream(*chunks, "[DONE]")
    pieces = streamed(url)
    assert [piece.text for piece in pieces] == ["a", "b", "c"]
    assert [row[1] for row in pieces[-1].meta["output_token_logprobs"]] == [7, 8, 9]


def test_an_error_in_a_stream(server):
    url, handler = server
    handler.act = lambda self: self.stream(json.dumps({"error": {"message": "No more pages."}}), "[DONE]")
    with pytest.raises(BackendError, match="No more pages"):
        streamed(url)


GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\\n\\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set first = '' %}{% set turns = messages %}{% endif %}"
    "{% for m in turns %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('order') }}"
    "{% endif %}<{{ 'model' if m.role == 'assistant' else 'user' }}>"
    "{{ (first if loop.first else '') + m.content | trim }}</>\n{% endfor %}"
    "{% if add_generation_prompt %}<model>{% endif %}"
)


def test_templates_whose_text_depends_on_the_position():
    from tests.lang.fakes import FakeBackend

    @sgl.function
    def talk(s):
        s += sgl.system("Be nice.")
        s += sgl.user(" Hi ")
        s += sgl.assistant(sgl.gen("a"))
        s += sgl.user("Bye")
        s += sgl.assistant(sgl.gen("b"))

    backend = FakeBackend(lambda prompt, _: " ok")
    backend.template = JinjaTemplate(GEMMA, {"bos_token": "<s>"}, "<s>", TEMPLATES["default"])
    state = talk.run(backend=backend)
    # What was generated stays as it was, because it is cached that way; what was written is the template's.
    assert state.text() == "<user>Be nice.\n\nHi</>\n<model> ok</>\n<user>Bye</>\n<model> ok</>\n"
    assert [call.text for call in backend.calls] == [
        "<user>Be nice.\n\nHi</>\n<model>",
        "<user>Be nice.\n\nHi</>\n<model> ok</>\n<user>Bye</>\n<model>",
    ]
