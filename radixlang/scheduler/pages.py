"""Who owns which page: the pool, the tree, or one running request.

    pages of a row:  [ 0 ........ shared | shared ........ ]
                       tree's, locked      the request's own

Every page has exactly one owner. Steps run in the order of their plans, so a page that is given back may be
handed out again in the next plan, while the step that used it last has not run yet. The tiers below the device are
told what enters and leaves the tree. Must not know policies.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from radixlang.cache import FORESEEING, Foresight, Insertion, Match, PagePool, TreeNode, make_cache
from radixlang.cache.tiers import Tiers
from radixlang.cache.view import tree_view
from radixlang.plan import Ints
from radixlang.scheduler.limits import SchedulerLimits
from radixlang.scheduler.pins import Pins
from radixlang.scheduler.request import Request
from radixlang.scheduler.rows import Rows

_NO_PAGES: Ints = np.zeros(0, np.int32)


class Pages:
    """The pool and the tree, and the moves between them."""

    def __init__(self, limits: SchedulerLimits, rows: Rows, tiers: Tiers | None = None) -> None:
        self._rows = rows
        self._tiers = tiers
        self.size = limits.page_size
        self.pool = PagePool(limits.num_pages)
        self.tree = make_cache(limits.page_size, limits.eviction, limits.radix_cache and not limits.encoder)
        self.foresight = Foresight(self.tree) if limits.eviction in FORESEEING else None
        self.pins = Pins(self.tree, int(limits.max_pinned_fraction * limits.usable_pages))
        self.evicted_tokens = 0
        self._retired: list[Ints] = []
        self._rewrites: list[tuple[Request, int, int]] = []
        self._due: list[tuple[Request, int, int]] = []
        self._sources: list[TreeNode] = []
        self._sealed = 0

    @property
    def available(self) -> int:
        """Pages that `take` can deliver."""
        return self.pool.available + self.tree.evictable

    def free_up(self, count: int) -> int:
        """`available`, after pins have given way until it is `count` or none is left: for requests that run, or
        could run alone."""
        while self.available < count and self.pins.give_way():
            pass
        return self.available

    def take(self, count: int) -> Ints | None:
        """`count` pages, evicted from the tree where the pool is short; None when there are not as many."""
        short = count - self.pool.available
        if short > 0:
            if short > self.tree.evictable:
                return None
            evicted = self.tree.evict(short)
            self.evicted_tokens += len(evicted) * self.size
            if self._tiers is not None:
                self._tiers.evicted(evicted)
            self.pool.free(evicted)
        return self.pool.alloc(count)

    def found(self, request: Request) -> Ints:
        """The cached pages of the longest prefix of the request's tokens. Nobody holds them."""
        path, tokens = self.tree.path(request.tokens.view(), request.namespace)
        return np.concatenate([_NO_PAGES, *(node.pages for node in path)])[: tokens // self.size]

    def match(self, request: Request, cap: int) -> Match:
        """Lock the longest cached prefix of the request's first `cap` tokens."""
        match = self.tree.match_prefix(request.tokens.view()[:cap], request.namespace, request.priority)
        self.tree.lock(match.node)
        return match

    def unmatch(self, match: Match) -> None:
        self.tree.unlock(match.node)

    def open(self, request: Request, match: Match) -> None:
        """Let the request, whose row begins with the pages of a locked match, hold them."""
        self.tree.hit(match.node)
        request.shared = len(match.pages)
        request.node = match.node

    def part_page(self, request: Request, match: Match, cap: int, needed: int) -> tuple[int, int, bool] | None:
        """A page that begins with the tokens behind the match, to be copied instead of computed (see
        `RadixTree.part_page`): its id, how many tokens, and whether the plan in the making writes it. It stays
        where it is until `end_step`. None when there is none, or when keeping it would leave less than `needed`
        pages to take.

        What is being written can only be copied behind the step. Until then the row uses the page itself, and
        writes there too: it must write the same.
        """
        rest = request.tokens.view()[match.tokens :]
        part = self.tree.part_page(match.node, rest[: min(cap - match.tokens, self.size)])
        if part is None:
            return None
        if part.since > self._sealed:
            return (part.page, part.tokens, True) if part.data == rest.tobytes() else None
        if part.node is not None:
            self.tree.lock(part.node)
            if needed > self.available:
                self.tree.unlock(part.node)
                return None
            self._sources.append(part.node)
        return part.page, part.tokens, False

    def redirect(self, request: Request, index: int) -> None:
        """This plan puts another page into the row's table than its own at `index`; the next one mends that."""
        self._rewrites.append((request, index, index + 1))

    def settle(self, request: Request, tokens: int) -> None:
        """Share the full pages of the request's first `tokens` tokens, all of them granted, while it runs, and
        lend the page behind them as far as the prompt fills it.

        The grants may be part of the plan in the making: a later row of the same plan may use these pages,
        because every layer writes all rows' K and V before any row reads them.
        """
        self._share(request, tokens // self.size)
        assert request.node is not None
        begin = request.shared * self.size
        if begin < request.prompt_length < begin + self.size:
            page = int(self._rows.pages_of(request)[request.shared])
            self.tree.lend(request.node, request.tokens.view()[begin : request.prompt_length], page)

    def _share(self, request: Request, count: int) -> None:
        if count <= request.shared:
            return
        assert request.node is not None
        own = self._rows.pages_of(request)[:count]
        done = self._insert(request, own)
        if not done.stored:
            return
        self.tree.lock(done.node)
        self.tree.unlock(request.node)
        present = done.present // self.size
        if present > request.shared:
            # Another request computed the same tokens. The plan in the making still writes to the duplicates;
            # the next one points the row to the tree's pages and may hand the duplicates out.
            self._retired.append(own[request.shared : present].copy())
            own[request.shared : present] = done.pages[request.shared : present]
            self._rewrites.append((request, request.shared, present))
        request.node = done.node
        request.shared = count

    def close(self, request: Request, tokens: int) -> None:
        """Take everything from the running request; the full pages of its first `tokens` tokens, all of them
        in `request.tokens`, go to the tree."""
        assert request.node is not None
        own = self._rows.pages_of(request)
        if len(own) > request.shared:
            self.tree.take_back(request.node, int(own[request.shared]))
        self._rewrites = [entry for entry in self._rewrites if entry[0] is not request]
        self._due = [entry for entry in self._due if entry[0] is not request]
        count = tokens // self.size
        present = stored = request.shared
        if count > request.shared:
            done = self._insert(request, own[:count], request.shared)
            present = max(present, done.present // self.size)
            stored = max(stored, done.stored // self.size)
        self.pool.free(own[request.shared : present])
        self.pool.free(own[stored:])
        self.tree.unlock(request.node)
        request.node = None
        request.shared = 0

    def _insert(self, request: Request, pages: Ints, known: int = 0) -> Insertion:
        """Give the tree the pages of the request's first tokens; the tiers know the first `known` ones."""
        tokens = request.tokens.view()[: len(pages) * self.size]
        done = self.tree.insert(tokens, pages, request.namespace, request.priority)
        if self._tiers is not None and done.stored:
            keys = self._tiers.keys(tokens, request.namespace, request.page_keys[: len(pages)])
            self._tiers.kept(keys, done.pages, done.present // self.size, known)
        return done

    def adopt(self, request: Request, match: Match, pages: Ints) -> None:
        """Give the tree `pages`, loaded for the request's tokens behind a match that is still locked."""
        have = len(match.pages)
        everything = np.concatenate([match.pages, pages])
        done = self._insert(request, everything, have)
        self.pool.free(everything[have : max(have, done.present // self.size)])

    def lengthen(self, request: Request, match: Match, pages: Ints, cap: int) -> Match:
        """`adopt`, and lock what the request's first `cap` tokens match then instead of the match."""
        self.adopt(request, match, pages)
        longer = self.match(request, cap)
        self.unmatch(match)
        return longer

    def distrust(self, request: Request) -> None:
        """Like `close`, for a request whose KV may be wrong: its unshared part of the tree goes too."""
        node = request.node
        assert node is not None
        self.close(request, 0)
        forgotten = self.tree.forget(node)
        if self._tiers is not None:
            self._tiers.distrusted(forgotten)
        self.pool.free(forgotten)

    def pin(self, request: Request) -> None:
        """Keep what the request, which has ended, has left in the tree, as it wishes."""
        if request.pin is not None:
            match = self.match(request, request.tokens.size)
            self.pins.keep(request.pin.name, match.node, request.pin.seconds)
            self.unmatch(match)  # a namespace of which nothing is kept goes with it

    def view(self, **options: Any) -> dict[str, Any]:
        """A picture of the tree; `options` and the answer are those of `tree_view`."""
        return tree_view(self.tree, copied=self._tiers.copied if self._tiers is not None else None, **options)

    def begin_step(self) -> None:
        """The last plan is sealed: duplicates it still used may be handed out, what it writes may be copied."""
        self._sealed = self.tree.clock
        for pages in self._retired:
            self.pool.free(pages)
        self._retired.clear()
        if self._tiers is not None:
            self._tiers.begin_plan()
        self._due += self._rewrites
        self._rewrites.clear()

    def end_step(self) -> None:
        """No more pages are taken for this plan: those it copies may be evicted again."""
        for node in self._sources:
            self.tree.unlock(node)
        self._sources.clear()

    def rewrites(self) -> list[tuple[int, int, Ints]]:
        """(row, first index, page ids) to put into the page table with this step's plan, told once."""
        entries = [
            (request.row, first, self._rows.pages_of(request)[first:end]) for request, first, end in self._due
        ]
        self._due.clear()
        return entries

    def flush(self) -> None:
        """Empty the tree, pins and all; no request may run."""
        self.begin_step()
        self.pins.clear()
        self.pool.free(self.tree.flush())

    def check(self, running: list[Request], coming: list[Ints]) -> None:
        """Assert that every page has one owner, and that there is one lock for every running request, every branch
        of a pin, and each of `coming`: pages that are on their way from a lower tier."""
        self.pool.check()
        self.tree.check()
        owned = [self._rows.pages_of(request)[request.shared :] for request in running]
        everything = np.concatenate([self.pool.free_pages(), self.tree.pages(), *self._retired, *owned, *coming])
        assert len(everything) == self.pool.total, f"{self.pool.total - len(everything)} pages are lost"
        assert len(np.unique(everything)) == len(everything), "a page has two owners"
        locks = sum(root.locks for root in self.tree.roots())
        holders = len(running) + len(coming) + self.pins.locks
        assert locks == holders, f"{locks} locks for {len(running)} running requests and {len(coming)} loads"
        assert sum(root.pins for root in self.tree.roots()) == self.pins.locks, "a pin is lost"
