"""The numbers of one attention layer: what a backend and the rotation read.

Must not know models: the decoder fills these in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass
class Attention:
    """`scale` multiplies q·k, `window` 0 is full attention, `softcap` 0.0 is none.

    `q_norm` and `k_norm` [head_dim] float32 are norm weights of the query and key heads, both or neither;
    `qk_norm` [heads + kv_heads, head_dim] is made of them, a row for each head.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    eps: float = 0.0
    qk_norm: torch.Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.q_norm is not None and self.k_norm is not None:
            parts = (self.q_norm.expand(self.heads, -1), self.k_norm.expand(self.kv_heads, -1))
            self.qk_norm = torch.cat(parts)
