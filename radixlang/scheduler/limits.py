"""The numbers the scheduler lives by, fixed at start. Must not know how they were found."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class SchedulerLimits:
    """What one engine can hold and how it shares it out. Tokens unless said otherwise."""

    num_pages: int
    """KV pages on the device, page 0 (the sink) included"""
    page_size: int
    context_length: int
    """most tokens of one request, prompt and output together"""
    max_running_requests: int
    """rows of the request table, the sink row 0 not counted"""
    chunked_prefill_size: int = 8192
    """most prompt tokens of a step; longer prompts are cut into chunks. -1: prompts are never cut"""
    max_prefill_tokens: int = 16384
    """most prompt tokens of a step; without chunks a longer prompt still gets a step of its own"""
    prefill_max_requests: int | None = None
    """most requests admitted in one step; None: no limit"""
    mixed: bool = False
    """prompts and decoding rows share steps; otherwise a step holds prompts alone while there are any"""
    max_prefill_steps: int = 16
    """most steps of prompts alone, one after another, while a row could decode"""
    max_queued_requests: int | None = None
    """most requests that wait for their first admission; None: no limit"""
    queue_timeout: float | None = None
    """seconds a new arrival may wait for its first admission; None: for ever"""
    eos_ids: tuple[int, ...] = ()
    vocab_size: int = 0
    """0: token ids are not checked"""
    policy: str = "fcfs"
    preemption_threshold: int | None = None
    """a waiting request so many levels above a running one may take its place; None: never. For the policy
    `priority`"""
    low_values_first: bool = False
    """a small priority is an urgent one"""
    eviction: str = "lru"
    radix_cache: bool = True
    max_pinned_fraction: float = 0.25
    """share of the pages that pins may hold"""
    conservativeness: float = 1.0
    """scales the share of max_new_tokens that admission expects requests to use"""
    random_seed: int = 0
    prefetch: str = "timeout"
    """how long a request waits for storage: see `lower_tiers.PREFETCH_POLICIES`"""
    least_load: int = 0
    """tokens; what lower tiers have of a prefix is computed when it is less: a fetch costs its request a step"""
    hidden_load: float = 0.0
    """tokens that are copied from host memory in the time in which one is computed"""
    encoder: bool = False
    """the model only embeds, by all tokens of a prompt: that is computed in one grant, nothing is cached"""

    @property
    def usable_pages(self) -> int:
        return self.num_pages - 1

    @property
    def capacity(self) -> int:
        """Tokens whose KV the whole pool holds."""
        return self.usable_pages * self.page_size

    @property
    def chunked(self) -> bool:
        return self.chunked_prefill_size > 0 and not self.encoder

    @cached_property
    def prompt_budget(self) -> int:
        """Prompt tokens of one step."""
        limits = [self.max_prefill_tokens] if self.max_prefill_tokens > 0 else []
        if self.chunked:
            limits.append(self.chunked_prefill_size)
        return min(limits, default=1 << 30)

    def pages_for(self, tokens: int) -> int:
        """Pages that hold the KV of `tokens` tokens."""
        return -(-tokens // self.page_size)
