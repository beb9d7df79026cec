"""The books of the tiers, turn by turn."""

from __future__ import annotations

from typing import Any

import numpy as np

from radixlang.cache.tiers import Tiers
from radixlang.cache.tiers.threads import Done
from radixlang.plan import AwaitCopies, LoadPages, StorePages

SIZE = 4


class Copies:
    """Ends what it is told to end."""

    def __init__(self) -> None:
        self.ended: list[tuple[int, bool]] = []

    def finished(self) -> list[tuple[int, bool]]:
        ended, self.ended = self.ended, []
        return ended

    def drain(self) -> None:
        """Nothing runs."""


class Threads:
    """Notes what is asked for."""

    hanging = False

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any, list[bytes]]] = []
        self.answers: list[Done] = []
        self.behind: list[list[bytes]] = []

    def find(self, job: Any, keys: list[bytes]) -> None:
        self.asked.append(("find", job, list(keys)))

    def read(self, job: Any, keys: list[bytes], slots: list[int]) -> None:
        self.asked.append(("read", job, list(keys)))

    def write(self, job: Any, keys: list[bytes], slots: list[int], behind: list[bytes]) -> None:
        self.behind.append(list(behind))
        if keys:
            self.asked.append(("write", job, list(keys)))

    def answer(self, count: int) -> None:
        self.answers.append(Done(self.asked.pop(0)[1], count))

    def done(self) -> list[Done]:
        answers, self.answers = self.answers, []
        return answers


def make(policy: str = "write_through", slots: int = 8) -> tuple[Tiers, Copies, Threads]:
    copies, threads = Copies(), Threads()
    return Tiers(b"model", SIZE, 20, slots, copies, policy, threads), copies, threads  # type: ignore[arg-type]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def stored(tiers: Tiers, copies: Copies, keys: list[bytes], *pages: int) -> None:
    """These pages are in host memory."""
    tiers.kept(keys, ints(*pages), 0)
    tiers.begin_plan()
    (store,) = (t for t in tiers.transfers(True) if isinstance(t, StorePages))
    copies.ended.append((store.copy, True))
    tiers.poll()
    tiers.check()


def test_pages_go_down_and_up() -> None:
    tiers, copies, threads = make()
    keys = tiers.keys(np.arange(12, dtype=np.int32), "")
    assert tiers.transfers(True) == ()
    tiers.kept(keys, ints(5, 6, 7), 0)
    assert tiers.busy
    assert tiers.transfers(False) == ()  # the plan in the making may write them still
    tiers.begin_plan()
    (store,) = tiers.transfers(False)
    assert isinstance(store, StorePages)
    assert store.pages.tolist() == [5, 6, 7]
    assert tiers.ahead(keys, 9) is None  # not there yet
    copies.ended.append((store.copy, True))
    tiers.poll()
    assert [kind for kind, *_ in threads.asked] == ["write"]
    assert not tiers.busy
    load = tiers.ahead(keys, 2)
    assert load is not None
    assert len(load) == 2
    tiers.begin(load, ints(1, 2))
    wait, up = tiers.transfers(True)
    assert wait == AwaitCopies((store.copy,))  # another rank's copy may not have ended
    assert isinstance(up, LoadPages)
    assert (up.slots.tolist(), up.pages.tolist()) == (store.slots[:2].tolist(), [1, 2])
    copies.ended.append((up.copy, True))
    tiers.poll()
    assert load.done
    assert load.worked
    tiers.kept(keys, ints(1, 2, 7), 2)
    tiers.begin_plan()
    assert tiers.transfers(True) == (AwaitCopies((up.copy,)),)  # nothing is stored twice
    tiers.check()


def test_layered_loads_come_first() -> None:
    """And what storage has read counts once, when it is used."""
    tiers, copies, _ = make()
    keys = tiers.keys(np.arange(12, dtype=np.int32), "")
    stored(tiers, copies, keys, 5, 6, 7)
    pages = [tiers.host.get(key) for key in keys]
    assert pages[1] is not None
    pages[1].from_storage = True
    for at, layered in ((0, False), (1, True), (1, False)):
        load = tiers.ahead(keys[at : at + 1], 9)
        assert load is not None
        tiers.begin(load, ints(at + 1), layered)
        assert load.from_storage == (layered and at == 1)
    _, *loads = tiers.transfers(True)
    assert [(load.layered, load.pages.tolist()) for load in loads] == [(True, [2]), (False, [1]), (False, [2])]
    assert [page.holds for page in pages if page] == [2, 3, 1]  # by their copies, and to be written to storage
    copies.ended += [(load.copy, True) for load in loads]
    tiers.poll()
    tiers.check()
    assert [page.holds for page in pages if page] == [1, 1, 1]


def test_a_page_that_is_evicted_while_it_is_read_is_awaited() -> None:
    tiers, _, _ = make()
    keys = tiers.keys(np.arange(8, dtype=np.int32), "")
    tiers.kept(keys, ints(5, 6), 0)
    tiers.begin_plan()
    (store,) = tiers.transfers(True)
    assert isinstance(store, StorePages)
    tiers.evicted(ints(6))
    assert tiers.transfers(True) == (AwaitCopies((store.copy,)),)


def test_write_back_stores_what_is_evicted_before_it_is_written() -> None:
    tiers, _, _ = make("write_back")
    keys = tiers.keys(np.arange(8, dtype=np.int32), "")
    tiers.kept(keys, ints(5, 6), 0)
    tiers.begin_plan()
    assert tiers.transfers(True) == ()
    tiers.evicted(ints(6))
    store, wait = tiers.transfers(True)
    assert isinstance(store, StorePages)
    assert store.pages.tolist() == [6]
    assert wait == AwaitCopies((store.copy,))


