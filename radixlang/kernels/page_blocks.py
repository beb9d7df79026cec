"""Gathers KV pages of all layers into blocks that lie in one piece, and scatters them back.

    block n, part p  ⇄  page pages[n] of cache p        one launch moves many pages of all caches

Must not know who owns a page, nor where the blocks go.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 2048


@triton.jit
def cache_page(caches_ptr, part, page, words):
    """Where a page of the cache `part` begins, as int32 words, `words` of them a page; `caches_ptr` points to
    `cache_addresses`."""
    cache = tl.multiple_of(tl.load(caches_ptr + part).to(tl.pointer_type(tl.int32)), 16)
    return cache + page.to(tl.int64) * words


# Loads of few layers have fewer parts: the kernel is the same.
@triton.jit(do_not_specialize=["parts"])
def _page_blocks_kernel(
    caches_ptr, pages_ptr, blocks_ptr, words, parts, GATHER: tl.constexpr, BLOCK: tl.constexpr
):
    n, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    there = i < words
    inside = cache_page(caches_ptr, part, tl.load(pages_ptr + n), words) + i
    outside = blocks_ptr + (n * parts + part) * words + i
    if GATHER:
        tl.store(outside, tl.load(inside, mask=there), mask=there)
    else:
        tl.store(inside, tl.load(outside, mask=there), mask=there)


def cache_addresses(caches: list[torch.Tensor]) -> torch.Tensor:
    """int64 [parts] on the caches' device, for the functions below; the caches are dense and alike.

    Raises:
        ValueError: a cache is not dense, or a page of it is not a multiple of 4 bytes.
    """
    for cache in caches:
        if not cache.is_contiguous() or cache[0].nbytes % 4 or cache.data_ptr() % 16:
            raise ValueError("Page blocks need dense caches of pages that are multiples of 4 bytes.")
    return torch.tensor([cache.data_ptr() for cache in caches], dtype=torch.int64, device=caches[0].device)


def gather_pages(addresses: torch.Tensor, pages: torch.Tensor, blocks: torch.Tensor) -> None:
    """blocks[n] = the page `pages[n]` of all caches, part after part.

    addresses [parts] from `cache_addresses`; pages int32 [N]; blocks uint8 [>= N, bytes of a page], dense.
    """
    _launch(addresses, pages, blocks, True)


def scatter_pages(addresses: torch.Tensor, pages: torch.Tensor, blocks: torch.Tensor) -> None:
    """The other way: the page `pages[n]` of all caches = blocks[n]; no page may occur twice."""
    _launch(addresses, pages, blocks, False)


def _launch(addresses: torch.Tensor, pages: torch.Tensor, blocks: torch.Tensor, gather: bool) -> None:
    raw = blocks.view(torch.int32)
    parts = addresses.shape[0]
    words = raw.shape[1] // parts
    if pages.shape[0]:
        grid = (pages.shape[0], parts, triton.cdiv(words, BLOCK))
        _page_blocks_kernel[grid](addresses, pages, raw, words, parts, GATHER=gather, BLOCK=BLOCK, num_warps=4)
