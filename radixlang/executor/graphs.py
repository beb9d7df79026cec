"""Decode steps as CUDA graphs: static buffers, one packed copy in, one graph launch, one copy home.

A graph holds a whole step of rows that take their one token from the request table and draw the next: unpacking,
forward pass, draw. Steps of B rows run in the graph of the next size of the ladder; rows that pad it are the
sink's. Whatever a graph cannot do is left to the ordinary path, which gives the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from radixlang.attention import AttentionBackend
from radixlang.forward import ForwardBatch, ForwardContext, forwarding
from radixlang.kernels.decode_inputs import COLUMNS, decode_inputs
from radixlang.kernels.sampling import sample
from radixlang.memory.kv_pool import KvPool
from radixlang.memory.request_table import RequestTable
from radixlang.models import Model
from radixlang.plan import FROM_TABLE, StepPlan
from radixlang.sampling.batch import SamplingBatch

RING = 4
"""packed copies that may be under way at once"""
MAX_BATCH = 512


def ladder(largest: int) -> list[int]:
    """Batch sizes to capture: dense where a padded row costs most, up to `largest` itself."""
    steps = [1, 2, 4, *range(8, 128, 8), *range(128, 256, 16), *range(256, MAX_BATCH + 1, 32)]
    sizes = [size for size in steps if size < largest]
    return [*sizes, largest]


class DecodeGraphs:
    """The graphs of one executor. Everything here runs inside submitted work, in step order."""

    def __init__(
        self,
        model: Model,
        pool: KvPool,
        table: RequestTable,
        attention: AttentionBackend,
        sampling: SamplingBatch,
        largest: int,
    ) -> None:
        assert sampling.columns is not None
        device = table.pages.device
        self._model = model
        self._pool = pool
        self._table = table
        self._attention = attention
        self._sampling = sampling
        self._columns = sampling.columns
        self._sizes = ladder(largest)
        self._size_of = np.zeros(largest + 1, np.int64)
        for size in reversed(self._sizes):
            self._size_of[: size + 1] = size
        self._ids, self._positions, self._slots = torch.zeros((3, largest), dtype=torch.int64, device=device)
        self._rows, self._lengths, self._drawn = torch.zeros((3, largest), dtype=torch.int32, device=device)
        self._starts = torch.arange(largest + 1, dtype=torch.int32, device=device)
        self._packed = torch.zeros(COLUMNS * largest, dtype=torch.int32, device=device)
        self._home = torch.zeros(2 * largest, dtype=torch.int32, device=device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._ring = torch.zeros((RING, COLUMNS * largest), dtype=torch.int32, pin_memory=True)
        self._views = self._ring.numpy()
        self._copied = [torch.cuda.Event() for _ in range(RING)]
        self._turn = 0

    @property
    def largest(self) -> int:
        return self._sizes[-1]

    def capture(self, progress: Callable[[int, int], None]) -> None:
        """Capture all sizes, the largest first, so that the others fit into its memory."""
        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream()
        for done, size in enumerate(reversed(self._sizes)):
            self._step(size)  # compiles what is not compiled yet
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(stream):
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    self._step(size)
                finally:
                    graph.capture_end()
            self._graphs[size] = graph
            progress(done + 1, len(self._sizes))
        torch.cuda.synchronize()

    def _step(self, size: int) -> None:
        table = self._table
        batch = ForwardBatch(
            input_ids=self._ids[:size],
            positions=self._positions[:size],
            slots=self._slots[:size],
            rows=self._rows[:size],
            query_starts=self._starts[: size + 1],
            lengths=self._lengths[:size],
            page_table=table.pages,
            page_size=self._pool.page_size,
            max_query=1,
            max_length=table.pages.shape[1] * self._pool.page_size,
            separate=True,
        )
        decode_inputs(
            self._packed[: COLUMNS * size],
            table.next_token,
            table.pages,
            batch.input_ids,
            batch.positions,
            batch.slots,
            batch.rows,
            batch.lengths,
            self._drawn[:size],
        )
        plan = self._attention.plan(batch)
        with forwarding(ForwardContext(batch, self._attention, plan, self._pool.layers)):
            scores = self._model.scores(self._model(batch.input_ids, batch.positions))
        columns = self._columns
        sample(
            scores,
            columns.temperature,
            columns.top_k,
            columns.top_p,
            columns.min_p,
            columns.seeds,
            self._drawn[:size],
            rows=batch.rows,
            next_token=table.next_token,
            home=self._home[: 2 * size].view(2, size),
        )

    def fits(self, plan: StepPlan) -> bool:
        """A graph can run the plan: nothing but decoding, and nothing asked for but tokens."""
        size = plan.size
        return bool(
            0 < size == plan.tokens <= self.largest
            and not (plan.logprobs or plan.actions or len(plan.masked))
            and len(plan.new_pages) <= size
            and (plan.token_ids == FROM_TABLE).all()
            and plan.samples.all()
            and not plan.pools.any()
            and self._sampling.plain(plan.rows)
        )

    def run(self, plan: StepPlan) -> torch.Tensor:
        """Run a checked plan that fits → int32 [2, ≥ B], valid until the next run: tokens, and which are bad."""
        table, page_size, count = self._table, self._pool.page_size, plan.size
        rows, starts = plan.rows, plan.starts
        size = int(self._size_of[count])
        entries = plan.new_pages.reshape(-1, 3)
        table.host_pages[entries[:, 0], entries[:, 1]] = entries[:, 2]
        self._sampling.settle()
        self._turn = (self._turn + 1) % RING
        self._copied[self._turn].synchronize()
        view = self._views[self._turn, : COLUMNS * size]
        columns = view[: 4 * size].reshape(4, size)
        columns[:, count:] = 0
        columns[0, :count] = rows
        columns[1, :count] = starts
        columns[2, :count] = table.host_pages[rows, starts // page_size] * page_size + starts % page_size
        columns[3, :count] = self._sampling.drawn_before(rows)
        view[4 * size : 4 * size + entries.size] = entries.ravel()
        view[4 * size + entries.size :] = 0
        self._packed[: COLUMNS * size].copy_(self._ring[self._turn, : COLUMNS * size], non_blocking=True)
        self._copied[self._turn].record()
        self._graphs[size].replay()
        self._sampling.advance_plain(rows)
        return self._home[: 2 * size].view(2, size)
