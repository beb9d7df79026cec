"""How many KV pages fit: the arithmetic between a device's memory and the pool."""

from __future__ import annotations

from dataclasses import dataclass

from radixlang.errors import ConfigError

CPU_SHARE = 0.25
"""part of the available RAM that the KV pool takes on a CPU when nothing is asked for"""
CPU_CAP = 8 << 30
ACCELERATOR_FRACTION = 0.88
"""default of --mem-fraction-static on accelerators; the rest is for activations and logits"""
LEAST_TOKENS = 128
"""a pool smaller than this serves nobody"""


@dataclass(frozen=True)
class Memory:
    """Bytes of a device after the weights are loaded, or before: then there are 0 of them."""

    cpu: bool
    total: int
    free: int
    weights: int


@dataclass(frozen=True)
class Wanted:
    """Pages that the pool shall have, the sink not counted: no more than `most`, and not to be served with fewer
    than `least`."""

    most: int
    least: int
    page_size: int


def wanted_pages(*, page_size: int, max_running: int, context_length: int, max_total_tokens: int | None) -> Wanted:
    """Never more than `max_running` rows of `context_length` tokens can use, nor than `max_total_tokens`.

    Raises:
        ConfigError: `max_total_tokens` is too small to serve anything.
    """
    row_pages = -(-context_length // page_size)
    most = max_running * row_pages
    if max_total_tokens is not None:
        most = min(most, max_total_tokens // page_size)
    least = min(row_pages, -(-LEAST_TOKENS // page_size))
    if most < least:
        raise ConfigError(
            f"--max-total-tokens {max_total_tokens} is too small: at least {least * page_size} tokens "
            f"({least} pages of {page_size}) are needed."
        )
    return Wanted(most, least, page_size)


def check_rows(max_running: int, wanted: Wanted, context_length: int, free: int) -> None:
    """Refuse more rows than `free` bytes of host memory have tables for (int32: tokens, and pages twice).

    Raises:
        ConfigError: names the flag, the size and what is free.
    """
    context = min(context_length, wanted.most * wanted.page_size)
    size = max_running * 4 * (context + 2 * -(-context // wanted.page_size))
    if size > free:
        raise ConfigError(
            f"--max-running-requests {max_running} needs {size / 2**30:.1f} GiB of host memory for tables of "
            f"{context} tokens a request, and {free / 2**30:.1f} GiB are free; lower it, or --context-length."
        )


def kv_pages(
    page_bytes: int, memory: Memory, wanted: Wanted, *, fraction: float | None, graph_bytes: int = 0
) -> int:
    """Number of pages of the pool, the sink included, `page_bytes` each. Where the share of the memory is not
    given, `graph_bytes` are kept free beside it.

    Raises:
        ConfigError: the memory left is too small to serve anything; says how much there is and which flag
            changes it.
    """
    most, least = wanted.most, wanted.least
    if page_bytes == 0:
        return most + 1
    if memory.cpu:
        usual = min(memory.free * CPU_SHARE, CPU_CAP)
        wish = usual if fraction is None else memory.total * fraction - memory.weights
        budget = min(int(wish), memory.free)
    else:
        static = memory.total * ACCELERATOR_FRACTION - graph_bytes if fraction is None else memory.total * fraction
        budget = int(static) - max(memory.total - memory.free, memory.weights)
    fit = budget // page_bytes - 1
    if fit < least:
        beside = (
            f"beside {memory.weights / 2**20:.0f} MiB of weights" if memory.weights else "even without weights"
        )
        raise ConfigError(
            f"No room for KV pages: {max(budget, 0) / 2**20:.0f} MiB are left {beside} "
            f"({memory.total / 2**20:.0f} MiB in all, {memory.free / 2**20:.0f} MiB free) but "
            f"{(least + 1) * page_bytes / 2**20:.2f} MiB are needed for {least * wanted.page_size} tokens; "
            "raise --mem-fraction-static or take a smaller model."
        )
    return min(most, fit) + 1
