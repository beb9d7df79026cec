"""`/v1/embeddings`: vectors of unit length in OpenAI's shape.

Must not know how vectors are pooled.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from radixlang.errors import EngineError, RequestError
from radixlang.server.hub import Hub
from radixlang.server.openai.completions import prompts_of
from radixlang.server.openai.protocol import EmbeddingBody
from radixlang.server.stream import Sequence, namespace_of
from radixlang.server.web import Server, check_batch, count_tokens, json_response


def check_dimensions(hub: Hub, dimensions: int | None) -> None:
    """Refuse to cut vectors to nothing or to more than they have."""
    size = hub.info.get("hidden_size")
    if dimensions is not None and (dimensions < 1 or (size and dimensions > size)):
        raise RequestError(
            f"dimensions must be between 1 and {size or 'the size of the vectors'}, got {dimensions}.",
            "dimensions",
        )


def unit_vector(sequence: Sequence, dimensions: int | None) -> np.ndarray:
    """The first `dimensions` values (all by default) as float32 of unit length."""
    vector = sequence.vector
    if vector is None:
        raise EngineError("The engine ended an embedding request without a vector.")
    if dimensions is not None:
        if dimensions > len(vector):
            raise RequestError(f"dimensions must be between 1 and {len(vector)}, got {dimensions}.", "dimensions")
        vector = vector[:dimensions]
    norm = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / norm).astype("<f4") if norm > 0 else vector.astype("<f4")


async def embeddings(server: Server, request: Request, body: EmbeddingBody) -> Response:
    """`/v1/embeddings`."""
    hub = server.hub
    model = server.check_model(body.model)
    hub.limits.check_kind(embed=True)
    check_dimensions(hub, body.dimensions)
    requests = prompts_of(_plain(body.input), "input")
    check_batch(len(requests), "input")
    for item in requests:
        item.embed = True
        item.priority = body.priority or 0
        item.namespace = namespace_of(body.extra_key, body.cache_salt)
    sequences = await hub.generate(requests, body.rid).collect()
    data = []
    for sequence in sequences:
        vector = unit_vector(sequence, body.dimensions)
        shown: Any = (
            base64.b64encode(vector.tobytes()).decode() if body.encoding_format == "base64" else vector.tolist()
        )
        data.append({"object": "embedding", "embedding": shown, "index": sequence.index})
    tokens = sum(sequence.prompt_tokens for sequence in sequences)
    count_tokens(request, tokens, 0)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json_response({"object": "list", "data": data, "model": model, "usage": usage})


def _plain(given: str | list[Any]) -> str | list[Any]:
    """Items of the form `{"text": …}` as their text."""
    if isinstance(given, str):
        return given
    out = []
    for i, item in enumerate(given):
        if isinstance(item, dict):
            others = sorted(key for key, value in item.items() if key != "text" and value is not None)
            if others or not isinstance(item.get("text"), str):
                what = others[0] if others else "no text"
                raise RequestError(f"input[{i}] has {what!r}; this model takes text only.", "input")
            item = item["text"]
        out.append(item)
    return out
