"""Bodies, heads and clients that do not go on: what is refused, or left, before it costs anybody else."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any

import pytest

from radixlang.server import connection, web

from .fakes import FakeEngine, Live, live


@pytest.mark.parametrize(
    ("data", "headers", "status"),
    [
        (b"", {}, 400),
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b"null", {}, 400),
        (b'{"text": "\xff"}', {}, 400),
        (b'{"text": "\\ud800"}', {}, 400),
        (b'{"text": "x", "sampling_params": {"temperature": NaN}}', {}, 400),
        (b'{"text": "x", "sampling_params": {"temperature": 1e999}}', {}, 400),
        (b'{"text": "x", "priority": ' + b"9" * 400 + b"}", {}, 400),
        (b'{"text": "x", "sampling_params": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}", {}, 400),
        (b'{"text": "x", "no_such_field": ' + b"[" * 100_000 + b"}", {}, 400),
        (b'{"text": "[say:x]"}', {"content-type": "text/plain"}, 415),
        (b'{"text": "[say:x]"}', {"content-type": "application/x-www-form-urlencoded"}, 415),
        (b'{"text": "[say:x]"}', {"content-encoding": "gzip"}, 415),
        (b'{"text": "[say:x]"}', {"content-type": "application/json; charset=utf-8"}, 200),
        (b'{"text": "[say:x]"}', {"content-type": "application/vnd.api+json"}, 200),
        (b'{"text": "[say:\\u0000]"}', {}, 200),
    ],
)
def test_bodies(server: Live, data: bytes, headers: dict[str, str], status: int) -> None:
    response = server.http.post("/generate", content=data, headers=headers)
    assert response.status_code == status, response.text[:300]
    if status != 200:
        assert response.json()["error"]["message"]
        assert "site-packages" not in response.text
        assert "Traceback" not in response.text


def test_large_bodies_are_refused(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "MAX_BODY", 1000)
    assert server.post("/generate", {"text": "x" * 2000}).status_code == 413

    def pieces() -> Any:
        for _ in range(20):
            yield b"x" * 100

    response = server.http.post("/generate", content=pieces())
    assert response.status_code == 413
    assert response.json()["error"]["code"] == 413


def spoken(server: Live, *parts: bytes, pause: float = 0.0) -> bytes:
    """All that is answered to `parts` on one connection, until the server closes it."""
    with socket.create_connection(("127.0.0.1", server.port)) as link:
        link.settimeout(5)
        for part in parts:
            link.sendall(part)
            time.sleep(pause)
        return b"".join(iter(lambda: link.recv(65536), b""))


POST = b"POST /generate HTTP/1.1\r\nhost: x\r\n"


def test_clients_that_do_not_go_on_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT", 0.2)
    monkeypatch.setattr(web, "BODY_TIMEOUT", 0.2)
    with live() as server:
        assert spoken(server) == b""
        assert spoken(server, POST[:9], POST[9:30], pause=0.05) == b""
        body = b'{"text": "[say:ab]"}'
        head = POST + b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
        late = spoken(server, head + b"\r\n" + body[:5])
        assert late.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in late
        assert b"No more of the body has come for 0.2 s." in late
        # Slow is fine, and so is what waits for its answer or is not the first on its connection.
        again = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        slow = spoken(server, head + b"\r\n" + body[:5], body[5:9], body[9:], b"", again, pause=0.12)
        assert slow.count(b"HTTP/1.1 200 OK") == 2
        server.until(lambda: server.hub.running == 0)


@pytest.mark.parametrize("reads", [True, False])
def test_clients_that_do_not_read_are_left(monkeypatch: pytest.MonkeyPatch, reads: bool) -> None:
    monkeypatch.setattr(connection, "READ_TIMEOUT", 0.2)
    size, part = 64, bytes(1 << 20)  # far more than the buffers of sockets

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})

        async def answer() -> None:
            for i in range(size):
                await send({"type": "http.response.body", "body": part, "more_body": i < size - 1})

        sending = asyncio.create_task(answer())
        left.set_result((await receive())["type"] == "http.disconnect" and not sending.done())
        await sending

    async def client() -> tuple[int, bool]:
        nonlocal left
        left = asyncio.get_running_loop().create_future()
        server = connection.http_server(app)
        server.config.port = 0
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.005)
        reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname())
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        taken = 0
        while reads and taken < size * len(part):
            taken += len(await reader.read(1 << 20))
        gone = await left
        writer.close()
        server.should_exit = True
        await serving
        return taken, gone

    left: asyncio.Future[bool]
    taken, gone = asyncio.run(asyncio.wait_for(client(), 20))
    assert gone is not reads
    assert (taken >= size * len(part)) is reads


def test_heads_are_bounded(server: Live) -> None:
    line = b"x-long: %s\r\n" % (b"a" * (connection.MAX_HEAD - 200))
    assert b" 200 OK" in spoken(server, b"GET /health HTTP/1.1\r\nconnection: close\r\n", line, b"\r\n")
    refused = spoken(server, b"GET /health HTTP/1.1\r\n", line, line, line, pause=0.05)
    assert refused.startswith(b"HTTP/1.1 400 ")
    assert b"The head of the request is larger than 65536 bytes." in refused


@pytest.mark.parametrize("kept", [b"", b"connection: keep-alive\r\n"])
def test_http_1_0_gets_no_chunks(kept: bytes) -> None:
    def asked(version: bytes, body: bytes) -> tuple[bytes, bytes]:
        head = b"POST /generate HTTP/%s\r\nhost: x\r\ncontent-type: application/json\r\n" % version
        head += b"connection: close\r\n" if version == b"1.1" else kept
        answer = spoken(server, head + b"content-length: %d\r\n\r\n" % len(body), body)  # to the end
        head, _, rest = answer.partition(b"\r\n\r\n")
        assert b" 200 OK" in head
        assert b"connection: close" in head
        return head + b"\r\n", rest

    stream = b'{"text": "[say:abc]", "stream": true}'
    with live(engine=FakeEngine(delay=0.01)) as server:
        head, rest = asked(b"1.0", stream)
        assert b"transfer-encoding" not in head
        assert b"content-length" not in head
        *events, done, end = rest.split(b"\n\n")
        texts = [json.loads(event.removeprefix(b"data: "))["text"] for event in events]
        assert len(texts) > 1
        assert texts[-1] == "abc"
        assert (done, end) == (b"data: [DONE]", b"")
        head, rest = asked(b"1.1", stream)
        assert b"transfer-encoding: chunked" in head
        assert rest.endswith(b"0\r\n\r\n")
        # What has a length keeps it.
        head, rest = asked(b"1.0", b'{"text": "[say:abc]"}')
        assert b"content-length: %d\r\n" % len(rest) in head
        assert json.loads(rest)["text"] == "abc"
        assert spoken(server, b"HEAD /health HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\n")
