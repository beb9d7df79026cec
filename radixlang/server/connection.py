"""The HTTP server under the application: uvicorn, and what it lacks: bounds on what comes before a request, and
answers to HTTP/1.0.

Must not know requests; what is read of a body is bounded by `web.read_body`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: seconds in which the head of a request must have come, from connecting or from its first byte
HEAD_TIMEOUT = 75.0
#: seconds in which a client must take some of what waits for it, once that is more than buffers hold
READ_TIMEOUT = 120.0
#: seconds between two requests of a connection
KEEP_ALIVE = 75
#: seconds after the drain in which clients must have read their answers
LAST_READS = 5
#: bytes that a head may have; what was read together with its last allowed byte counts as allowed
MAX_HEAD = 64 * 1024


def http_server(app: ASGIApp) -> uvicorn.Server:
    """What serves `app` on a socket. Logs warnings as `uvicorn`; signals are the caller's."""
    # Clients that do not read are cut off in the end; uvicorn says so, and again for each, with a traceback.
    logging.getLogger("uvicorn.error").addFilter(_no_cancellation)
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=BoundedProtocol,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=LAST_READS,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
        )
    )


def _no_cancellation(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def _end_with_connection(cycle: Any) -> None:
    """Have uvicorn answer this request as HTTP/1.0 wants it: in one piece, which may grow as it is sent and ends
    where the connection does. By itself uvicorn sends what has no length in chunks, which came with HTTP/1.1."""
    send = cycle.send

    async def in_one_piece(message: Any) -> None:
        cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = in_one_piece
    cycle.chunked_encoding = cycle.keep_alive = False


class BoundedProtocol(HttpToolsProtocol):
    """Closes connections whose next head takes too long or whose client has stopped reading, which ends its
    request, and refuses heads that are too large with a 400. Clients that speak HTTP/1.0 get no chunks.

    Between requests of one connection uvicorn's own `timeout_keep_alive` counts.
    """

    _head_timer: asyncio.TimerHandle | None = None
    _head_size = 0
    _read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        self._end_read()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_size > MAX_HEAD:
            self._end_head()
            self.send_400_response(f"The head of the request is larger than {MAX_HEAD} bytes.")
            return
        if self._head_timer is not None:
            self._head_size += len(data)
        super().data_received(data)

    def on_message_begin(self) -> None:
        if self._head_timer is None:  # not the first of its connection
            self._begin_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._end_head()
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before and self.parser.get_http_version() != "1.1":
            _end_with_connection(self.cycle)

    def pause_writing(self) -> None:
        self._read_timer = asyncio.get_running_loop().call_later(READ_TIMEOUT, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._end_read()
        super().resume_writing()

    def _end_read(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _begin_head(self) -> None:
        self._head_timer = asyncio.get_running_loop().call_later(HEAD_TIMEOUT, self.transport.close)

    def _end_head(self) -> None:
        self._head_size = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
