"""The shapes of models that the GPU benchmarks run with random weights, and prompts for them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from common import TINY

MODELS: dict[str, dict[str, Any]] = {
    "llama": {
        "name": "Llama-3.1-8B",
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
    },
    "qwen": {
        "name": "Qwen3-0.6B",
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
    },
    "tiny": TINY,
}


def folder_of(model: str, where: Path) -> str:
    """A model folder with a config and nothing else."""
    folder = where / model
    folder.mkdir(exist_ok=True)
    config = {key: value for key, value in MODELS[model].items() if key != "name"}
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "bfloat16", "hidden_act": "silu"}))
    return str(folder)


def options_of(model: str, where: Path, **more: Any) -> dict[str, Any]:
    return {
        "model_path": folder_of(model, where),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "device": "cuda",
        "context_length": min(16384, MODELS[model]["max_position_embeddings"]),
        "max_running_requests": 256,
        **more,
    }


def prompts(rows: int, length: int, vocabulary: int) -> list[list[int]]:
    """Random token ids, never the same twice, so that no prefix cache can help."""
    return [[random.randrange(100, vocabulary - 100) for _ in range(length)] for _ in range(rows)]
