"""HTTP plumbing shared by all routes: bodies in, JSON and errors out, clients that leave.

One error shape: `{"error": {"message", "type", "param", "code"}}`, but for routes of protocols that have another.
Must not know what is served.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from radixlang.config import Config
from radixlang.errors import NotFoundError, OverloadedError, RadixLangError, RequestError
from radixlang.log import get_logger, printable

if TYPE_CHECKING:
    from radixlang.server.hub import Hub
    from radixlang.server.looking import Glances

log = get_logger(__name__)
T = TypeVar("T")

#: prompts in one request
MAX_PROMPTS = 2048
#: bytes of the largest request body
MAX_BODY = 16 * 2**20
#: seconds that a client may leave between two parts of a body
BODY_TIMEOUT = 60.0


class ModelNotFoundError(NotFoundError):
    """The named model is not served here."""

    kind = "invalid_request_error"
    code = "model_not_found"


class BodyTooLargeError(RequestError):
    """The body is beyond `MAX_BODY`."""

    status = 413


class SlowBodyError(RequestError):
    """No more of the body has come for `BODY_TIMEOUT`."""

    status = 408


class MediaTypeError(RequestError):
    """The body is not JSON by its content type."""

    status = 415


class ClientGone(Exception):
    """The client closed the connection before it had its answer."""


@dataclass
class Server:
    """What handlers work with."""

    hub: Hub
    config: Config
    glances: Glances

    def check_model(self, name: str | None) -> str:
        """The name answers carry; `default` and the path stand for the one model.

        Raises:
            ModelNotFoundError: another name.
        """
        known = (self.config.model_name, self.config.model.model_path, "default")
        if name and name not in known:
            raise ModelNotFoundError(f"The model {name!r} does not exist; this server has {known[0]!r}.", "model")
        return self.config.model_name


Handler = Callable[[Server, Request, Any], Awaitable[Response]]


def error_body(error: RadixLangError) -> dict[str, Any]:
    """An error in the shape of all routes that name no other."""
    return {
        "error": {
            "message": str(error),
            "type": error.kind,
            "param": getattr(error, "param", None),
            "code": getattr(error, "code", error.status),
        }
    }


@dataclass(frozen=True)
class ErrorShape:
    """How a protocol writes errors: the body of one, and the JSON schema of all under a name."""

    name: str
    schema: dict[str, Any]
    body: Callable[[RadixLangError], dict[str, Any]]


ERRORS = ErrorShape(
    "Error",
    {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "integer"]},
                },
            }
        },
    },
    error_body,
)


@dataclass(frozen=True)
class Route:
    """One line of the route table.

    `body` is the msgspec type of the JSON body (None: no body), `optional` allows it to be absent. `query`
    maps query parameters to their JSON schema. `admin` routes need the admin key when there is one. `errors`: how
    they are written.
    """

    path: str
    methods: tuple[str, ...]
    handler: Handler
    summary: str
    body: Any = None
    optional: bool = False
    query: dict[str, dict[str, Any]] = field(default_factory=dict)
    admin: bool = False
    answer: str = "application/json"
    errors: ErrorShape = ERRORS


class Endpoint:
    """A route as an ASGI application: decodes, calls the handler, turns every error into a response."""

    def __init__(self, route: Route, server: Server) -> None:
        self.route = route
        self.server = server
        self.decoder = msgspec.json.Decoder(route.body) if route.body is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            response = await self._answer(request)
        except (ClientGone, ClientDisconnect):
            response = Response(status_code=499)
        except RadixLangError as error:
            response = error_response(error, self.route.errors)
        except Exception as error:
            log.error("%s failed", printable(scope["path"]), exc_info=error)
            response = error_response(internal(error), self.route.errors)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        body = None
        if self.decoder is not None and request.method != "GET":
            data = await read_body(request)
            if data or not self.route.optional:
                check_media_type(request)
                body = decode(self.decoder, data)
        elif self.route.body is None:
            return await self.route.handler(self.server, request, None)
        if body is None and self.decoder is not None:
            body = self.route.body()
        return await while_connected(request.receive, self.route.handler(self.server, request, body))


def check_batch(size: int, name: str, samples: int = 1) -> None:
    """Refuse a batch that would hold everybody else up while it is taken apart. `samples` of a single prompt are
    bounded elsewhere."""
    if size > MAX_PROMPTS:
        raise RequestError(f"{name} has {size} entries; one request may have {MAX_PROMPTS}.", name)
    if size > 1 and size * samples > MAX_PROMPTS:
        raise RequestError(
            f"n is {samples} for {size} prompts: {size * samples} answers; one request may have {MAX_PROMPTS}.",
            "n",
        )


def internal(error: Exception) -> RadixLangError:
    """What a client may know of a fault of ours: not its text, which can hold paths."""
    return RadixLangError(f"The server failed on this request ({type(error).__name__}); its log says more.")


async def read_body(request: Request) -> bytes:
    """The whole body, at most `MAX_BODY` bytes.

    Raises:
        BodyTooLargeError, SlowBodyError: it is larger; the client stopped sending. ClientDisconnect: it left.
    """
    refusal = BodyTooLargeError(f"The body is larger than {MAX_BODY} bytes.")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > MAX_BODY:
        raise refusal
    data = bytearray()
    chunks = request.stream()
    while True:
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return bytes(data)
        except TimeoutError:
            raise SlowBodyError(f"No more of the body has come for {BODY_TIMEOUT:g} s.") from None
        data += chunk
        if len(data) > MAX_BODY:
            raise refusal


def check_media_type(request: Request) -> None:
    """Accept JSON and bodies that do not say what they are."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind and kind != "application/json" and not kind.endswith("+json"):
        raise MediaTypeError(f"The body must be sent as application/json, not {kind}.")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise MediaTypeError(f"Compressed bodies ({coding}) are not accepted.")


