"""The tensors that a spec asks for: name → shape, in the spelling of Hugging Face checkpoints.

Checked against the file before a single weight is read. Must not import torch.
"""

from __future__ import annotations

import math

from radixlang.models.spec import ModelSpec

Layout = dict[str, tuple[int, ...]]


def numbers(layout: Layout) -> int:
    """How many numbers all its tensors hold."""
    return sum(math.prod(shape) for shape in layout.values())


def decoder_layout(spec: ModelSpec) -> Layout:
    """Of every decoder family."""
    hidden, inner, dim = spec.hidden_size, spec.intermediate_size, spec.head_dim
    queries, keys = spec.num_heads * dim, spec.num_kv_heads * dim
    out: Layout = {"model.embed_tokens.weight": (spec.vocab_size, hidden)}
    for i in range(spec.num_layers):
        prefix = f"model.layers.{i}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            out |= _linear(attention + name, rows, hidden, spec.qkv_bias)
        out |= _linear(attention + "o_proj", hidden, queries, spec.output_bias)
        if spec.qk_norm:
            out |= {attention + "q_norm.weight": (dim,), attention + "k_norm.weight": (dim,)}
        out |= _linear(mlp + "gate_proj", inner, hidden, spec.mlp_bias)
        out |= _linear(mlp + "up_proj", inner, hidden, spec.mlp_bias)
        out |= _linear(mlp + "down_proj", hidden, inner, spec.mlp_bias)
        norms = ["input_layernorm", "post_attention_layernorm"]
        if spec.sandwich_norms:
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        out |= {f"{prefix}{name}.weight": (hidden,) for name in norms}
    out["model.norm.weight"] = (hidden,)
    if not spec.tie_embeddings:
        out["lm_head.weight"] = (spec.vocab_size, hidden)
    return out


def encoder_layout(spec: ModelSpec) -> Layout:
    """Of BERT."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    out: Layout = {
        "embeddings.word_embeddings.weight": (spec.vocab_size, hidden),
        "embeddings.position_embeddings.weight": (spec.position_table, hidden),
        "embeddings.token_type_embeddings.weight": (spec.type_vocab_size, hidden),
    } | _norm("embeddings.LayerNorm", hidden)
    for i in range(spec.num_layers):
        prefix = f"encoder.layer.{i}."
        for name in ("query", "key", "value"):
            out |= _linear(f"{prefix}attention.self.{name}", hidden, hidden, True)
        out |= _linear(prefix + "attention.output.dense", hidden, hidden, True)
        out |= _norm(prefix + "attention.output.LayerNorm", hidden)
        out |= _linear(prefix + "intermediate.dense", inner, hidden, True)
        out |= _linear(prefix + "output.dense", hidden, inner, True)
        out |= _norm(prefix + "output.LayerNorm", hidden)
    return out


def _linear(name: str, rows: int, columns: int, bias: bool) -> Layout:
    out: Layout = {name + ".weight": (rows, columns)}
    return out | {name + ".bias": (rows,)} if bias else out


def _norm(name: str, size: int) -> Layout:
    return {name + ".weight": (size,), name + ".bias": (size,)}
