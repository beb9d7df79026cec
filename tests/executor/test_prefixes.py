"""The plans of tree attention: every key of a row is read once, with pages that are the row's own."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from radixlang.executor.prefixes import KvShape, PrefixPlanner, TreePlan, tree_order
from radixlang.kernels.tree_work import SLOTS, capacity, tree_sections, tree_size
from radixlang.kernels.tuning import TreeTile
from radixlang.plan import Ints


def tile(**more: int) -> TreeTile:
    values = {"block_m": 16, "block_n": 8, "programs": 16, "chunk": 16, "sweep_cost": 2, "least_bytes": 1}
    return TreeTile(warps=4, stages=2, **(values | more))


def planner(page: int = 4, group: int = 4, **more: int) -> PrefixPlanner:
    return PrefixPlanner(tile(**more), KvShape(2 * group, 2, 16, 4, page))


class Table:
    """Rows of a page table whose pages are found by what came before them, as in the engine's tree."""

    def __init__(self, rows: int, width: int) -> None:
        self.pages: Ints = np.zeros((rows + 1, width), np.int32)
        self._ids: dict[tuple[int, ...], int] = {}
        self._next = 1

    def set(self, row: int, path: list[int], own: int) -> None:
        """The row's pages: one for each step of a path in the tree, then `own` that nobody else has."""
        for i in range(len(path)):
            self.pages[row, i] = self._ids.setdefault(tuple(path[: i + 1]), self._new())
        for i in range(len(path), len(path) + own):
            self.pages[row, i] = self._new()

    def _new(self) -> int:
        self._next += 1
        return self._next


