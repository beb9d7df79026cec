"""A small Llama with random weights on disk: enough for every benchmark of our own engine."""

from __future__ import annotations

from pathlib import Path

import pytest

VOCAB = 97


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    folder = tmp_path_factory.mktemp("tiny")
    transformers.LlamaForCausalLM(config).eval().save_pretrained(folder)
    return folder
