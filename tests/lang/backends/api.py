"""A small HTTP server in this process that speaks the protocols of OpenAI, Anthropic and Gemini, and misbehaves on
request. Written from the vendors' documentation; holds no model: a function makes the answers."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

Body = dict[str, Any]


class Api:
    """`answer(body)` makes the text of every answer. `script` holds what the next requests get instead: a status
    (429 and 503 come with Retry-After), "hang", "break" (a stream ends in the middle, abruptly), "short" (it
    ends in good order but without its end) or "error" (it says that there is an error)."""

    def __init__(self) -> None:
        self.answer: Callable[[Body], str] = lambda body: "Hello there"
        self.script: list[int | str] = []
        self.requests: list[Body] = []
        self.headers: list[dict[str, str]] = []
        self.retry_after = "0.05"
        self.owned_by = "someone"
        self.logprobs: Callable[[Body], list[Body | None]] | None = None
        self.url = ""
        self.over = False
        self.app = Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/completions", self._completions, methods=["POST"]),
                Route("/v1/messages", self._messages, methods=["POST"]),
                Route("/{version}/models/{call}", self._gemini, methods=["POST"]),
            ]
        )

    # ---- what all have in common ----

    async def _read(self, request: Request) -> tuple[Body, str, Response | None]:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        fault = self.script.pop(0) if self.script else ""
        while fault == "hang" and not self.over:
            await asyncio.sleep(0.02)
        if isinstance(fault, int):
            headers = {"retry-after": self.retry_after} if fault in (429, 503) else {}
            error = {"message": f"scripted {fault}", "code": fault, "status": "X", "type": "scripted"}
            return body, "", JSONResponse({"type": "error", "error": error}, fault, headers)
        return body, str(fault), None

    @staticmethod
    def _events(events: list[tuple[str, Any]], fault: str, done: str = "") -> Response:
        """Server-sent events `(event name or "", data)`."""

        async def lines() -> AsyncIterator[str]:
            shown = events[: len(events) // 2] if fault else events
            for name, data in shown:
                yield (f"event: {name}\n" if name else "") + f"data: {json.dumps(data)}\n\n"
            if fault == "error":
                error = {"type": "error", "error": {"type": "overloaded_error", "message": "scripted error"}}
                yield ("event: error\n" if shown[0][0] else "") + f"data: {json.dumps(error)}\n\n"
            if fault == "break":
                raise ConnectionResetError("scripted")
            if done and not fault:
                yield f"data: {done}\n\n"

        return StreamingResponse(lines(), media_type="text/event-stream")

    # ---- OpenAI ----

    async def _models(self, request: Request) -> Response:
        return JSONResponse(
            {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": self.owned_by}]}
        )

    async def _chat(self, request: Request) -> Response:
        body, fault, refused = await self._read(request)
        if refused:
            return refused
        text = self.answer(body)
        usage = {
            "prompt_tokens": 12,
            "completion_tokens": len(text.split()),
            "total_tokens": 12 + len(text.split()),
            "prompt_tokens_details": {"cached_tokens": 4},
        }
        head = {"id": "c", "created": 1, "model": body["model"]}
        if body.get("stream"):
            chunks = [
                {**head, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": piece}}]}
                for piece in _pieces(text)
            ]
            end = {"index": 0, "delta": {}, "finish_reason": "stop"}
            chunks.append({**head, "object": "chat.completion.chunk", "choices": [end]})
            chunks.append({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
            return self._events([("", chunk) for chunk in chunks], fault, "[DONE]")
        choices = [
            {"index": i, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            for i in range(body.get("n") or 1)
        ]
        return JSONResponse({**head, "object": "chat.completion", "choices": choices, "usage": usage})

    async def _completions(self, request: Request) -> Response:
        body, fault, refused = await self._read(request)
        if refused:
            return refused
        prompts = body["prompt"]
        prompts = prompts if isinstance(prompts, list) and isinstance(prompts[0], str) else [prompts]
        told = self.logprobs(body) if self.logprobs else [None] * len(prompts)
        text = self.answer(body)
        choices = [
            {"index": i, "text": text, "finish_reason": "stop", "logprobs": values}
            for i, values in enumerate(told)
        ]
        usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
        head = {"id": "c", "created": 1, "model": body["model"], "object": "text_completion"}
        if body.get("stream"):
            pieces = [{**head, "choices": [{"index": 0, "text": piece}]} for piece in _pieces(text)]
            end = {**head, "choices": [{"index": 0, "text": "", "finish_reason": "stop"}], "usage": usage}
            return self._events([("", piece) for piece in [*pieces, end]], fault, "[DONE]")
        return JSONResponse({**head, "choices": choices, "usage": usage})

    # ---- Anthropic ----

    async def _messages(self, request: Request) -> Response:
        body, fault, refused = await self._read(request)
        if refused:
            return refused
        text = self.answer(body)
        usage = {"input_tokens": 8, "cache_read_input_tokens": 4, "output_tokens": 1}
        message = {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {**usage, "output_tokens": 3},
        }
        if not body.get("stream"):
            return JSONResponse(message)
        begun = {**message, "content": [], "stop_reason": None, "usage": usage}
        block = {"type": "text", "text": ""}
        events: list[Any] = [
            {"type": "message_start", "message": begun},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "ping"},
            *(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
                for piece in _pieces(text)
            ),
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                "usage": {"output_tokens": 3},
            },
            {"type": "message_stop"},
        ]
        return self._events([(event["type"], event) for event in events], fault)

    # ---- Gemini ----

    async def _gemini(self, request: Request) -> Response:
        body, fault, refused = await self._read(request)
        if refused:
            return refused
        text = self.answer(body)
        usage = {"promptTokenCount": 9, "candidatesTokenCount": 3, "cachedContentTokenCount": 2}

        def part(piece: str, **more: Any) -> Body:
            content = {"role": "model", "parts": [{"text": piece}]}
            return {"candidates": [{"content": content, "index": 0, **more}], "usageMetadata": usage}

        if request.path_params["call"].endswith(":streamGenerateContent"):
            events = [("", part(piece)) for piece in _pieces(text)]
            return self._events([*events, ("", part("", finishReason="STOP"))], fault)
        return JSONResponse(part(text, finishReason="STOP"))


def _pieces(text: str) -> list[str]:
    """`text` in pieces of three characters."""
    return [text[i : i + 3] for i in range(0, len(text), 3)]


class Server:
    """Serves one `api` after the other on a free port of this machine."""

    def __init__(self) -> None:
        self.api = Api()
        config = uvicorn.Config(
            self._app,
            port=0,
            interface="asgi3",
            log_level="critical",
            timeout_graceful_shutdown=1,
            lifespan="off",
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 10
        while not self._server.started:
            assert time.monotonic() < deadline, "the test's server does not start"
            time.sleep(0.01)
        self._url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        await self.api.app(scope, receive, send)

    @contextmanager
    def serving(self, api: Api) -> Iterator[Api]:
        self.api, api.url = api, self._url
        try:
            yield api
        finally:
            api.over = True

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive()
