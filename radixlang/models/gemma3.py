"""Gemma-3, text part: Gemma-2 with q/k norms instead of soft caps; five local layers to one global one, which
rotates with a base of its own. In the vision checkpoints the image tower is left out.
"""

from __future__ import annotations

from radixlang.models.family import Family, layer_kinds, make_layers
from radixlang.models.fields import Fields
from radixlang.models.gemma import gemma_fields, tanh_gelu
from radixlang.models.rope import rope_from
from radixlang.models.spec import ModelSpec, RopeSpec


def _ropes(c: Fields, head_dim: int) -> tuple[RopeSpec, RopeSpec]:
    """(global, local)."""
    limit = c.whole("max_position_embeddings")
    theta, local = c.number("rope_theta", 1000000.0, 1), c.number("rope_local_base_freq", 10000.0, 1)
    if "rope_parameters" in c:
        both = c.nested("rope_parameters")
        return (
            rope_from(both.nested("full_attention"), head_dim, theta, limit),
            rope_from(both.nested("sliding_attention"), head_dim, local, limit),
        )
    full = RopeSpec(theta=theta, dim=head_dim)
    if "rope_scaling" in c:
        full = rope_from(c.nested("rope_scaling"), head_dim, theta, limit)
    return full, RopeSpec(theta=local, dim=head_dim)


def spec(c: Fields) -> ModelSpec:
    """Of a `Gemma3ForCausalLM` config, or of the `text_config` of a `Gemma3ForConditionalGeneration`."""
    if "text_config" in c:
        text = dict(c.mapping("text_config"))
        for key in (
            "architectures",
            "dtype",
            "torch_dtype",
            "eos_token_id",
            "bos_token_id",
            "tie_word_embeddings",
        ):
            if text.get(key) is None and c.raw(key) is not None:
                text[key] = c.raw(key)
        inner = Fields(_DEFAULTS | {k: v for k, v in text.items() if v is not None}, f"text_config of {c.what}")
        result = spec(inner)
        inner.finish()
        return result
    tanh_gelu(c)
    c.refuse("use_bidirectional_attention", False)
    sizes = gemma_fields(c, "gemma3")
    pattern = c.whole("sliding_window_pattern", None) or c.whole("_sliding_window_pattern", 6)
    default = [
        "sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(c.whole("num_hidden_layers"))
    ]
    full, local = _ropes(c, sizes["head_dim"])
    return ModelSpec(
        **sizes,
        layers=make_layers(layer_kinds(c, default), c.whole("sliding_window", 4096), full, local),
        sandwich_norms=True,
        qk_norm=True,
        attention_scale=c.positive("query_pre_attn_scalar", 256.0) ** -0.5,
        attention_softcap=c.number("attn_logit_softcapping", 0.0),
        final_softcap=c.number("final_logit_softcapping", 0.0),
    )


#: what the text part of a vision checkpoint may leave out, being the library's defaults at its release
_DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
}

FAMILY = Family(
    spec,
    renames=(
        ("language_model.model.", "model."),
        ("language_model.lm_head.", "lm_head."),
        ("model.language_model.", "model."),
        ("vision_tower.", None),
        ("multi_modal_projector.", None),
        ("model.vision_tower.", None),
        ("model.multi_modal_projector.", None),
    ),
)
