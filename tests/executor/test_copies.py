"""Copies of pages to host memory and back: on the CPU in the stream's order, on a GPU beside it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

from radixlang.attention.torch import TorchAttention
from radixlang.config import Config
from radixlang.errors import ConfigError
from radixlang.executor.copies import CpuCopies, CudaCopies, runs
from radixlang.executor.host_tier import host_slots, kv_identity
from radixlang.memory.host_pool import HostPool, page_bytes
from radixlang.memory.kv_pool import KvPool
from radixlang.plan import AwaitCopies, LoadPages, StepPlan, StorePages
from radixlang.platforms.cpu import CpuPlatform
from tests.executor.tiny import Host, Row, TinyModel, make_executor
from tests.memory.test_sizing import spec

NONE = np.zeros(0, np.int32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def bare(step: int, *transfers: Any) -> StepPlan:
    """A plan for transfers alone."""
    flags = np.zeros(0, bool)
    return StepPlan(step, NONE, NONE, NONE, NONE, flags, flags, NONE.reshape(0, 3), transfers=transfers)


def filled(pool: KvPool) -> None:
    """Every part of every page has numbers of its own."""
    for layer, pair in enumerate(pool.layers):
        for which, cache in enumerate(pair):
            page = torch.arange(cache.shape[0], device=cache.device).view(-1, 1, 1, 1)
            cache.copy_((page * 7 + layer * 2 + which) % 250)


def test_a_page_is_one_block() -> None:
    pool = KvPool(spec(), 6, 2, torch.bfloat16, torch.device("cpu"))
    filled(pool)
    host = HostPool(pool, 4, pinned=False)
    assert host.array.shape == (4, page_bytes(pool)) == (4, 46_080 // 2 * 2)
    platform = CpuPlatform()
    copies = CpuCopies(pool, host, platform)
    copies.run((StorePages(1, ints(5, 2), ints(3, 0)), LoadPages(2, ints(3), ints(1))))
    copies.drain()
    assert copies.finished() == [(1, True), (2, True)]
    assert copies.finished() == []
    for slot, page in ((3, 5), (0, 2)):
        parts = torch.cat([cache[page].flatten() for pair in pool.layers for cache in pair])
        assert torch.equal(host.blocks[slot].view(torch.bfloat16), parts)
    assert all(torch.equal(cache[1], cache[5]) for pair in pool.layers for cache in pair)
    copies.run((StorePages(3, ints(77), ints(0)),))
    assert copies.finished() == [(3, False)]
    platform.close()


def test_runs_of_slots() -> None:
    assert list(runs(ints(4, 5, 6, 2, 9, 10))) == [(0, 4, 3), (3, 2, 1), (4, 9, 2)]
    assert list(runs(NONE)) == []


def test_a_sequence_goes_on_from_pages_that_were_away() -> None:
    model = TinyModel()
    executor = make_executor(model)
    executor.host = HostPool(executor.pool, 8, pinned=False)
    executor.copies = CpuCopies(executor.pool, executor.host, executor.platform)
    host, prompt = Host(4), [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    row = Row(1, list(prompt))
    executor.result(executor.launch(host.plan([(row, 10)])))
    host.step += 1
    executor.result(executor.launch(bare(host.step, StorePages(1, ints(*row.pages[:2]), ints(6, 1)))))
    # The pages are overwritten by another sequence; others take their contents back.
    other = Row(2, list(range(20, 30)), pages=list(row.pages[:2]))
    executor.result(executor.launch(host.plan([(other, 10)])))
    again = Row(3, list(prompt), computed=8, pages=[100, 101])
    plan = host.plan([(again, 2)], transfers=(LoadPages(2, ints(6, 1), ints(100, 101)), AwaitCopies((2,))))
    assert executor.result(executor.launch(plan)).tokens.tolist() == model.greedy(prompt, 1)
    assert executor.copies.finished() == [(1, True), (2, True)]
    executor.close()


class LateCopies(CpuCopies):
    """Copies that are as late as may be: a layer's part of a layered load comes when the step takes that layer."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.log: list[tuple[str, int]] = []

    def run(self, transfers: tuple[Any, ...]) -> Any:
        self.late = [load for load in transfers if isinstance(load, LoadPages) and load.layered]
        kv = super().run(tuple(transfer for transfer in transfers if transfer not in self.late))
        return self if self.late else kv

    def __getitem__(self, layer: int) -> Any:
        self.log.append(("copied", layer))
        for load in self.late:
            pages, slots = load.pages.tolist(), load.slots.tolist()
            for part in (2 * layer, 2 * layer + 1):
                self._caches[part][pages] = self._blocks[slots, part]
        return self.gated[layer]


