"""GGUF metadata in the spelling of Hugging Face configs, so that one family function serves both.

What llama.cpp knows by heart and does not write into the file (Gemma's window pattern, local rotary base and
query scale) is added here. Must not import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from radixlang.errors import ModelError, UnsupportedModelError
from radixlang.gguf_file import GGUFFile, dequantize, read_gguf

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}

#: metadata key (after the architecture) → config key; those marked True must be there
_KEYS: dict[str, tuple[str, bool]] = {
    "block_count": ("num_hidden_layers", True),
    "embedding_length": ("hidden_size", True),
    "feed_forward_length": ("intermediate_size", True),
    "context_length": ("max_position_embeddings", True),
    "attention.head_count": ("num_attention_heads", True),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", True),
    "attention.head_count_kv": ("num_key_value_heads", False),
    "attention.key_length": ("head_dim", False),
    "attention.sliding_window": ("sliding_window", False),
    "rope.freq_base": ("rope_theta", False),
    "attn_logit_softcapping": ("attn_logit_softcapping", False),
    "final_logit_softcapping": ("final_logit_softcapping", False),
    "expert_count": ("num_experts", False),
}


class _Metadata:
    """Metadata of one architecture, read with messages that name the file and the key."""

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self.file = file
        self.architecture = architecture

    def get(self, key: str) -> Any:
        return self.file.metadata.get(f"{self.architecture}.{key}")

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ModelError(f"The metadata of {self.file.path} lacks {self.architecture}.{key}.")
        return value


def config_of(path: Path) -> dict[str, Any]:
    """The config of a GGUF file.

    Raises:
        UnsupportedModelError: the file's architecture, or a key of it, is not implemented.
        ModelError: a needed key is missing.
    """
    file = read_gguf(path)
    architecture = file.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{path} has the architecture {architecture!r}; supported GGUF architectures are: "
            f"{', '.join(ARCHITECTURES)}."
        )
    data = _Metadata(file, architecture)
    config: dict[str, Any] = {"architectures": [ARCHITECTURES[architecture]]}
    for key, (name, needed) in _KEYS.items():
        value = data.need(key) if needed else data.get(key)
        if isinstance(value, (np.ndarray, list)):
            if len(set(value)) != 1:
                raise UnsupportedModelError(f"{path} has a {key} that differs from layer to layer.")
            value = value[0]
        if value is not None:
            config[name] = value.item() if isinstance(value, np.generic) else value
    heads = config["num_attention_heads"]
    head_dim = config.setdefault("head_dim", config["hidden_size"] // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if (data.get(key) or head_dim) != head_dim:
            raise UnsupportedModelError(f"{path} has {architecture}.{key} = {data.get(key)}, not {head_dim}.")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(f"{path} has no tensor token_embd.weight.")
    kinds = {tensor.type for tensor in file.tensors.values() if len(tensor.shape) > 1}
    config |= {
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "dtype": {frozenset({"F32"}): "float32", frozenset({"F16"}): "float16"}.get(frozenset(kinds), "bfloat16"),
        "eos_token_id": [
            int(file.metadata[f"tokenizer.ggml.{key}_token_id"])
            for key in ("eos", "eot")
            if f"tokenizer.ggml.{key}_token_id" in file.metadata
        ],
        "bos_token_id": _plain(file.metadata.get("tokenizer.ggml.bos_token_id")),
    }
    rope = _rope(data, config)
    if rope is not None:
        config["rope_parameters"] = rope
    extra = _EXTRAS.get(architecture)
    if extra is not None:
        extra(data, config)
    return config


def _plain(value: Any) -> Any:
    return None if value is None else int(value)


def _rope(data: _Metadata, config: dict[str, Any]) -> dict[str, Any] | None:
    factors = data.file.tensors.get("rope_freqs.weight")
    if factors is not None:
        return {"rope_type": "divisors", "divisors": [float(x) for x in dequantize(factors).reshape(-1)]}
    kind = data.get("rope.scaling.type") or "none"
    if kind == "none":
        return None
    out: dict[str, Any] = {"rope_type": kind, "factor": float(data.need("rope.scaling.factor"))}
    if kind == "yarn":
        out["original_max_position_embeddings"] = data.need("rope.scaling.original_context_length")
        for key in ("beta_fast", "beta_slow"):
            if (value := data.get(f"rope.scaling.yarn_{key}")) is not None:
                out[key] = float(value)
    else:
        # The context length in the file is the extended one.
        config["max_position_embeddings"] = int(config["max_position_embeddings"] / out["factor"])
    return out


def _llama(data: _Metadata, config: dict[str, Any]) -> None:
    config["attention_bias"] = "blk.0.attn_q.bias" in data.file.tensors
    config["mlp_bias"] = "blk.0.ffn_up.bias" in data.file.tensors
    if config.get("sliding_window"):  # Mistral 0.1 goes by the name llama
        config["architectures"] = ["MistralForCausalLM"]


def _gemma(data: _Metadata, config: dict[str, Any]) -> None:
    config["norm_offset"] = 0.0


def _gemma2(data: _Metadata, config: dict[str, Any]) -> None:
    config["norm_offset"] = 0.0
    config["query_pre_attn_scalar"] = _query_scalar(config, 46)


def _gemma3(data: _Metadata, config: dict[str, Any]) -> None:
    config["norm_offset"] = 0.0
    config["query_pre_attn_scalar"] = _query_scalar(config, 62)
    pattern = data.get("attention.sliding_window_pattern")
    if isinstance(pattern, (int, np.integer)):
        config["sliding_window_pattern"] = int(pattern)
    elif pattern is not None:
        config["layer_types"] = ["sliding_attention" if local else "full_attention" for local in pattern]
    full = config.get("rope_parameters", {"rope_type": "default"})
    if full["rope_type"] == "linear":  # unlike others, its context length is not the product
        config["max_position_embeddings"] = int(data.need("context_length"))
    theta = config.pop("rope_theta", 1000000.0)
    local = data.get("rope.freq_base_swa") or 10000.0
    config["rope_parameters"] = {
        "full_attention": full | {"rope_theta": theta},
        "sliding_attention": {"rope_type": "default", "rope_theta": float(local)},
    }


def _query_scalar(config: dict[str, Any], largest: int) -> float:
    """The query scale is head_dim, but hidden / heads in the largest (27B) model of both generations."""
    if config["num_hidden_layers"] == largest:
        return config["hidden_size"] / config["num_attention_heads"]
    return float(config["head_dim"])


_EXTRAS: dict[str, Callable[[_Metadata, dict[str, Any]], None]] = {
    "llama": _llama,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
}
