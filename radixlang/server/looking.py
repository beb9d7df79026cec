"""For those who look at a server: `/ui`, and the prefix cache and the requests as JSON.

The engine is asked between two steps, so it is asked seldom, however many look. Cached texts are what users have
sent: they go only to who has the key, or, where no key is set, to this machine's own user.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import re
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from radixlang.cache.view import ORDERS
from radixlang.errors import OverloadedError, RequestError
from radixlang.messages import unpack_ids
from radixlang.server.page import ui_page
from radixlang.server.stream import namespace_of, namespace_parts
from radixlang.server.web import Server, json_response

if TYPE_CHECKING:
    from radixlang.server.hub import Hub

KEPT = 1.0
"""seconds for which an answer of the engine is good for everybody who asks the same"""
SPACING = 0.2
"""seconds between two questions to the engine, at least"""
WAIT = 5.0
"""seconds until an engine that does not answer counts as too busy"""
MOST_RUNS = 2000
MOST_HEAD = 2048
"""token ids of a run whose text is shown"""
MOST_IDS = 1 << 16
"""token ids of all runs of an answer"""
MOST_REQUESTS = 64
MOST_NAME = 64
"""characters of an extra key that are shown"""
SHORT = 4 * 128
"""bytes of token ids whose text is remembered"""

_INTEGER = {"type": "integer"}
QUERY: dict[str, dict[str, Any]] = {
    "limit": {**_INTEGER, "minimum": 1, "maximum": MOST_RUNS, "default": 300},
    "order": {"type": "string", "enum": list(ORDERS), "default": "recent"},
    "head": {**_INTEGER, "minimum": 0, "maximum": MOST_HEAD, "default": 32},
    "namespace": {"type": "string"},
    "node": {"type": "string", "pattern": r"^\d{1,15}(/\d{1,15})*$"},
}


class Glances:
    """Questions to the engine on behalf of onlookers, who share the answers."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._answers: dict[str, tuple[float, asyncio.Future[Any]]] = {}
        self._turn = asyncio.Lock()
        self._asked = 0.0
        self._known_text = lru_cache(8192)(self._text)

    async def control(self, method: str, **arguments: Any) -> Any:
        """As `Hub.control`, but the answer may be up to `KEPT` old.

        Raises:
            OverloadedError: none came within `WAIT`.
        """
        now = time.monotonic()
        self._answers = {key: known for key, known in self._answers.items() if now - known[0] < KEPT}
        key = repr((method, arguments))
        if key not in self._answers:
            self._answers[key] = now, asyncio.ensure_future(self._ask(method, arguments))
        try:
            async with asyncio.timeout(WAIT):
                return await asyncio.shield(self._answers[key][1])
        except TimeoutError:
            raise OverloadedError(f"The engine has not answered within {WAIT:g} s; try again later.") from None

    async def _ask(self, method: str, arguments: dict[str, Any]) -> Any:
        async with self._turn:
            await asyncio.sleep(self._asked + SPACING - time.monotonic())
            self._asked = time.monotonic()
            return await self._hub.control(method, **arguments)

    def text(self, data: bytes) -> str:
        """Text of token ids (int32). Beginnings are asked for again and again, and so remembered."""
        return self._known_text(data) if len(data) <= SHORT else self._text(data)

    def _text(self, data: bytes) -> str:
        ids = unpack_ids(data).tolist()
        if self._hub.tokenizer is None:
            return " ".join(map(str, ids))
        text: str = self._hub.tokenizer.decode(ids, skip_special_tokens=False)
        return text


def _local(host: str) -> bool:
    """Whether an address, or a `Host` header, is this machine to itself."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def may_read(server: Server, request: Request) -> bool:
    """Whether the sender may read what others have sent. Without keys: only from this machine, and neither through
    a proxy nor from another site's page in a browser (`--cors-origins` lets these call, but not read texts)."""
    options, headers = server.config.server, request.headers
    if options.api_key or options.admin_api_key:
        return True  # and it has been asked for
    forwarded = any(name in headers for name in ("forwarded", "x-forwarded-for", "x-real-ip", "via"))
    host = headers.get("host", "")
    foreign = headers.get("origin", f"http://{host}") != f"http://{host}"
    client = request.client.host if request.client is not None else ""
    here = _local(f"[{client}]" if ":" in client else client) and _local(host)
    return here and not forwarded and not foreign


