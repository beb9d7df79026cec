"""`/pin`, `/unpin` and `/pins`: prompts that stay in the prefix cache for a while.

A pin is made by a request that computes its prompt and no more, and leaves it pinned (see `scheduler/pins.py`).
Must not know pages.
"""

from __future__ import annotations

import uuid
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from radixlang.errors import OverloadedError, RequestError
from radixlang.messages import PinWish
from radixlang.sampling_params import SamplingParams
from radixlang.server.fields import PIN_SECONDS, PinName, PinSeconds, TokenId
from radixlang.server.hub import Hub
from radixlang.server.openai.chat import default_variables, render_messages
from radixlang.server.openai.protocol import Message
from radixlang.server.stream import GenerateRequest, namespace_of
from radixlang.server.web import Server, count_tokens, json_response


class PinBody(msgspec.Struct, kw_only=True):
    """Body of `/pin`: one of `text`, `input_ids` and `messages`. `id` names a pin to add to, or a new one."""

    text: str | None = None
    input_ids: list[TokenId] | None = None
    messages: list[Message] | None = None
    ttl: PinSeconds = PIN_SECONDS
    id: PinName | None = None
    extra_key: str | None = None
    cache_salt: str | None = None


class UnpinBody(msgspec.Struct, kw_only=True):
    """Body of `/unpin`: the ids of pins."""

    id: PinName | Annotated[list[PinName], Meta(max_length=65536)]


def _field(body: PinBody) -> str:
    """Which one holds the prompt."""
    given = [name for name in ("text", "input_ids", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        raise RequestError("Exactly one of text, input_ids and messages is required.", "text")
    return given[0]


def _prompt(hub: Hub, body: PinBody) -> GenerateRequest:
    _field(body)
    if body.messages is None:
        return GenerateRequest(text=body.text, input_ids=body.input_ids)
    # Without the words that open the answer: further messages may follow.
    text = render_messages(hub, body.messages, None, False, False, default_variables(hub))
    return GenerateRequest(text=text, add_special_tokens=False, param="messages")


async def make_pin(hub: Hub, body: PinBody) -> tuple[dict[str, Any], int]:
    """({id, tokens, expires}, tokens of the prompt).

    Raises:
        RequestError: a bad prompt, or one that cannot be pinned; OverloadedError: memory is short.
    """
    cache = hub.config.cache
    if cache.disable_radix_cache:
        raise RequestError("Nothing can be pinned: the server runs with --disable-radix-cache.")
    request = _prompt(hub, body)
    name = body.id if body.id is not None else uuid.uuid4().hex
    request.sampling = SamplingParams(max_new_tokens=0, temperature=0.0)
    request.pin = PinWish(name, body.ttl)
    request.namespace = namespace_of(body.extra_key, body.cache_salt)
    # Before the prompt is computed, which may take long.
    request.input_ids = await hub.prompt_ids(request)
    size, page, field = len(request.input_ids), hub.info["page_size"], _field(body)
    if size < page:
        raise RequestError(f"The prompt has {size} tokens, but only whole pages of {page} are cached.", field)
    most = int(cache.max_pinned_fraction * (hub.info["max_total_num_tokens"] // page)) * page
    if size - size % page > most:
        raise RequestError(
            f"The prompt has {size} tokens, but --max-pinned-fraction allows pins {most} together.", field
        )
    await hub.generate(request).collect()
    pins = await hub.control("pins", name=name)
    if pins:
        return {key: pins[0][key] for key in ("id", "tokens", "expires")}, size
    raise OverloadedError(
        "The pin has ended already: its ttl was over, or it gave way to running requests; try again later."
    )


async def remove_pins(hub: Hub, names: str | list[str]) -> int:
    """End these pins. → how many there were"""
    return int(await hub.control("unpin", names=[names] if isinstance(names, str) else names))


async def pin(server: Server, request: Request, body: PinBody) -> Response:
    """`/pin`."""
    made, prompt_tokens = await make_pin(server.hub, body)
    count_tokens(request, prompt_tokens, 0)
    return json_response(made)


async def unpin(server: Server, request: Request, body: UnpinBody) -> Response:
    """`/unpin`. Unknown ids are fine: they may have ended by themselves."""
    return json_response({"unpinned": await remove_pins(server.hub, body.id)})


async def pins(server: Server, request: Request, body: None) -> Response:
    """`/pins`."""
    return json_response({"pins": await server.hub.control("pins")})
