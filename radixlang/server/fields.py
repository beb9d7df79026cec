"""Types of request fields, shared by the native and the OpenAI bodies.

Bounds given here are checked while a body is decoded and appear in the OpenAPI description. Where a later check
has the better sentence, the bound is in the description only (`extra_json_schema`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from radixlang.messages import PinWish

Count = Annotated[int, Meta(ge=0)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Rid = Annotated[str, Meta(min_length=1, max_length=256)]
PinName = Annotated[str, Meta(min_length=1, max_length=256)]
#: an hour at most: whoever wants more renews it
PinSeconds = Annotated[float, Meta(gt=0, le=3600)]
PIN_SECONDS = 300.0
"""a pin lasts so long if nothing is said"""
TokenId = Annotated[int, Meta(extra_json_schema={"minimum": 0})]
Sampling = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/SamplingParams"})]
#: a field that is known but must be empty; `web.refuse` says why
Refused = Annotated[Any, Meta(extra_json_schema={"type": "null"})]
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


def _described(required: dict[str, Any], **optional: Any) -> Meta:
    """The description of an object whose further fields are free."""
    schema = {"type": "object", "required": list(required), "properties": {**required, **optional}}
    return Meta(extra_json_schema=schema)


_TEXT = {"type": "string"}
_FUNCTION = {"type": "object", "required": ["name"], "properties": {"name": _TEXT}}
_CALLED = {"type": "object", "required": ["name"], "properties": {"name": _TEXT, "arguments": _TEXT}}
Part = Annotated[dict[str, Any], _described({"type": {"const": "text"}, "text": _TEXT})]
ToolCall = Annotated[dict[str, Any], _described({"function": _CALLED}, id=_TEXT, type={"const": "function"})]
Tool = Annotated[dict[str, Any], _described({"type": {"const": "function"}, "function": _FUNCTION})]


class Pin(msgspec.Struct, kw_only=True):
    """Keep what a request leaves in the prefix cache under the pin `id`, which then lasts `ttl` seconds."""

    id: PinName
    ttl: PinSeconds = PIN_SECONDS

    def wish(self) -> PinWish:
        """What the engine is told of it."""
        return PinWish(self.id, self.ttl)
