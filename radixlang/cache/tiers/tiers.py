"""Where pages are beside the device: the host's books of host memory, and of what is on its way.

                 kept / evicted ──StorePages──▶            ──write──▶
    device pages                               host slots              storage
                       Load     ◀──LoadPages──             ◀──read───  (Prefetch)

Lower tiers are stores of pages by key (see `keys`), and no part of the radix tree: it is told here which pages
enter and leave the tree, and what a tier knows beyond the end of a match is found by going on with the keys.
Copies are begun by the plan in the making and reported by `Copies`; storage works in threads. `poll` takes in what
has ended, so all books are kept by one thread. Must not know requests, devices or files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from radixlang.cache.tiers.keys import Link, first_key, page_keys, runs
from radixlang.cache.tiers.slots import HostPage, HostSlots
from radixlang.cache.tiers.threads import StorageThreads
from radixlang.plan import AwaitCopies, Ints, LoadPages, StorePages, Transfer

WRITE_POLICIES = ("write_through", "write_through_selective", "write_back")
CHUNK = 8
"""pages that one thread reads at a time"""
WRITTEN = 256
"""pages that are written at a time: more than are read, as each time those behind which they come are noted too"""
UNWRITTEN_SHARE = 0.5
"""of the host's slots at most wait to be written to storage; pages beyond are not written"""


class Copies(Protocol):
    """Where copies that plans began are reported."""

    def finished(self) -> list[tuple[int, bool]]:
        """(copy, whether it worked) of those that ended since the last call."""
        ...

    def drain(self) -> None:
        """Wait until no copy is under way."""
        ...


class Load:
    """Pages on their way from host memory to the device."""

    def __init__(self, held: list[HostPage]) -> None:
        self.held = held
        self.pages: Ints = np.zeros(0, np.int32)
        self.done = False
        self.worked = False
        self.from_storage = 0
        """pages that no request had used since they were read from storage"""

    def __len__(self) -> int:
        return len(self.held)


class Prefetch:
    """Pages of one prefix that are looked for in storage and read into host memory, where they are held; those
    `behind` come before them."""

    def __init__(self, keys: list[bytes], behind: Sequence[bytes]) -> None:
        self.keys = keys
        self.behind = behind
        self.held: list[HostPage] = []
        self.done = False
        self.dropped = False
        self.wanted: list[bytes] = []
        """what storage has of it"""
        self.parts = 0
        """reads under way"""
        self.followers: list[Prefetch] = []
        """they need pages that this one reads"""


class _Store:
    """Pages on their way to host memory; those in `lost` are not to be trusted."""

    def __init__(self, pages: list[int], links: list[Link], slots: list[int]) -> None:
        self.pages = pages
        self.links = links
        self.slots = slots
        self.lost: set[bytes] = set()


class _Find:
    def __init__(self, prefetch: Prefetch) -> None:
        self.prefetch = prefetch

    @property
    def vain(self) -> bool:
        return self.prefetch.dropped and not self.prefetch.followers


class _Read(_Find):
    def __init__(self, prefetch: Prefetch, keys: list[bytes], slots: list[int]) -> None:
        super().__init__(prefetch)
        self.keys = keys
        self.slots = slots


class _Write:
    vain = False

    def __init__(self, pages: list[HostPage], behind: list[bytes]) -> None:
        self.pages = pages
        self.behind = behind


