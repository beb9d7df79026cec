"""Which part of a decoder's tensors one tensor-parallel rank holds.

    rows (outputs)     q, k, v by heads; gate, up by the MLP's inner size; embedding and head by the vocabulary
    columns (inputs)   o by heads, down by the inner size: their results are sums over the ranks
    everything else    whole, on every rank

A rank's query heads are consecutive. Its KV heads are those they read, one for each run of `span` of them; where
head counts do not divide, ranks hold copies of the same KV head. Plain numbers; must not import torch.
"""

from __future__ import annotations

import math

import msgspec

from radixlang.errors import ConfigError
from radixlang.models.spec import ModelSpec

Range = tuple[int, int]

BLOCK = 32
"""an inner size that does not divide is split at multiples of this, the weights of a quantised block"""


class Shards:
    """The parts of rank `rank` of `size`. `spec` is the model as this rank runs it: its heads, its inner size."""

    def __init__(self, spec: ModelSpec, rank: int, size: int) -> None:
        """Raises ConfigError where the model cannot be split so."""
        if size > 1 and spec.encoder:
            raise ConfigError(
                f"--tp-size {size} cannot be used with the encoder {spec.architecture}; use --tp-size 1."
            )
        if spec.num_heads % size:
            fits = ", ".join(str(n) for n in range(1, spec.num_heads + 1) if spec.num_heads % n == 0)
            raise ConfigError(
                f"--tp-size {size} does not divide the {spec.num_heads} attention heads of the model; "
                f"use one of {fits}."
            )
        self.rank = rank
        self.size = size
        heads = spec.num_heads // size
        group = spec.num_heads // spec.num_kv_heads
        span = math.gcd(group, heads)
        self.kv_heads = [(rank * heads + first) // group for first in range(0, heads, span)]
        dim = spec.head_dim
        queries = (rank * heads * dim, (rank + 1) * heads * dim)
        keys = [(first * dim, last * dim) for first, last in _runs(self.kv_heads)]
        inner = _split(spec.intermediate_size, rank, size)
        #: rows of the vocabulary on every rank but the last ones, which may have fewer
        self.vocab_rows = -(-spec.vocab_size // size)
        self.vocab = (rank * self.vocab_rows, min((rank + 1) * self.vocab_rows, spec.vocab_size))
        self.rows: dict[str, list[Range]] = {
            "q_proj": [queries],
            "k_proj": keys,
            "v_proj": keys,
            "gate_proj": [inner],
            "up_proj": [inner],
            "lm_head": [self.vocab],
            "embed_tokens": [self.vocab],
        }
        self.columns: dict[str, Range] = {"o_proj": queries, "down_proj": inner}
        sizes = {"num_heads": heads, "num_kv_heads": len(self.kv_heads), "intermediate_size": inner[1] - inner[0]}
        self.spec = spec if size == 1 else msgspec.structs.replace(spec, **sizes)


def _runs(numbers: list[int]) -> list[Range]:
    """Consecutive numbers as ranges; a number that comes again begins a new one."""
    runs: list[Range] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs


def _split(total: int, rank: int, size: int) -> Range:
    """Part `rank` of `total` in `size` equal parts, or parts that differ by one unit where it does not divide."""
    unit = 1 if total % size == 0 or total % BLOCK or total < BLOCK * size else BLOCK
    units = total // unit
    return units * rank // size * unit, units * (rank + 1) // size * unit
