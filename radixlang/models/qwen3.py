"""Qwen3 (dense): the norm of every query and key head replaces Qwen2's biases."""

from __future__ import annotations

from radixlang.models.family import ACTIVATIONS, Family, decoder_fields, uniform
from radixlang.models.fields import Fields
from radixlang.models.qwen2 import windows
from radixlang.models.spec import ModelSpec


def spec(c: Fields) -> ModelSpec:
    """Of a `Qwen3ForCausalLM` config, whose `head_dim` is 128 unless given."""
    sizes = uniform(c, decoder_fields(c, "qwen3", head_dim=128), windows(c))
    bias = c.flag("attention_bias", False)
    return ModelSpec(
        **sizes,
        activation=c.choice("hidden_act", ACTIVATIONS, "silu"),
        qk_norm=True,
        qkv_bias=bias,
        output_bias=bias,
    )


FAMILY = Family(spec)
