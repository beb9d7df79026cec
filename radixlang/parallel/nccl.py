"""Ranks on the GPUs of one host: NCCL, and for the small sums of a decode step torch's symmetric memory.

A decode step sums a few hundred kilobytes twice a layer. There every rank reads the others' numbers itself
(one shot), or sums its share and collects the rest (two shots), in one kernel; NCCL takes what is larger, or has a
dtype these kernels do not know. All of it can be captured in CUDA graphs. NVLink multicast stays off.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from radixlang.log import get_logger
from radixlang.parallel import TIMEOUT

log = get_logger(__name__)

BUFFER_BYTES = 4 << 20
"""largest sum that goes over symmetric memory"""
ONE_SHOT_BYTES = 256 << 10
"""largest sum, from three ranks on, that one shot is best for; with two ranks both shots move the same bytes"""
ALIGNMENT = 16
"""bytes: the kernels read vectors of this size"""
WORLD_SIZES = (2, 4, 8)
"""the kernels add the ranks in one fixed order for these only"""


def keep_multicast_off() -> None:
    """Before NCCL and symmetric memory are first used; what the environment says already stands."""
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")


class NcclParallel:
    """A `TensorParallel`. Uses torch's default process group, so there is one in a process."""

    def __init__(self, rank: int, size: int, meeting: str, device: torch.device) -> None:
        keep_multicast_off()
        self.rank = rank
        self.size = size
        self._device = device
        dist.init_process_group(
            "nccl",
            store=dist.FileStore(meeting, size),
            rank=rank,
            world_size=size,
            device_id=device,
            timeout=timedelta(seconds=TIMEOUT),
        )
        group = dist.group.WORLD
        assert group is not None
        self._name = group.group_name
        self._buffers = self._share()

    def _share(self) -> dict[torch.dtype, torch.Tensor]:
        """A buffer that all ranks can read for each dtype of the kernels; none where the ranks cannot."""
        ready = self.size in WORLD_SIZES and self._peers()
        if not self.least(int(ready)):
            log.info("sums of %d ranks go over NCCL alone: their devices cannot read each other", self.size)
            return {}
        import torch.distributed._symmetric_memory as symmetric

        buffers: dict[torch.dtype, torch.Tensor] = {}
        try:
            for dtype in (torch.bfloat16, torch.float32):
                buffer = symmetric.empty(BUFFER_BYTES // dtype.itemsize, dtype=dtype, device=self._device)
                symmetric.rendezvous(buffer, self._name)
                buffers[dtype] = buffer
        except RuntimeError as error:
            log.warning("no symmetric memory (%s): sums go over NCCL", error)
            buffers = {}
        # All or none: ranks that sum in different ways would wait for each other for ever.
        return buffers if self.least(len(buffers)) else {}

    def _peers(self) -> bool:
        here = self._device.index
        first = here - self.rank
        return all(
            other == here or torch.cuda.can_device_access_peer(here, other)
            for other in range(first, first + self.size)
        )

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        buffer = self._buffers.get(x.dtype)
        nbytes = x.numel() * x.element_size()
        if buffer is None or not 0 < nbytes <= BUFFER_BYTES or nbytes % ALIGNMENT or x.data_ptr() % ALIGNMENT:
            dist.all_reduce(x)
            return x
        ops: Any = torch.ops.symm_mem
        shared = buffer[: x.numel()].view(x.shape)
        if self.size == 2 or nbytes <= ONE_SHOT_BYTES:
            return ops.one_shot_all_reduce_copy(shared, x, "sum", self._name)
        shared.copy_(x)
        return ops.two_shot_all_reduce_out(shared, "sum", self._name, x)

    def all_gather_last_dim(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.new_empty((self.size * x.shape[0], x.shape[1]))
        dist.all_gather_into_tensor(parts, x.contiguous())
        return parts.view(self.size, *x.shape).transpose(0, 1).reshape(x.shape[0], -1)

    def least(self, value: int) -> int:
        number = torch.tensor([value], device=self._device)
        dist.all_reduce(number, dist.ReduceOp.MIN)
        return int(number)
