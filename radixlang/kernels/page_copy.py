"""Copies KV pages inside their caches, all layers at once, for copy-on-write. Must not know who owns a page."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixlang.kernels.page_blocks import cache_page

BLOCK = 2048


@triton.jit
def _page_copy_kernel(caches_ptr, sources_ptr, targets_ptr, words, BLOCK: tl.constexpr):
    n, part = tl.program_id(0), tl.program_id(1)
    source = cache_page(caches_ptr, part, tl.load(sources_ptr + n), words)
    target = cache_page(caches_ptr, part, tl.load(targets_ptr + n), words)
    i = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    there = i < words
    tl.store(target + i, tl.load(source + i, mask=there), mask=there)


def copy_pages(addresses: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor, page_bytes: int) -> None:
    """cache[targets[n]] = cache[sources[n]] in place, in every cache.

    addresses [parts] of caches with pages of `page_bytes`, from `page_blocks.cache_addresses`; ids [N] int32 or
    int64. No page may be both a source and a target, and no target may occur twice: the copies run in any order.
    """
    words = page_bytes // 4
    if sources.shape[0]:
        grid = (sources.shape[0], addresses.shape[0], triton.cdiv(words, BLOCK))
        _page_copy_kernel[grid](addresses, sources, targets, words, BLOCK=BLOCK, num_warps=4)
