"""The load generator, on our own server with a fake engine and on servers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator

import pytest

from radixlang.bench.http import Client, HttpError
from radixlang.bench.serving import Settings, measure
from radixlang.errors import ConfigError, EngineError
from tests.server.fakes import FakeEngine, live


class Peer:
    """A server that answers by script: path → raw bytes, with pauses between the parts of a list."""

    def __init__(self, answers: dict[str, list[bytes]], pause: float = 0.0) -> None:
        self.answers, self.pause = answers, pause
        self.heads: list[bytes] = []
        self.bodies: list[dict] = []
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(5)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        async with server:
            await self._stop.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                self.bodies.append(json.loads(await reader.readexactly(int(line[15:]))))
        for part in self.answers.get(head.split()[1].decode(), [b"HTTP/1.1 404 Not Found\r\n\r\n{}"]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(self.pause)
        writer.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5)


@contextlib.contextmanager
def peer(answers: dict[str, list[bytes]], pause: float = 0.0) -> Iterator[Peer]:
    server = Peer(answers, pause)
    try:
        yield server
    finally:
        server.close()


OK = b"HTTP/1.1 200 OK\r\n"
MODELS = [OK + b"\r\n" + b'{"data":[{"id":"m"}]}']


def sse(*texts: str) -> bytes:
    return b"".join(b'data: {"choices":[{"text":"%s"}]}\n\n' % text.encode() for text in texts)


def rows(report, table: int) -> dict[str, list]:
    return {row[0]: dict(zip(report.tables[table].columns, row, strict=True)) for row in report.tables[table].rows}


def total(report) -> dict:
    return dict(zip(report.tables[0].columns, report.tables[0].rows[0], strict=True))


def test_our_own_server() -> None:
    with live(engine=FakeEngine(delay=0.002)) as server:
        report = measure(
            Settings(base_url=server.base + "/v1", num_prompts=6, input_len=20, output_len=9, vocab_size=200)
        )
        sent = server.engine.received
    assert len(sent) == 2 + 6
    assert all(len(message.input_ids) == 4 * 20 for message in sent)
    assert all(message.sampling.max_new_tokens == 9 and message.sampling.ignore_eos for message in sent)
    assert len({message.input_ids for message in sent}) == 8
    line = total(report)
    assert (line["answered"], line["errors"]) == ("6", 0)
    assert line["output tok/s"] == pytest.approx(6 * 9 / line["s"])
    assert line["total tok/s"] == pytest.approx(6 * 29 / line["s"])
    times = rows(report, 1)
    # Nine letters, eight gaps of the fake engine's two milliseconds; a first letter that comes late shortens them.
    assert 1 <= times["gap between tokens"]["mean"] <= times["gap between tokens"]["largest"]
    assert times["whole request"]["mean"] >= times["time to first token"]["mean"] + 8 * 1
    assert times["time per output token"]["mean"] == pytest.approx(times["gap between tokens"]["mean"], rel=0.01)
    assert "fake/model" in report.markdown()
    assert "version" in report.device
    assert report.notes == []


def test_text_prompts_rate_and_concurrency() -> None:
    with live(engine=FakeEngine(delay=0.001)) as server:
        running = []
        receive = server.engine.send
        server.hub._send = lambda message: (running.append(len(server.engine.running)), receive(message))
        began = time.perf_counter()
        settings = Settings(
            base_url=server.base,
            num_prompts=10,
            input_len=5,
            output_len=5,
            text=True,
            request_rate=100,
            max_concurrency=1,
            warmup=0,
        )
        report = measure(settings)
        assert time.perf_counter() - began > 10 * 5 * 0.001
        prompts = [bytes(i for i in memoryview(m.input_ids).cast("i") if i < 256) for m in server.engine.received]
    assert all(len(prompt.split()) == 5 for prompt in prompts)
    assert total(report)["answered"] == "10"
    assert max(running) == 0
    assert "100 requests/s, at most 1 at a time" in report.markdown()


def test_arrivals_keep_the_rate() -> None:
    with live() as server:
        began = time.perf_counter()
        measure(Settings(base_url=server.base, num_prompts=20, output_len=1, vocab_size=200, request_rate=50))
        # The mean of 19 exponential pauses of 20 ms; the seed is fixed.
        assert 0.15 < time.perf_counter() - began < 3


def test_errors_are_counted_and_told() -> None:
    with live(engine=FakeEngine(delay=0.01, max_running=3)) as server:
        report = measure(Settings(base_url=server.base, num_prompts=8, output_len=20, vocab_size=200))
    assert (total(report)["answered"], total(report)["errors"]) == ("3", 5)
    assert report.notes == ["5 × error: status 503: The queue holds 3 requests."]


def test_no_answer_at_all_is_an_error() -> None:
    with (
        live(engine=FakeEngine(max_running=0)) as server,
        pytest.raises(EngineError, match=r"status 503: .*requests\.$"),
    ):
        measure(Settings(base_url=server.base, num_prompts=2, vocab_size=200, warmup=0))
    with pytest.raises(ConfigError, match="is a server running there"):
        measure(Settings(base_url="http://127.0.0.1:9"))
    with pytest.raises(ConfigError, match="--base-url"):
        measure(Settings(base_url="ftp://x"))
    with peer({"/v1/models": [OK + b"\r\n{}"]}) as other, pytest.raises(ConfigError, match="--model") as error:
        measure(Settings(base_url=other.url + "/v1/"))
    assert f"{other.url}/v1/models names" in str(error.value)


def test_a_peer_without_usage_counts_chunks() -> None:
    stream = OK + b"content-type: text/event-stream\r\n\r\n"
    parts = [stream, sse("a"), sse("b", ""), sse("c") + b"data: [DONE]\n\n"]
    with peer({"/v1/models": MODELS, "/v1/completions": parts}, pause=0.02) as other:
        report = measure(Settings(base_url=other.url, api_key="k", num_prompts=1, input_len=3, warmup=0))
        body = other.bodies[-1]
        assert all(b"Authorization: Bearer k\r\n" in head for head in other.heads)
    assert body["stream"] is True
    assert body["ignore_eos"] is True
    assert (body["model"], len(body["prompt"])) == ("m", 3)
    assert rows(report, 1)["gap between tokens"]["p50"] >= 15
    assert total(report)["output tok/s"] == pytest.approx(3 / total(report)["s"])
    assert "no usage" in report.notes[0]
    assert report.settings["api_key"] is None


@pytest.mark.parametrize(
    "usage",
    ["null", '{"prompt_tokens":3}', '{"prompt_tokens":null,"completion_tokens":null}', '{"completion_tokens":0}'],
)
def test_what_peers_leave_out_is_counted(usage: str) -> None:
    """Also empty events, chunks without choices, and numbers written as fractions."""
    last = b'data: {"choices":null,"usage":%s}\n\ndata: [DONE]\n\n' % usage.encode()
    parts = [OK + b"\r\n", b"data:\n\n", sse("a"), b'data: {"choices":[]}\n\n', sse("b"), last]
    with peer({"/v1/completions": parts}) as other:  # and has no list of models
        report = measure(Settings(base_url=other.url, model="m", num_prompts=1, warmup=0))
    assert total(report)["output tok/s"] == pytest.approx(2 / total(report)["s"])
    assert "no usage" in report.notes[0]
    parts[-1] = b'data: {"choices":[],"usage":{"prompt_tokens":3.0,"completion_tokens":7.0}}\n\ndata: [DONE]\n\n'
    with peer({"/v1/completions": parts}) as other:
        report = measure(Settings(base_url=other.url, model="m", num_prompts=1, warmup=0))
    assert total(report)["output tok/s"] == pytest.approx(7 / total(report)["s"])
    assert report.notes == []


def test_a_server_that_takes_connections_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixlang.bench.http.PATIENCE", 0.1)
    with peer({"/v1/models": [b""]}, pause=1.0) as other, pytest.raises(ConfigError, match=r"silent for 0\.1 s"):
        measure(Settings(base_url=other.url))


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([OK + b"content-length: some\r\n\r\n"], "Content-Length of 'some'"),
        ([OK + b"\r\n", sse("a"), b'data: {"error":{"message":"broke"}}\n\n'], "broke"),
        ([OK + b"\r\n", sse("a")], "without"),
        ([OK + b"transfer-encoding: chunked\r\n\r\n", b"5\r\nda"], "mid-answer"),
        ([b"HTTP/1.1 400 Bad\r\ncontent-length: 26\r\n\r\n", b'{"error":{"message":"no"}}x'], "status 400: no"),
        ([b"HTTP/1.1 500 Bad\r\n\r\nplain"], "status 500: plain"),
        ([b""], "before an answer"),
        ([OK + b"\r\n", b"data: [DONE]\n\n"], "no token"),
        (
            [OK + b"\r\n", b'data: {"choices":[{"text":""}],"usage":{"completion_tokens":3}}\n\ndata: [DONE]\n\n'],
            "3 tokens without text",
        ),
        ([OK + b"\r\n", b"data: nonsense\n\n"], "malformed"),
        ([OK + b"\r\n", b'data: {"choices":[{"text":"\xff"}]}\n\n'], "UTF-8"),
        ([OK + b"\r\n", b'data: {"error":' + b"[" * 100_000 + b"\n\n"], "recursion"),
        ([OK + b"\r\n", b'data: {"usage":{"prompt_tokens":1e308}}\n\n'], "usage.prompt_tokens"),
        ([OK + b"\r\n", b'data: {"usage":{"completion_tokens":-1}}\n\n'], "usage.completion_tokens"),
        ([b"SSH-2.0-x\r\n\r\n"], "no HTTP"),
    ],
)
def test_what_peers_do_wrong(parts: list[bytes], error: str) -> None:
    answers = {"/v1/models": MODELS, "/v1/completions": parts}
    with peer(answers, pause=0.01) as other, pytest.raises(EngineError, match=error):
        measure(Settings(base_url=other.url, num_prompts=1, warmup=0))


class Turns(dict[str, list[bytes]]):
    """Answers completions with one after the other of `turns`."""

    def __init__(self, *turns: list[bytes]) -> None:
        super().__init__({"/v1/models": MODELS})
        self.turns = iter(turns)

    def get(self, path: str, other: list[bytes]) -> list[bytes]:
        return next(self.turns) if path == "/v1/completions" else super().get(path, other)


def test_failed_requests_are_in_no_figure() -> None:
    """Not in the time that rates are taken over either."""
    good = [OK + b"\r\n" + sse("a", "b") + b"data: [DONE]\n\n"]
    with peer(Turns(good, [OK + b"\r\n", sse("a")]), pause=0.7) as other:
        report = measure(Settings(base_url=other.url, num_prompts=2, warmup=0, timeout=0.5, max_concurrency=1))
    assert (total(report)["answered"], total(report)["errors"]) == ("1", 1)
    assert total(report)["s"] < 0.5
    assert total(report)["output tok/s"] == pytest.approx(2 / total(report)["s"])


def test_interim_answers_and_long_lines() -> None:
    parts = [b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"\r\n", sse("a" * (8 << 20)), b"data: [DONE]\n\n"]
    with peer({"/v1/models": MODELS, "/v1/completions": parts}) as other:
        report = measure(Settings(base_url=other.url, num_prompts=1, warmup=0))
    assert (total(report)["answered"], total(report)["errors"]) == ("1", 0)
    assert total(report)["s"] < 1


def test_a_silent_peer_times_out() -> None:
    answers = {"/v1/models": MODELS, "/v1/completions": [OK + b"\r\n", sse("a"), b"", b""]}
    with peer(answers, pause=1.0) as other, pytest.raises(EngineError, match=r"no end after 0\.2 s"):
        measure(Settings(base_url=other.url, num_prompts=1, warmup=0, timeout=0.2))


def test_events_are_whole_however_they_are_cut() -> None:
    data = sse("a", "b") + b": comment\n\ndata:{}\r\n\r\ndata: [DONE]\n\n"
    chunked = b"".join(b"%x;ext\r\n%c\r\n" % (1, byte) for byte in data) + b"0\r\n\r\n"

    async def read(url: str) -> list[bytes]:
        return [event async for event in Client(url).events("/v1/completions", {"x": 1})]

    wanted = [b'{"choices":[{"text":"a"}]}', b'{"choices":[{"text":"b"}]}', b"{}"]
    lengths = b"content-length: %d\r\n\r\n" % len(data)
    for answer in ([OK + b"Transfer-Encoding: chunked\r\n\r\n", chunked], [OK + lengths, data[:7], data[7:]]):
        with peer({"/v1/completions": answer}, pause=0.005) as other:
            assert asyncio.run(read(other.url)) == wanted
    with peer({}) as other, pytest.raises(HttpError, match="status 404"):
        asyncio.run(read(other.url))
