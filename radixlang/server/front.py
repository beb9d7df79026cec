"""What every request passes first: request id, CORS, keys, HTTP metrics, the access log.

One plain ASGI layer around the application. Must not know the routes beyond their paths.
"""

from __future__ import annotations

import hmac
import time
import uuid
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixlang.config import ServerConfig
from radixlang.errors import RadixLangError, UnauthorizedError
from radixlang.log import get_logger, printable
from radixlang.log import request_id as logged_id
from radixlang.server.metrics import Metrics
from radixlang.server.web import ERRORS, Route, error_response, internal

log = get_logger(__name__)
access = get_logger("radixlang.access")

_METHODS = "GET, POST, PUT, OPTIONS"
_HEADERS = ("authorization", "content-type", "x-request-id")
_QUIET = ("/health", "/health_generate", "/ready", "/metrics", "/cache_tree", "/requests")


class Keys:
    """Who may call what.

    Open to all: OPTIONS, paths beginning with /health, /ready, /metrics, and /ui, which holds no data. With an
    admin key, control routes take only that and the others only the API key.
    """

    def __init__(self, config: ServerConfig, admin_paths: frozenset[str]) -> None:
        self._key = config.api_key
        self._admin_key = config.admin_api_key
        self._admin_paths = admin_paths

    def check(self, method: str, path: str, authorization: str | None, header_key: str | None = None) -> None:
        """`header_key`: what `x-api-key` says, as clients of Anthropic's API send it; either may hold the key.

        Raises:
            UnauthorizedError: the key is missing or another.
        """
        if method == "OPTIONS" or path.startswith(("/health", "/ready", "/metrics")) or path.rstrip("/") == "/ui":
            return
        wanted = self._admin_key if self._admin_key and path in self._admin_paths else self._key
        if not wanted:
            return
        scheme, _, given = (authorization or "").partition(" ")
        keys = [given] if scheme.lower() == "bearer" else []
        keys += [header_key] if header_key is not None else []
        if not any(hmac.compare_digest(key.strip().encode("latin-1", "replace"), wanted.encode()) for key in keys):
            which = "admin API key" if wanted is self._admin_key else "API key"
            raise UnauthorizedError(f"This needs the {which}: send it as 'Authorization: Bearer <key>'.")


class Front:
    """The outermost layer."""

    def __init__(
        self, app: ASGIApp, config: ServerConfig, routes: list[Route], metrics: Metrics, log_access: bool
    ) -> None:
        self._app = app
        self._keys = Keys(config, frozenset(route.path for route in routes if route.admin))
        self._paths = {route.path for route in routes if "{" not in route.path}
        self._errors = {route.path: route.errors for route in routes}
        self._prefixes = {route.path.partition("{")[0]: route.path for route in routes if "{" in route.path}
        self._origins = [origin.strip() for origin in config.cors_origins.split(",") if origin.strip()]
        self._root = config.fastapi_root_path.rstrip("/")
        self._metrics = metrics
        self._log_access = log_access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        if self._root:
            scope["root_path"] = self._root
        method, path = scope["method"], self._route_path(scope)
        endpoint = self._endpoint(path)
        headers = Headers(scope=scope)
        request_id = _request_id(headers.get("x-request-id"))
        logged_id.set(request_id)
        origin = headers.get("origin")
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                out = MutableHeaders(scope=message)
                out["x-request-id"] = request_id
                self._allow(origin, out)
            await send(message)

        self._metrics.http_started(endpoint, method)
        try:
            if method == "OPTIONS":
                await self._preflight(headers)(scope, receive, answer)
            elif len(path) > 1 and path[-1] == "/" != path[-2]:
                await _without_slash(path, scope["query_string"])(scope, receive, answer)
            else:
                self._keys.check(method, path, headers.get("authorization"), headers.get("x-api-key"))
                await self._app(scope, receive, answer)
        except RadixLangError as error:
            await error_response(error, self._errors.get(path, ERRORS))(scope, receive, answer)
        except Exception as error:
            log.error("%s %s failed", method, printable(path), exc_info=error)
            if not status:
                await error_response(internal(error), self._errors.get(path, ERRORS))(scope, receive, answer)
        finally:
            if state.get("client_gone") or not status:
                status = 499
            self._metrics.http_finished(endpoint, method, status)
            if self._log_access and path not in _QUIET:
                self._log(scope, path, status, 1000 * (time.perf_counter() - began), state)

    @staticmethod
    def _log(scope: Scope, path: str, status: int, milliseconds: float, state: dict[str, Any]) -> None:
        """The line in the access log."""
        client, what = (scope.get("client") or ("-",))[0], printable(path)
        prompt, completion = state.get("tokens", (0, 0))
        tokens = f" {prompt}+{completion} tokens" if prompt or completion else ""
        # A stream that broke off had begun with a 200.
        broke = f" failed {state['failed']}" if "failed" in state else ""
        access.info("%s %s %s %d %.1f ms%s%s", client, scope["method"], what, status, milliseconds, tokens, broke)

    def _route_path(self, scope: Scope) -> str:
        path, root = scope["path"], scope.get("root_path", "")
        return path[len(root) :] if root and path.startswith(root + "/") else path

    def _endpoint(self, path: str) -> str:
        if path in self._paths:
            return path
        for prefix, template in self._prefixes.items():
            if path.startswith(prefix):
                return template
        return "other"

    def _allow(self, origin: str | None, out: MutableHeaders) -> None:
        if "*" in self._origins:
            out["access-control-allow-origin"] = "*"
        elif origin is not None:
            out.add_vary_header("Origin")
            if origin in self._origins:
                out["access-control-allow-origin"] = origin
        if "access-control-allow-origin" in out:
            out["access-control-expose-headers"] = "x-request-id, retry-after"

    def _preflight(self, headers: Headers) -> Response:
        asked = [name.strip().lower() for name in headers.get("access-control-request-headers", "").split(",")]
        # The star does not cover authorization, so headers are listed by name.
        allowed = dict.fromkeys([*_HEADERS, *(name for name in asked if name)])
        return Response(
            status_code=204,
            headers={
                "access-control-allow-methods": _METHODS,
                "access-control-allow-headers": ", ".join(allowed),
                "access-control-max-age": "600",
                "allow": _METHODS,
            },
        )


def _without_slash(path: str, query: bytes) -> Response:
    """A redirect to the same path without the slash at its end. Its address is relative: only a proxy in front
    knows what clients call this server."""
    place = "../" + quote(path[:-1].rpartition("/")[2])
    return Response(
        status_code=307, headers={"location": place + ("?" + query.decode("latin-1") if query else "")}
    )


def _request_id(given: str | None) -> str:
    """The client's id when it is fit for a header and a log line, else a new one."""
    if given and len(given) <= 128 and given.isascii() and given.isprintable():
        return given
    return uuid.uuid4().hex
