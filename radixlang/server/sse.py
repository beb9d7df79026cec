"""Server-sent events: one `data:` line per chunk, an error event when it fails half-way, `[DONE]` at the end.

Must not know what the chunks hold.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from radixlang.errors import RadixLangError
from radixlang.log import get_logger
from radixlang.server.stream import Stream
from radixlang.server.web import ClientGone, error_body, internal, while_connected

log = get_logger(__name__)
DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    """One event holding `value` as JSON."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


class EventStream(Response):
    """Sends the chunks that `chunks` yields and gives `stream` up when the client leaves.

    Nothing is sent before the first chunk could fail: call `await stream.peek()` before making one. How chunks and
    errors are written, and what ends the stream, is a protocol's to change.
    """

    media_type = "text/event-stream"
    frame = staticmethod(event)
    failure = staticmethod(error_body)
    end = DONE

    def __init__(self, stream: Stream, chunks: AsyncGenerator[Any, None]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._stream = stream
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.setdefault("state", {})
        try:
            await while_connected(receive, self._pump(send, state))
        except (ClientGone, OSError):
            state["client_gone"] = True
        finally:
            await self._chunks.aclose()
            await self._stream.aclose()

    async def _pump(self, send: Send, state: dict[str, Any]) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})

        async def write(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        try:
            async for chunk in self._chunks:
                await write(self.frame(chunk))
        except RadixLangError as error:
            state["failed"] = error.status
            await write(self.frame(self.failure(error)))
        except OSError:
            raise
        except Exception as error:
            log.error("a stream failed", exc_info=error)
            state["failed"] = RadixLangError.status
            await write(self.frame(self.failure(internal(error))))
        await write(self.end, more=False)
