"""Copies KV pages inside a cache, for copy-on-write of a shared page. Must not know who owns a page."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 2048


@triton.jit
def _page_copy_kernel(cache_ptr, sources_ptr, targets_ptr, words, BLOCK: tl.constexpr):
    source = tl.load(sources_ptr + tl.program_id(0)).to(tl.int64)
    target = tl.load(targets_ptr + tl.program_id(0)).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = i < words
    tl.store(cache_ptr + target * words + i, tl.load(cache_ptr + source * words + i, mask=there), mask=there)


def copy_pages(cache: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """cache[targets[i]] = cache[sources[i]] in place; cache [pages, ...] dense, ids [N] int32 or int64.

    No page may be both a source and a target, and no target may occur twice: the copies run in any order.
    """
    if not cache.is_contiguous():
        raise ValueError("copy_pages needs a dense cache; pass the pool's own tensor and not a slice of it.")
    pages = cache.view(cache.shape[0], -1)
    size = pages.shape[1] * cache.element_size()
    # whole words move the same bytes whatever the element type, in fewer instructions
    raw = pages.view(torch.int32 if size % 4 == 0 else torch.uint8)
    words = raw.shape[1]
    if sources.shape[0]:
        grid = (sources.shape[0], triton.cdiv(words, BLOCK))
        _page_copy_kernel[grid](raw, sources, targets, words, BLOCK=BLOCK, num_warps=4)
