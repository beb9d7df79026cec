"""The OpenAI request bodies, and what chat and completions share: sampling, usage, finish reasons, models' names.

Fields of SGLang's extensions stand beside OpenAI's. Unknown fields are ignored; fields that ask for something
this version cannot do are refused by name. Must not know the engine.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from radixlang.sampling_params import ADVISED, SamplingParams
from radixlang.server.fields import (
    Count,
    Int32,
    Int64,
    Part,
    Pin,
    Refused,
    Rid,
    Role,
    TokenId,
    Tool,
    ToolCall,
    TopLogprobs,
)
from radixlang.server.hub import Hub
from radixlang.server.openai.structured import StructuredFields
from radixlang.server.stream import GenerateRequest, Sequence, namespace_of
from radixlang.server.web import refuse

REFUSED = {
    "lora_path": "adapters are not available in this version",
    "session_params": "sessions are not available in this version",
    "session_id": "sessions are not available in this version",
    "custom_logit_processor": "code from clients is not run",
    "return_hidden_states": "hidden states are not kept",
    "bootstrap_host": "this server computes prompt and answer itself",
    "functions": "its successor is `tools`",
    "function_call": "its successor is `tool_choice`",
    "prediction": "answers are not drafted from a prediction",
    "audio": "the model takes and gives text only",
}


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""how much to think; what each means is the chat template's"""

Effort = Annotated[str, Meta(extra_json_schema={"enum": list(EFFORTS)})]


class StreamOptions(msgspec.Struct, kw_only=True):
    """What a stream carries beside text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class CommonBody(StructuredFields, kw_only=True):
    """Fields of both kinds of completion."""

    model: str | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: Int64 | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None
    # beyond OpenAI
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    min_tokens: Count | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    stop_token_ids: list[TokenId | None] | None = None
    stop_regex: str | list[str] | None = None
    no_stop_trim: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    stream_interval: Annotated[int, Meta(ge=1)] | None = None
    rid: Rid | None = None
    extra_key: str | None = None
    cache_salt: str | None = None
    pin: Pin | None = None
    priority: Int32 | None = None
    # refused
    lora_path: Refused = None
    session_params: Refused = None
    session_id: Refused = None
    custom_logit_processor: Refused = None
    return_hidden_states: Refused = None
    bootstrap_host: Refused = None


class CompletionBody(CommonBody, kw_only=True):
    """Body of `/v1/completions`."""

    prompt: str | list[str | TokenId | list[TokenId]]
    echo: bool | None = None
    logprobs: TopLogprobs | None = None
    best_of: int | None = None
    suffix: str | None = None
    tools: Refused = None
    tool_choice: Refused = None


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One message of a conversation. `content` parts must be of type `text`."""

    role: Role
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class Reasoning(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How much the model shall think."""

    effort: Effort | float | None = None
    enabled: bool | None = None


class Thinking(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether the model shall think, and for how many tokens at most."""

    type: Literal["enabled", "disabled", "adaptive"] | None = None
    budget_tokens: Count | None = None


class ChatBody(CommonBody, kw_only=True):
    """Body of `/v1/chat/completions`."""

    messages: list[Message]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    separate_reasoning: bool | None = None
    stream_reasoning: bool | None = None
    reasoning_effort: Effort | float | None = None
    reasoning: Reasoning | None = None
    enable_thinking: bool | None = None
    thinking: bool | Thinking | None = None
    thinking_budget: Count | None = None
    max_thinking_tokens: Count | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    modalities: list[Literal["text"]] | None = None
    functions: Any = None
    function_call: Any = None
    prediction: Any = None
    audio: Any = None


class EmbeddingBody(msgspec.Struct, kw_only=True):
    """Body of `/v1/embeddings`: a text, token ids, or a list of either."""

    input: str | list[str | TokenId | list[TokenId] | dict[str, Any]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    user: str | None = None
    rid: Rid | None = None
    priority: Int32 | None = None
    extra_key: str | None = None
    cache_salt: str | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """Body of `/tokenize`: a prompt, several, or a conversation."""

    model: str | None = None
    prompt: str | list[str] | None = None
    messages: list[Message] | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """Body of `/detokenize`: token ids, or several lists of them."""

    tokens: list[TokenId | list[TokenId]]
    model: str | None = None
    skip_special_tokens: bool | None = None


# ---- requests ----


def sampling_of(hub: Hub, body: CommonBody, max_tokens: int | None) -> SamplingParams:
    """Sampling parameters: the request's, else the model's generation config, else OpenAI's defaults.

    Raises:
        RequestError: fields that this version refuses, or a bad token id in `logit_bias`.
    """
    refuse(body, REFUSED)
    raw: dict[str, Any] = {}
    if hub.config.server.sampling_defaults == "model":
        raw.update(getattr(hub.tokenizer, "generation_config", None) or {})
    renamed = {"min_tokens": "min_new_tokens", "seed": "sampling_seed"}
    for name in (
        *ADVISED,
        *("n", "stop", "stop_token_ids", "stop_regex", "no_stop_trim", "ignore_eos", "skip_special_tokens"),
        *("frequency_penalty", "presence_penalty", "logit_bias", "stream_interval", "min_tokens", "seed"),
    ):
        value = getattr(body, name)
        if value is not None:
            raw[renamed.get(name, name)] = value
    sampling = SamplingParams.parse(raw)
    sampling.max_new_tokens = max_tokens
    return sampling


def dress(request: GenerateRequest, body: CommonBody, sampling: SamplingParams) -> GenerateRequest:
    """Put the shared fields of a body on a request."""
    request.sampling = sampling
    length = "max_completion_tokens" if getattr(body, "max_completion_tokens", None) is not None else "max_tokens"
    request.aliases = {"max_new_tokens": length, "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
    request.namespace = namespace_of(body.extra_key, body.cache_salt)
    request.priority = body.priority or 0
    request.pin = body.pin.wish() if body.pin is not None else None
    return request


# ---- answers ----


def usage_of(sequences: list[Sequence], reasoning: int = 0) -> dict[str, Any]:
    """Token counts: every prompt once, every sample's answer. `reasoning`: tokens of thoughts among the latter."""
    first = {s.prompt_index: s for s in reversed(sequences)}.values()
    prompt = sum(s.prompt_tokens for s in first)
    completion = sum(s.completion_tokens for s in sequences)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "reasoning_tokens": reasoning,
        "completion_tokens_details": {"reasoning_tokens": reasoning},
        "prompt_tokens_details": {"cached_tokens": sum(s.cached_tokens for s in first)},
    }


def finish_of(finish: dict[str, Any] | None) -> tuple[str | None, Any]:
    """(finish_reason, matched_stop) of the engine's finish reason."""
    if finish is None:
        return None, None
    return finish["type"], finish.get("matched")


def token_text(hub: Hub, token: int) -> tuple[str, list[int]]:
    """(text, UTF-8 bytes) of one token; the text of an unfinished character shows U+FFFD."""
    if hub.tokenizer is None:
        return "", []
    data = hub.tokenizer.token_bytes(token)
    return data.decode("utf-8", "replace"), list(data)
