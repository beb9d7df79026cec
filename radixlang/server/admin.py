"""Health, information, control and metrics endpoints.

`/health` never waits for the engine. Must not know requests' contents.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from radixlang import __version__
from radixlang.config import Config
from radixlang.errors import EngineDeadError, OverloadedError, RadixLangError, RequestError
from radixlang.server.hub import Hub
from radixlang.server.metrics import CONTENT_TYPE
from radixlang.server.web import Server, json_response

#: seconds an information page waits for the engine's own figures
INFO_WAIT = 5.0
FLUSH_PAUSE = 0.05
#: most seconds a flush may be asked to wait
LONGEST_FLUSH = 3600


class AbortBody(msgspec.Struct, kw_only=True):
    """Body of `/abort_request`: one request id, or all."""

    rid: str | None = None
    abort_all: bool | None = None


class FlushBody(msgspec.Struct, kw_only=True):
    """Body of `/flush_cache`; may be absent."""

    timeout: Annotated[float, Meta(ge=0, le=LONGEST_FLUSH)] | None = None


async def health(server: Server, request: Request, body: None) -> Response:
    """Alive and taking requests; answers at once."""
    hub = server.hub
    if not hub.healthy:
        raise EngineDeadError("The engine has died.")
    hub.check_open()
    return Response(status_code=200)


async def health_generate(server: Server, request: Request, body: None) -> Response:
    """Asks the engine for one token."""
    timeout = server.config.server.health_timeout
    await health(server, request, body)
    if not await server.hub.probe(timeout):
        raise OverloadedError(f"The engine has sent nothing for {timeout} s.", retry_after=5)
    return Response(status_code=200)


def model_facts(config: Config, hub: Hub) -> dict[str, Any]:
    """What is served."""
    architecture = hub.info.get("architecture")
    return {
        "model_path": config.model.model_path,
        "served_model_name": config.model_name,
        "tokenizer_path": config.model.tokenizer_path or config.model.model_path,
        "is_generation": hub.limits.is_generation,
        "preferred_sampling_params": None,
        "weight_version": config.model.weight_version,
        "load_format": config.model.load_format,
        "reasoning_parser": hub.parsers.reasoning.name if hub.parsers.reasoning else None,
        "tool_call_parser": hub.parsers.syntax_name,
        "disaggregation_mode": "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": hub.info.get("model_type"),
        "architectures": [architecture] if architecture else [],
        "embedding": not hub.limits.is_generation,
        "max_model_len": hub.limits.context_length,
        "chat_template": template_facts(config, hub),
    }


def template_facts(config: Config, hub: Hub) -> dict[str, Any] | None:
    """The model's chat template and what it is rendered with, so that a client can build the same prompts:
    programs need the text of turns that are not complete yet. None when there is none, or it is not valid."""
    try:
        facts = hub.tokenizer.template_facts() if hub.tokenizer is not None else None
    except RequestError:
        return None
    if facts is None:
        return None
    return {**facts, "options": json.loads(config.server.default_chat_template_kwargs)}


async def model_info(server: Server, request: Request, body: None) -> Response:
    """What is served."""
    return json_response(model_facts(server.config, server.hub))


async def server_info(server: Server, request: Request, body: None) -> Response:
    """Configuration, start-up figures and the engine's state."""
    hub = server.hub
    try:
        async with asyncio.timeout(INFO_WAIT):
            states = [await hub.control("server_info")]
    except (TimeoutError, RadixLangError):
        states = []
    status = "dead" if not hub.healthy else "draining" if hub.draining else "ready"
    return json_response(
        {
            **server.config.flat(),
            **hub.info,
            "status": status,
            "max_req_input_len": hub.limits.max_req_input_len,
            "internal_states": states,
            "version": __version__,
        }
    )


async def flush_cache(server: Server, request: Request, body: FlushBody) -> Response:
    """Empties the radix cache; with a timeout it waits that long for running requests to end."""
    text = request.query_params.get("timeout")
    try:
        timeout = float(text) if text is not None else body.timeout or 0.0
    except ValueError:
        raise RequestError(f"timeout must be a number of seconds, got {text!r}.", "timeout") from None
    if not 0 <= timeout <= LONGEST_FLUSH:
        raise RequestError(f"timeout must be between 0 and {LONGEST_FLUSH} seconds, got {timeout}.", "timeout")
    end = time.monotonic() + timeout
    while not await server.hub.control("flush_cache"):
        if time.monotonic() >= end:
            raise RequestError("Flush cache failed: requests are running or waiting.")
        await asyncio.sleep(FLUSH_PAUSE)
    return Response("Cache flushed.\n", media_type="text/plain")


async def abort_request(server: Server, request: Request, body: AbortBody) -> Response:
    """Ends requests with what they have. Unknown ids are fine: they may just have ended."""
    server.hub.abort(body.rid, bool(body.abort_all))
    return Response(status_code=200)


async def metrics(server: Server, request: Request, body: None) -> Response:
    """Prometheus text."""
    return Response(server.hub.metrics.text(), headers={"content-type": CONTENT_TYPE})


async def loads(server: Server, request: Request, body: None) -> Response:
    """How busy the engine is, for load-aware routers."""
    hub = server.hub
    gauges = hub.metrics.gauges
    load: dict[str, Any] = {
        "dp_rank": 0,
        "num_running_reqs": int(gauges["num_running_reqs"]),
        "num_waiting_reqs": int(gauges["num_queue_reqs"]),
        "num_total_reqs": hub.running,
        "num_used_tokens": int(gauges["num_used_tokens"]),
        "max_total_num_tokens": hub.info.get("max_total_num_tokens"),
        "token_usage": gauges["token_usage"],
        "gen_throughput": gauges["gen_throughput"],
        "cache_hit_rate": gauges["cache_hit_rate"],
    }
    return json_response(
        {
            "timestamp": time.time(),
            "version": __version__,
            "accelerator": hub.info.get("device"),
            "num_accelerators": 1,
            "loads": [load],
        }
    )
