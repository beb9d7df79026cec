"""The page pool against a plain set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlang.cache import PagePool


def test_fresh_pool_hands_out_neighbours_and_never_the_sink() -> None:
    pool = PagePool(6)
    assert pool.total == pool.available == 5
    assert pool.alloc(5).tolist() == [1, 2, 3, 4, 5]
    assert pool.alloc(1) is None
    assert pool.alloc(0).tolist() == []


def test_failed_alloc_takes_nothing() -> None:
    pool = PagePool(4)
    assert pool.alloc(4) is None
    assert pool.available == 3


def test_handed_out_pages_do_not_change_when_others_are_freed() -> None:
    pool = PagePool(8)
    first, second = pool.alloc(3), pool.alloc(3)
    kept = second.copy()
    pool.free(first)
    pool.alloc(2)
    assert second.tolist() == kept.tolist()


def test_checks_catch_double_and_foreign_frees() -> None:
    pool = PagePool(8)
    pages = pool.alloc(4)
    pool.free(pages[:1])
    pool.free(pages[:1])
    with pytest.raises(AssertionError, match="twice"):
        pool.check()
    with pytest.raises(AssertionError, match="handed out"):
        pool.free(pages)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(2, 40),
    st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.integers(0, 1 << 30)), max_size=60),
)
def test_random_programs(num_pages: int, program: list[tuple[bool, int, int]]) -> None:
    pool = PagePool(num_pages)
    free, held = set(range(1, num_pages)), []
    for take, count, salt in program:
        if take:
            pages = pool.alloc(count)
            assert (pages is None) == (count > len(free))
            if pages is not None:
                assert pages.dtype == np.int32
                assert len(set(pages.tolist())) == count
                assert set(pages.tolist()) <= free
                free -= set(pages.tolist())
                held.append(pages)
        elif held:
            pages = held.pop(salt % len(held))
            pool.free(pages)
            free |= set(pages.tolist())
        assert pool.available == len(free)
        assert set(pool.free_pages().tolist()) == free
        pool.check()
