"""Parts of the settings of decode kernels replaced, by name, for `gpu_tune.py --sections step`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Change = Callable[[dict[str, Any]], dict[str, Any]]
"""the keys of the settings file that are replaced, from what they were"""

#: name: (outputs of each half if gated, inputs, gated)
SHAPES = {
    "llama qkv": (6144, 4096, False),
    "llama o": (4096, 4096, False),
    "llama gate_up": (14336, 4096, True),
    "llama down": (4096, 14336, False),
    "llama head": (128256, 4096, False),
    "qwen qkv": (4096, 1024, False),
    "qwen o": (1024, 2048, False),
    "qwen gate_up": (3072, 1024, True),
    "qwen down": (1024, 3072, False),
    "qwen head": (151936, 1024, False),
}


def exactly(name: str) -> dict[str, int]:
    """The bounds of a settings file's entry for one shape and no other."""
    sizes = dict(zip(("outer", "inner", "gated"), map(int, SHAPES[name]), strict=True))
    return {f"{end}_{size}": value for size, value in sizes.items() for end in ("min", "max")}


def _decode_with(given: dict[str, Any], **flags: int) -> dict[str, Any]:
    return {"decode": [entry | flags for entry in given["decode"]]}


def _early(given: dict[str, Any]) -> dict[str, Any]:
    """Small weights are asked for early."""
    small = [
        entry | {"max_inner": 3072, "max_outer": 8192, "early": 1} for entry in given["skinny"] if entry["block_n"]
    ]
    return {"skinny": small + given["skinny"]}


#: entries for inner sizes up to 1,024, 2,048 and 3,072, as many registers of weights a thread in each
MATVEC = [
    {"max_tokens": 2, "max_outer": 8192, "max_inner": 1024, "min_gated": 1, "block_n": 8, "warps": 4},
    {"max_tokens": 2, "max_outer": 8192, "max_inner": 1024, "block_n": 16, "warps": 4},
    {"max_tokens": 2, "max_outer": 8192, "max_inner": 2048, "max_gated": 0, "block_n": 8, "warps": 4},
    {"max_tokens": 2, "max_outer": 8192, "max_inner": 4096, "max_gated": 0, "block_n": 4, "warps": 4},
]


def _cublaslt(least: int, most: int, *products: str) -> Change:
    """These products by cuBLASLt, with so many tokens."""
    sizes = [exactly(shape) for shape in SHAPES if shape.split()[1] in products]
    first = [size | {"min_tokens": least, "max_tokens": most, "block_n": 0, "cublaslt": 1} for size in sizes]
    return lambda given: {"skinny": first + given["skinny"]}


def _library_by_cublaslt(given: dict[str, Any]) -> dict[str, Any]:
    """What the library does of 65 tokens and more, by cuBLASLt."""
    left = [not entry["block_n"] and entry["max_tokens"] > 64 for entry in given["skinny"]]
    table = [entry | {"cublaslt": 1} if by else entry for entry, by in zip(given["skinny"], left, strict=True)]
    return {"skinny": [*table, {"block_n": 0, "cublaslt": 1}]}


def _each_skinny(given: dict[str, Any], **fields: int) -> dict[str, Any]:
    return {"skinny": [entry | fields for entry in given["skinny"]]}


VARIANTS: dict[str, Change] = {
    "as-it-is": lambda given: {},
    "norms-apart": lambda given: _each_skinny(given, begin_norm=0),
    "ours": lambda given: {"skinny": [entry for entry in given["skinny"] if not entry.get("cublaslt")]},
    "skinny-o": lambda given: {"matvec": [exactly("llama o") | {"block_n": 0}, *given["matvec"]]},
    "lt-qkv": _cublaslt(33, 64, "qkv"),
    "lt-o": _cublaslt(33, 64, "o"),
    "lt-gate_up": _cublaslt(33, 64, "gate_up"),
    "lt-down": _cublaslt(33, 64, "down"),
    "lt-gate_up-128": _cublaslt(65, 128, "gate_up"),
    "lt-many": _library_by_cublaslt,
    "unfused": lambda given: _decode_with(given, projected=0),
    "prefetch": lambda given: _decode_with(given, prefetch=1),
    "evict-first": lambda given: _decode_with(given, evict_first=1),
    "matvec": lambda given: {"matvec": MATVEC},
    "early": _early,
}


def named(names: str) -> Change:
    """The change that several of the variants make together, the first first."""

    def change(given: dict[str, Any]) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        for name in names.split("+"):
            changed |= VARIANTS[name](given | changed)
        return changed

    return change
