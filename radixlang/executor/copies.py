"""Copies of KV pages between the device and host memory, as plans ask for them.

A copy runs beside the steps: it begins behind all that was launched before its plan, and who uses its pages
awaits it (`AwaitCopies`), or each layer of the step its own part of it (`LoadPages.layered`). Both classes do the
same; on a CPU, where the KV pool is host memory already, a copy is simply a piece of the stream's work. Runs
inside submitted work, in step order; only `finished` and `drain` may be called from elsewhere. Must not know why
pages are copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch

from radixlang.executor.layer_gates import LayerGates
from radixlang.forward import KvLayers
from radixlang.log import get_logger
from radixlang.memory import pitched_copy
from radixlang.memory.host_pool import HostPool
from radixlang.memory.kv_pool import KvPool
from radixlang.plan import AwaitCopies, Ints, LoadPages, StorePages, Transfer
from radixlang.platforms import Platform

log = get_logger(__name__)

STAGING_BYTES = 32 << 20
"""device memory through which each direction's copies pass"""
PIECES = 1024
"""copies that a layered load is cut into at most, as long as that leaves one for each run of slots: they are
ordered before the step is launched, and each takes the host some microseconds"""


class PageCopies(Protocol):
    """What the executor holds, and what the host's side of the tiers asks (the last two methods)."""

    gated: KvLayers
    """the pool's layers for steps of any plan: who takes one waits until what `run` loads of it has come"""

    def run(self, transfers: tuple[Transfer, ...]) -> KvLayers:
        """Begin, or await, in this order. A copy that fails is reported and raises nothing, unless it is a layered
        load, or nobody asks for reports. → the pool's layers for this plan's step"""
        ...

    def finished(self) -> list[tuple[int, bool]]:
        """(copy, whether it worked) of those that ended since the last call."""
        ...

    def drain(self) -> None:
        """Wait until no copy is under way."""
        ...

    def close(self) -> None:
        """Give the memory back; nothing is under way any more."""
        ...


