"""BERT encoders (all-MiniLM and the like): absolute positions, LayerNorm after each part, bidirectional."""

from __future__ import annotations

from radixlang.errors import ModelError
from radixlang.models.family import ACTIVATIONS, Family, architecture, checkpoint_dtype
from radixlang.models.fields import Fields
from radixlang.models.spec import LayerSpec, ModelSpec


def spec(c: Fields) -> ModelSpec:
    """Of a `BertModel` config."""
    hidden, heads = c.whole("hidden_size"), c.whole("num_attention_heads")
    if hidden % heads:
        raise ModelError(f"{c.what} has hidden_size = {hidden}, which {heads} attention heads do not divide.")
    positions = c.whole("max_position_embeddings")
    return ModelSpec(
        family="bert",
        architecture=architecture(c),
        vocab_size=c.whole("vocab_size"),
        hidden_size=hidden,
        intermediate_size=c.whole("intermediate_size"),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        layers=(LayerSpec(rope=None),) * c.whole("num_hidden_layers"),
        context_length=positions,
        activation=c.choice("hidden_act", ACTIVATIONS, "gelu"),
        norm_eps=c.number("layer_norm_eps", 1e-12, least=0),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        encoder=True,
        pooling="mean",
        checkpoint_dtype=checkpoint_dtype(c),
        position_table=positions,
        type_vocab_size=c.whole("type_vocab_size", 2),
    )


FAMILY = Family(
    spec,
    renames=(("bert.pooler.", None), ("pooler.", None), ("bert.cls.", None), ("cls.", None), ("bert.", "")),
    layout="radixlang.models.layout:encoder_layout",
    runner="radixlang.models.encoder:Encoder",
)
