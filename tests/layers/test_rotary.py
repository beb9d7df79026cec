"""Rotary frequencies against `transformers`' own functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from radixlang.layers.rotary import frequencies
from radixlang.models.spec import RopeSpec

CASES: list[tuple[str, dict[str, float]]] = [
    ("linear", {"factor": 4.0}),
    (
        "llama3",
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    ),
    ("yarn", {"factor": 4.0, "original_max_position_embeddings": 32768}),
    ("yarn", {"factor": 4.0, "original_max_position_embeddings": 4096, "beta_fast": 16, "beta_slow": 2}),
    ("yarn", {"factor": 8.0, "original_max_position_embeddings": 4096, "attention_factor": 1.5}),
    ("yarn", {"factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.7, "mscale_all_dim": 1.0}),
]


@pytest.mark.parametrize(("kind", "parameters"), CASES)
@pytest.mark.parametrize("dim", [64, 128])
def test_equals_transformers(kind: str, parameters: dict[str, float], dim: int) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theta = 500000.0
    original = parameters.get("original_max_position_embeddings", 4096)
    settings: dict[str, Any] = {"rope_type": kind, "rope_theta": theta, **parameters}
    config = transformers.LlamaConfig(
        head_dim=dim,
        hidden_size=dim * 2,
        num_attention_heads=2,
        max_position_embeddings=int(original * parameters["factor"]),
        rope_parameters=settings,
    )
    if kind == "linear":
        want, factor = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config).inv_freq, 1.0
    else:
        want, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    got, our_factor = frequencies(RopeSpec(theta=theta, dim=dim, kind=kind, parameters=parameters))
    torch.testing.assert_close(got, want, rtol=1e-6, atol=0)
    assert our_factor == pytest.approx(factor)


def test_default_and_divisors() -> None:
    plain, factor = frequencies(RopeSpec(theta=100.0, dim=4))
    torch.testing.assert_close(plain, torch.tensor([1.0, 0.1]))
    assert factor == 1.0
    divided, _ = frequencies(RopeSpec(theta=100.0, dim=4, kind="divisors", divisors=(2.0, 8.0)))
    torch.testing.assert_close(divided, torch.tensor([0.5, 0.0125]))