class NoCopies:
    """There is no tier below the device's memory."""

    def __init__(self, pool: KvPool) -> None:
        self.gated: KvLayers = pool.layers

    def run(self, transfers: tuple[Transfer, ...]) -> KvLayers:
        assert not transfers, "a plan copies pages to host memory, but there is none for them"
        return self.gated

    def finished(self) -> list[tuple[int, bool]]:
        return []

    def drain(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Nothing to give back."""


class CpuCopies:
    """Copies in the stream's own order: whoever comes later needs to await nothing."""

    def __init__(self, pool: KvPool, host: HostPool, platform: Platform) -> None:
        self.gated: KvLayers = pool.layers
        self._platform = platform
        self._host = host
        self._caches = [cache.view(cache.shape[0], -1).view(torch.uint8) for pair in pool.layers for cache in pair]
        self._blocks = host.blocks.view(host.blocks.shape[0], len(self._caches), -1)
        self._ended: deque[tuple[int, bool]] = deque()

    def run(self, transfers: tuple[Transfer, ...]) -> KvLayers:
        for transfer in transfers:
            if isinstance(transfer, AwaitCopies):
                continue
            pages, slots = (torch.from_numpy(ids.astype(np.int64)) for ids in (transfer.pages, transfer.slots))
            try:
                for part, cache in enumerate(self._caches):
                    if isinstance(transfer, StorePages):
                        self._blocks[slots, part] = cache[pages]
                    else:
                        cache[pages] = self._blocks[slots, part]
            except Exception as error:
                if isinstance(transfer, LoadPages) and transfer.layered:
                    raise
                log.error("a copy of %d KV pages failed: %s", len(pages), error)
                self._ended.append((transfer.copy, False))
            else:
                self._ended.append((transfer.copy, True))
        return self.gated

    def finished(self) -> list[tuple[int, bool]]:
        return [self._ended.popleft() for _ in range(len(self._ended))]

    def drain(self) -> None:
        self._platform.submit(lambda: None).wait()

    def close(self) -> None:
        self._host.close()


class _Lane:
    """One direction: a stream, and memory on the device through which its copies pass."""

    def __init__(self, host: HostPool, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self._memory = torch.empty(max(STAGING_BYTES, 4 * host.blocks.shape[1]), dtype=torch.uint8, device=device)

    def blocks(self, width: int) -> torch.Tensor:
        """The memory as blocks of so many bytes, [n, width]."""
        # Fours: a kernel would be compiled once more for page ids that begin at an odd place.
        room = len(self._memory) // width // 4 * 4
        return self._memory[: room * width].view(room, width)


class CudaCopies:
    """Copies on two streams of their own, one for each direction of the bus.

    A kernel gathers pages into blocks on the device, and the copy engine carries these to pinned memory, slots
    that lie side by side as one piece (for loads the other way round). So the bus is used as well as by one large
    copy, and the multiprocessors are the steps' alone but for the gathering, at the speed of device memory.
    """

    def __init__(self, pool: KvPool, host: HostPool, device: torch.device, reports: bool = True) -> None:
        """`reports`: somebody asks for `finished`. A follower's host side is on another rank and could not be told
        of a copy that failed here alone: there it raises, as whatever else fails on one rank."""
        # Import here: the kernel comes with Triton, which other platforms lack.
        from radixlang.kernels.page_blocks import cache_addresses, gather_pages, scatter_pages

        self._gather, self._scatter = gather_pages, scatter_pages
        self._addresses = cache_addresses([cache for pair in pool.layers for cache in pair])
        self._layers = pool.layers
        self._gates = LayerGates(pool.layers)
        self.gated: KvLayers = self._gates
        self.pieces = PIECES if pitched_copy.available() else 1
        """see `PIECES`; 1 loads all layers at once"""
        self._host = host
        self._layer_bytes = host.blocks.shape[1] // len(pool.layers)
        self._device = device
        self._stores, self._loads = _Lane(host, device), _Lane(host, device)
        self._under_way: dict[int, tuple[torch.cuda.Event, bool]] = {}
        """copy → passed when it has ended, and whether all of it could be begun"""
        self._reports = reports

    def warm_up(self) -> None:
        """Compile the kernels, and show at the start that the memory can be reached: the sink goes to slot 0 and
        comes back."""
        sink = np.zeros(1, np.int32)
        self.run((StorePages(-1, sink, sink), AwaitCopies((-1,)), LoadPages(-2, sink, sink)))
        for _ in self.run((AwaitCopies((-2,)), LoadPages(-3, sink, sink, layered=True))):
            pass  # through the gates
        self.drain()
        if not all(worked for _, worked in self.finished()):
            raise RuntimeError("KV pages cannot be copied to host memory on this device.")

    def run(self, transfers: tuple[Transfer, ...]) -> KvLayers:
        if transfers and not self._reports:
            self.finished()
        layered = [load for load in transfers if isinstance(load, LoadPages) and load.layered]
        for transfer in transfers:
            if isinstance(transfer, AwaitCopies):
                self._await(transfer.copies)
            elif layered and transfer is layered[0]:
                self._begin_layered(layered)
            elif not (isinstance(transfer, LoadPages) and transfer.layered):
                self._begin(transfer)
        return self.gated if layered else self._layers

    def _begin(self, transfer: StorePages | LoadPages) -> None:
        stores = isinstance(transfer, StorePages)
        lane = self._stores if stores else self._loads
        # Behind all steps before this one, and behind what they awaited.
        lane.stream.wait_stream(torch.cuda.current_stream(self._device))
        worked = True
        with torch.cuda.stream(lane.stream):
            try:
                ids = self._upload(transfer.pages)
                if stores:
                    self._store(ids, transfer.slots)
                else:
                    self._load(ids, transfer.slots, range(len(self._layers)))
            except Exception as error:
                if not self._reports:
                    raise
                log.error("a copy of %d KV pages failed: %s", len(transfer.pages), error)
                worked = False  # what was begun of it is awaited all the same
            event = torch.cuda.Event()
            event.record(lane.stream)
        self._under_way[transfer.copy] = event, worked

    def _begin_layered(self, loads: Sequence[LoadPages]) -> None:
        """All of a plan's layered loads, layer by layer."""
        slots = np.concatenate([load.slots for load in loads])
        pages = np.concatenate([load.pages for load in loads])
        stream = self._loads.stream
        self._gates.shut()
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            try:
                ids = self._upload(pages)
                for layers, first, last in self._gates.parts(self.pieces // len(list(runs(slots)))):
                    self._load(ids, slots, layers)
                    self._gates.open(first, last)
            except Exception:
                self._gates.open()  # the step is not run, but others that were launched may stand before them
                raise
            event = torch.cuda.Event()
            event.record(stream)
        self._under_way |= {load.copy: (event, True) for load in loads}

    def _upload(self, pages: Ints) -> torch.Tensor:
        # torch keeps the pinned ids until their copy has passed the stream.
        return torch.from_numpy(pages.astype(np.int32)).pin_memory().to(self._device, non_blocking=True)

    def _store(self, pages: torch.Tensor, slots: Ints) -> None:
        blocks = self._stores.blocks(self._host.blocks.shape[1])
        for begin in range(0, len(slots), len(blocks)):
            part = slice(begin, begin + len(blocks))
            self._gather(self._addresses, pages[part], blocks)
            for at, slot, count in runs(slots[part]):
                self._host.blocks[slot : slot + count].copy_(blocks[at : at + count], non_blocking=True)

    def _load(self, pages: torch.Tensor, slots: Ints, layers: range) -> None:
        """The pages' part that belongs to these layers."""
        width, first = len(layers) * self._layer_bytes, layers.start * self._layer_bytes
        blocks, source = self._loads.blocks(width), self._host.blocks[:, first : first + width]
        addresses = self._addresses[2 * layers.start : 2 * layers.stop]
        for begin in range(0, len(slots), len(blocks)):
            part = slice(begin, begin + len(blocks))
            for at, slot, count in runs(slots[part]):
                pitched_copy.copy_rows(blocks[at : at + count], source[slot : slot + count])
            self._scatter(addresses, pages[part], blocks)

    def _await(self, copies: tuple[int, ...]) -> None:
        stream = torch.cuda.current_stream(self._device)
        for copy in copies:
            if copy in self._under_way:  # otherwise it has ended
                stream.wait_event(self._under_way[copy][0])

    def finished(self) -> list[tuple[int, bool]]:
        ended = [(copy, worked) for copy, (event, worked) in self._under_way.items() if event.query()]
        for copy, _ in ended:
            del self._under_way[copy]
        return ended

    def drain(self) -> None:
        self._stores.stream.synchronize()
        self._loads.stream.synchronize()

    def close(self) -> None:
        self.drain()
        self._host.close()


def runs(slots: Ints) -> Iterator[tuple[int, int, int]]:
    """(index, first slot, number) of each run of slots that follow one another."""
    if not len(slots):
        return
    breaks = np.flatnonzero(np.diff(slots) != 1) + 1
    begins = np.concatenate([[0], breaks])
    ends = np.concatenate([breaks, [len(slots)]])
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        yield begin, int(slots[begin]), end - begin
