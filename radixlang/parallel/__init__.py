"""Collectives of one tensor-parallel group, as an object that is handed to constructors.

Every rank calls the same methods in the same order from its device's stream. `connect` makes the object; `Solo` is
the one of a single rank. Must not know models, plans or requests.
"""

from __future__ import annotations

from typing import Protocol

import torch

from radixlang.errors import ConfigError

TIMEOUT = 1800.0
"""seconds a rank waits for the others: as long as the slowest may take to load its weights"""


class TensorParallel(Protocol):
    """One rank's view of its group."""

    rank: int
    size: int

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' x, which is contiguous and has one shape on all; x's memory may be reused."""
        ...

    def all_gather_last_dim(self, x: torch.Tensor) -> torch.Tensor:
        """[T, n] of each rank → [T, size * n], rank after rank: the same bits on all ranks."""
        ...

    def least(self, value: int) -> int:
        """The smallest of all ranks' numbers."""
        ...


class Solo:
    """A group of one."""

    rank = 0
    size = 1

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather_last_dim(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def least(self, value: int) -> int:
        return value


def connect(rank: int, size: int, meeting: str, device: torch.device) -> TensorParallel:
    """Join the group of `size` ranks that meet in the file `meeting`, which none of them has used before.

    Returns when all are there. Nothing listens beyond this host.
    """
    if size == 1:
        return Solo()
    if device.type == "cuda":
        from radixlang.parallel.nccl import NcclParallel

        return NcclParallel(rank, size, meeting, device)
    if device.type == "cpu":
        from radixlang.parallel.gloo import GlooParallel

        return GlooParallel(rank, size, meeting)
    raise ConfigError(f"--tp-size {size} works on cuda and cpu devices, not on {device.type}; use --tp-size 1.")
