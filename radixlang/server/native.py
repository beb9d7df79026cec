"""The native endpoints `/generate` and `/encode`, and the shapes of their answers.

`text`, `output_ids` and the log-probabilities of a stream are cumulative unless the server was started with
--incremental-streaming-output. Must not know how tokens are made.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from radixlang.errors import RequestError
from radixlang.sampling_params import SamplingParams
from radixlang.server.fields import Count, Int32, Pin, Refused, Rid, Sampling, TokenId
from radixlang.server.hub import Hub
from radixlang.server.sse import EventStream
from radixlang.server.stream import GenerateRequest, Output, Sequence, Stream, TokenLogprobs, namespace_of
from radixlang.server.web import Server, check_batch, count_tokens, json_response, refuse

#: fields of the native API that this version cannot honour, and why
REFUSED = {
    "input_embeds": "prompts are text or token ids",
    "image_data": "the model takes text only",
    "video_data": "the model takes text only",
    "audio_data": "the model takes text only",
    "lora_path": "adapters are not available in this version",
    "session_params": "sessions are not available in this version",
    "session_id": "sessions are not available in this version",
    "custom_logit_processor": "code from clients is not run",
    "return_hidden_states": "hidden states are not kept",
    "return_routed_experts": "expert choices are not kept",
    "bootstrap_host": "this server computes prompt and answer itself",
}


_MISPLACED = {
    **dict.fromkeys(("json_schema", "regex", "ebnf", "structural_tag"), "it belongs inside sampling_params"),
    "response_format": "give its schema as sampling_params.json_schema",
    "structured_outputs": "give its constraint as a member of sampling_params",
    **dict.fromkeys(
        ("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
        "give json_schema, regex or ebnf inside sampling_params",
    ),
    **dict.fromkeys(("tools", "tool_choice"), "calls are made by /v1/chat/completions"),
}
"""fields of other endpoints that hold an answer to something, and what to do instead"""


class _Refused(msgspec.Struct, kw_only=True):
    input_embeds: Refused = None
    image_data: Refused = None
    video_data: Refused = None
    audio_data: Refused = None
    lora_path: Refused = None
    session_params: Refused = None
    session_id: Refused = None
    custom_logit_processor: Refused = None
    return_hidden_states: Refused = None
    return_routed_experts: Refused = None
    bootstrap_host: Refused = None


class GenerateBody(_Refused, kw_only=True):
    """Body of `/generate`. Lists make a batch; plain values of options hold for the whole batch."""

    text: str | list[str] | None = None
    input_ids: list[TokenId | list[TokenId]] | None = None
    sampling_params: Sampling | list[Sampling | None] | None = None
    rid: Rid | list[Rid | None] | None = None
    stream: bool | None = None
    return_logprob: bool | list[bool | None] | None = None
    logprob_start_len: int | list[int | None] | None = None
    top_logprobs_num: Count | list[Count | None] | None = None
    token_ids_logprob: list[TokenId | list[TokenId] | None] | None = None
    return_text_in_logprobs: bool | None = None
    return_prompt_token_ids: bool | None = None
    priority: Int32 | list[Int32 | None] | None = None
    extra_key: str | list[str | None] | None = None
    cache_salt: str | list[str | None] | None = None
    pin: Pin | None = None
    # misplaced
    json_schema: Refused = None
    regex: Refused = None
    ebnf: Refused = None
    structural_tag: Refused = None
    response_format: Refused = None
    structured_outputs: Refused = None
    guided_json: Refused = None
    guided_regex: Refused = None
    guided_choice: Refused = None
    guided_grammar: Refused = None
    tools: Refused = None
    tool_choice: Refused = None


class EncodeBody(_Refused, kw_only=True):
    """Body of `/encode`."""

    text: str | list[str] | None = None
    input_ids: list[TokenId | list[TokenId]] | None = None
    rid: Rid | list[Rid | None] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    priority: Int32 | list[Int32 | None] | None = None
    extra_key: str | list[str | None] | None = None
    cache_salt: str | list[str | None] | None = None


def prompts_of(
    text: str | list[str] | None, input_ids: list[int | list[int]] | None
) -> tuple[list[GenerateRequest], bool]:
    """One request per prompt, and whether the input was a batch. The ids win over the text.

    Raises:
        RequestError: neither is given, or numbers and lists are mixed.
    """
    if input_ids is not None:
        if not input_ids:
            raise RequestError("input_ids is empty.", "input_ids")
        if all(isinstance(item, list) for item in input_ids):
            return [GenerateRequest(input_ids=ids) for ids in input_ids], True  # type: ignore[arg-type]
        if any(isinstance(item, list) for item in input_ids):
            raise RequestError("input_ids must be a list of ids or a list of such lists, not both.", "input_ids")
        return [GenerateRequest(input_ids=input_ids)], False  # type: ignore[arg-type]
    if text is None:
        raise RequestError("Either text or input_ids is required.", "text")
    if isinstance(text, str):
        return [GenerateRequest(text=text)], False
    if not text:
        raise RequestError("text is an empty list.", "text")
    return [GenerateRequest(text=item) for item in text], True


def _spread(value: Any, name: str, requests: list[GenerateRequest], batch: bool, samples: int = 1) -> list[Any]:
    """One value per prompt: plain values are repeated, lists must fit; a null in one is a value left out."""
    if not isinstance(value, list):
        return [value] * len(requests)
    if not batch:
        raise RequestError(f"{name} is a list, but there is one prompt only.", name)
    if samples > 1:
        raise RequestError(f"{name} must be one value when n is above 1.", name)
    if len(value) != len(requests):
        raise RequestError(f"{name} has {len(value)} entries for {len(requests)} prompts.", name)
    return value


def parse_generate(body: GenerateBody) -> tuple[list[GenerateRequest], bool, str | None]:
    """(one request per prompt, whether the answer is a list, the batch's rid).

    Raises:
        RequestError: fields that contradict each other or cannot be honoured.
    """
    refuse(body, REFUSED | _MISPLACED)
    requests, batch = prompts_of(body.text, body.input_ids)
    params = _spread(body.sampling_params, "sampling_params", requests, batch)
    parsed = [SamplingParams.parse(item) for item in params]
    samples = parsed[0].n
    if any(item.n != samples for item in parsed):
        raise RequestError("n must be the same for all prompts of a batch.", "n")
    rid = _set_rids(body.rid, requests, batch)

    def spread(name: str, default: Any) -> list[Any]:
        values = _spread(getattr(body, name), name, requests, batch, samples)
        return [default if value is None else value for value in values]

    asked: list[Any] = list(body.token_ids_logprob or [])
    if any(not isinstance(item, int) for item in asked):
        if any(isinstance(item, int) for item in asked):
            raise RequestError("token_ids_logprob mixes ids with lists of ids or null.", "token_ids_logprob")
        asked = [item or [] for item in _spread(asked, "token_ids_logprob", requests, batch, samples)]
    else:
        asked = [asked] * len(requests)
    columns = zip(
        requests,
        parsed,
        spread("return_logprob", False),
        spread("logprob_start_len", -1),
        spread("top_logprobs_num", 0),
        asked,
        spread("priority", 0),
        spread("extra_key", None),
        spread("cache_salt", None),
        strict=True,
    )
    for request, sampling, wanted, start, top, ids, priority, extra_key, salt in columns:
        request.sampling = sampling
        request.return_logprob = wanted
        request.logprob_start_len = start
        request.top_logprobs_num = top
        request.token_ids_logprob = ids
        request.priority = priority
        request.namespace = namespace_of(extra_key, salt)
        request.pin = body.pin.wish() if body.pin is not None else None
    return requests, batch or samples > 1, rid


def _set_rids(rid: str | list[str | None] | None, requests: list[GenerateRequest], batch: bool) -> str | None:
    if isinstance(rid, str):
        if batch:
            return rid
        requests[0].rid = rid
    elif rid is not None:
        for request, own in zip(requests, _spread(rid, "rid", requests, batch), strict=True):
            request.rid = own or request.rid
    return None


# ---- answers ----


def triples(
    logprobs: TokenLogprobs, text_of: Callable[[int], str | None]
) -> list[tuple[float | None, int, str | None]]:
    """`[logprob, token id, text]` per position."""
    return [(value, token, text_of(token)) for value, token in zip(logprobs.chosen, logprobs.ids, strict=True)]


def rows_of(
    rows: list[list[tuple[float, int]] | None], text_of: Callable[[int], str | None]
) -> list[list[tuple[float, int, str | None]] | None]:
    """Per position a list of triples, or None where nothing predicts."""
    return [None if row is None else [(value, token, text_of(token)) for value, token in row] for row in rows]


def no_text(token: int) -> None:
    """The text of a triple when it was not asked for."""
    return


def text_of_tokens(hub: Hub) -> Callable[[int], str | None]:
    """Token id → its text, remembered per answer."""
    known: dict[int, str] = {}

    def text_of(token: int) -> str | None:
        if hub.tokenizer is None:
            return None
        if token not in known:
            known[token] = hub.tokenizer.decode([token], skip_special_tokens=False)
        return known[token]

    return text_of


def cached_details(hub: Hub, sequence: Sequence) -> dict[str, Any] | None:
    """Which tiers the cached tokens came out of; None when there were none."""
    if not sequence.cached_tokens:
        return None
    storage = hub.config.cache.hicache_storage_backend
    if storage == "none":
        return dict(sequence.cached_by_tier)
    return {"storage": 0, **sequence.cached_by_tier, "storage_backend": storage}


def meta_info(
    hub: Hub,
    sequence: Sequence,
    logprobs: TokenLogprobs | None,
    text_of: Callable[[int], str | None],
) -> dict[str, Any]:
    """What the native API tells of an answer beside the text."""
    request, meta = sequence.request, sequence.meta
    version = hub.config.model.weight_version
    info: dict[str, Any] = {
        "id": sequence.rid,
        "finish_reason": sequence.finish_reason,
        "prompt_tokens": sequence.prompt_tokens,
        "weight_version": version,
        "num_retractions": meta.num_retractions if meta else 0,
        "completion_tokens": sequence.completion_tokens,
        "reasoning_tokens": 0,
        "cached_tokens": sequence.cached_tokens,
        "cached_tokens_details": cached_details(hub, sequence),
        "dp_rank": None,
        "queue_time": meta.queue_time if meta else 0.0,
        "request_received_ts": sequence.received,
    }
    if logprobs is not None and sequence.prompt_logprobs is not None:
        prompt = sequence.prompt_logprobs
        info["input_token_logprobs"] = triples(prompt, text_of)
        info["output_token_logprobs"] = triples(logprobs, text_of)
        info["output_token_logprobs_length"] = len(sequence.logprobs or ())
        if request.top_logprobs_num:
            info["input_top_logprobs"] = rows_of(prompt.top, text_of)
            info["output_top_logprobs"] = rows_of(logprobs.top, text_of)
        if request.token_ids_logprob:
            info["input_token_ids_logprobs"] = rows_of(prompt.asked, text_of)
            info["output_token_ids_logprobs"] = rows_of(logprobs.asked, text_of)
    if sequence.finish_reason is not None:
        latency = sequence.finished_at - sequence.received
        info["e2e_latency"] = latency
        info["first_token_latency"] = sequence.first_at - sequence.received if sequence.first_at else None
        info["request_finished_ts"] = sequence.finished_at
        info["weight_versions"] = [{"version": version, "start": 0, "end": sequence.completion_tokens}]
        info["response_sent_to_client_ts"] = time.time()
    return info


def answer_of(
    hub: Hub,
    sequence: Sequence,
    text_of: Callable[[int], str | None] = no_text,
    prompt_ids: bool = False,
    output: Output | None = None,
) -> dict[str, Any]:
    """One answer: everything so far, or what `output` brought."""
    out: dict[str, Any] = {}
    if hub.tokenizer is not None:
        out["text"] = sequence.text if output is None else output.text
    out["output_ids"] = sequence.ids if output is None else output.ids
    if prompt_ids:
        out["prompt_token_ids"] = sequence.prompt_ids.tolist()
    logprobs = sequence.logprobs if output is None else output.logprobs
    out["meta_info"] = meta_info(hub, sequence, logprobs, text_of)
    return out


async def generate(server: Server, request: Request, body: GenerateBody) -> Response:
    """`/generate`."""
    hub = server.hub
    requests, as_list, rid = parse_generate(body)
    check_batch(len(requests), "input_ids" if body.text is None else "text", requests[0].sampling.n)
    text_of = text_of_tokens(hub) if body.return_text_in_logprobs else no_text
    stream = hub.generate(requests, rid)
    prompt_ids = bool(body.return_prompt_token_ids)
    if not body.stream:
        sequences = await stream.collect()
        _count(request, sequences)
        answers = [answer_of(hub, sequence, text_of, prompt_ids) for sequence in sequences]
        return json_response(answers if as_list else answers[0])
    await stream.peek()
    return EventStream(stream, _chunks(server, request, stream, text_of, prompt_ids, as_list))


async def _chunks(
    server: Server,
    request: Request,
    stream: Stream,
    text_of: Callable[[int], str | None],
    prompt_ids: bool,
    as_list: bool,
) -> AsyncGenerator[dict[str, Any], None]:
    incremental = server.config.server.incremental_streaming_output
    try:
        async for output in stream:
            chunk = answer_of(server.hub, output.sequence, text_of, prompt_ids, output if incremental else None)
            if as_list:
                chunk["index"] = output.index
            yield chunk
    finally:
        _count(request, stream.sequences)


def _count(request: Request, sequences: list[Sequence]) -> None:
    count_tokens(
        request,
        sum(s.prompt_tokens for s in sequences if s.sample == 0),
        sum(s.completion_tokens for s in sequences),
    )


async def encode(server: Server, request: Request, body: EncodeBody) -> Response:
    """`/encode`."""
    # Import here: the OpenAI shapes build on this module.
    from radixlang.server.openai.embeddings import check_dimensions, unit_vector

    refuse(body, REFUSED)
    requests, as_list = prompts_of(body.text, body.input_ids)
    check_batch(len(requests), "input_ids" if body.text is None else "text")
    rid = _set_rids(body.rid, requests, as_list)
    names = ("priority", "extra_key", "cache_salt")
    columns = (_spread(getattr(body, name), name, requests, as_list) for name in names)
    for item, priority, extra_key, salt in zip(requests, *columns, strict=True):
        item.embed = True
        item.priority = priority or 0
        item.namespace = namespace_of(extra_key, salt)
    check_dimensions(server.hub, body.dimensions)
    sequences = await server.hub.generate(requests, rid).collect()
    _count(request, sequences)
    answers = [
        {
            "embedding": unit_vector(sequence, body.dimensions).tolist(),
            "meta_info": {
                "id": sequence.rid,
                "finish_reason": sequence.finish_reason,
                "prompt_tokens": sequence.prompt_tokens,
                "cached_tokens": sequence.cached_tokens,
                "weight_version": server.config.model.weight_version,
                "e2e_latency": sequence.finished_at - sequence.received,
            },
        }
        for sequence in sequences
    ]
    return json_response(answers if as_list else answers[0])