def test_layers_are_computed_while_later_ones_are_copied() -> None:
    model = TinyModel()
    log: list[tuple[str, int]] = []

    class Noting(TorchAttention):
        def forward(self, layer: Any, *args: Any) -> torch.Tensor:
            log.append(("computed", model.layers.index(layer)))
            return super().forward(layer, *args)

    executor = make_executor(model, attention=Noting)
    executor.host = HostPool(executor.pool, 8, pinned=False)
    copies = executor.copies = LateCopies(executor.pool, executor.host, executor.platform)
    copies.log = log
    host, prompt = Host(4), [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    row = Row(1, list(prompt))
    executor.result(executor.launch(host.plan([(row, 10)], transfers=())))
    host.step += 1
    executor.result(executor.launch(bare(host.step, StorePages(1, ints(*row.pages[:2]), ints(6, 1)))))
    log.clear()
    again, other = Row(3, list(prompt), computed=8, pages=[100, 101]), Row(4, [40, 41, 42])
    load = LoadPages(2, ints(6, 1), ints(100, 101), layered=True)
    result = executor.result(executor.launch(host.plan([(again, 2), (other, 3)], transfers=(load,))))
    assert result.tokens.tolist() == [*model.greedy(prompt, 1), *model.greedy([40, 41, 42], 1)]
    assert log == [("copied", 0), ("computed", 0), ("copied", 1), ("computed", 1)]
    executor.close()


def test_a_layered_load_that_fails_fails_its_step() -> None:
    executor = make_executor(TinyModel())
    executor.host = HostPool(executor.pool, 8, pinned=False)
    executor.copies = CpuCopies(executor.pool, executor.host, executor.platform)
    load = LoadPages(2, ints(77), ints(100), layered=True)
    plan = Host(4).plan([(Row(3, [5] * 6, computed=4, pages=[100]), 2)], transfers=(load,))
    assert plan.loads
    with pytest.raises(IndexError):
        executor.result(executor.launch(plan))
    assert executor.copies.finished() == []
    executor.close()


def config(**values: Any) -> Config:
    return Config.from_flat(model_path="x", load_format="dummy", **values).resolve()


def test_how_much_host_memory() -> None:
    host = {"enable_hierarchical_cache": True}
    assert host_slots(config(), "cuda", 100, 10_000, 10**9) == 0
    assert host_slots(config(**host), "cuda", 100, 10_000, 10**9) == 200
    assert host_slots(config(**host, hicache_ratio=0.5), "cuda", 100, 10_000, 10**9) == 50
    assert host_slots(config(**host, hicache_size=1e-6), "cuda", 100, 10_000, 10**9) == 10
    assert host_slots(config(**host), "cuda", 100, 10_000, 10_000) == 80  # most of what is free
    assert host_slots(config(**host), "cpu", 100, 10_000, 10**9) == 0
    assert host_slots(config(cache_dir="/tmp"), "cpu", 1 << 20, 10_000, 1 << 40) == 1024
    with pytest.raises(ConfigError, match="--hicache-size"):
        host_slots(config(**host, hicache_size=1e-8), "cuda", 100, 10_000, 10**9)
    with pytest.raises(
        ConfigError, match=r"--hicache-ratio 0\.001 of a KV pool of 0\.01 MB would not hold one page"
    ):
        host_slots(config(**host, hicache_ratio=0.001), "cuda", 100, 10_000, 10**9)
    with pytest.raises(ConfigError, match=r"0\.0001 MB of host memory are free, too little for one page"):
        host_slots(config(**host), "cuda", 100, 10_000, 100)
    with pytest.raises(ConfigError, match="not on xpu"):
        host_slots(config(**host), "xpu", 100, 10_000, 10**9)


def test_what_makes_pages_differ() -> None:
    def identity(device: str = "cpu", rank: int = 0, **values: Any) -> str:
        return kv_identity(config(**values), spec(), device, "float32", "float32", rank)

    assert identity() == identity(max_running_requests=3)
    others = [identity("cuda"), identity(rank=1), identity(page_size=8), identity(dtype="float32")]
    assert len({identity(), *others}) == 5


# ---- on a GPU ----


@pytest.mark.gpu
@pytest.mark.parametrize("slots", [list(range(40)), list(range(79, -1, -2))])
def test_cuda_pages_go_and_come_back(slots: list[int]) -> None:
    device = torch.device("cuda")
    pool = KvPool(spec(), 100, 16, torch.bfloat16, device)
    filled(pool)
    host = HostPool(pool, 80, pinned=True)
    copies = CudaCopies(pool, host, device)
    copies.warm_up()
    before = [cache.clone() for pair in pool.layers for cache in pair]
    pages = np.random.default_rng(0).permutation(np.arange(1, 100))[:40].astype(np.int32)
    target = np.roll(pages, 3)
    copies.run((StorePages(1, pages, ints(*slots)), AwaitCopies((1,)), LoadPages(2, ints(*slots), target)))
    copies.run((AwaitCopies((2,)),))
    torch.cuda.synchronize()
    assert sorted(copies.finished()) == [(1, True), (2, True)]
    for old, cache in zip(before, [cache for pair in pool.layers for cache in pair], strict=True):
        assert torch.equal(cache[target.tolist()], old[pages.tolist()])
    copies.close()


@pytest.mark.gpu
def test_cuda_copies_wait_for_steps_and_steps_for_copies() -> None:
    """A store reads what was launched before it, and what awaits it may overwrite the page."""
    device = torch.device("cuda")
    pool = KvPool(spec(), 600, 16, torch.bfloat16, device)
    host = HostPool(pool, 600, pinned=True)
    copies = CudaCopies(pool, host, device)
    copies.warm_up()
    ids = np.arange(600, dtype=np.int32)
    busy = torch.randn(4096, 4096, device=device)
    for value in range(1, 6):
        for _ in range(20):
            busy = busy @ busy * 1e-4
        for pair in pool.layers:
            for cache in pair:
                cache.fill_(value)
        copies.run((StorePages(value, ids, ids), AwaitCopies((value,))))
        for pair in pool.layers:
            for cache in pair:
                cache.fill_(-1)
        deadline = time.monotonic() + 20
        while (value, True) not in copies.finished():
            assert time.monotonic() < deadline
        assert bool((host.blocks.view(torch.bfloat16) == value).all())
    copies.close()


@pytest.mark.gpu
def test_cuda_copies_that_fail_are_reported_or_end_a_follower(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rank goes by what it is told of its own copies: a follower's may not fail in silence."""
    device = torch.device("cuda")
    pool = KvPool(spec(), 10, 16, torch.bfloat16, device)
    first, follower = (
        CudaCopies(pool, HostPool(pool, 8, pinned=True), device, reports) for reports in (True, False)
    )

    def broken(*_: Any) -> None:
        raise MemoryError("none left")

    monkeypatch.setattr(CudaCopies, "_upload", broken)
    for transfer in (StorePages(1, ints(3), ints(0)), LoadPages(1, ints(0), ints(3))):
        first.run((transfer,))
        first.drain()
        assert first.finished() == [(1, False)]
        with pytest.raises(MemoryError):
            follower.run((transfer,))
    first.close()
    follower.close()


SLEEP = 8_000_000
"""cycles: some milliseconds"""


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [False, True])
def test_cuda_layers_are_computed_beside_copies(graph: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies and layers that take equally long, several times over the same gates: each layer sees its pages, and
    all of it takes little longer than one of the two."""
    # Import here: graphs come with Triton's kernels.
    from radixlang.executor.graphs import CudaRecorder

    device = torch.device("cuda")
    pool = KvPool(spec(), 100, 16, torch.bfloat16, device)
    host = HostPool(pool, 40, pinned=True)
    copies = CudaCopies(pool, host, device)
    copies.warm_up()
    slots, pages = np.arange(40, dtype=np.int32), np.arange(50, 90, dtype=np.int32)
    at, sums = torch.from_numpy(pages).long().to(device), torch.zeros(len(pool.layers), 2, device=device)
    load, groups = CudaCopies._load, len(copies._gates.groups)

    def slow(self: CudaCopies, *args: Any) -> None:
        torch.cuda._sleep(SLEEP)
        load(self, *args)

    def step(kv: Any) -> None:
        for layer, pair in enumerate(kv):
            torch.cuda._sleep(SLEEP * groups // len(pool.layers))
            for which, cache in enumerate(pair):
                sums[layer, which] = cache[at].amin()

    run = CudaRecorder()(lambda: step(copies.gated)) if graph else None
    if run is not None:
        run()  # open gates hold nobody up
    step(pool.layers)
    torch.cuda.synchronize()
    began = time.perf_counter()
    step(pool.layers)
    torch.cuda.synchronize()
    alone = time.perf_counter() - began
    monkeypatch.setattr(CudaCopies, "_load", slow)
    spent = []
    for turn in range(4):
        for layer, pair in enumerate(pool.layers):
            for which, cache in enumerate(pair):
                cache.fill_(turn + 4 * (2 * layer + which))
        copies.run((StorePages(2 * turn, pages, slots), AwaitCopies((2 * turn,))))
        for pair in pool.layers:
            for cache in pair:
                cache.fill_(-1)
        torch.cuda.synchronize()
        began = time.perf_counter()
        kv = copies.run((LoadPages(2 * turn + 1, slots, pages, layered=True),))
        if run is None:
            step(kv)
        else:
            run()
        torch.cuda.synchronize()
        spent.append(time.perf_counter() - began)
        expected = turn + 4.0 * torch.arange(2 * len(pool.layers), device=device).view(-1, 2)
        assert torch.equal(sums, expected)
    assert sorted(copies.finished()) == [(number, True) for number in range(8)]
    assert min(spent) < 1.6 * alone, (spent, alone)
    copies.close()
