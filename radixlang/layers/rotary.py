"""Rotary frequencies of a `RopeSpec`, scaled as the model was trained.

The kinds and the names of their numbers are those of Hugging Face configs; "yarn" follows the paper
(arXiv 2309.00071), "llama3" the release of Llama 3.1.
"""

from __future__ import annotations

import math

import torch

from radixlang.models.spec import RopeSpec


def frequencies(rope: RopeSpec) -> tuple[torch.Tensor, float]:
    """(radians per position [dim / 2] float32, factor on cosine and sine)."""
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.int64).to(torch.float32) / rope.dim
    inverse = 1.0 / rope.theta**exponents
    p = rope.parameters
    if rope.kind == "linear":
        return inverse / p["factor"], 1.0
    if rope.kind == "divisors":
        return inverse / torch.tensor(rope.divisors, dtype=torch.float32), 1.0
    if rope.kind == "llama3":
        return _llama3(inverse, p), 1.0
    if rope.kind == "yarn":
        return _yarn(inverse, rope.theta, rope.dim, p), _yarn_magnitude(p)
    return inverse, 1.0


def _llama3(inverse: torch.Tensor, p: dict[str, float]) -> torch.Tensor:
    """Long waves are slowed by `factor`, short ones kept, those between blended."""
    original, low, high = p["original_max_position_embeddings"], p["low_freq_factor"], p["high_freq_factor"]
    wavelength = 2 * math.pi / inverse
    keep = ((original / wavelength - low) / (high - low)).clamp(0, 1)
    blended = (1 - keep) * inverse / p["factor"] + keep * inverse
    slowed = torch.where(wavelength > original / low, inverse / p["factor"], blended)
    return torch.where(wavelength < original / high, inverse, slowed)


def _yarn(inverse: torch.Tensor, theta: float, dim: int, p: dict[str, float]) -> torch.Tensor:
    """Dimensions that turn often within the original context are kept, those that turn rarely slowed."""
    original = p["original_max_position_embeddings"]

    def dimension(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(dimension(p.get("beta_fast") or 32.0)), 0)
    high = min(math.ceil(dimension(p.get("beta_slow") or 1.0)), dim - 1)
    ramp = (torch.arange(dim // 2, dtype=torch.float32) - low) / (max(high - low, 0.001))
    slowed = ramp.clamp(0, 1)
    return inverse / p["factor"] * slowed + inverse * (1 - slowed)


def _yarn_magnitude(p: dict[str, float]) -> float:
    if p.get("attention_factor"):
        return p["attention_factor"]

    def magnitude(scale: float) -> float:
        return 1.0 if p["factor"] <= 1 else 0.1 * scale * math.log(p["factor"]) + 1.0

    if p.get("mscale") and p.get("mscale_all_dim"):
        return magnitude(p["mscale"]) / magnitude(p["mscale_all_dim"])
    return magnitude(1.0)
