"""Rotary settings of Hugging Face configs, both generations of them, as `RopeSpec`.

Before transformers 5: `rope_theta` and `rope_scaling`. Since: `rope_parameters`, one object or one per layer
type. Must not import torch.
"""

from __future__ import annotations

from radixlang.errors import ModelError, UnsupportedModelError
from radixlang.models.fields import Fields
from radixlang.models.spec import RopeSpec

#: kind → the numbers it needs and those it may have
_KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), ()),
    "yarn": (
        ("factor",),
        (
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
        ),
    ),
}


def read_rope(c: Fields, head_dim: int, theta: float = 10000.0) -> RopeSpec:
    """The one rotary setting of a model whose layers all rotate alike."""
    old_theta = c.number("rope_theta", theta, least=1)
    if c.values.get("rope_parameters") and c.values.get("rope_scaling"):
        raise UnsupportedModelError(
            f"{c.what} holds both rope_parameters and rope_scaling, which say the same thing twice; keep one."
        )
    for key in ("rope_parameters", "rope_scaling"):
        if key in c:
            return rope_from(c.nested(key), head_dim, old_theta, c.whole("max_position_embeddings"))
    return RopeSpec(theta=old_theta, dim=head_dim)


def rope_from(r: Fields, head_dim: int, theta: float, max_positions: int) -> RopeSpec:
    """A `rope_parameters` or `rope_scaling` object; `theta` where it has none of its own."""
    kind = r.text("rope_type", None) or r.text("type", "default")
    theta = r.number("rope_theta", theta, least=1)
    r.refuse("partial_rotary_factor", 1, 1.0)
    if kind == "divisors":
        divisors = tuple(r.items("divisors"))
        if len(divisors) != head_dim // 2:
            raise ModelError(f"{r.what} has {len(divisors)} divisors for heads of {head_dim} numbers.")
        return RopeSpec(theta=theta, dim=head_dim, kind=kind, divisors=divisors)
    if kind not in _KINDS:
        raise UnsupportedModelError(
            f"{r.what} has rope_type = {kind!r}, which is not supported; supported are: {', '.join(_KINDS)}."
        )
    needed, possible = _KINDS[kind]
    # 0 stands for "not given" where a number need not be there
    numbers = {key: r.positive(key) for key in needed} | {
        key: r.number(key, least=0) for key in possible if key in r
    }
    if kind == "yarn":
        numbers.setdefault("original_max_position_embeddings", float(max_positions))
        r.positive("original_max_position_embeddings", 1.0)
        r.refuse("truncate", True)
    if kind == "llama3" and numbers["high_freq_factor"] <= numbers["low_freq_factor"]:
        raise ModelError(f"{r.what} has a high_freq_factor that is not above its low_freq_factor.")
    return RopeSpec(theta=theta, dim=head_dim, kind=kind, parameters=numbers)


def extended_context(rope: RopeSpec, max_positions: int) -> int:
    """Context length of a model whose `max_position_embeddings` was written before its rope was scaled."""
    factor = rope.parameters.get("factor", 1.0)
    if rope.kind == "linear":
        return int(max_positions * factor)
    if rope.kind == "yarn":
        return max(max_positions, int(rope.parameters["original_max_position_embeddings"] * factor))
    return max_positions
