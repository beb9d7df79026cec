"""Qwen2 and 2.5: biases on q, k and v; a window on the layers from `max_window_layers` on if switched on."""

from __future__ import annotations

from radixlang.models.family import ACTIVATIONS, Family, decoder_fields, layer_kinds, uniform
from radixlang.models.fields import Fields
from radixlang.models.spec import ModelSpec


def windows(c: Fields) -> list[int]:
    """Window of every layer (Qwen3 shares the rule)."""
    count = c.whole("num_hidden_layers")
    size = c.whole("sliding_window", 4096, least=0)
    first = c.whole("max_window_layers", 28, least=0)
    if not c.flag("use_sliding_window", False):
        size = 0
    default = ["sliding_attention" if size and i >= first else "full_attention" for i in range(count)]
    return [size if kind == "sliding_attention" else 0 for kind in layer_kinds(c, default)]


def spec(c: Fields) -> ModelSpec:
    """Of a `Qwen2ForCausalLM` config."""
    sizes = uniform(c, decoder_fields(c, "qwen2"), windows(c))
    return ModelSpec(**sizes, activation=c.choice("hidden_act", ACTIVATIONS, "silu"), qkv_bias=True)


FAMILY = Family(spec)
