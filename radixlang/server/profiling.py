"""`/start_profile` and `/stop_profile`: traces of the engine, written by its process on its machine.

Must not know how a trace is made.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from radixlang.errors import RequestError
from radixlang.server.web import Server, json_response, refuse


class ProfileBody(msgspec.Struct, kw_only=True):
    """Body, or query, of `/start_profile`; may be absent."""

    output_dir: Annotated[str, Meta(min_length=1)] | None = None
    num_steps: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    activities: Annotated[list[str], Meta(min_length=1)] | None = None
    with_stack: bool | None = None
    record_shapes: bool | None = None
    start_step: Any = None
    profile_by_stage: Any = None
    profile_stages: Any = None
    merge_profiles: Any = None


REFUSED = {
    "start_step": "a trace begins with the next step",
    "profile_by_stage": "prompts and answers share steps",
    "profile_stages": "prompts and answers share steps",
    "merge_profiles": "there is one engine process and one trace",
}

#: the same for GET, where lists are separated by commas
QUERY: dict[str, dict[str, Any]] = {
    "output_dir": {"type": "string", "minLength": 1},
    "num_steps": {"type": "integer", "minimum": 1, "maximum": 2**31},
    "activities": {"type": "string", "enum": ["CPU", "GPU", "CPU,GPU"]},
    "with_stack": {"type": "boolean"},
    "record_shapes": {"type": "boolean"},
}


def profile_arguments(body: ProfileBody) -> dict[str, Any]:
    """What the engine's `start_profile` takes.

    Raises:
        RequestError: a field asks for what there is not.
    """
    refuse(body, REFUSED)
    return {
        "output_dir": body.output_dir,
        "num_steps": body.num_steps,
        "activities": body.activities,
        "with_stack": bool(body.with_stack),
        "record_shapes": bool(body.record_shapes),
    }


def profile_body(values: dict[str, Any], strict: bool = True) -> ProfileBody:
    """A body from plain values; not `strict`: from texts.

    Raises:
        RequestError: names the unknown field, or says what is wrong with a value.
    """
    unknown = sorted(set(values) - set(ProfileBody.__struct_fields__))
    if unknown:
        raise RequestError(f"Unknown argument {unknown[0]!r} of start_profile.", unknown[0])
    try:
        return msgspec.convert(values, ProfileBody, strict=strict)
    except msgspec.ValidationError as error:
        raise RequestError(f"start_profile: {error}.") from None


async def start_profile(server: Server, request: Request, body: ProfileBody) -> Response:
    """Begins a trace; answers with the path it will have."""
    query: dict[str, Any] = {name: value for name, value in request.query_params.items() if name in QUERY}
    if query:
        if "activities" in query:
            query["activities"] = query["activities"].split(",")
        body = profile_body({**msgspec.structs.asdict(body), **query}, strict=False)
    return json_response(await server.hub.control("start_profile", **profile_arguments(body)))


async def stop_profile(server: Server, request: Request, body: None) -> Response:
    """Writes the trace; answers with its path."""
    return json_response(await server.hub.control("stop_profile"))