def test_every_run_of_a_store_is_written_behind_its_own_beginning() -> None:
    """And counts as used after its end, in host memory too: without it the end is worth nothing."""
    tiers, copies, threads = make(slots=10)
    keys = tiers.keys(np.arange(16, dtype=np.int32), "")
    other = tiers.keys(np.r_[:8, 90:94].astype(np.int32), "")
    stored(tiers, copies, keys[:2], 5, 6)
    tiers.kept([*keys[:2], other[2]], ints(5, 6, 9), 2)
    tiers.kept(keys[:3], ints(5, 6, 7), 2, known=2)
    stored(tiers, copies, keys, 5, 6, 7, 8)  # all three stores in one
    assert [written for _, _, written in threads.asked] == [keys[:2], other[2:], keys[2:]]
    assert threads.behind == [[], keys[:2], keys[:2]]
    for count in (2, 1, 2):
        threads.answer(count)
    tiers.poll()
    tiers.host.reserve(7)  # five are free; the ends of the two go
    assert tiers.host.find([other[2]]) == 0
    assert tiers.host.find(keys) == 3


def test_what_is_evicted_is_stored_from_its_beginning_on() -> None:
    """Of `write_back` and little host memory: the tree gives up ends first, and of a run its last pages."""
    tiers, copies, threads = make("write_back", slots=3)
    keys = tiers.keys(np.arange(20, dtype=np.int32), "")
    tiers.kept(keys, ints(1, 2, 3, 4, 5), 0)
    tiers.evicted(ints(4, 5, 2, 3, 1))
    (store, _) = tiers.transfers(True)
    assert isinstance(store, StorePages)
    assert store.pages.tolist() == [1, 2, 3]
    copies.ended.append((store.copy, True))
    tiers.poll()
    assert tiers.host.find(keys) == 3
    assert threads.asked[0][2] == keys[:1]  # no more than half of the slots wait to be written


def test_runs_that_are_evicted_together_stay_together() -> None:
    """Neighbours in memory are one order to the copy engine."""
    tiers, _, _ = make("write_back", slots=8)
    for first in (0, 40):
        pages = ints(1, 2, 3) + first // 4
        tiers.kept(tiers.keys(np.arange(first, first + 12, dtype=np.int32), ""), pages, 0)
    tiers.evicted(ints(12, 13, 2, 3, 11))
    store = tiers.transfers(True)[0]
    assert isinstance(store, StorePages)
    assert store.pages.tolist() == [11, 12, 13, 2, 3]


def test_selective_waits_for_a_second_use() -> None:
    tiers, _, _ = make("write_through_selective")
    keys = tiers.keys(np.arange(12, dtype=np.int32), "")
    tiers.kept(keys[:2], ints(5, 6), 0)
    tiers.kept(keys, ints(5, 6, 7), 2)
    tiers.begin_plan()
    (store,) = tiers.transfers(True)
    assert isinstance(store, StorePages)
    assert store.pages.tolist() == [5, 6]


def test_what_is_not_trusted_is_neither_found_nor_written() -> None:
    tiers, copies, threads = make()
    keys = tiers.keys(np.arange(8, dtype=np.int32), "")
    stored(tiers, copies, keys[:1], 5)
    threads.asked.clear()
    tiers.kept(keys, ints(5, 6), 1)
    tiers.begin_plan()
    store = tiers.transfers(True)[-1] if tiers.busy else None
    tiers.distrusted(ints(5, 6))
    copies.ended += [(copy, True) for copy in tiers._stores]
    tiers.poll()
    assert store is not None
    assert tiers.host.find(keys) == 0
    assert tiers.host.get(keys[1]) is None
    assert not threads.asked
    tiers.check()


def test_prefetching_finds_reads_and_gives_back() -> None:
    tiers, copies, threads = make(slots=4)
    keys = tiers.keys(np.arange(24, dtype=np.int32), "")
    first, second = tiers.prefetch(keys[:3]), tiers.prefetch(keys[:5])
    assert first is not None
    assert second is not None
    assert [keys_ for _, _, keys_ in threads.asked] == [keys[:3]]  # the second waits for the first
    threads.answer(3)
    tiers.poll()
    threads.answer(2)  # the third was damaged
    tiers.poll()
    assert first.done
    assert tiers.host.find(keys) == 2
    assert not second.done
    assert threads.asked[-1][2] == keys[2:5]
    threads.answer(3)
    tiers.poll()
    assert not threads.asked  # there are two slots left: the first prefetch still holds its own
    tiers.release(first)
    tiers.poll()
    assert threads.asked[-1][2] == keys[2:4]  # as much as there will ever be
    threads.answer(2)
    tiers.poll()
    assert second.done
    load = tiers.ahead(keys, 9)
    assert load is not None
    tiers.begin(load, ints(1, 2, 3, 4))
    tiers.release(second)
    up = tiers.transfers(True)[-1]
    assert isinstance(up, LoadPages)
    copies.ended.append((up.copy, True))
    tiers.poll()
    assert load.from_storage == 4
    tiers.check()


def test_reset_forgets_what_is_on_its_way() -> None:
    tiers, copies, _ = make()
    keys = tiers.keys(np.arange(16, dtype=np.int32), "")
    stored(tiers, copies, keys[:2], 5, 6)
    load = tiers.ahead(keys, 9)
    assert load is not None
    tiers.begin(load, ints(1, 2))
    tiers.kept(keys[:3], ints(5, 6, 7), 0, 2)
    tiers.begin_plan()
    tiers.reset()
    assert load.done
    assert not load.worked
    assert not tiers.busy
    (wait,) = tiers.transfers(True)
    assert isinstance(wait, AwaitCopies)  # another rank may still copy
    assert tiers.host.find(keys) == 2
    tiers.check()
