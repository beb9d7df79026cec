"""Gemma: Llama with norm weights stored minus one, scaled embeddings and a tanh GELU; head_dim is free.

Released configs say "gelu" and mean the tanh form that the weights were trained with.
"""

from __future__ import annotations

from typing import Any

from radixlang.models.family import ACTIVATIONS, Family, decoder_fields, uniform
from radixlang.models.fields import Fields
from radixlang.models.spec import ModelSpec


def gemma_fields(c: Fields, family: str) -> dict[str, Any]:
    """What all Gemma generations share; no layers yet."""
    sizes = decoder_fields(c, family, head_dim=256) | {"tie_embeddings": c.flag("tie_word_embeddings", True)}
    return sizes | {
        "activation": "gelu_tanh",
        # A GGUF file stores the whole norm weight; its reader says so with this key.
        "norm_offset": c.number("norm_offset", 1.0),
        "embedding_scale": sizes["hidden_size"] ** 0.5,
        "qkv_bias": (bias := c.flag("attention_bias", False)),
        "output_bias": bias,
    }


def tanh_gelu(c: Fields) -> None:
    """Refuse any other activation than the tanh GELU."""
    names = {name: kind for name, kind in ACTIVATIONS.items() if kind == "gelu_tanh"}
    c.choice("hidden_activation", names, "gelu_pytorch_tanh")


def spec(c: Fields) -> ModelSpec:
    """Of a `GemmaForCausalLM` config."""
    tanh_gelu(c)
    c.choice("hidden_act", dict.fromkeys(("gelu", "gelu_pytorch_tanh", "gelu_new"), 0), "gelu")
    c.refuse("use_bidirectional_attention", False)
    return ModelSpec(**uniform(c, gemma_fields(c, "gemma"), [0] * c.whole("num_hidden_layers")))


FAMILY = Family(spec)
