"""Gemma-2: norms after attention and MLP too, soft caps, a window on every other layer (the even ones)."""

from __future__ import annotations

from radixlang.models.family import Family, layer_kinds, uniform
from radixlang.models.fields import Fields
from radixlang.models.gemma import gemma_fields, tanh_gelu
from radixlang.models.spec import ModelSpec


def _cap(c: Fields, key: str, default: float) -> float:
    """A soft cap: none when the key is null, the family's when it is not there."""
    return c.number(key, 0.0 if key in c.values else default)


def spec(c: Fields) -> ModelSpec:
    """Of a `Gemma2ForCausalLM` config."""
    tanh_gelu(c)
    c.refuse("use_bidirectional_attention", False)
    window = c.whole("sliding_window", 4096)
    default = ["full_attention" if i % 2 else "sliding_attention" for i in range(c.whole("num_hidden_layers"))]
    windows = [window if kind == "sliding_attention" else 0 for kind in layer_kinds(c, default)]
    return ModelSpec(
        **uniform(c, gemma_fields(c, "gemma2"), windows),
        sandwich_norms=True,
        attention_scale=c.positive("query_pre_attn_scalar", 256.0) ** -0.5,
        attention_softcap=_cap(c, "attn_logit_softcapping", 50.0),
        final_softcap=_cap(c, "final_logit_softcapping", 30.0),
    )


FAMILY = Family(spec)
