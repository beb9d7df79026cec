"""Reading somebody else's config: every key with a type and a default, and a refusal by name.

Must not know any family and must not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from radixlang.errors import ModelError, UnsupportedModelError

T = TypeVar("T")

_MISSING: Any = object()

#: Keys that change the maths of some model, with the values that leave it unchanged. A family that reads a key
#: takes care of it; a key nobody read must be neutral.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "quantization_config": (None,),
    "compression_config": (None,),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "n_routed_experts": (None, 0),
    "moe_intermediate_size": (None, 0),
    "partial_rotary_factor": (None, 1, 1.0),
    "attn_logit_softcapping": (None, 0, 0.0),
    "final_logit_softcapping": (None, 0, 0.0),
    "query_pre_attn_scalar": (None,),
    "sliding_window": (None, 0),
    "sliding_window_pattern": (None, 0, 1),
    "layer_types": (None,),
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "attention_multiplier": (None, 1, 1.0),
    "residual_multiplier": (None, 1, 1.0),
    "embedding_multiplier": (None, 1, 1.0),
    "logits_scaling": (None, 1, 1.0),
    "logit_scale": (None, 1, 1.0),
    "clip_qkv": (None, 0, 0.0),
    "qk_layernorm": (None, False),
    "use_qk_norm": (None, False),
    "no_rope_layers": (None, [], ()),
    "rope_scaling": (None,),
    "rope_parameters": (None,),
    "use_bidirectional_attention": (None, False),
    "add_cross_attention": (None, False),
    "is_decoder": (None, False),
    "cross_attention_layers": (None, []),
    "position_embedding_type": (None, "absolute"),
    "kv_lora_rank": (None,),
}


class Fields:
    """A mapping that is read key by key. `what` names it in messages (a path).

    A key whose value is null counts as absent.
    """

    def __init__(self, values: Mapping[str, Any], what: str) -> None:
        self.values = values
        self.what = what
        self._read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def raw(self, key: str) -> Any:
        """The value as it is, None when absent; counts as read."""
        self._read.add(key)
        return self.values.get(key)

    def _get(self, key: str, kinds: tuple[type, ...], default: T, noun: str) -> Any:
        value = self.raw(key)
        if value is None:
            if default is _MISSING:
                raise ModelError(f"{self.what} lacks {key!r}, which must be {noun}.")
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ModelError(f"{self.what} has {key} = {value!r}, which must be {noun}.")
        return value

    def whole(self, key: str, default: Any = _MISSING, least: int = 1) -> Any:
        """A whole number of at least `least`; the default (if one is given) may be None."""
        value = self._get(key, (int, float), default, "a whole number")
        if value is default:
            return value
        if not math.isfinite(value) or value != math.floor(value) or value < least:
            raise ModelError(f"{self.what} has {key} = {value!r}, which must be a whole number from {least} on.")
        return int(value)

    def number(self, key: str, default: Any = _MISSING, least: float | None = None) -> Any:
        """A finite number, not below `least`."""
        value = self._get(key, (int, float), default, "a number")
        if value is default:
            return value
        if not math.isfinite(value):
            raise ModelError(f"{self.what} has {key} = {value!r}, which must be a finite number.")
        if least is not None and value < least:
            raise ModelError(f"{self.what} has {key} = {value!r}, which must be at least {least:g}.")
        return float(value)

    def positive(self, key: str, default: Any = _MISSING) -> float:
        """A finite number above 0."""
        value = self.number(key, default)
        if value <= 0:
            raise ModelError(f"{self.what} has {key} = {value!r}, which must be above 0.")
        return value

    def flag(self, key: str, default: Any = _MISSING) -> bool:
        """true or false."""
        return self._get(key, (bool,), default, "true or false")

    def text(self, key: str, default: Any = _MISSING) -> Any:
        """A text."""
        return self._get(key, (str,), default, "a text")

    def items(self, key: str, default: Any = _MISSING) -> Any:
        """A list."""
        return self._get(key, (list, tuple), default, "a list")

    def mapping(self, key: str, default: Any = _MISSING) -> Any:
        """A nested object."""
        return self._get(key, (dict,), default, "an object")

    def choice(self, key: str, known: Mapping[str, T], default: Any = _MISSING) -> T:
        """The entry of `known` for the text under `key`; other texts are refused by name."""
        value = self.text(key, default)
        if value not in known:
            raise UnsupportedModelError(
                f"{self.what} has {key} = {value!r}, which is not supported; supported are: {', '.join(known)}."
            )
        return known[value]

    def ids(self, key: str) -> tuple[int, ...]:
        """Token ids given as one number, a list, or not at all."""
        value = self.raw(key)
        items: Iterable[Any] = () if value is None else value if isinstance(value, (list, tuple)) else (value,)
        out = tuple(items)
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in out):
            raise ModelError(f"{self.what} has {key} = {value!r}, which must be a token id or a list of them.")
        return out

    def nested(self, key: str) -> Fields:
        """The object under `key` as fields of their own."""
        return Fields(self.mapping(key), f"{key} of {self.what}")

    def refuse(self, key: str, *neutral: Any) -> None:
        """Raise unless `key` is absent or one of `neutral`."""
        value = self.raw(key)
        if value is not None and value not in neutral:
            raise UnsupportedModelError(f"{self.what} has {key} = {_short(value)}, which is not supported.")

    def finish(self) -> None:
        """Refuse every key of `NEUTRAL` that nobody read and that is not neutral."""
        for key, neutral in NEUTRAL.items():
            if key not in self._read and key in self.values:
                self.refuse(key, *neutral)


def _short(value: Any) -> str:
    if isinstance(value, dict) and "quant_method" in value:
        value = {"quant_method": value["quant_method"]}
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
