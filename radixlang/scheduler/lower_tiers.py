"""What requests have to do with the tiers below the device's memory.

A prefix that goes on in host memory is loaded before its request is admitted, or with its first step, layer by
layer; one that goes on in storage is read into host memory while the request waits in the queue. What comes before
the admission is a wait of the request, so that others compute meanwhile. Both are done once for each admission:
pages that are lost again are computed.

    arrival ──▶ wait "storage": read into host memory ──▶ admission: match ──▶ wait "pages": load ──▶ admission
                                                                       └────▶ layered load with the first step

`DeviceOnly` is the same with nothing below the device. Must not know how copies and files work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from radixlang.cache import Match
from radixlang.cache.tiers import Load, Prefetch, Tiers
from radixlang.plan import Transfer
from radixlang.scheduler.limits import SchedulerLimits
from radixlang.scheduler.pages import Pages
from radixlang.scheduler.request import Request, State

STORAGE, PAGES = "storage", "pages"
"""names of the waits"""
PREFETCH_POLICIES = ("timeout", "best_effort", "wait_complete")
PATIENCE = 1.0
"""seconds that a request waits for storage under `timeout`, …"""
PATIENCE_PER_TOKEN = 0.25 / 1024
"""… and for each token that is looked for"""


class Fetch(NamedTuple):
    """Pages of a request on their way to the device. The match that they follow stays locked meanwhile."""

    request: Request
    match: Match
    load: Load

    @property
    def wanted(self) -> bool:
        """Its request has not ended meanwhile: it will need a row, and further pages."""
        return self.request.state is not State.ENDED

    def missing(self, expected: int) -> int:
        """Pages that the request will need beside these, if it needs `expected` in all."""
        return max(0, expected - len(self.match.pages) - len(self.load))


class LowerTiers(Protocol):
    """What the scheduler asks of the tiers."""

    def arrived(self, request: Request, now: float) -> None:
        """A request has come; it may have to wait."""
        ...

    def ended(self, request: Request) -> None:
        """It is gone."""
        ...

    def begin(self, now: float) -> bool:
        """Take in what has come. → whether a request waits no more"""
        ...

    def fetch(self, request: Request, match: Match, cap: int, beside: int) -> Match | None:
        """Load what goes on behind the (locked) match, among the first `cap` tokens; the step computes `beside`
        tokens of other prompts. → the match, longer if the load comes with this step. None: the request has to
        wait for it, and the match is the fetch's."""
        ...

    def admitted(self, request: Request, cached: int) -> None:
        """It runs, and has `cached` tokens from caches."""
        ...

    def transfers(self, rows: bool) -> tuple[Transfer, ...]:
        """For the plan, which has rows or not."""
        ...

    def to_come(self, expected: Callable[[Request], int]) -> int:
        """Pages that requests whose pages are on their way will need beside these, by what each needs in all."""
        ...

    @property
    def fetches(self) -> Sequence[Fetch]:
        """What is on its way."""
        ...

    @property
    def busy(self) -> bool:
        """Something is to be begun or has not come yet."""
        ...

    def reset(self) -> None:
        """The tree is about to be emptied because what pages hold is not to be trusted."""
        ...

    def flush(self) -> None:
        """Forget what host memory holds; storage keeps its pages."""
        ...

    def gauges(self) -> dict[str, float]: ...

    def counters(self) -> dict[str, float]: ...

    def check(self) -> None: ...

    def close(self) -> None: ...


class DeviceOnly:
    """There are no tiers below the device."""

    fetches: Sequence[Fetch] = ()
    busy = False

    def arrived(self, request: Request, now: float) -> None: ...

    def ended(self, request: Request) -> None: ...

    def begin(self, now: float) -> bool:
        return False

    def fetch(self, request: Request, match: Match, cap: int, beside: int) -> Match | None:
        return match

    def admitted(self, request: Request, cached: int) -> None: ...

    def transfers(self, rows: bool) -> tuple[Transfer, ...]:
        return ()

    def to_come(self, expected: Callable[[Request], int]) -> int:
        return 0

    def reset(self) -> None: ...

    def flush(self) -> None: ...

    def gauges(self) -> dict[str, float]:
        return {}

    def counters(self) -> dict[str, float]:
        return {}

    def check(self) -> None: ...

    def close(self) -> None: ...


