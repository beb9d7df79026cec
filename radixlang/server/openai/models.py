"""`/v1/models`: the one model of this server."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from radixlang.server.web import ModelNotFoundError, Server, json_response


def _card(server: Server) -> dict[str, Any]:
    return {
        "id": server.config.model_name,
        "object": "model",
        "created": int(server.hub.started),
        "owned_by": "radixlang",
        "root": server.config.model_name,
        "parent": None,
        "max_model_len": server.hub.limits.context_length,
    }


async def list_models(server: Server, request: Request, body: None) -> Response:
    """`/v1/models`."""
    return json_response({"object": "list", "data": [_card(server)]})


async def get_model(server: Server, request: Request, body: None) -> Response:
    """`/v1/models/{id}`."""
    name = request.path_params["id"]
    if name != server.config.model_name:
        raise ModelNotFoundError(f"The model {name!r} does not exist.", "model")
    return json_response(_card(server))
