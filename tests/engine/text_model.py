"""A small model with random weights that has a tokenizer: byte-level merges learned from a few lines of JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

WIDTH = 416
"""of the logits; more than the tokenizer has tokens"""
_LINES = [
    '{"name": "Ada Lovelace", "age": 36, "tags": ["first", "second"], "city": "London", "active": true}',
    '{"answer": "yes", "reason": "because of the order", "orderId": 12, "items": [1, 2, 3], "price": 1.5}',
    "The quick brown fox says yes or no, maybe later; red green blue 2024-01-31 127.0.0.1",
]


def make_text_model(folder: Path) -> Any:
    """Save the model → it."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        _LINES * 20,
        trainers.BpeTrainer(
            vocab_size=WIDTH - 16,
            special_tokens=["<pad>", "<s>", "</s>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    fast.save_pretrained(folder)
    torch.manual_seed(11)
    config = transformers.LlamaConfig(
        vocab_size=WIDTH,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.4,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    return model
