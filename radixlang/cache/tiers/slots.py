"""Which page, by its key, lies in which slot of host memory.

    free ──reserve──▶ reserved ──put──▶ idle ⇄ held      an idle page may have to give its slot to another one,
      ▲                  │               │               the one that was used least recently first
      └──────free────────┴────evicted────┘

Must not know devices, storage or requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class HostPage:
    """A page in host memory. Whoever reads its slot beside the engine's loop holds it."""

    __slots__ = ("from_storage", "holds", "key", "slot")

    def __init__(self, key: bytes, slot: int, from_storage: bool) -> None:
        self.key = key
        self.slot = slot
        self.holds = 0
        self.from_storage = from_storage
        """it was read from storage and no request has used it yet"""


class HostSlots:
    """`count` slots and the pages in them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._idle: dict[bytes, HostPage] = {}
        """least recently used first"""
        self._held: dict[bytes, HostPage] = {}
        self._orphans = 0
        """slots of pages that were dropped while they were held"""

    def __len__(self) -> int:
        """Pages that can be found."""
        return len(self._idle) + len(self._held)

    @property
    def reservable(self) -> int:
        """Slots that `reserve` can give now."""
        return len(self._free) + len(self._idle)

    def get(self, key: bytes) -> HostPage | None:
        return self._idle.get(key) or self._held.get(key)

    def find(self, keys: Sequence[bytes]) -> int:
        """How many of `keys`, from the first on, are here."""
        for count, key in enumerate(keys):
            if key not in self._idle and key not in self._held:
                return count
        return len(keys)

    def touch(self, keys: Sequence[bytes]) -> None:
        """These count as used now, the first of them last: without it the others are worth nothing."""
        for key in reversed(keys):
            page = self._idle.pop(key, None)
            if page is not None:
                self._idle[key] = page

    def reserve(self, most: int) -> list[int]:
        """Up to `most` slots, taken from idle pages where none are free."""
        short = min(most, self.reservable) - len(self._free)
        for key in list(_first(self._idle, short)):
            self._free.append(self._idle.pop(key).slot)
        count = min(most, len(self._free))
        taken = self._free[len(self._free) - count :][::-1]
        del self._free[len(self._free) - count :]
        return taken

    def free(self, slots: Iterable[int]) -> None:
        """Reserved slots come to nothing."""
        self._free.extend(slots)

    def put(self, key: bytes, slot: int, from_storage: bool = False) -> HostPage:
        """A reserved slot holds the page `key` now. It may be here already: then the new slot is freed."""
        page = self.get(key)
        if page is not None:
            self._free.append(slot)
            return page
        page = self._idle[key] = HostPage(key, slot, from_storage)
        return page

    def hold(self, pages: Iterable[HostPage]) -> None:
        """These stay where they are."""
        for page in pages:
            page.holds += 1
            if self._idle.get(page.key) is page:
                self._held[page.key] = self._idle.pop(page.key)

    def release(self, pages: Sequence[HostPage]) -> None:
        """Undo one `hold`. They count as used now, the first of a prefix last: it is worth most."""
        for page in reversed(pages):
            page.holds -= 1
            if not page.holds:
                if self._held.get(page.key) is page:
                    self._idle[page.key] = self._held.pop(page.key)
                else:  # dropped while it was held
                    self._free.append(page.slot)
                    self._orphans -= 1

    def drop(self, keys: Iterable[bytes]) -> None:
        """Forget these; a held one's slot is free when it is released."""
        for key in keys:
            page = self._idle.pop(key, None)
            if page is not None:
                self._free.append(page.slot)
            elif self._held.pop(key, None) is not None:
                self._orphans += 1

    def clear(self) -> None:
        """Forget everything."""
        self.drop([*self._idle, *self._held])

    def check(self, reserved: int) -> None:
        """Assert that every slot is free, idle, held or one of `reserved`."""
        slots = [*self._free, *(page.slot for page in [*self._idle.values(), *self._held.values()])]
        assert len(slots) == len(set(slots)), "a slot is in two places"
        assert all(not page.holds for page in self._idle.values())
        assert all(page.holds for page in self._held.values())
        lost = self.count - len(slots) - reserved - self._orphans
        assert lost == 0, f"{lost} slots are lost"


def _first(pages: dict[bytes, HostPage], count: int) -> Iterable[bytes]:
    for index, key in enumerate(pages):
        if index >= count:
            return
        yield key
