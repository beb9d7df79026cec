"""Sampling parameters as programs write them, and how each kind of backend spells them.

A value that a `gen` sets wins over the one given to `run`; None means "not set". Must not know backends.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SamplingParams:
    """How one call draws its tokens.

    `dtype` (int, float, bool or str) is turned into a `regex` before a backend sees it (`ir.resolve_dtype`).
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    n: int = 1
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    stop_regex: str | Sequence[str] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    ignore_eos: bool = False
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None
    json_schema: str | Mapping[str, Any] | None = None
    dtype: type | str | None = None
    regex: str | None = None

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids", "stop_regex"):
            if not isinstance(value := getattr(self, name), Iterable):
                raise ValueError(f"{name} must be a list, got {value!r}.")

    def updated(self, values: Mapping[str, Any]) -> SamplingParams:
        """A copy with the values that are not None."""
        return dataclasses.replace(self, **{key: value for key, value in values.items() if value is not None})

    @property
    def stops(self) -> list[str]:
        """The stop strings as a list."""
        return _listed(self.stop)

    @property
    def schema_text(self) -> str | None:
        """The JSON schema as text."""
        if self.json_schema is None or isinstance(self.json_schema, str):
            return self.json_schema
        return json.dumps(self.json_schema)

    def to_srt_kwargs(self) -> dict[str, Any]:
        """`sampling_params` of the native `/generate`."""
        values = {
            "max_new_tokens": self.max_new_tokens,
            "min_new_tokens": self.min_new_tokens,
            "n": self.n,
            "stop": self.stops,
            "stop_token_ids": list(self.stop_token_ids),
            "stop_regex": _listed(self.stop_regex),
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "ignore_eos": self.ignore_eos,
        }
        if self.regex is not None:
            values["regex"] = self.regex
        if self.json_schema is not None:
            values["json_schema"] = self.schema_text
        return values

    def to_openai_kwargs(self) -> dict[str, Any]:
        """Arguments of OpenAI's chat and completion calls, which have no `top_k`."""
        return {
            "max_tokens": self.max_new_tokens,
            "max_completion_tokens": self.max_new_tokens,
            "n": self.n,
            "stop": self.stops or None,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
        }

    def to_anthropic_kwargs(self) -> dict[str, Any]:
        """Arguments of Anthropic's messages call."""
        return {
            "max_tokens": self.max_new_tokens,
            "stop_sequences": self.stops,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
        }

    def to_vertexai_kwargs(self) -> dict[str, Any]:
        """A generation config of Vertex AI."""
        return {
            "candidate_count": 1,
            "max_output_tokens": self.max_new_tokens,
            "stop_sequences": self.stops,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k if self.top_k > 0 else None,
        }

    def to_litellm_kwargs(self) -> dict[str, Any]:
        """Arguments of LiteLLM's completion call."""
        return {
            "max_tokens": self.max_new_tokens,
            "stop": self.stops or None,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
        }


def _listed(value: str | Sequence[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)
