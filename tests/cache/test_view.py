"""The bounded picture of the tree: which runs it shows, how they are found again, and that it stays small."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from radixlang.cache import RadixTree, make_cache
from radixlang.cache.view import ORDERS, SCAN, tree_view
from radixlang.errors import NotFoundError, RequestError


def insert(tree: RadixTree, tokens: list[int], namespace: str = "", hits: int = 0) -> Any:
    page = tree.total + 1
    done = tree.insert(np.array(tokens, np.int32), np.arange(page, page + len(tokens), dtype=np.int32), namespace)
    tree.lock(done.node)
    for _ in range(hits):
        tree.hit(done.node)
    tree.unlock(done.node)
    return done.node


def random_tree(runs: int, seed: int = 0) -> RadixTree:
    rng = random.Random(seed)
    tree = make_cache(1)
    prompts: list[list[int]] = [[]]
    while tree.nodes < runs:
        tokens = [*rng.choice(prompts), *(rng.randrange(100) for _ in range(rng.randint(1, 6)))]
        prompts.append(tokens)
        insert(tree, tokens, rng.choice(["", "", "1:a"]), rng.randrange(3))
    return tree


def paths(view: dict[str, Any]) -> list[tuple[int, ...]]:
    """The way of ids to each run."""
    found: list[tuple[int, ...]] = []
    for name, parent in zip(view["runs"]["id"], view["runs"]["parent"], strict=True):
        assert parent < len(found), "a child before its parent"
        found.append((*(found[parent] if parent >= 0 else ()), name))
    assert len(set(found)) == len(found)
    return found


def test_everything_is_shown_where_there_is_room() -> None:
    tree = make_cache(2)
    page = iter(range(1, 100))

    def put(tokens: list[int], namespace: str = "") -> Any:
        pages = np.array([next(page) for _ in range(len(tokens) // 2)], np.int32)
        return tree.insert(np.array(tokens, np.int32), pages, namespace).node

    put([1, 1, 2, 2, 3, 3])
    node = put([1, 1, 2, 2, 4, 4])
    put([9, 9], "3:ten")
    tree.lock(node)
    tree.hit(node)
    tree.pin(node)
    view = tree_view(tree, 10, head=3)
    assert {name: view[name] for name in ("page_size", "nodes", "tokens", "locked_tokens", "pinned_tokens")} == {
        "page_size": 2,
        "nodes": 4,
        "tokens": 10,
        "locked_tokens": 6,
        "pinned_tokens": 6,
    }
    runs = view["runs"]
    heads = np.split(np.frombuffer(view["heads"], np.int32), np.cumsum(runs["head"]))
    shown = {
        tuple(ids.tolist()): {name: values[i] for name, values in runs.items()}
        for i, ids in enumerate(heads[:-1])
        if runs["namespace"][i] is None
    }
    assert set(shown) == {(1, 1, 2), (3, 3), (4, 4), (9, 9)}
    shared, mine = shown[1, 1, 2], shown[4, 4]
    assert (shared["tokens"], shared["start"], shared["children"], shared["hits"]) == (4, 0, 2, 1)
    assert (shared["locks"], shared["pins"]) == (mine["locks"], mine["pins"]) == (2, 1)
    assert (mine["start"], mine["unused"], shown[3, 3]["unused"]) == (4, 1, 2)
    assert runs["namespace"][shown[9, 9]["parent"]] == "3:ten"
    assert runs["namespace"][shared["parent"]] == ""


@pytest.mark.parametrize("order", ["recent", "hits", "depth"])
def test_the_best_runs_of_the_whole_tree_are_found(order: str) -> None:
    tree = random_tree(400)
    key = ORDERS[order]
    everything = list(tree._all_nodes())
    view = tree_view(tree, 50, order)
    ways = paths(view)
    shown = [tree_view(tree, 1, path=way)["runs"] for way in ways]  # every way can be gone
    assert [one["id"][0] for one in shown] == view["runs"]["id"]
    by_way = {}
    for node in everything:
        way, step = [], node
        while step is not None:
            way.append(step.created)
            step = step.parent
        by_way[tuple(reversed(way))] = node
    got = sorted((key(by_way[way]) for way in ways if len(way) > 1), reverse=True)
    assert len(got) >= 48
    assert got == sorted(map(key, everything), reverse=True)[: len(got)]


def test_ids_outlive_splits_and_lead_to_what_is_below() -> None:
    tree = make_cache(1)
    insert(tree, [1, 2, 3, 4])
    way = paths(tree_view(tree, 10))[-1]
    insert(tree, [1, 2, 9])
    view = tree_view(tree, 10, path=way)
    assert view["runs"]["tokens"] == [2, 1, 2]
    assert view["runs"]["parent"] == [-1, 0, 0]
    assert len(tree_view(tree, 2, path=way)["runs"]["id"]) == 2
    assert view["runs"]["copied"] == [False] * 3
    pages = [*tree.pages()]
    assert tree_view(tree, 10, path=way, copied=lambda page: page in pages)["runs"]["copied"] == [True] * 3
    with pytest.raises(NotFoundError, match="not there any more"):
        tree_view(tree, 10, path=[*way, 12345])


def test_one_namespace_and_bad_orders() -> None:
    tree = random_tree(60)
    view = tree_view(tree, 100, namespace="1:a")
    assert [name for name in view["runs"]["namespace"] if name is not None] == ["1:a"]
    assert tree_view(tree, 5, namespace="unknown")["runs"]["id"] == []
    with pytest.raises(RequestError, match="order must be one of"):
        tree_view(tree, 5, "best")


def test_a_wide_tree_is_looked_at_in_part() -> None:
    tree = make_cache(1)
    for token in range(SCAN + 500):
        insert(tree, [token, 1])
    insert(tree, [SCAN + 499, 1, 7])
    view = tree_view(tree, 20)
    assert len(view["runs"]["id"]) == 20
    assert view["runs"]["children"][0] == SCAN + 500
    heads = np.frombuffer(view["heads"], np.int32)
    assert 7 in heads  # the last one that was used


def test_a_cache_that_is_off_is_empty() -> None:
    tree = make_cache(1, enabled=False)
    tree.match_prefix(np.arange(3, dtype=np.int32))
    assert tree_view(tree, 10)["runs"]["id"] == []