def _whole(request: Request, name: str) -> int:
    bounds = QUERY[name]
    text = request.query_params.get(name, str(bounds["default"]))
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if not bounds["minimum"] <= value <= bounds["maximum"]:
        raise RequestError(
            f"{name} must be a whole number from {bounds['minimum']} to {bounds['maximum']}, got {text!r}.", name
        )
    return value


def _path(request: Request) -> list[int]:
    text = request.query_params.get("node", "")
    if text and not re.fullmatch(QUERY["node"]["pattern"], text, re.ASCII):
        raise RequestError("node must be ids joined by slashes, as in 3/17/25.", "node")
    return [int(name) for name in text.split("/")] if text else []


def _label(namespace: str) -> str:
    """What is shown of a namespace: its extra key, and of its salt, which is a secret, a fingerprint."""
    extra_key, salt = namespace_parts(namespace)
    if len(extra_key) > MOST_NAME:
        extra_key = extra_key[: MOST_NAME - 1] + "…"
    return extra_key + ("#" + hashlib.blake2b(salt.encode(), digest_size=4).hexdigest() if salt else "")


def _runs(glances: Glances, view: dict[str, Any], readable: bool) -> list[dict[str, Any]]:
    """The columns of a picture (see `cache/view.py`) as one object a run."""
    columns, heads = view["runs"], view["heads"]
    shown = [0] * len(columns["parent"])
    for parent in columns["parent"]:
        if parent >= 0:
            shown[parent] += 1
    runs = []
    at = 0
    for i, values in enumerate(zip(*columns.values(), strict=True)):
        run = dict(zip(columns, values, strict=True))
        end = at + 4 * run.pop("head")
        run["pages"] = run["tokens"] // view["page_size"]
        run["more"] = run["children"] - shown[i]
        namespace = run.pop("namespace")
        if namespace is not None:
            run["namespace"] = _label(namespace)
        elif readable:
            run["text"] = glances.text(bytes(heads[at:end]))
        at = end
        runs.append(run)
    return runs


async def cache_tree(server: Server, request: Request, body: None) -> Response:
    """`/cache_tree`: the runs of the prefix cache that have most of `order`, parents before their children.
    `node`: only what is below this one, named by the ids on the way to it, joined by slashes."""
    limit, head = _whole(request, "limit"), _whole(request, "head")
    if limit * head > MOST_IDS:
        raise RequestError(f"limit times head must be at most {MOST_IDS}, got {limit} times {head}.", "head")
    query = request.query_params
    namespace = query.get("namespace")
    readable = may_read(server, request)
    view = await server.glances.control(
        "cache_tree",
        limit=limit,
        order=query.get("order", "recent"),
        head=head if readable else 0,
        namespace=None if namespace is None else namespace_of(namespace, None),
        path=_path(request),
    )
    totals = {name: value for name, value in view.items() if name not in ("runs", "heads")}
    runs = _runs(server.glances, view, readable)
    return json_response({**totals, "texts": readable, "runs": runs}, headers={"cache-control": "no-store"})


async def requests(server: Server, request: Request, body: None) -> Response:
    """`/requests`: the requests that run and those that wait, without their texts."""
    view = await server.glances.control("requests", limit=MOST_REQUESTS)
    named = {
        name: [{**one, "rid": server.hub.rid_of(one["rid"])} for one in view[name]]
        for name in ("running", "waiting")
    }
    return json_response({"time": time.time(), **view, **named}, headers={"cache-control": "no-store"})


async def ui(server: Server, request: Request, body: None) -> Response:
    """`/ui`: the page. It holds no data, and asks for the key where there is one."""
    text, policy = ui_page()
    return Response(
        text,
        headers={
            "content-security-policy": policy,
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
            "cache-control": "no-cache",
        },
        media_type="text/html",
    )
