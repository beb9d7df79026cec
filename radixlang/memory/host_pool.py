"""Host memory for KV pages: a slot holds one page of all layers in one piece.

    array  uint8 [slots, 2 · layers · page part]        part 2 i is K of layer i, part 2 i + 1 is V
                                                         a part: [page_size, kv_heads, head_dim] as in the KV pool

So a page is one copy to or from the device, and one block for a file or a message. Bytes are bytes: nothing here
depends on what a number looks like. Must not know which page lies where.
"""

from __future__ import annotations

import numpy as np
import torch

from radixlang.errors import ConfigError
from radixlang.memory.kv_pool import KvPool, in_large_pages


def page_bytes(pool: KvPool) -> int:
    """Bytes of one page over all layers."""
    return sum(k[0].nbytes + v[0].nbytes for k, v in pool.layers)


class HostPool:
    """`slots` blocks of `page_bytes(pool)` bytes. `pinned`: the device copies to and from them by itself; the
    memory is then all taken at once, otherwise as it is used.

    Raises:
        ConfigError: the system does not let so much memory be pinned.
    """

    def __init__(self, pool: KvPool, slots: int, pinned: bool) -> None:
        self.blocks = torch.empty((slots, page_bytes(pool)), dtype=torch.uint8)
        in_large_pages(self.blocks)
        self.array: np.ndarray = self.blocks.numpy()
        """the same memory"""
        self._pinned = pinned
        if pinned:
            # Registered and not allocated by torch, which would round the size up to a power of two.
            error = torch.cuda.cudart().cudaHostRegister(self.blocks.data_ptr(), self.blocks.nbytes, 0)
            if int(error) != 0:
                raise ConfigError(
                    f"{self.blocks.nbytes / 1e9:.1f} GB of host memory could not be pinned (CUDA error "
                    f"{int(error)}); lower --hicache-size or --hicache-ratio."
                )

    def close(self) -> None:
        """Give pinned memory back; no copy may be under way."""
        if self._pinned:
            self._pinned = False
            torch.cuda.cudart().cudaHostUnregister(self.blocks.data_ptr())