def check(plan: TreePlan, rows: Ints, starts: Ints, pages: Ints, page: int, per_tile: int) -> None:
    """Items cover exactly what their rows are told not to read, in slots of their own."""
    count = len(rows)
    assert sorted(plan.order.tolist()) == list(range(count))
    assert 0 < len(plan.items) <= capacity(count)
    covered = [np.zeros(int(begin), np.int64) for begin in plan.begins]
    slots: list[list[int]] = [[] for _ in rows]
    for first, size, row, slot, start, end in plan.items.tolist():
        assert 1 <= size <= per_tile
        assert 0 <= start < end
        assert start % page == end % page == 0
        for b in plan.order[first : first + size].tolist():
            covered[b][start:end] += 1
            slots[b].append(slot)
            assert end <= plan.begins[b] <= starts[b]
            assert np.array_equal(
                pages[rows[b], start // page : end // page], pages[row, start // page : end // page]
            )
    assert all((keys == 1).all() for keys in covered)
    assert [sorted(found) for found in slots] == [list(range(used)) for used in plan.used]
    assert plan.used.max() <= SLOTS


@pytest.mark.parametrize("page", [1, 3, 4, 16])
@pytest.mark.parametrize("group", [1, 4, 7])
def test_random_trees(page: int, group: int) -> None:
    random = np.random.default_rng(page * 10 + group)
    made = 0
    for _ in range(60):
        count, width = int(random.integers(2, 70)), 400 // page
        table = Table(count, 2 * width)
        rows = (random.permutation(count) + 1).astype(np.int32)
        starts = np.zeros(count, np.int32)
        branches, depth = int(random.integers(1, 4)), int(random.integers(1, 12))
        for b, row in enumerate(rows.tolist()):
            lengths = random.integers(1, 1 + max(1, width // depth), depth)
            names = random.integers(0, branches, depth)
            path = [int(name) for name, length in zip(names, lengths, strict=True) for _ in range(length)][:width]
            own = int(random.integers(1, 4))
            table.set(row, path[: random.integers(0, len(path) + 1)], own)
            have = int((table.pages[row] > 0).sum())
            starts[b] = have * page - random.integers(1, page + 1)
        made_plan = planner(page, group, block_m=32, programs=int(random.integers(2, 200))).plan(
            rows, starts, table.pages
        )
        if made_plan is not None:
            made += 1
            check(made_plan, rows, starts, table.pages, page, 32 // group)
    assert made > 20


def test_rows_of_one_prefix() -> None:
    """256 rows, 4 heads to a KV head, on 132 programs: two items for each tile of 32 rows, none longer than
    another."""
    table = Table(256, 140)
    for row in range(1, 257):
        table.set(row, [0] * 128, 8)
    rows, starts = np.arange(1, 257, dtype=np.int32), np.full(256, 2048 + 100, np.int32)
    kv = KvShape(32, 8, 128, 2, 16)
    plan = PrefixPlanner(tile(block_m=128, block_n=64, programs=132, chunk=256), kv).plan(
        rows, starts, table.pages
    )
    assert plan is not None
    check(plan, rows, starts, table.pages, 16, 32)
    assert len(plan.items) == 16
    assert set((plan.items[:, 5] - plan.items[:, 4]).tolist()) == {1024}
    assert (plan.begins == 2048).all()
    assert (plan.used == 2).all()


def test_programs_are_done_at_about_the_same_time() -> None:
    """320 rows in ten tiles on sixteen programs a head: halves would leave most of them idle half of the time."""
    table = Table(320, 140)
    for row in range(1, 321):
        table.set(row, [0] * 128, 8)
    rows, starts = np.arange(1, 321, dtype=np.int32), np.full(320, 2048 + 100, np.int32)
    kv = KvShape(32, 8, 128, 2, 16)
    plan = PrefixPlanner(tile(block_m=128, block_n=64, programs=132, chunk=256), kv).plan(
        rows, starts, table.pages
    )
    assert plan is not None
    check(plan, rows, starts, table.pages, 16, 32)
    lengths = plan.items[:, 5] - plan.items[:, 4]
    assert (np.diff(lengths) <= 0).all()
    assert lengths[::16].sum() < 1.25 * 10 * 2048 / 16


def test_a_node_too_small_to_pay_is_read_by_those_below_it() -> None:
    """Eight rows share a page, four of them each many more: the page goes with those."""
    table = Table(8, 80)
    for row in range(1, 9):
        table.set(row, [0, 0] + [row % 2] * 40, 1)
    rows, starts = np.arange(1, 9, dtype=np.int32), np.full(8, 4 * 42, np.int32)
    plan = planner(4, 4, chunk=1000).plan(rows, starts, table.pages)
    assert plan is not None
    check(plan, rows, starts, table.pages, 4, 4)
    assert {(start, end) for *_, start, end in plan.items.tolist()} == {(0, 168)}


def test_nothing_where_it_does_not_pay() -> None:
    table = Table(8, 60)
    rows = np.arange(1, 9, dtype=np.int32)
    for row in range(1, 9):
        table.set(row, [row] * 40, 1)
    starts = np.full(8, 161, np.int32)
    assert planner().plan(rows, starts, table.pages) is None, "nothing is shared"
    for row in range(1, 9):
        table.set(row, [0] * 40, 1)
    assert planner().plan(rows[:2], starts[:2], table.pages) is None, "a sweep costs as much as two rows"
    assert planner(least_bytes=1 << 20).plan(rows, starts, table.pages) is None, "it saves too little"
    assert planner().plan(rows[:1], starts[:1], table.pages) is None
    assert planner().plan(rows, np.full(8, 7, np.int32), table.pages) is None, "no tile is full"
    assert planner().plan(rows, starts, table.pages) is not None


def test_pages_behind_a_rows_tokens_do_not_count() -> None:
    """A row of the table keeps entries of the request that had it before."""
    table = Table(8, 60)
    for row in range(1, 9):
        table.set(row, [0] * 40, 2)
    starts = np.full(8, 161, np.int32)
    starts[:3] = 66
    plan = planner().plan(np.arange(1, 9, dtype=np.int32), starts, table.pages)
    assert plan is not None
    check(plan, np.arange(1, 9, dtype=np.int32), starts, table.pages, 4, 4)
    assert plan.begins.max() == 160
    assert (plan.begins[:3] == 64).all()


def test_many_levels_and_many_small_groups() -> None:
    """As many different common lengths as rows, and more groups than programs: still within the limits."""
    table = Table(200, 500)
    for row in range(1, 201):
        table.set(row, [0] * (2 * row) + [1], 2)
    rows, starts = np.arange(1, 201, dtype=np.int32), np.arange(1, 201, dtype=np.int32) * 8 + 11
    plan = planner(4, 4).plan(rows, starts, table.pages)
    assert plan is not None
    check(plan, rows, starts, table.pages, 4, 4)
    for row in range(1, 201):
        table.set(row, [row // 4] * 400, 2)
    starts[:] = 1605
    plan = planner(4, 4).plan(rows, starts, table.pages)
    assert plan is not None
    check(plan, rows, starts, table.pages, 4, 4)


def test_the_order_is_by_common_beginnings() -> None:
    pages = np.array([[5, 300, 7], [5, 2, 9], [1, 8, 8], [5, 300, 4], [5, 2, 9]], np.int32)
    order, common = tree_order(pages, np.array([3, 3, 3, 3, 2]))
    groups = pages[order]
    assert sorted(order.tolist()) == [0, 1, 2, 3, 4]
    assert common.tolist().count(0) == 1
    for (a, b), shared in zip(itertools.pairwise(groups), common.tolist(), strict=True):
        assert np.array_equal(a[:shared], b[:shared])
    assert sorted(common.tolist()) == [0, 1, 2, 2]


def test_packed_form() -> None:
    table = Table(8, 60)
    for row in range(1, 9):
        table.set(row, [0] * 40, 2)
    plan = planner().plan(np.arange(1, 9, dtype=np.int32), np.full(8, 161, np.int32), table.pages)
    assert plan is not None
    packed = np.zeros(tree_size(12), np.int32)
    plan.write(packed, 12)
    number, items, order, begins, used = tree_sections(packed, 12)
    assert number.tolist() == [len(plan.items)]
    assert np.array_equal(items[: plan.items.size].reshape(-1, 6), plan.items)
    assert not items[plan.items.size :].any()
    assert np.array_equal(order[:8], plan.order)
    assert begins.tolist() == [*plan.begins.tolist(), 0, 0, 0, 0]
    assert used.tolist() == [*plan.used.tolist(), 0, 0, 0, 0]
