"""Ranks on CPUs: Gloo over the loopback interface."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from radixlang.errors import RankLostError
from radixlang.parallel import TIMEOUT


class GlooParallel:
    """A `TensorParallel`. The group is made directly, so that several can live in one process."""

    def __init__(self, rank: int, size: int, meeting: str) -> None:
        self.rank = rank
        self.size = size
        gloo: Any = dist.ProcessGroupGloo  # its stub lacks what follows
        options = gloo._Options()
        # The default would take the interface of the host's name, and let others connect to it.
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=TIMEOUT)
        self._store = dist.FileStore(meeting, size)
        self._group = gloo(self._store, rank, size, options)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        # The group is called past torch's dispatcher; this operation shows a recorder of kernels that something
        # happens here which it cannot replay.
        x = x.add_(0)
        self._await(self._group.allreduce([x]))
        return x

    def all_gather_last_dim(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.new_empty((self.size * x.shape[0], x.shape[1]))
        self._await(self._group._allgather_base(parts, x.contiguous()))
        return parts.view(self.size, *x.shape).transpose(0, 1).reshape(x.shape[0], -1)

    def least(self, value: int) -> int:
        number = torch.tensor([value])
        options: Any = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN
        self._await(self._group.allreduce([number], options))
        return int(number)

    def _await(self, work: Any) -> None:
        try:
            work.wait()
        except RuntimeError as error:  # whose text is about sockets
            raise RankLostError(f"Rank {self.rank} no longer reaches the {self.size - 1} other ranks.") from error
