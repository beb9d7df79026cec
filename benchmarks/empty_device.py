"""An engine whose device does nothing, for measuring the host: `host.py` uses it and runs it as the engine."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import torch

from radixlang.channel import ZmqReceiver, ZmqSender
from radixlang.engine.build import engine_info, scheduler_limits
from radixlang.engine.idle import Collector
from radixlang.engine.loop import EngineLoop
from radixlang.executor import EngineShape
from radixlang.executor.inputs import check
from radixlang.memory.request_table import RequestTable
from radixlang.messages import Ready, ToEngine
from radixlang.plan import StepPlan, StepResult
from radixlang.platforms.cpu import CpuPlatform
from radixlang.process import Start, run_stage
from radixlang.sampling.batch import SamplingBatch
from radixlang.scheduler.scheduler import Scheduler

ROWS = 256
VOCABULARY = 49152
PREFILL_RATE = 40_000
"""prompt tokens a second of the paced device"""


class EmptyDevice:
    """`executor.Executor` without a model: every token is the same. With a `pace` a decode step takes so many
    seconds, and prompts take theirs at `PREFILL_RATE`."""

    def __init__(self, shape: EngineShape, pace: float = 0.0) -> None:
        self.table = RequestTable(shape.max_rows, -(-shape.context_length // shape.page_size), torch.device("cpu"))
        self.sampling = SamplingBatch(shape.max_rows, shape.vocab_size, CpuPlatform())
        self.page_size = shape.page_size
        self.pace = pace
        self._free_at = 0.0

    def launch(self, plan: StepPlan) -> tuple[StepPlan, float]:
        check(plan, self.table, self.page_size)
        for setup in plan.setups:
            self.sampling.setup(setup)
        entries = plan.new_pages.reshape(-1, 3)
        self.table.host_pages[entries[:, 0], entries[:, 1]] = entries[:, 2]
        self.sampling.settle()
        self.sampling.plain(plan.rows)
        self.sampling.drawn_before(plan.rows)
        self.sampling.advance_plain(plan.rows)
        prompt = plan.tokens - plan.size if plan.tokens > plan.size else 0
        took = self.pace + prompt / PREFILL_RATE if self.pace else 0.0
        self._free_at = max(self._free_at, time.monotonic()) + took
        return plan, self._free_at

    def sample(self, ticket: Any, masks: np.ndarray | None) -> None:
        """Nothing is masked."""

    def result(self, ticket: tuple[StepPlan, float]) -> StepResult:
        plan, ready = ticket
        if self.pace and (left := ready - time.monotonic()) > 0:
            time.sleep(left)
        return StepResult(plan.step, np.full(int(np.count_nonzero(plan.samples)), 260, np.int32))

    def close(self) -> None:
        """Nothing to release."""


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
