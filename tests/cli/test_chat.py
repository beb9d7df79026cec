"""The terminal chat: commands, streaming from a server, stopping, and what a failed answer leaves behind."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from radixlang.cli import chat as chat_module
from radixlang.cli.chat import Chat, MarkdownStream, figures, split_paragraphs
from radixlang.cli.chat_source import EngineSource, Piece, ServerSource
from radixlang.errors import RadixLangError, RequestError


class Parrot:
    """Says the last message back in two pieces."""

    name = "parrot"

    def __init__(self) -> None:
        self.seen: list[list[dict[str, str]]] = []
        self.fail: Exception | None = None
        self.closed_early = False

    def answer(self, messages: list[dict[str, str]], sampling: dict[str, Any]) -> Iterator[Piece]:
        self.seen.append([dict(message) for message in messages])
        if self.fail:
            raise self.fail
        text = messages[-1]["content"]
        try:
            yield Piece(text[:2], 10, 1, 4)
            if text == "interrupt":
                os.kill(os.getpid(), signal.SIGINT)
                yield Piece("t")
            yield Piece(text[2:], 10, 2, 4)
        except GeneratorExit:
            self.closed_early = True
            raise

    def close(self) -> None:
        pass


@pytest.fixture
def parrot() -> Parrot:
    return Parrot()


@pytest.fixture
def chat(parrot: Parrot) -> Chat:
    return Chat(parrot, Console(file=io.StringIO()), {}, None)


def talk(chat: Chat, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines) + "\n"))
    chat.loop()


def test_a_piped_conversation(
    chat: Chat, parrot: Parrot, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(chat, monkeypatch, "hello", "", "again", "/quit", "never")
    out, err = capsys.readouterr()
    assert out == "hello\nagain\n"
    assert "2 tokens" in err
    assert "4 of 10 prompt tokens cached" in err
    assert [m["content"] for m in parrot.seen[1]] == ["hello", "hello", "again"]


def test_system_reset_and_save(
    chat: Chat, parrot: Parrot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "chat.json"
    talk(
        chat, monkeypatch, "one", "/system Be brief.", "two", f"/save {file}", "/reset", "three", "/system", "four"
    )
    assert parrot.seen[1][0] == {"role": "system", "content": "Be brief."}
    assert len(parrot.seen[1]) == 2
    assert [m["content"] for m in json.loads(file.read_text())] == ["Be brief.", "two", "two"]
    assert [m["content"] for m in parrot.seen[2]] == ["Be brief.", "three"]
    assert [m["content"] for m in parrot.seen[3]] == ["four"]


def test_bad_commands_do_no_harm(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(chat, monkeypatch, "/nope", "/save", "/save /no/such/folder/x", "/help")
    err = capsys.readouterr().err
    assert "Unknown command /nope" in err
    assert "Give a file" in err
    assert "cannot be written" in err
    assert "Ctrl-C stops an answer" in err


def test_ctrl_c_stops_the_answer_and_not_the_chat(
    chat: Chat, parrot: Parrot, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT)
    talk(chat, monkeypatch, "interrupt", "next")
    out, err = capsys.readouterr()
    assert out == "int\nnext\n"
    assert "Stopped." in err
    assert parrot.closed_early
    assert chat.messages[1] == {"role": "assistant", "content": "int"}
    assert signal.getsignal(signal.SIGINT) is before


def test_a_refused_question_is_forgotten(
    chat: Chat, parrot: Parrot, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parrot.fail = RequestError("too long")
    chat.ask("x" * 10)
    parrot.fail = None
    chat.ask("short")
    assert [m["content"] for m in parrot.seen[1]] == ["short"]
    assert "error: too long" in capsys.readouterr().err


def test_paragraphs_are_cut_outside_code() -> None:
    assert split_paragraphs("a\n\nb") == ("a\n\n", "b")
    assert split_paragraphs("a\n") == ("", "a\n")
    assert split_paragraphs("```\nx\n\ny") == ("", "```\nx\n\ny")
    assert split_paragraphs("```\nx\n\ny\n```\n\nz") == ("```\nx\n\ny\n```\n\n", "z")


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_the_terminal_shows_everything_once(step: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=60, height=8, color_system=None)
    text = "# Title\n\nSome *words* here [/and] no markup.\n\n```python\nx = 1\n\ny = 2\n```\n\nThe end."
    console.begin_capture()
    with MarkdownStream(console) as stream:
        for i in range(0, len(text), step):
            stream.feed(text[i : i + step])
    shown = console.end_capture()
    final = shown[shown.rindex("Title") :]
    for part in ("Some words here [/and] no markup.", "x = 1", "y = 2", "The end."):
        assert part in final


def test_a_paragraph_longer_than_the_screen() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=20, height=6, color_system=None)
    words = [f"word{i}" for i in range(100)]
    console.begin_capture()
    with MarkdownStream(console) as stream:
        for word in words:
            stream.feed(word + " ")
    shown = console.end_capture()
    assert re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", " ", shown).split()[-100:] == words
    # What is redrawn never reaches beyond the top of the screen.
    redrawn = [len(ups) // len("\x1b[1A\x1b[2K") for ups in re.findall(r"(?:\x1b\[1A\x1b\[2K)+", shown)]
    assert 2 <= max(redrawn) < 6


def test_figures() -> None:
    line = figures(Piece("", 100, 11, 64), started=1.0, first=1.5, ended=2.5)
    assert line == "11 tokens, 10.0 tok/s, first after 0.50 s, 64 of 100 prompt tokens cached"
    assert figures(Piece(), 1.0, None, 2.0) == "No answer."


def server(handler: Any) -> httpx.MockTransport:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "the-model"}]})
        return handler(request)

    return httpx.MockTransport(answer)


def test_a_server_s_stream() -> None:
    bodies: list[dict[str, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        assert request.headers["authorization"] == "Bearer key"
        events = [
            {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
            {"choices": [{"delta": {"content": "Hel"}}]},
            {"choices": [{"delta": {"content": "lo"}, "finish_reason": "stop"}]},
            {
                "choices": [],
                "usage": {
                    "prompt_tokens": 9,
                    "completion_tokens": 2,
                    "prompt_tokens_details": {"cached_tokens": 8},
                },
            },
        ]
        lines = [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"]
        return httpx.Response(200, text="".join(lines))

    source = ServerSource("http://host:1/v1/", "key", server(handler))
    assert source.name == "the-model"
    asked = [{"role": "user", "content": "hi"}]
    pieces = list(source.answer(asked, {"max_new_tokens": None, "sampling_seed": 3, "top_k": 5}))
    source.close()
    assert "".join(piece.text for piece in pieces) == "Hello"
    assert pieces[-1] == Piece("", 9, 2, 8)
    body = bodies[0]
    assert body["messages"] == asked
    assert body["seed"] == 3
    assert body["top_k"] == 5
    assert "max_tokens" not in body
    assert "max_new_tokens" not in body


def test_a_server_s_refusal_is_its_sentence() -> None:
    error = {"error": {"message": "The prompt is too long.", "type": "invalid_request_error"}}
    source = ServerSource("http://host:1", None, server(lambda request: httpx.Response(400, json=error)))
    with pytest.raises(RequestError, match="too long"):
        list(source.answer([], {}))
    source = ServerSource("http://host:1", None, server(lambda request: httpx.Response(502, text="<html>")))
    with pytest.raises(RadixLangError, match="status 502"):
        list(source.answer([], {}))
    late = f"data: {json.dumps(error)}\n\n"
    source = ServerSource("http://host:1", None, server(lambda request: httpx.Response(200, text=late)))
    with pytest.raises(RadixLangError, match="too long"):
        list(source.answer([], {}))
    for line, words in (("data: {half", "not understood"), ('data: {"error": "gone"}', "gone")):
        source = ServerSource(
            "http://host:1", None, server(lambda request, line=line: httpx.Response(200, text=line))
        )
        with pytest.raises(RadixLangError, match=words):
            list(source.answer([], {}))


def test_no_server_there() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(RadixLangError, match="No server answers at http://host:1"):
        ServerSource("http://host:1", None, httpx.MockTransport(refuse))
    with pytest.raises(RadixLangError, match="not an OpenAI-compatible server"):
        ServerSource("http://host:1", None, httpx.MockTransport(lambda request: httpx.Response(200, text="hi")))


class FakeEngine:
    """Streams cumulative states as the engine does."""

    def __init__(self) -> None:
        self.tokenizer = self
        self.stopped = False
        self.asked: dict[str, Any] = {}

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        return [1] * len(messages)

    def generate(self, **asked: Any) -> Iterator[dict[str, Any]]:
        self.asked = asked
        for i, text in enumerate(("a", "ab", "abc"), 1):
            yield {"text": text, "meta_info": {"prompt_tokens": 5, "completion_tokens": i, "cached_tokens": 2}}

    def shutdown(self) -> None:
        self.stopped = True


def test_an_engine_s_stream() -> None:
    engine = FakeEngine()
    source = EngineSource(engine, "here")  # type: ignore[arg-type]
    pieces = list(source.answer([{"role": "user", "content": "x"}], {"temperature": 0}))
    assert [piece.text for piece in pieces] == ["a", "b", "c"]
    assert pieces[-1].completion_tokens == 3
    assert engine.asked["input_ids"] == [1]
    assert engine.asked["sampling_params"] == {"temperature": 0}
    source.close()
    assert engine.stopped


def test_run_with_a_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(chat_module, "ServerSource", lambda url, key: Parrot())
    monkeypatch.setattr("sys.stdin", io.StringIO("hi there\n"))
    assert chat_module.run(["--url", "http://host:1"]) == 0
    assert capsys.readouterr().out == "hi there\n"
