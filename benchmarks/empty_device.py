"""An engine whose device does nothing, for measuring the host: `host.py` uses it and runs it as the engine.

The executor is the one of a GPU, with its graphs; only what would be put on the stream is missing. Needs Triton
installed, not a GPU.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from radixlang.attention.torch import TorchAttention
from radixlang.channel import ZmqReceiver, ZmqSender
from radixlang.engine.build import engine_info, scheduler_limits
from radixlang.engine.idle import Collector
from radixlang.engine.loop import EngineLoop
from radixlang.executor import EngineShape
from radixlang.executor.graphs import Ran, StepGraphs
from radixlang.executor.inputs import lay_out
from radixlang.executor.launch import DeviceExecutor, Ticket
from radixlang.executor.shapes import Shape, decode_shapes, prompt_shapes
from radixlang.memory.kv_pool import KvPool
from radixlang.memory.request_table import RequestTable
from radixlang.messages import Ready, ToEngine
from radixlang.models.spec import ModelSpec
from radixlang.plan import StepPlan, StepResult
from radixlang.platforms.cpu import CpuPlatform
from radixlang.process import Start, run_stage
from radixlang.sampling.columns import RowColumns
from radixlang.scheduler.scheduler import Scheduler

ROWS = 256
VOCABULARY = 49152
PREFILL_RATE = 40_000
"""prompt tokens a second of the paced device"""
CACHE_BYTES = 64 << 20
"""more than the caches of the core that runs the host"""
TOKEN = 260
"""what is always drawn"""


class _Done:
    """Work that was done when it was submitted."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def wait(self) -> Any:
        return self._value


class InlinePlatform(CpuPlatform):
    """Runs work when it is submitted, as an accelerator's host does; what comes home is a copy."""

    def submit(self, work: Callable[[], Any]) -> _Done:
        return _Done(work())

    def home(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()


class ColdPlatform(InlinePlatform):
    """Waiting is reading other memory; `waited` and `last` are those of a `RecordingPlatform`."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = 0.0
        self.last = None
        self._other = np.ones(CACHE_BYTES // 8)

    def submit(self, work: Callable[[], Any]) -> Any:
        value = work()
        return SimpleNamespace(wait=lambda: self._wait(value))

    def _wait(self, value: Any) -> Any:
        began = time.perf_counter()
        self._other.sum()
        self.waited += time.perf_counter() - began
        return value


class EmptyGraphs(StepGraphs):
    """Nothing is captured, and a replay does nothing; everything before and after it is the real thing. A step
    that no graph holds is laid out."""

    def __init__(self, device: DeviceExecutor, shapes: list[Shape]) -> None:
        super().__init__(device.model, device.pool, device.table, device.attention, device.sampling, shapes)
        self._replays = dict.fromkeys(shapes, lambda: None)
        self._rows = max(shape.rows for shape in shapes)

    def run(self, plan: StepPlan) -> Ran:
        ran = super().run(plan)
        if ran is None:
            lay_out(plan, self._table, self._pool.page_size)
            self._sampling.settle()
            self._sampling.draw_next(plan.rows[plan.samples])
            block = self.blocks.free()
            ran = Ran(block, self.blocks.ran(block), block.home(self._rows))
        return self._drawn(ran)

    def repeat(self, plan: StepPlan) -> Ran | None:
        ran = super().repeat(plan)
        return None if ran is None else self._drawn(ran)

    @staticmethod
    def _drawn(ran: Ran) -> Ran:
        ran.home[0], ran.home[1] = TOKEN, 0
        return ran


class EmptyDevice(DeviceExecutor):
    """The executor of a GPU without a model: every token is the same. With a `pace` a decode step takes so many
    seconds, and prompts take theirs at `PREFILL_RATE`. `cold`: while the host waits for a step its caches lose
    what it needs for the next, as they do in the milliseconds of a real one."""

    def __init__(self, shape: EngineShape, pace: float = 0.0, cold: bool = False) -> None:
        platform = ColdPlatform() if cold else InlinePlatform()
        spec = ModelSpec(
            family="none", architecture="None", vocab_size=shape.vocab_size, hidden_size=1, intermediate_size=1,
            num_heads=1, num_kv_heads=1, head_dim=1, layers=(), context_length=shape.context_length,
        )  # fmt: skip
        pool = KvPool(spec, shape.num_pages, shape.page_size, torch.float32, platform.device)
        table = RequestTable(shape.max_rows, -(-shape.context_length // shape.page_size), platform.device)
        attention = TorchAttention(spec, shape.page_size, platform.device)
        super().__init__(SimpleNamespace(spec=spec), platform, pool, table, attention)  # type: ignore[arg-type]
        self.sampling.columns = RowColumns(shape.max_rows, platform)
        rows = shape.max_rows - 1
        self.graphs = EmptyGraphs(self, decode_shapes(rows) + prompt_shapes(1024, rows))
        self._pace = pace
        self._free_at = 0.0
        self._ready: deque[float] = deque()

    def launch(self, plan: StepPlan) -> Ticket:
        prompt = plan.tokens - plan.size if plan.tokens > plan.size else 0
        took = self._pace + prompt / PREFILL_RATE if self._pace else 0.0
        self._free_at = max(self._free_at, time.monotonic()) + took
        self._ready.append(self._free_at)
        return super().launch(plan)

    def result(self, ticket: Ticket) -> StepResult:
        ready = self._ready.popleft()
        if self._pace and (left := ready - time.monotonic()) > 0:
            time.sleep(left)
        return super().result(ticket)


def shape_of(vocabulary: int = VOCABULARY, context: int = 8192, rows: int = ROWS) -> EngineShape:
    """An engine with room for all rows at their full length."""
    return EngineShape(
        num_pages=rows * 96 + 1,
        page_size=16,
        max_rows=rows + 1,
        context_length=context,
        vocab_size=vocabulary,
        eos_ids=(2,),
        encoder=False,
        weight_bytes=0,
        kv_bytes=0,
        device="none: no device",
        dtype="bfloat16",
        attention_backend="none",
        load_seconds=0.0,
        architecture="None",
        model_type="none",
    )


def engine_stage(start: Start, sender: ZmqSender) -> None:
    """The engine's process of the ring, without a model."""
    context = start.config.model.context_length or 8192
    shape = shape_of(context=context)
    receiver = ZmqReceiver(start.inbox, ToEngine)
    loop = EngineLoop(
        EmptyDevice(shape, float(os.environ["PACE"])),
        Scheduler(scheduler_limits(start.config, shape)),
        receiver,
        sender,
        engine_info(shape, time.time()),
        collector=Collector(),
    )
    sender.send(Ready("engine", loop.info))
    loop.run()


if __name__ == "__main__":
    run_stage("engine", engine_stage)