_AT = re.compile(r" - at `\$(.*)`$")
_HALF = re.compile(
    rb"(?<!\\)(?:\\\\)*("
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F][0-9a-fA-F]{2})",
    re.DOTALL,
)
"""the escape of half a surrogate pair without the other half"""
_BYTE = re.compile(r"\(byte (\d+)\)$")


def decode(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:
    """A typed body.

    Raises:
        RequestError: malformed JSON, or a field of the wrong type (its path is in the message).
    """
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        text = str(error)
        match = _AT.search(text)
        path = match.group(1).lstrip(".") if match else ""
        detail = _AT.sub("", text)
        param = re.split(r"[.\[]", path)[0] or None
        raise RequestError(f"{path or 'The body'}: {detail}.", param) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        place = _BYTE.search(str(error))
        at = int(place[1]) if place else len(data)
        half = _HALF.search(data, max(at - 32, 0), at + 16)  # and not all of a large body
        if half is not None:  # which the decoder reports as other things
            raise RequestError(
                f"The body is not valid JSON: {half[1].decode()} (byte {half.start(1)}) is half of a surrogate "
                "pair, which stands for no character; write both halves, or leave it out."
            ) from None
        raise RequestError(f"The body is not valid JSON: {error}.") from None
    except RecursionError:
        raise RequestError("The body is nested too deeply.") from None


async def while_connected(receive: Callable[[], Awaitable[Message]], work: Coroutine[Any, Any, T] | Any) -> T:
    """The result of `work`, which is cancelled when the client closes the connection.

    Raises:
        ClientGone: it did.
    """

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(watch())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


# ---- answers ----


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """`value` as JSON; structs and dictionaries alike."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def error_response(error: RadixLangError, shape: ErrorShape = ERRORS) -> Response:
    """The response that `error` stands for."""
    headers = {}
    if isinstance(error, OverloadedError):
        headers["retry-after"] = str(error.retry_after)
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.status == 408:
        headers["connection"] = "close"  # the rest of the body may still come
    return json_response(shape.body(error), error.status, headers)


def count_tokens(request: Request, prompt: int, completion: int) -> None:
    """Leave the figures for the access log."""
    request.scope.setdefault("state", {})["tokens"] = (prompt, completion)


def refuse(body: Any, names: dict[str, str]) -> None:
    """Refuse fields that ask for what this version does not do.

    Raises:
        RequestError: a field of `names` (field → what it would need) has a value that means something.
    """
    for name, what in names.items():
        if not _is_nothing(getattr(body, name, None)):
            raise RequestError(f"{name} is not supported: {what}.", name)


def _is_nothing(value: Any) -> bool:
    """Whether a field asks for nothing; in a batch, for none of its prompts."""
    return all(map(_is_nothing, value)) if isinstance(value, list) else value in (None, False, "", 0, {})
