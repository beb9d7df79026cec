"""The HTTP/1.1 client of `radixlang bench serving`: one request a connection, bodies read line by line.

General clients cost more per chunk than a fast server needs to make one, and would be what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from radixlang.bearer import bearer
from radixlang.url import check_url

#: bytes of the longest line a server may send
LONGEST_LINE = 16 * 2**20
#: seconds that a page may take; events may take as long as the caller lets them
PATIENCE = 30.0


class HttpError(Exception):
    """The server refused, or what it sent is no HTTP. The text is for the table of errors."""


class Client:
    """Speaks to one server. `base_url` may end in `/v1`, as OpenAI clients write it, or not."""

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        parts = check_url("--base-url", base_url)
        self.base = parts.geturl()
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path
        host = parts.netloc.rpartition("@")[2].encode()
        self._headers = {b"Host": host, b"Connection": b"close", **bearer(api_key)}

    @contextlib.asynccontextmanager
    async def _exchange(self, method: str, path: str, body: bytes) -> AsyncIterator[AsyncIterator[bytes]]:
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=self._ssl, limit=LONGEST_LINE)
        try:
            headers = dict(self._headers)
            if body:
                headers |= {b"Content-Type": b"application/json", b"Content-Length": str(len(body)).encode()}
            first = f"{method} {self._prefix}{path} HTTP/1.1".encode()
            lines = [first, *(b"%s: %s" % header for header in headers.items())]
            writer.write(b"\r\n".join([*lines, b"", body]))
            status, fields = await _head(reader)
            chunks = _body(reader, fields)
            if status != 200:
                text = b"".join([chunk async for chunk in chunks])
                raise HttpError(f"status {status}: {_complaint(text)}")
            yield chunks
        finally:
            writer.close()

    async def get(self, path: str) -> Any:
        """The decoded JSON at `path`.

        Raises:
            HttpError, OSError: refused, or not reached or silent.
        """
        try:
            async with asyncio.timeout(PATIENCE), self._exchange("GET", path, b"") as chunks:
                return msgspec.json.decode(b"".join([chunk async for chunk in chunks]))
        except TimeoutError:
            raise TimeoutError(f"silent for {PATIENCE:g} s") from None

    async def events(self, path: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
        """The data of the server-sent events that `body` is answered with, up to `[DONE]`.

        Raises:
            HttpError: refused, or the stream ended without `[DONE]`. OSError: not reached, or cut off.
        """
        async with self._exchange("POST", path, msgspec.json.encode(body)) as chunks:
            rest: list[bytes] = []  # parts of a line, put together once: lines can be long
            async for chunk in chunks:
                if b"\n" not in chunk:
                    rest.append(chunk)
                    continue
                *lines, tail = b"".join([*rest, chunk]).split(b"\n")
                rest = [tail]
                for line in lines:
                    if line.startswith(b"data:"):
                        data = line[5:].strip()
                        if data == b"[DONE]":
                            return
                        if data:  # some keep the connection awake with empty ones
                            yield data
        raise HttpError("the stream ended without [DONE]")


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    try:
        status = 100
        while 100 <= status < 200:  # those stand before the answer
            text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = text.rstrip("\r\n").split("\r\n")
            status = int(first.split(" ", 2)[1])
    except asyncio.IncompleteReadError:
        raise HttpError("the connection closed before an answer") from None
    except (asyncio.LimitOverrunError, IndexError, ValueError):
        raise HttpError("the answer is no HTTP") from None
    pairs = (line.partition(":") for line in lines)
    return status, {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, fields: dict[str, str]) -> AsyncIterator[bytes]:
    if fields.get("transfer-encoding", "").lower() != "chunked":
        length = fields.get("content-length")
        if length is not None and not length.isdecimal():
            raise HttpError(f"the answer has a Content-Length of {length[:40]!r}")
        left = -1 if length is None else int(length)
        while left and (data := await reader.read(min(left, 2**16) if left > 0 else 2**16)):
            left -= len(data) if left > 0 else 0
            yield data
        return
    try:
        while size := int((await reader.readline()).split(b";")[0] or b"0", 16):
            yield (await reader.readexactly(size + 2))[:-2]
    except (asyncio.IncompleteReadError, ValueError):
        raise HttpError("the connection closed in mid-answer") from None


def _complaint(body: bytes) -> str:
    """The sentence in an error's body, or the body's beginning."""
    try:
        data = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body[:200].decode("utf-8", "replace")
    error = data.get("error", data) if isinstance(data, dict) else data
    return str(error.get("message", error) if isinstance(error, dict) else error)[:200]
