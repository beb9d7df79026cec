"""What clients see of a server that is told to leave."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from radixlang.launch import _serve_ring, check_port
from radixlang.server.app import create_app
from radixlang.server.connection import http_server
from tests.server.fakes import FakeEngine, make_hub

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals")


def silent_ring() -> Any:
    """It says nothing by itself: the fake engine speaks to the hub directly."""
    return SimpleNamespace(
        info={},
        left=False,
        dead=lambda: None,
        from_ring=SimpleNamespace(receive=lambda timeout: time.sleep(timeout) or []),
        to_engine=SimpleNamespace(send=lambda message: None),
    )


def test_a_second_signal_ends_every_request_with_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody's stream breaks off, and nobody is told that it was a fault."""

    async def main() -> None:
        engine = FakeEngine(delay=0.01)
        hub, _, config = make_hub(engine, skip_server_warmup=True)
        bound = check_port("127.0.0.1", 0)
        url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(
            _serve_ring(
                config, bound, silent_ring(), http_server, create_app, lambda *_: hub, None, 0.0, url.set_result
            )  # type: ignore[arg-type]
        )
        await asyncio.wait({serving, url}, return_when=asyncio.FIRST_COMPLETED)
        if not url.done():
            await serving  # raises why
        async with httpx.AsyncClient(base_url=url.result(), timeout=10) as client:
            whole = asyncio.create_task(client.post("/generate", json={"text": "[wait]"}))
            body = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 900}}
            async with client.stream("POST", "/generate", json=body) as stream:
                lines = stream.aiter_lines()
                await anext(lines)
                while hub.running < 2:
                    await asyncio.sleep(0.01)
                for _ in range(2):
                    os.kill(os.getpid(), signal.SIGTERM)
                    await asyncio.sleep(0.1)
                events = [line async for line in lines if line]
            answer = await whole
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[-2].removeprefix("data: "))["error"]["message"] == "The server is shutting down."
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, "The server is shutting down.")
        assert await asyncio.wait_for(serving, 5) == 0
        bound.close()

    asyncio.run(main())
    assert not [record for record in caplog.records if record.exc_info]
