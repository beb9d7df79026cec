"""The scheduler's driver with tiers below the device that are as slow, unreliable and badly timed as may be.

A copy takes effect at its beginning or at its end, and ends when somebody awaits it or when chance says so.
Storage finds and reads some time later, or less than there is.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from radixlang.cache.tiers import Tiers
from radixlang.cache.tiers.threads import Done
from radixlang.plan import AwaitCopies, CopyPages, LoadPages, StepPlan, StepResult, StorePages
from radixlang.scheduler import Scheduler, SchedulerLimits
from tests.fakes import FakeExecutor
from tests.scheduler.driver import Driver, Outcome

GARBAGE = np.uint64(0xDEADDEADDEADDEAD)


class SlowCopies:
    """`cache.tiers.tiers.Copies` over the fake executor's KV."""

    def __init__(self, kv: np.ndarray, host: np.ndarray, rng: random.Random) -> None:
        self.kv = kv
        self.host = host
        self.rng = rng
        self.under_way: dict[int, tuple[Any, bool]] = {}
        self.ended: list[tuple[int, bool]] = []
        self.begun = 0
        self.loads = 0
        self.layered = 0

    def run(self, transfers: Sequence[Any]) -> None:
        for transfer in transfers:
            if isinstance(transfer, AwaitCopies):
                for copy in transfer.copies:
                    if copy in self.under_way:
                        self._end(copy)
                continue
            self.begun += 1
            early = self.rng.random() < 0.5
            works = self.rng.random() < 0.97
            self.loads += isinstance(transfer, LoadPages)
            if isinstance(transfer, LoadPages) and transfer.layered:
                self.layered += 1
                self.kv[transfer.pages] = GARBAGE
                if not works:
                    raise RuntimeError("a layered load failed")
                early = True  # the step's layers wait for it, and this executor's steps have one
            if not isinstance(transfer, StorePages):
                self.kv[transfer.pages] = GARBAGE
            if early and works:
                self._move(transfer)
            self.under_way[transfer.copy] = transfer, early or not works
            if not works:
                self.under_way.pop(transfer.copy)
                self.ended.append((transfer.copy, False))

    def _move(self, transfer: Any) -> None:
        if isinstance(transfer, StorePages):
            self.host[transfer.slots] = self.kv[transfer.pages]
        else:
            self.kv[transfer.pages] = self.host[transfer.slots]

    def _end(self, copy: int) -> None:
        transfer, moved = self.under_way.pop(copy)
        if not moved:
            self._move(transfer)
        self.ended.append((copy, True))

    def finished(self) -> list[tuple[int, bool]]:
        for copy in list(self.under_way):
            if self.rng.random() < 0.3:
                self._end(copy)
        ended, self.ended = self.ended, []
        return ended

    def drain(self) -> None:
        for copy in list(self.under_way):
            self._end(copy)


class SlowThreads:
    """Like `StorageThreads`, over a dictionary."""

    hanging = False

    def __init__(self, host: np.ndarray, kept: dict[bytes, np.ndarray], rng: random.Random) -> None:
        self.host = host
        self.kept = kept
        self.rng = rng
        self.jobs: list[tuple[str, Any, Sequence[bytes], Sequence[int]]] = []
        self.failures = 0

    def find(self, job: Any, keys: Sequence[bytes]) -> None:
        self.jobs.append(("find", job, keys, ()))

    def read(self, job: Any, keys: Sequence[bytes], slots: Sequence[int]) -> None:
        self.host[list(slots)] = GARBAGE
        self.jobs.append(("read", job, keys, slots))

    def write(self, job: Any, keys: Sequence[bytes], slots: Sequence[int], behind: Sequence[bytes]) -> None:
        self.jobs.append(("write", job, keys, slots))

    def done(self) -> list[Done]:
        out = []
        for entry in list(self.jobs):
            if self.rng.random() < 0.6:
                continue
            self.jobs.remove(entry)
            kind, job, keys, slots = entry
            count = next((at for at, key in enumerate(keys) if key not in self.kept), len(keys))
            if kind == "write":
                count = 0 if self.rng.random() < 0.1 else len(keys)
                for key, slot in zip(keys[:count], slots, strict=False):
                    self.kept.setdefault(key, self.host[slot].copy())
            elif self.rng.random() < 0.1:
                count //= 2
            if kind == "read":
                for key, slot in zip(keys[:count], slots, strict=False):
                    self.host[slot] = self.kept[key]
            out.append(Done(job, count))
        return out

    def close(self) -> None:
        """Nothing runs."""


class TieredExecutor(FakeExecutor):
    """The fake executor, with copies."""

    copies: SlowCopies

    def _run(self, plan: StepPlan) -> StepResult | RuntimeError:
        late = {int(page) for load in plan.transfers if isinstance(load, LoadPages) for page in load.pages}
        copied = {int(page) for copy in plan.actions if isinstance(copy, CopyPages) for page in copy.source}
        assert late.isdisjoint(copied), "a page is copied before it has come"
        if plan.step not in self.broken or plan.step % 2:
            try:
                self.copies.run(plan.transfers)
            except RuntimeError:
                self.broken |= {plan.step}
        if not plan.size and plan.step not in self.broken:
            return StepResult(plan.step, np.zeros(0, np.int32))
        return super()._run(plan)


class TieredDriver(Driver):
    """Host memory of `slots` pages and, with `kept` (pages by key), storage."""

    def __init__(
        self,
        limits: SchedulerLimits,
        depth: int,
        slots: int,
        kept: dict[bytes, np.ndarray] | None,
        seed: int,
        policy: str = "write_through",
        **fake: Any,
    ) -> None:
        super().__init__(limits, depth, **fake)
        self.executor = TieredExecutor(
            limits.num_pages,
            limits.page_size,
            limits.max_running_requests,
            limits.context_length,
            self.model,
            **fake,
        )
        rng = random.Random(seed)
        host = np.full((slots, limits.page_size), GARBAGE)
        copies = SlowCopies(self.executor.kv.reshape(-1, limits.page_size), host, rng)
        self.executor.copies = copies
        threads: Any = None if kept is None else SlowThreads(host, kept, rng)
        self.tiers = Tiers(b"model", limits.page_size, limits.num_pages, slots, copies, policy, threads)
        self.scheduler = Scheduler(limits, now=1.0, constraints=self.constraints, tiers=self.tiers)

    def add(self, rid: str, prompt: list[int], **fields: Any) -> Outcome:
        outcome = super().add(rid, prompt, **fields)
        request = self.scheduler.request(rid)
        if request is not None:
            assert request.page_keys == self.tiers.keys(request.tokens.view(), request.namespace)
        return outcome

    def _all_wait(self) -> bool:
        return super()._all_wait() or bool(self.scheduler.lower.fetches)

    def step(self) -> bool:
        waiting = any(self.scheduler.request(rid).waits for rid in self.scheduler.rids())
        return super().step() or waiting or not self.scheduler.idle
