"""The HTTP application: the route table and how it is put together.

Must not know how to start an engine; `create_app` takes a hub that is connected to one.
"""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route as StarletteRoute

from radixlang import __version__
from radixlang.config import Config
from radixlang.errors import NotFoundError, RequestError
from radixlang.server import admin, looking, native, parsed, pins, profiling, tokens
from radixlang.server.front import Front
from radixlang.server.hub import Hub
from radixlang.server.openai import chat, completions, embeddings, models, protocol
from radixlang.server.schema import docs_page, openapi
from radixlang.server.web import Endpoint, Route, Server, error_response, json_response

_GET, _POST, _POST_PUT = ("GET",), ("POST",), ("POST", "PUT")
_TEXT, _HTML = "text/plain", "text/html"


class MethodError(RequestError):
    """The path exists, but not with this method."""

    status = 405


async def _openapi_json(server: Server, request: Request, body: None) -> Response:
    return json_response(_description(server))


async def _docs(server: Server, request: Request, body: None) -> Response:
    return HTMLResponse(docs_page(_description(server)))


async def _root(server: Server, request: Request, body: None) -> Response:
    return json_response({"name": "radixlang", "version": __version__, "docs": "/docs", "ui": "/ui"})


def _description(server: Server) -> dict[str, Any]:
    return openapi(ROUTES, __version__, server.config.server.fastapi_root_path.rstrip("/"))


ROUTES: list[Route] = [
    Route("/v1/chat/completions", _POST, chat.chat_completions, "Answer a conversation.", protocol.ChatBody),
    Route("/v1/completions", _POST, completions.completions, "Continue texts.", protocol.CompletionBody),
    Route("/v1/embeddings", _POST, embeddings.embeddings, "Embed texts.", protocol.EmbeddingBody),
    Route("/v1/models", _GET, models.list_models, "List the models."),
    Route("/v1/models/{id:path}", _GET, models.get_model, "Describe one model."),
    Route("/generate", _POST_PUT, native.generate, "Generate (native API).", native.GenerateBody),
    Route("/encode", _POST_PUT, native.encode, "Embed (native API).", native.EncodeBody),
    Route("/tokenize", _POST, tokens.tokenize, "Text or messages to token ids.", protocol.TokenizeBody),
    Route("/v1/tokenize", _POST, tokens.tokenize, "Same as /tokenize.", protocol.TokenizeBody),
    Route("/detokenize", _POST, tokens.detokenize, "Token ids to text.", protocol.DetokenizeBody),
    Route("/v1/detokenize", _POST, tokens.detokenize, "Same as /detokenize.", protocol.DetokenizeBody),
    Route(
        "/parse_function_call",
        _POST,
        parsed.parse_function_call,
        "Read tool calls in a text.",
        parsed.ParseCallBody,
    ),
    Route(
        "/separate_reasoning", _POST, parsed.separate_reasoning, "Tell thoughts from text.", parsed.SeparateBody
    ),
    Route("/health", _GET, admin.health, "Alive and taking requests.", answer=_TEXT),
    Route("/ready", _GET, admin.health, "Same as /health: the port opens when all is ready.", answer=_TEXT),
    Route("/health_generate", _GET, admin.health_generate, "Alive, shown by one token.", answer=_TEXT),
    Route("/model_info", _GET, admin.model_info, "What is served."),
    Route("/get_model_info", _GET, admin.model_info, "Older name of /model_info."),
    Route("/server_info", _GET, admin.server_info, "Configuration and state."),
    Route("/get_server_info", _GET, admin.server_info, "Older name of /server_info."),
    Route("/v1/loads", _GET, admin.loads, "How busy the engine is."),
    Route("/metrics", _GET, admin.metrics, "Prometheus metrics.", answer=_TEXT),
    Route("/cache_tree", _GET, looking.cache_tree, "The prefix cache as a tree.", query=looking.QUERY, admin=True),
    Route("/requests", _GET, looking.requests, "The requests that run and those that wait.", admin=True),
    Route(
        "/flush_cache",
        _GET + _POST,
        admin.flush_cache,
        "Empty the radix cache.",
        admin.FlushBody,
        optional=True,
        query={"timeout": {"type": "number", "minimum": 0, "maximum": admin.LONGEST_FLUSH}},
        admin=True,
        answer=_TEXT,
    ),
    Route(
        "/abort_request",
        _POST,
        admin.abort_request,
        "End a request, or all.",
        admin.AbortBody,
        admin=True,
        answer=_TEXT,
    ),
    Route("/pin", _POST, pins.pin, "Keep a prompt in the prefix cache for a while.", pins.PinBody),
    Route("/unpin", _POST, pins.unpin, "End pins.", pins.UnpinBody),
    Route("/pins", _GET, pins.pins, "List the pins.", admin=True),
    Route(
        "/start_profile",
        _GET + _POST,
        profiling.start_profile,
        "Begin a trace of the engine.",
        profiling.ProfileBody,
        optional=True,
        query=profiling.QUERY,
        admin=True,
    ),
    Route("/stop_profile", _GET + _POST, profiling.stop_profile, "Write the trace.", admin=True),
    Route("/openapi.json", _GET, _openapi_json, "This description."),
    Route("/ui", _GET, looking.ui, "A page to look at the server and to try it.", answer=_HTML),
    Route("/docs", _GET, _docs, "A page of all routes.", answer=_HTML),
    Route("/", _GET, _root, "Which server this is."),
]


def create_app(hub: Hub, config: Config) -> Starlette:
    """The ASGI application over a connected hub."""
    server = Server(hub, config, looking.Glances(hub))
    routes = [StarletteRoute(route.path, Endpoint(route, server), methods=list(route.methods)) for route in ROUTES]
    front = Middleware(Front, config.server, ROUTES, hub.metrics, not config.log.disable_access_log)
    return Starlette(
        routes=routes, middleware=[front], exception_handlers={404: _unknown_path, 405: _wrong_method}
    )


async def _unknown_path(request: Request, error: Exception) -> Response:
    return error_response(NotFoundError(f"There is nothing at {request.url.path}; /docs lists what there is."))


async def _wrong_method(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    allowed = (error.headers or {}).get("Allow", "")
    response = error_response(MethodError(f"{request.url.path} does not take {request.method}; use {allowed}."))
    response.headers["allow"] = allowed
    return response
