"""Llama 1 to 3.x and what was built to its plan (SmolLM2, TinyLlama, Yi …): full attention, optional biases."""

from __future__ import annotations

from radixlang.models.family import ACTIVATIONS, Family, decoder_fields, uniform
from radixlang.models.fields import Fields
from radixlang.models.spec import ModelSpec


def spec(c: Fields) -> ModelSpec:
    """Of a `LlamaForCausalLM` config."""
    c.refuse("pretraining_tp", 1)
    sizes = uniform(c, decoder_fields(c, "llama"), [0] * c.whole("num_hidden_layers"))
    bias = c.flag("attention_bias", False)
    return ModelSpec(
        **sizes,
        activation=c.choice("hidden_act", ACTIVATIONS, "silu"),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=c.flag("mlp_bias", False),
    )


FAMILY = Family(spec)