class HostAndStorage:
    """Host memory, and storage if `tiers` has one."""

    def __init__(
        self, tiers: Tiers, pages: Pages, limits: SchedulerLimits, can_decode: Callable[[], bool]
    ) -> None:
        """`can_decode`: whether some row would decode if there were no prompts."""
        assert limits.prefetch in PREFETCH_POLICIES, limits.prefetch
        self._tiers = tiers
        self._pages = pages
        self._can_decode = can_decode
        self._policy = limits.prefetch
        self._budget = limits.prompt_budget
        self.hidden_load = limits.hidden_load
        """see `SchedulerLimits`"""
        self.least = max(1, limits.pages_for(limits.least_load))
        """pages that are worth the wait"""
        self._prefetches: dict[str, tuple[Request, Prefetch, float]] = {}
        """by request id, until it is admitted or ends: what is read for it, and until when it waits"""
        self.fetches: list[Fetch] = []
        self._with_step = 0
        """pages of the layered loads of the plan in the making"""
        self._fetched: dict[str, tuple[int, int]] = {}
        """tokens (from host memory, from storage) that were loaded for requests that are not admitted yet"""
        self._stored_tokens = 0

    @property
    def busy(self) -> bool:
        return self._tiers.busy

    def arrived(self, request: Request, now: float) -> None:
        here = self._pages.found(request)
        request.page_keys = self._tiers.keys(request.tokens.view(), request.namespace, self._tiers.known(here))
        if self._tiers.threads is None:
            return
        keys = request.page_keys[len(here) : request.match_cap // self._pages.size]
        prefetch = self._tiers.prefetch(keys, self.least, request.page_keys[: len(here)])
        if prefetch is None:
            return
        until = {
            "best_effort": now,
            "timeout": now + PATIENCE + PATIENCE_PER_TOKEN * len(keys) * self._pages.size,
            "wait_complete": float("inf"),
        }[self._policy]
        self._prefetches[request.rid] = request, prefetch, until
        if until > now:
            request.waits[STORAGE] = None

    def ended(self, request: Request) -> None:
        self._release(request)
        self._fetched.pop(request.rid, None)

    def _release(self, request: Request) -> None:
        entry = self._prefetches.pop(request.rid, None)
        if entry is not None:
            self._tiers.release(entry[1])

    def begin(self, now: float) -> bool:
        self._tiers.poll()
        self._with_step = 0
        freed = False
        for request, prefetch, until in self._prefetches.values():
            if STORAGE in request.waits and (prefetch.done or now >= until):
                del request.waits[STORAGE]
                freed = True
        for fetch in [fetch for fetch in self.fetches if fetch.load.done]:
            self.fetches.remove(fetch)
            self._arrive(fetch)
            freed = True
        return freed

    def fetch(self, request: Request, match: Match, cap: int, beside: int) -> Match | None:
        if request.rid in self._fetched:
            return match
        size, first = self._pages.size, len(match.pages)
        tokens = request.tokens.view()[: cap - cap % size]
        keys = self._tiers.keys(tokens, request.namespace, request.page_keys[: cap // size])
        load = self._tiers.ahead(keys[first:], self._pages.available, self.least)
        if load is None:
            return match
        pages = self._pages.take(len(load))
        assert pages is not None
        layered = self._comes_with_step(request, match, load, beside)
        self._tiers.begin(load, pages, layered)
        if layered:
            # The step that loads them runs before all later ones: they may go into the tree, and to others, now.
            self._with_step += len(load)
            self._note(request, load)
            return self._pages.lengthen(request, match, pages, cap)
        self.fetches.append(Fetch(request, match, load))
        request.waits[PAGES] = None
        return None

    def _comes_with_step(self, request: Request, match: Match, load: Load, beside: int) -> bool:
        """Whether the load shall be a part of the step, layer by layer: if what the step computes anyway hides it,
        or if nothing else is to be computed and it takes no longer than a full step of prompts. Otherwise rows
        that decode would stand still for it, and of several such loads all would come last."""
        if request.retractions:  # it may have been such a load that failed
            return False
        size = self._pages.size
        coming = self._with_step + sum(len(fetch.load) for fetch in self.fetches)
        room = self._budget
        if coming or beside or self._can_decode():
            own = request.tokens.size - match.tokens - len(load) * size
            room = min(beside + own, room)
        return (coming + len(load)) * size <= self.hidden_load * room

    def _arrive(self, fetch: Fetch) -> None:
        """Its pages go into the tree like any others."""
        request, match, load = fetch
        request.waits.pop(PAGES, None)
        if load.worked:
            self._pages.adopt(request, match, load.pages)
        else:
            self._pages.pool.free(load.pages)
        self._pages.unmatch(match)
        if fetch.wanted:
            self._note(request, load if load.worked else None)

    def _note(self, request: Request, load: Load | None) -> None:
        """What was loaded for a request, if anything: it has had its load."""
        storage, pages = (load.from_storage, len(load)) if load is not None else (0, 0)
        size = self._pages.size
        self._fetched[request.rid] = (pages - storage) * size, storage * size

    def admitted(self, request: Request, cached: int) -> None:
        self._release(request)
        host, storage = self._fetched.pop(request.rid, (0, 0))
        if not request.retractions:
            request.cached_storage = min(storage, cached)
            request.cached_host = min(host, cached - request.cached_storage)
            self._stored_tokens += request.cached_storage

    def transfers(self, rows: bool) -> tuple[Transfer, ...]:
        return self._tiers.transfers(rows)

    def to_come(self, expected: Callable[[Request], int]) -> int:
        return sum(fetch.missing(expected(fetch.request)) for fetch in self.fetches if fetch.wanted)

    def reset(self) -> None:
        self._tiers.reset()
        for fetch in self.fetches:
            self._arrive(fetch)
        self.fetches.clear()

    def flush(self) -> None:
        self.reset()
        self._tiers.host.clear()

    def gauges(self) -> dict[str, float]:
        size, host = self._pages.size, self._tiers.host
        return {
            "hicache_host_used_tokens": len(host) * size,
            "hicache_host_total_tokens": host.count * size,
        }

    def counters(self) -> dict[str, float]:
        size, tiers = self._pages.size, self._tiers
        return {
            "hicache_backup_tokens_total": tiers.stored_pages * size,
            "hicache_backup_dropped_tokens_total": tiers.dropped_pages * size,
            "load_back_tokens_total": tiers.loaded_pages * size,
            "prefetched_tokens_total": tiers.read_pages * size,
            "storage_prefetch_hit_tokens_total": self._stored_tokens,
            "backuped_tokens_total": tiers.written_pages * size,
            "storage_failures_total": tiers.threads.failures if tiers.threads is not None else 0,
        }

    def check(self) -> None:
        self._tiers.check()
        for fetch in self.fetches:
            assert not fetch.wanted or PAGES in fetch.request.waits

    def close(self) -> None:
        self._tiers.close()
