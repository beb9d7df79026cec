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


def _described(least: int, **more: int) -> Change:
    """Steps of `least` rows and more load the keys of four heads by descriptor."""
    tile = {"block": 64, "warps": 2, "stages": 3, "pack": 4, "tma": 1, "projected": 0, "chained": 0}
    return lambda given: {"decode": [{"min_batch": least} | tile | more, *given["decode"]]}


def _early(given: dict[str, Any]) -> dict[str, Any]:
    """Small weights are asked for early."""
    small = [
        entry | {"max_inner": 3072, "max_outer": 8192, "early": 1} for entry in given["skinny"] if entry["block_n"]
    ]
    return {"skinny": small + given["skinny"]}


def _skinny(shapes: str, least: int, most: int, block_n: int, block_k: int, stages: int, splits: int) -> Change:
    """These shapes of SHAPES (a model, and products joined by ","), with so many tokens, by the skinny kernel in
    programs of four warps."""
    model, products = shapes.split()
    entries, apart = [], []
    for name in (f"{model} {product}" for product in products.split(",")):
        bounds = exactly(name) | {"min_tokens": least, "max_tokens": most}
        programs = splits * -(-SHAPES[name][0] // block_n)
        tile = {"block_n": block_n, "block_k": block_k, "warps": 4, "stages": stages, "programs": programs}
        entries.append(bounds | tile)
        apart.append(bounds | {"block_n": 0})
    return lambda given: {"skinny": entries + given["skinny"], "matvec": apart + given["matvec"]}


def _matvec(name: str, most: int, block_n: int, warps: int) -> Change:
    """One of SHAPES, with up to `most` tokens, by the matrix-vector kernel."""
    entry = exactly(name) | {"max_tokens": most, "block_n": block_n, "warps": warps}
    return lambda given: {"matvec": [entry, *given["matvec"]]}


VARIANTS: dict[str, Change] = {
    "as-it-is": lambda given: {},
    # a switch of the settings file each, the other way than it is shipped
    "norms-apart": lambda given: {"skinny": [entry | {"begin_norm": 0} for entry in given["skinny"]]},
    "no-matvec": lambda given: {"matvec": []},
    "unfused": lambda given: _decode_with(given, projected=0),
    "prefetch": lambda given: _decode_with(given, prefetch=1),
    "evict-first": lambda given: _decode_with(given, evict_first=1),
    "early": _early,
    "described": _described(65),
    "described-1": _described(65, warps=1),
    "described-4": _described(65, stages=4),
    "described-chained": _described(65, chained=1),
    "described-64": _described(33),
    # sums of narrow blocks in one program each: nobody waits for another's part
    "llama-sums": _skinny("llama o,down", 1, 32, 32, 256, 6, 1),
    # all 224 programs at once on 132 multiprocessors, two on one
    "llama-gate_up": _skinny("llama gate_up", 1, 16, 64, 64, 6, 1),
    # a multiprocessor each and more, instead of 96; with one token it ends the norm that "down" then begins
    "llama-qkv": _skinny("llama qkv", 1, 32, 32, 128, 6, 1),
    "llama-gate_up-matvec": _matvec("llama gate_up", 2, 4, 8),
    # the same number of programs, half and a quarter of the parts to join
    "qwen-sums": _skinny("qwen o,down", 3, 32, 32, 128, 6, 4),
    "qwen-sums-16": _skinny("qwen o,down", 3, 32, 16, 256, 6, 2),
    # as many programs, no parts to join
    "qwen-qkv": _skinny("qwen qkv", 3, 32, 32, 256, 5, 1),
    "qwen-gate_up": _skinny("qwen gate_up", 3, 32, 32, 128, 6, 1),
}


def named(names: str) -> Change:
    """The change that several of the variants make together, the first first."""

    def change(given: dict[str, Any]) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        for name in names.split("+"):
            changed |= VARIANTS[name](given | changed)
        return changed

    return change