class Tiers:
    """The tiers below the device's memory. `threads` None: there is no storage."""

    def __init__(
        self,
        identity: bytes,
        page_size: int,
        num_pages: int,
        slots: int,
        copies: Copies,
        policy: str = "write_through",
        threads: StorageThreads | None = None,
    ) -> None:
        assert policy in WRITE_POLICIES, policy
        self.page_size = page_size
        self.host = HostSlots(slots)
        self.threads = threads
        self._identity = identity
        self._copies = copies
        self._policy = policy
        self._link_of: list[Link | None] = [None] * num_pages
        """by device page, while it is in the tree"""
        self._new: dict[int, Link] = {}
        """device pages to be stored with the next plan: the one in the making may still write them"""
        self._stores: dict[int, _Store] = {}
        self._loads: dict[int, Load] = {}
        self._storing: dict[int, int] = {}
        """device page → the copy that reads it"""
        self._storing_keys: set[bytes] = set()
        self._next = 0
        self._begin_stores: list[Transfer] = []
        self._begin_loads: list[LoadPages] = []
        self._await: dict[int, None] = {}
        """copies that the plan in the making must not overtake"""
        self._ended: list[int] = []
        """copies that ended here; other ranks may need to wait for theirs"""
        self._prefetches: dict[Prefetch, None] = {}
        self._reading: dict[bytes, Prefetch] = {}
        self._hungry: deque[Prefetch] = deque()
        """they wait for slots"""
        self._unwritten = 0
        self._slots_read = 0
        """slots that threads read into"""
        self.stored_pages = 0
        self.dropped_pages = 0
        """for want of slots, or of time to write them"""
        self.loaded_pages = 0
        self.read_pages = 0
        self.written_pages = 0

    # ---- keys ----

    def keys(self, tokens: Ints, namespace: str, known: Sequence[bytes] = ()) -> list[bytes]:
        """The keys of the full pages of `tokens`; `known` are the first of them, where somebody has kept those."""
        count = len(tokens) // self.page_size
        before = known[-1] if known else first_key(self._identity, namespace)
        more = page_keys(before, tokens[len(known) * self.page_size :], self.page_size)
        return [*known, *more][:count]

    def known(self, pages: Ints) -> list[bytes]:
        """The keys of `pages`, which lie in the tree one behind the other from the start of a prefix."""
        keys = []
        for page in pages.tolist():
            link = self._link_of[page]
            if link is None:
                break
            keys.append(link.key)
        return keys

    # ---- what happens to the tree ----

    def kept(self, keys: Sequence[bytes], pages: Ints, present: int, known: int = 0) -> None:
        """`pages`, of a prefix from its start on, are in the tree now; the first `present` of them were before,
        and the first `known` have been told of."""
        self.host.touch(keys[known:])
        stored = {"write_through": len(keys), "write_through_selective": present, "write_back": 0}[self._policy]
        link = self._link_of[pages[known - 1]] if known else None
        for index, page in enumerate(pages[known:].tolist(), known):
            key, before, link = keys[index], link, self._link_of[page]
            if link is None or link.key != key:
                link = self._link_of[page] = Link.after(before, key)
            if index < stored and self._missing(key):
                self._new[page] = link

    def copied(self, page: int) -> bool:
        """Whether a device page that is in the tree is in host memory too."""
        link = self._link_of[page]
        return link is not None and self.host.get(link.key) is not None

    def _missing(self, key: bytes) -> bool:
        return key not in self._storing_keys and self.host.get(key) is None

    def evicted(self, pages: Ints) -> None:
        """The tree gives these up, and the plan in the making may write them."""
        rescue: dict[int, Link] = {}
        for page in pages.tolist():
            link, self._link_of[page] = self._link_of[page], None
            copy = self._storing.get(page)
            if copy is not None:
                self._await[copy] = None
            new = self._new.pop(page, None)
            if link is not None and (new or self._policy == "write_back") and self._missing(link.key):
                rescue[page] = link
        if rescue:
            copy = self._store(_in_order(rescue))
            if copy is not None:
                self._await[copy] = None

    def distrusted(self, pages: Ints) -> None:
        """What these hold may be wrong, and they have left the tree."""
        keys = []
        for page in pages.tolist():
            link, self._link_of[page] = self._link_of[page], None
            self._new.pop(page, None)
            if link is not None:
                keys.append(link.key)
                for store in self._stores.values():
                    store.lost.add(link.key)
        self.host.drop(keys)

    # ---- the plan in the making ----

    def begin_plan(self) -> None:
        """The last plan is sealed: what it wrote may be stored beside this one."""
        if self._new:
            new, self._new = self._new, {}
            self._store({page: link for page, link in new.items() if self._missing(link.key)})

    def transfers(self, rows: bool) -> tuple[Transfer, ...]:
        """What the plan, which has rows or not, must begin and await; told once."""
        if not (rows or self._begin_stores or self._begin_loads):
            return ()
        waits = (*self._await, *self._ended)
        loads = sorted(self._begin_loads, key=lambda load: not load.layered)
        out = [*self._begin_stores, *([AwaitCopies(waits)] if waits else []), *loads]
        self._begin_stores, self._begin_loads = [], []
        self._await.clear()
        self._ended.clear()
        return tuple(out)

    @property
    def busy(self) -> bool:
        """A plan is needed, or `poll` has something to wait for beside storage."""
        return bool(self._new or self._stores or self._loads)

    def _store(self, wanted: dict[int, Link]) -> int | None:
        """Begin to store device pages. → the copy, None when there is no slot"""
        slots = self.host.reserve(len(wanted))
        self.dropped_pages += len(wanted) - len(slots)
        if not slots:
            return None
        pages, links = list(wanted)[: len(slots)], list(wanted.values())[: len(slots)]
        copy = self._number()
        self._stores[copy] = _Store(pages, links, slots)
        self._storing |= dict.fromkeys(pages, copy)
        self._storing_keys.update(link.key for link in links)
        self._begin_stores.append(StorePages(copy, np.array(pages, np.int32), np.array(slots, np.int32)))
        return copy

    def _number(self) -> int:
        self._next += 1
        return self._next

    # ---- from host memory to the device ----

    def ahead(self, keys: Sequence[bytes], most: int, least: int = 1) -> Load | None:
        """The first of `keys` that host memory has, at most `most`, held for a load; None when these are less than
        `least`."""
        count = self.host.find(keys[:most])
        if count < least:
            return None
        held = [page for page in map(self.host.get, keys[:count]) if page is not None]
        self.host.hold(held)
        return Load(held)

    def give_up(self, load: Load) -> None:
        """A load that is not begun."""
        self.host.release(load.held)

    def begin(self, load: Load, pages: Ints, layered: bool = False) -> None:
        """Load into `pages`, which belong to whoever loads and may be used once `load.done`, or if it is `layered`
        from the plan in the making on."""
        load.pages = pages
        for page in load.held:
            load.from_storage += page.from_storage
            page.from_storage = False
        copy = self._number()
        self._loads[copy] = load
        slots = np.array([page.slot for page in load.held], np.int32)
        self._begin_loads.append(LoadPages(copy, slots, pages, layered))

    # ---- from storage to host memory ----

    def prefetch(self, keys: list[bytes], least: int = 1, behind: Sequence[bytes] = ()) -> Prefetch | None:
        """Look for `keys`, which in their prefix follow those `behind`, in storage as far as host memory lacks
        them; None when it lacks less than `least`, or when storage hangs."""
        if self.threads is None or len(keys) - self.host.find(keys) < least or self.threads.hanging:
            return None
        prefetch = Prefetch(keys, behind)
        self._prefetches[prefetch] = None
        self._advance(prefetch)
        return prefetch

    def release(self, prefetch: Prefetch) -> None:
        """Nobody needs it any more; what was read stays as long as there is room."""
        if prefetch in self._prefetches:
            del self._prefetches[prefetch]
            prefetch.dropped = True
            self.host.release(prefetch.held)
            prefetch.held = []
            if prefetch in self._hungry:
                self._hungry.remove(prefetch)
                self._finish(prefetch)

    def _advance(self, prefetch: Prefetch) -> None:
        """The next step of one that nobody works for."""
        assert self.threads is not None
        have = self.host.find(prefetch.keys)
        rest = prefetch.keys[have:]
        if prefetch.dropped or not rest:
            self._finish(prefetch)
        elif rest[0] in self._reading:
            self._reading[rest[0]].followers.append(prefetch)
        else:
            held = [page for page in map(self.host.get, prefetch.keys[len(prefetch.held) : have]) if page]
            self.host.hold(held)
            prefetch.held += held
            for key in rest:
                self._reading.setdefault(key, prefetch)
            self.threads.find(_Find(prefetch), rest)

    def _finish(self, prefetch: Prefetch) -> None:
        prefetch.done = True
        for key in prefetch.keys:
            if self._reading.get(key) is prefetch:
                del self._reading[key]
        followers, prefetch.followers = prefetch.followers, []
        for follower in followers:
            self._advance(follower)

    def _found(self, prefetch: Prefetch, count: int) -> None:
        prefetch.wanted = prefetch.keys[len(prefetch.held) :][:count]
        if prefetch.wanted and not prefetch.dropped:
            self._hungry.append(prefetch)
        else:
            self._finish(prefetch)

    def _feed(self) -> None:
        """Give slots to those who wait for them, first come first served, each as many as it needs."""
        assert self.threads is not None
        while self._hungry:
            prefetch = self._hungry[0]
            need = len(prefetch.wanted)
            others = self._stores or self._loads or self._unwritten
            # Those that are read will be used, and give theirs back; those that wait here may wait for each other.
            others = others or any(other.parts or (other.done and other.held) for other in self._prefetches)
            if self.host.reservable < need and others:
                return
            self._hungry.popleft()
            slots = self.host.reserve(need)
            for at in range(0, len(slots), CHUNK):
                read = _Read(prefetch, prefetch.wanted[at : at + CHUNK][: len(slots) - at], slots[at : at + CHUNK])
                prefetch.parts += 1
                self._slots_read += len(read.slots)
                self.threads.read(read, read.keys, read.slots)
            if not slots:
                self._finish(prefetch)

    def _have_read(self, read: _Read, count: int) -> None:
        prefetch = read.prefetch
        self.read_pages += count
        self._slots_read -= len(read.slots)
        self.host.free(read.slots[count:])
        pages = [
            self.host.put(key, slot, from_storage=True)
            for key, slot in zip(read.keys[:count], read.slots[:count], strict=True)
        ]
        if not prefetch.dropped:
            self.host.hold(pages)
            prefetch.held += pages
        prefetch.parts -= 1
        if not prefetch.parts:
            assert self.threads is not None
            used = [*prefetch.behind, *prefetch.keys[: self.host.find(prefetch.keys)]]
            self.threads.write(_Write([], used), [], [], used)
            order = {key: index for index, key in enumerate(prefetch.keys)}
            prefetch.held.sort(key=lambda page: order[page.key])
            self._finish(prefetch)

    # ---- what has ended ----

    def poll(self) -> None:
        """Take in what copies and threads have done since the last call."""
        for copy, worked in self._copies.finished():
            if copy in self._loads:
                self._ended.append(copy)
                self._loaded(self._loads.pop(copy), worked)
            elif copy in self._stores:
                self._ended.append(copy)
                self._stored(copy, self._stores.pop(copy), worked)
        if self.threads is None:
            return
        for job, count in self.threads.done():
            if isinstance(job, _Read):
                self._have_read(job, count)
            elif isinstance(job, _Find):
                self._found(job.prefetch, count)
            else:
                self.written_pages += count
                self._unwritten -= len(job.pages)
                self.host.release(job.pages)
                self.host.touch(job.behind)
        self._feed()

    def _loaded(self, load: Load, worked: bool) -> None:
        load.done, load.worked = True, worked
        self.loaded_pages += len(load) if worked else 0
        self.host.release(load.held)

    def _stored(self, copy: int, store: _Store, worked: bool) -> None:
        good = []
        for page, link, slot in zip(store.pages, store.links, store.slots, strict=True):
            if self._storing.get(page) == copy:
                del self._storing[page]
            self._storing_keys.discard(link.key)
            if worked and link.key not in store.lost:
                self.host.put(link.key, slot)
                good.append(link)
            else:
                self.host.free([slot])
        self.stored_pages += len(good)
        for behind, keys in runs(good):
            self.host.touch([*behind, *keys])
            if self.threads is not None:
                self._write(keys, behind)

    def _write(self, keys: list[bytes], behind: list[bytes]) -> None:
        """Neighbours in a prefix go to storage, its beginning first, as far as there is time for them."""
        assert self.threads is not None
        room = max(0, int(self.host.count * UNWRITTEN_SHARE) - self._unwritten)
        self.dropped_pages += max(0, len(keys) - room)
        keys = keys[:room]
        for at in range(0, len(keys), WRITTEN):
            part, before = keys[at : at + WRITTEN], behind + keys[:at]
            pages = [page for page in map(self.host.get, part) if page is not None]
            self.host.hold(pages)
            self._unwritten += len(pages)
            self.threads.write(_Write(pages, before), part, [page.slot for page in pages], before)

    # ---- starting over ----

    def reset(self) -> None:
        """Nobody knows what was written on the device, and the tree is about to be emptied: forget what was to be
        stored or is on its way. Loads end without having worked. Waits for copies under way."""
        self._copies.drain()
        self._copies.finished()
        self._ended += [*self._stores, *self._loads]
        for store in self._stores.values():
            self.host.free(store.slots)
        for load in self._loads.values():
            load.done = True
            self.host.release(load.held)
        for waiting in (self._stores, self._loads, self._new, self._storing, self._storing_keys, self._await):
            waiting.clear()
        self._begin_stores, self._begin_loads = [], []
        self._link_of = [None] * len(self._link_of)

    def close(self) -> None:
        """Write to storage what is left to be written."""
        self.poll()
        if self.threads is not None:
            self.threads.close()

    def check(self) -> None:
        """Assert that no slot and no page is lost or in two places."""
        self.host.check(sum(len(store.slots) for store in self._stores.values()) + self._slots_read)
        assert self._storing_keys >= {link.key for store in self._stores.values() for link in store.links}


def _in_order(wanted: dict[int, Link]) -> dict[int, Link]:
    """Run by run, each from its beginning on, and none before the one that it follows: neighbours are copied at
    once, and what there is no room for is an end."""
    page_of = {link.key: page for page, link in wanted.items()}
    found = runs(sorted(wanted.values(), key=lambda link: link.depth))
    return {page_of[key]: wanted[page_of[key]] for _, keys in found for key in keys}
