"""What a client may ask of the sampler, and the checks on it.

`SamplingParams` is the client's view (native `/generate` names). `RowSampling` is the device's view: plain
numbers only, sent inside a plan when a row is set up. Must not know HTTP, tokenizers or torch.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from radixlang.errors import RequestError

MAX_STOPS = 32
MAX_STOP_REGEX_BYTES = 256
GREEDY_TEMPERATURE = 1e-6
MAX_SCORE = 1e30
"""of temperatures and biases: the device counts in float32, and divides them by temperatures"""
MAX_REPETITION = 1e6
SEED_MASK = (1 << 63) - 1


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sampling parameters of one request; names, defaults and ranges are those of the native API."""

    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    n: int = 1
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    stream_interval: int | None = None
    logit_bias: dict[int, float] | None = None
    sampling_seed: int | None = None
    custom_params: dict[str, Any] | None = None

    @property
    def greedy(self) -> bool:
        """True when the most likely token is taken and nothing is drawn."""
        return self.temperature < GREEDY_TEMPERATURE or self.top_k == 1

    @classmethod
    def parse(cls, raw: Any) -> SamplingParams:
        """Build from a JSON object as clients send it: `null` means default, one stop string may stand alone.

        Raises:
            RequestError: an unknown key or a value of the wrong type (types are strict: `"8"` is no int).
        """
        if raw is None:
            return cls()
        if isinstance(raw, SamplingParams):
            return raw
        if not isinstance(raw, dict):
            raise RequestError("sampling_params must be an object.", "sampling_params")
        values = dict(raw)
        for alias, meant in (("seed", "sampling_seed"), ("max_tokens", "max_new_tokens")):
            if alias in values:
                if meant in values:
                    raise RequestError(f"{alias} and {meant} mean the same; give one of them.", alias)
                values[meant] = values.pop(alias)
        fill_context = "max_new_tokens" in values and values["max_new_tokens"] is None
        values = {key: value for key, value in values.items() if value is not None}
        for key in ("stop", "stop_regex"):
            if isinstance(values.get(key), str):
                values[key] = [values[key]]
        if isinstance(values.get("stop_token_ids"), list):
            values["stop_token_ids"] = [item for item in values["stop_token_ids"] if item is not None]
        for key in ("json_schema", "regex", "ebnf", "structural_tag"):
            if values.get(key) == "":
                del values[key]
        bias = values.get("logit_bias")
        if isinstance(bias, dict):
            values["logit_bias"] = _parse_bias(bias)
        if fill_context:
            values["max_new_tokens"] = None
        unknown = sorted(set(values) - set(cls.__struct_fields__))
        if unknown:
            raise RequestError(f"Unknown sampling parameter {unknown[0]!r}.", unknown[0])
        try:
            return msgspec.convert(_forget_types(values), cls, strict=True)
        except msgspec.ValidationError as error:
            text = str(error)
            match = re.search(r"`\$\.([a-z_]+)", text)
            name = match.group(1) if match else None
            detail = text.split(" - at ")[0]
            raise RequestError(f"Sampling parameter {name}: {detail}.", name) from None

    def verify(self, vocab_size: int) -> None:
        """Check ranges against the rules of the API.

        Raises:
            RequestError: names the parameter, its value and the allowed range.
        """

        def need(ok: bool, name: str, rule: str) -> None:
            if not ok:
                raise RequestError(f"{name} must be {rule}, got {getattr(self, name)}.", name)

        need(self.max_new_tokens is None or self.max_new_tokens >= 0, "max_new_tokens", "at least 0")
        need(self.min_new_tokens >= 0, "min_new_tokens", "at least 0")
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise RequestError(
                f"min_new_tokens ({self.min_new_tokens}) must not exceed max_new_tokens ({self.max_new_tokens}).",
                "min_new_tokens",
            )
        need(0 <= self.temperature <= MAX_SCORE, "temperature", f"in [0, {MAX_SCORE:g}]")
        need(0 < self.top_p <= 1, "top_p", "in (0, 1]")
        need(self.top_k == -1 or self.top_k >= 1, "top_k", "-1 (all tokens) or at least 1")
        need(0 <= self.min_p <= 1, "min_p", "in [0, 1]")
        need(-2 <= self.frequency_penalty <= 2, "frequency_penalty", "in [-2, 2]")
        need(-2 <= self.presence_penalty <= 2, "presence_penalty", "in [-2, 2]")
        # The native range ends at 2; larger values are harmless and other servers accept them.
        need(
            1 / MAX_REPETITION <= self.repetition_penalty <= MAX_REPETITION,
            "repetition_penalty",
            f"in [{1 / MAX_REPETITION:g}, {MAX_REPETITION:g}]",
        )
        need(1 <= self.n <= 128, "n", "in [1, 128]")
        need(self.stream_interval is None or self.stream_interval >= 1, "stream_interval", "at least 1")
        if self.sampling_seed is not None:
            need(-(2**63) <= self.sampling_seed < 2**63, "sampling_seed", "a 64-bit integer")
        if len(self.stop) > MAX_STOPS or any(not item for item in self.stop):
            raise RequestError(f"stop must be at most {MAX_STOPS} strings, none of them empty.", "stop")
        if len(self.stop_regex) > MAX_STOPS:
            raise RequestError(f"stop_regex must be at most {MAX_STOPS} patterns.", "stop_regex")
        for pattern in self.stop_regex:
            if not pattern or len(pattern.encode()) > MAX_STOP_REGEX_BYTES:
                raise RequestError(
                    f"Each stop_regex must be 1 to {MAX_STOP_REGEX_BYTES} UTF-8 bytes long.", "stop_regex"
                )
        for name, ids in (("stop_token_ids", self.stop_token_ids), ("logit_bias", self.logit_bias or ())):
            for token in ids:
                if not 0 <= token < vocab_size:
                    raise RequestError(
                        f"{name} holds token id {token}, outside the vocabulary of {vocab_size} tokens.", name
                    )
        for token, value in (self.logit_bias or {}).items():
            if not abs(value) <= MAX_SCORE:
                raise RequestError(
                    f"logit_bias of token {token} must be in [-{MAX_SCORE:g}, {MAX_SCORE:g}], got {value}.",
                    "logit_bias",
                )
        grammars = [n for n in ("json_schema", "regex", "ebnf", "structural_tag") if getattr(self, n) is not None]
        if len(grammars) > 1:
            raise RequestError(f"At most one constraint is allowed, got {' and '.join(grammars)}.", grammars[1])


