"""What a family file defines, and the parts of a decoder config that most families share.

Must not import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from radixlang.errors import ModelError, UnsupportedModelError
from radixlang.models.fields import Fields
from radixlang.models.rope import extended_context, read_rope
from radixlang.models.spec import LayerSpec, ModelSpec, RopeSpec

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


@dataclass(frozen=True)
class Family:
    """One family of checkpoints.

    `spec` turns a config into a `ModelSpec`. `renames` are (prefix, replacement) pairs that bring the
    checkpoint's tensor names to the names of `layout` (the first that fits is applied); a replacement of None
    says that the tensors are left out on purpose. `layout` and `runner` ("module:attribute") are the table of
    expected tensors and the class that runs the spec.
    """

    spec: Callable[[Fields], ModelSpec]
    renames: tuple[tuple[str, str | None], ...] = ()
    layout: str = "radixlang.models.layout:decoder_layout"
    runner: str = "radixlang.models.decoder:Decoder"


def decoder_fields(c: Fields, family: str, head_dim: int | None = None) -> dict[str, Any]:
    """Keyword arguments of `ModelSpec` that every decoder config spells alike; no layers yet.

    `head_dim` is the family's default; None means hidden size / heads.
    """
    heads = c.whole("num_attention_heads")
    hidden = c.whole("hidden_size")
    kv_heads = c.whole("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelError(f"{c.what} has {heads} attention heads, which {kv_heads} key-value heads do not divide.")
    head_dim = c.whole("head_dim", head_dim)
    if head_dim is None:
        if hidden % heads:
            raise ModelError(f"{c.what} has hidden_size = {hidden}, which {heads} attention heads do not divide.")
        head_dim = hidden // heads
    if head_dim % 2:
        raise UnsupportedModelError(
            f"{c.what} has an odd head_dim of {head_dim}, which rotary embedding cannot use."
        )
    return {
        "family": family,
        "architecture": architecture(c),
        "vocab_size": c.whole("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": c.whole("intermediate_size"),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "context_length": c.whole("max_position_embeddings"),
        "norm_eps": c.number("rms_norm_eps", 1e-6, least=0),
        "tie_embeddings": c.flag("tie_word_embeddings", False),
        "checkpoint_dtype": checkpoint_dtype(c),
        "eos_ids": c.ids("eos_token_id"),
        "bos_id": next(iter(c.ids("bos_token_id")), None),
    }


def architecture(c: Fields) -> str:
    """First name of `architectures`."""
    return str((c.items("architectures", None) or ["?"])[0])


def checkpoint_dtype(c: Fields) -> str:
    """Name of the dtype the weights were saved in: "float32", "float16" or "bfloat16"."""
    key = "dtype" if "dtype" in c else "torch_dtype"
    names = ("float32", "float16", "bfloat16")
    return c.choice(key, {form: name for name in names for form in (name, f"torch.{name}")}, "float32")


def uniform(c: Fields, sizes: dict[str, Any], windows: list[int], theta: float = 10000.0) -> dict[str, Any]:
    """Add layers that rotate alike and differ in their window only, and the context the rotation allows."""
    rope = read_rope(c, sizes["head_dim"], theta)
    layers = tuple(LayerSpec(window=window, rope=rope) for window in windows)
    return sizes | {"layers": layers, "context_length": extended_context(rope, sizes["context_length"])}


def layer_kinds(c: Fields, default: list[str]) -> list[str]:
    """`layer_types` of the config, or `default`: "full_attention" or "sliding_attention" for every layer."""
    kinds = c.items("layer_types", default)
    if len(kinds) != len(default):
        raise ModelError(f"{c.what} has {len(kinds)} layer_types for {len(default)} layers.")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedModelError(f"{c.what} has a layer type {kind!r}, which is not supported.")
    return kinds


def make_layers(kinds: list[str], window: int, full: RopeSpec, sliding: RopeSpec) -> tuple[LayerSpec, ...]:
    """Layers of two kinds, each with its own rotation."""
    return tuple(
        LayerSpec(window=window, rope=sliding) if kind == "sliding_attention" else LayerSpec(rope=full)
        for kind in kinds
    )
