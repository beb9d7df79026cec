"""Mistral: Llama with a sliding window in every layer (or in none, since version 0.2)."""

from __future__ import annotations

from radixlang.models.family import ACTIVATIONS, Family, decoder_fields, uniform
from radixlang.models.fields import Fields
from radixlang.models.spec import ModelSpec


def spec(c: Fields) -> ModelSpec:
    """Of a `MistralForCausalLM` config."""
    # Version 0.2 and later say null; a config without the key has the first version's window.
    window = c.whole("sliding_window", 0 if "sliding_window" in c.values else 4096, least=0)
    sizes = uniform(c, decoder_fields(c, "mistral"), [window] * c.whole("num_hidden_layers"))
    return ModelSpec(**sizes, activation=c.choice("hidden_act", ACTIVATIONS, "silu"))


FAMILY = Family(spec)
