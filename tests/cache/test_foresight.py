"""What the line will read is given up last, its end first."""

from __future__ import annotations

import numpy as np

from radixlang.cache import Foresight, RadixTree, make_cache
from radixlang.plan import Ints


def tokens(*values: int) -> Ints:
    return np.array(values, np.int32)


def tree_of(*runs: Ints) -> RadixTree:
    """The runs in the tree, the first one used least recently; page n holds the run that begins with n."""
    tree = make_cache(1, "cost")
    for run in runs:
        tree.insert(run, run)
    return tree


def test_the_end_of_the_line_goes_first_of_what_is_awaited() -> None:
    tree = tree_of(*(tokens(n) for n in (1, 2, 3, 4)))
    Foresight(tree).look([(tokens(1, 9), ""), (tokens(2, 9), ""), (tokens(1, 8), ""), (tokens(7), "")], 0)
    assert tree.evict(4).tolist() == [3, 4, 2, 1]


def test_a_look_takes_the_place_of_the_one_before() -> None:
    tree = tree_of(*(tokens(n) for n in (1, 2, 3)))
    foresight = Foresight(tree)
    foresight.look([(tokens(1, 9), ""), (tokens(2, 9), "")], 0)
    assert tree.evict(1).tolist() == [3]  # and the others have taken their new places in the queue of leaves
    tree.insert(tokens(3), tokens(3))
    foresight.look([(tokens(2, 9), ""), (tokens(1, 9), "")], 2)
    tree.check()
    assert tree.evict(2).tolist() == [3, 1]
    tree.insert(tokens(4), tokens(4))
    foresight.look([], 4)
    tree.check()
    assert tree.evict(2).tolist() == [2, 4]


def test_whose_turn_it_was_waits_no_more() -> None:
    tree = tree_of(tokens(1, 2), tokens(3))
    Foresight(tree).look([(tokens(1, 2, 9), "")], 0)
    match = tree.match_prefix(tokens(1, 2))
    tree.lock(match.node)
    tree.hit(match.node)
    tree.unlock(match.node)
    tree.match_prefix(tokens(3))
    tree.check()
    assert tree.evict(2).tolist() == [1, 2]


def test_a_line_longer_than_memory_is_read_as_far_as_that_helps() -> None:
    tree = tree_of(*(tokens(n) for n in range(1, 5)))
    read = []

    def line():  # type: ignore[no-untyped-def]
        for n in (1, 2, 3, 4, 5, 6):
            read.append(n)
            yield tokens(n), ""

    Foresight(tree).look(line(), 0)
    assert read == [1, 2, 3, 4]


def test_nodes_that_have_gone_are_let_go() -> None:
    tree = tree_of(tokens(1, 2, 3), tokens(1, 2, 4), tokens(5))
    foresight = Foresight(tree)
    foresight.look([(tokens(1, 2, 3), ""), (tokens(5), "")], 0)
    tree.evict(2)
    foresight.look([(tokens(1, 2, 3), "")], 1)
    tree.check()
    tree.flush()
    tree.insert(tokens(6), tokens(6))
    foresight.look([], 2)
    tree.check()
    assert tree.evict(9).tolist() == [6]
