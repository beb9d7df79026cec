"""The real model behind both of our own backends: in this process, and over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import radixlang as sgl
from radixlang.lang.loop import get_loop


@pytest.fixture(scope="session")
def url(smollm2_engine: Any) -> Iterator[str]:
    """The engine's hub as an HTTP server on its own loop."""
    import uvicorn

    from radixlang.server.app import create_app

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = create_app(smollm2_engine.hub, smollm2_engine.config)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", lifespan="off"))
    running = asyncio.run_coroutine_threadsafe(server.serve(), smollm2_engine._loop)
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    with contextlib.suppress(Exception):
        running.result(10)


@pytest.fixture(scope="session")
def endpoint(url: str) -> Any:
    return sgl.RuntimeEndpoint(url)


@pytest.fixture(params=["engine", "endpoint"])
def backend(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("smollm2_engine" if request.param == "engine" else "endpoint")


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    get_loop()  # the one thread that stays
    before = {thread.ident for thread in threading.enumerate()}
    yield

    def left(patience: float) -> list[threading.Thread]:
        deadline = time.monotonic() + patience
        while threads := [thread for thread in threading.enumerate() if thread.ident not in before]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        return threads

    if left(0.2):
        gc.collect()  # takes half a second among all that the tests have loaded
        assert not left(5), "threads are left"
