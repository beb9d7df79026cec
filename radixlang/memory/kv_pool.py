"""The KV pool: K and V of every token in pages, one pair of tensors per layer.

    k, v  [num_pages, page_size, kv_heads, head_dim]        page 0 is the sink: padding is written there

Which page belongs to whom is the host's business; must not know requests.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from radixlang.models.spec import ModelSpec


READY_BYTES = 2 << 30
"""memory of the pool that a CPU has at hand from the start; the rest comes as it is used"""


class KvPool:
    """`layers[i]` is layer i's (k, v). An encoder has none."""

    def __init__(
        self, spec: ModelSpec, num_pages: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (num_pages, page_size, spec.num_kv_heads, spec.head_dim)
        self.num_pages = num_pages
        self.page_size = page_size
        count = 0 if spec.encoder else spec.num_layers
        # Not zeroed as a whole on a CPU: the operating system then gives memory only to the pages that are used.
        # Readers there must never let a slot past a row's length into a sum. On an accelerator a library's kernels
        # may, with weight zero, so that such slots must be finite numbers.
        self.layers = [
            (torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device))
            for _ in range(count)
        ]
        # On a CPU the first pages are written once now: a request would wait while the system finds the memory.
        ready = num_pages
        if device.type == "cpu" and count:
            ready = max(1, min(num_pages, READY_BYTES // (2 * count * self.layers[0][0][0].nbytes)))
        for k, v in self.layers:
            in_large_pages(k)
            in_large_pages(v)
            k[:ready].zero_()
            v[:ready].zero_()

        self._kernel: Callable[[torch.Tensor, torch.Tensor], None] | None = None

    @property
    def nbytes(self) -> int:
        return sum(k.nbytes + v.nbytes for k, v in self.layers)

    def copy_by_kernel(self) -> None:
        """From now on `copy` is one launch of a Triton kernel, and no longer two of torch's for every layer."""
        if not self.layers or self.layers[0][0][0].nbytes % 4:
            return
        from radixlang.kernels.page_blocks import cache_addresses
        from radixlang.kernels.page_copy import copy_pages

        addresses = cache_addresses([cache for pair in self.layers for cache in pair])
        self._kernel = partial(copy_pages, addresses, page_bytes=self.layers[0][0][0].nbytes)

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy pages `source[i]` to `target[i]` (int64 ids) in all layers; no page is in both lists, none twice in
        `target`."""
        if self._kernel is not None:
            self._kernel(source, target)
            return
        for pair in self.layers:
            for cache in pair:
                cache[target] = cache[source]


def in_large_pages(memory: torch.Tensor) -> None:
    """Ask the system to give this memory by 2 MiB where it can: a prompt of 512 tokens else waits for thousands of
    small pages, which takes longer than its rotary embeddings."""
    if memory.device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    begin = -(-memory.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    size = memory.data_ptr() + memory.nbytes - begin
    if size > 0:
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        advise(begin, size, mmap.MADV_HUGEPAGE)  # refused: the memory is as it was