def _parse_bias(bias: dict[Any, Any]) -> dict[int, float]:
    out: dict[int, float] = {}
    for key, value in bias.items():
        try:
            token = int(key)
        except (TypeError, ValueError):
            raise RequestError(f"logit_bias keys are token ids, got {key!r}.", "logit_bias") from None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RequestError(f"logit_bias of token {token} must be a number.", "logit_bias")
        out[token] = _float(value)
    return out


def _float(value: int | float) -> float:
    """As a double; infinity where none is as large."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _forget_types(values: dict[str, Any]) -> dict[str, Any]:
    """Let whole-number JSON ints stand where floats are meant; everything else stays strict."""
    return {key: (_float(v) if type(v) is int and key in _FLOATS else v) for key, v in values.items()}


#: the parameters whose defaults a model's makers may set
ADVISED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_FLOATS = frozenset(
    {"temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"}
)


class RowSampling(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One row's numbers for the sampler. `seed` is always set: the host draws one when the client gave none,
    so that there is one code path; token `position` and `seed` alone decide the noise (same seed, same text).
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    logit_bias: dict[int, float] = {}
    min_new_tokens: int = 0
    #: ids that must not be drawn before `min_new_tokens` tokens exist (eos and stop ids)
    end_ids: tuple[int, ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE or self.top_k == 1

    @property
    def penalised(self) -> bool:
        """True when the distribution depends on the tokens seen so far."""
        return self.frequency_penalty != 0.0 or self.presence_penalty != 0.0 or self.repetition_penalty != 1.0

    @property
    def follows_output(self) -> bool:
        """True when a draw depends on the tokens made so far, their number included."""
        return self.penalised or self.min_new_tokens > 0 or not self.greedy

    @classmethod
    def of(cls, params: SamplingParams, eos_ids: tuple[int, ...], seed: int) -> RowSampling:
        """The device's view of `params`; `eos_ids` end a text of this model."""
        ends = params.stop_token_ids if params.ignore_eos else (*eos_ids, *params.stop_token_ids)
        return cls(
            temperature=0.0 if params.greedy else params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            repetition_penalty=params.repetition_penalty,
            seed=(params.sampling_seed if params.sampling_seed is not None else seed) & SEED_MASK,
            logit_bias=params.logit_bias or {},
            min_new_tokens=params.min_new_tokens,
            end_ids=tuple(dict.fromkeys(ends)),
        )
