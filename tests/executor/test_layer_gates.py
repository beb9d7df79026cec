"""Layered loads without a GPU: under Triton's interpreter, with streams that run at once (see
tests/kernels/test_triton_interpreted.py); on a GPU as they are."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed, so its kernels cannot run here")

from radixlang.executor import copies as module
from radixlang.executor.copies import CudaCopies
from radixlang.executor.layer_gates import GATES, LayerGates
from radixlang.kernels.gate import wait_open
from radixlang.kernels.tuning import interpreted
from radixlang.memory import pitched_copy
from radixlang.memory.host_pool import HostPool
from radixlang.memory.kv_pool import KvPool
from radixlang.plan import AwaitCopies, LoadPages, StorePages
from tests.memory.test_sizing import spec

pytestmark = pytest.mark.skipif(
    not (interpreted() or torch.cuda.is_available()), reason="kernels run compiled on a GPU, or interpreted"
)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.skipif(not interpreted(), reason="a stream opens it, see test_copies.py")
def test_a_gate_holds_until_it_is_opened() -> None:
    gate = torch.ones(4, dtype=torch.int32)
    waiting = threading.Thread(target=lambda: wait_open(gate))
    waiting.start()
    time.sleep(0.1)
    assert waiting.is_alive()
    gate.zero_()
    waiting.join(20)
    assert not waiting.is_alive()


@pytest.mark.parametrize("count", [1, 7, 8, 9, 30, 32])
def test_each_layer_is_behind_one_gate(count: int) -> None:
    layers = [(torch.full((1,), float(i), device=DEVICE),) * 2 for i in range(count)]
    gates = LayerGates(layers)
    assert [layer for group in gates.groups for layer in group] == list(range(count))
    assert len(gates.groups) <= GATES
    assert len({len(group) for group in gates.groups[:-1]}) <= 1
    for most in range(10):
        parts = list(gates.parts(most))
        assert [layer for layers, _, _ in parts for layer in layers] == list(range(count))
        assert [gate for _, *ends in parts for gate in range(*ends)] == list(range(len(gates.groups)))
        assert len(parts) == max(1, min(most, len(gates.groups)))
    assert [int(k[0]) for k, _ in gates] == list(range(count)) == list(range(len(gates)))


def make_pool(layers: int, pages: int) -> KvPool:
    model = msgspec.structs.replace(spec(), layers=spec().layers[:layers])
    return KvPool(model, pages, 4, torch.float16, DEVICE)


class Stream:
    """Runs everything at once."""

    def __init__(self, *_: Any) -> None:
        self.cuda_stream = 0

    def wait_stream(self, other: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def synchronize(self) -> None: ...


class Event:
    def record(self, stream: Any) -> None: ...

    def query(self) -> bool:
        return True


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        return
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream())
    monkeypatch.setattr(CudaCopies, "_upload", lambda self, pages: torch.from_numpy(pages.astype(np.int32)))
    monkeypatch.setattr(pitched_copy, "available", lambda: True)
    monkeypatch.setattr(pitched_copy, "copy_rows", lambda target, source: target.copy_(source))


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("pieces", "side_by_side", "scattered"), [(1, 1, 1), (12, 5, 2), (1024, 5, 5)])
@pytest.mark.parametrize("slots", [list(range(3, 14)), [9, 8, 3, 4, 5, 0, 20, 21, 22, 1, 23]])
def test_layered_loads_bring_every_layer(
    slots: list[int], pieces: int, side_by_side: int, scattered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two in one plan, in several passages, beside a load that is not layered."""
    pool = make_pool(9, 40)
    caches = [cache for pair in pool.layers for cache in pair]
    generator = torch.Generator().manual_seed(0)
    for cache in caches:
        cache.copy_(torch.randn(cache.shape, generator=generator))
    host = HostPool(pool, 24, pinned=DEVICE.type == "cuda")
    monkeypatch.setattr(module, "STAGING_BYTES", 5 * host.blocks.shape[1])
    copies = CudaCopies(pool, host, DEVICE)
    copies.warm_up()
    copies.pieces = pieces
    before = [cache.clone() for cache in caches]
    pages = np.array([5, 31, 7, 8, 30, 2, 3, 12, 1, 19, 20], np.int32)
    targets, ids = np.roll(pages, 4), np.array(slots, np.int32)
    plain = copies.run((StorePages(1, pages, ids),))
    assert plain is pool.layers
    loads = (
        LoadPages(2, ids[:8], targets[:8], layered=True),
        LoadPages(3, ids[8:10], targets[8:10], layered=True),
        LoadPages(4, ids[10:], targets[10:]),
    )
    moved: list[Any] = []
    shut, opens = LayerGates.shut, LayerGates.open
    monkeypatch.setattr(LayerGates, "shut", lambda gates: (moved.append("shut"), shut(gates)))
    monkeypatch.setattr(LayerGates, "open", lambda gates, *ends: (moved.append(ends), opens(gates, *ends)))
    kv = copies.run((AwaitCopies((1,)), *loads))
    assert kv is copies.gated
    assert [pair[0].data_ptr() for pair in kv] == [pair[0].data_ptr() for pair in pool.layers]
    copies.run((AwaitCopies((2, 3, 4)),))
    copies.drain()
    assert sorted(copies.finished()) == [(number, True) for number in (1, 2, 3, 4)]
    for cache, old in zip(caches, before, strict=True):
        assert torch.equal(cache[targets.tolist()], old[pages.tolist()])
        others = sorted(set(range(40)) - set(targets.tolist()))
        assert torch.equal(cache[others], old[others])
    parts = side_by_side if slots[0] == 3 else scattered
    assert moved[0] == "shut"
    assert len(moved[1:]) == parts
    assert [gate for ends in moved[1:] for gate in range(*ends)] == list(range(5)), "each gate once"
    copies.close()


@pytest.mark.usefixtures("at_once")
def test_gates_are_open_after_a_load_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool(4, 6)
    host = HostPool(pool, 4, pinned=DEVICE.type == "cuda")
    copies = CudaCopies(pool, host, DEVICE)
    copies.warm_up()

    def refuse(*_: Any) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(pitched_copy, "copy_rows", refuse)
    ids = np.array([1, 2], np.int32)
    with pytest.raises(RuntimeError, match="no"):
        copies.run((LoadPages(7, ids, ids, layered=True),))
    assert len(list(copies.gated)) == 4
    copies.run((LoadPages(8, ids, ids),))
    copies.drain()
    assert copies.finished() == [(8, False)]
    copies.close()
