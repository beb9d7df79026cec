"""Whole steps as CUDA graphs: static buffers, one graph launch, and nothing else on the stream.

A graph holds a step of so many tokens and rows: it fetches its numbers from host memory (`kernels.mailbox`),
unpacks them, does the forward pass, draws, and sends home what it drew. There are three ladders of such shapes:
*decode* steps, whose rows have one token each and all draw, the same with *tree attention*, and *prompt* steps,
where any rows bring any tokens and some draw. A step runs in the smallest shape that holds it; where rows bring
few tokens each, that is a decode step with every token as a row (see `spread.py`). Rows that pad it are the
sink's, and so is the row that the tokens belong to that pad it. Rows that wait for a mask are passed over by
the graph's draw; once the masks are there, a second graph of the shape draws them from the logits that the
first one left. Whatever a graph cannot do is left to the ordinary path, which gives the same tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from radixlang.attention import AttentionBackend
from radixlang.errors import EngineError
from radixlang.executor.decode_pack import DecodePack, step_size
from radixlang.executor.inputs import lay_out
from radixlang.executor.prefixes import KvShape, PrefixPlanner
from radixlang.executor.shapes import Shape
from radixlang.executor.spread import fill_spread, spreads
from radixlang.executor.step_blocks import StepBlock, StepBlocks
from radixlang.forward import ForwardBatch, ForwardContext, KvLayers, forwarding
from radixlang.kernels.ahead import compiled_ahead
from radixlang.kernels.bitmask import apply_bitmask
from radixlang.kernels.mailbox import deliver, fetch
from radixlang.kernels.skinny_linear import MAX_TOKENS
from radixlang.kernels.step_inputs import packed_size, sections, step_inputs
from radixlang.kernels.tree_work import TreeWork, tree_sections
from radixlang.memory.kv_pool import KvPool
from radixlang.memory.request_table import RequestTable
from radixlang.models import Model
from radixlang.plan import FROM_TABLE, Ints, StepPlan
from radixlang.sampling.batch import SamplingBatch

Replay = Callable[[], None]
Record = Callable[[Callable[[], None]], Replay]
"""Takes what puts a step on the stream, gives what puts it there again."""


class CudaRecorder:
    """Records steps as CUDA graphs, which share their memory: only one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def __call__(self, step: Callable[[], None]) -> Replay:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            # relaxed: the library may load a kernel that it has not used before
            graph.capture_begin(pool=self._pool, capture_error_mode="relaxed")
            try:
                step()
            finally:
                graph.capture_end()
        return graph.replay


def lent(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a 2- or 4-byte tensor on a GPU that does not own its memory.

    For a graph's result: the graphs share one pool, which lives as long as they do, and run one at a time. Owning
    a part of it would keep the graphs captured later from using it.
    """
    size = tensor.element_size()
    described = SimpleNamespace(
        __cuda_array_interface__={
            "version": 3,
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "strides": tuple(size * stride for stride in tensor.stride()),
            "typestr": f"<i{size}",
        }
    )
    return torch.as_tensor(described, device=tensor.device).view(tensor.dtype)


class Ran(NamedTuple):
    """A step that was put on the stream."""

    block: StepBlock
    lent: int
    """`block.lent` while the block is the step's"""
    home: Ints
    """[2, ≥ S] the tokens of the rows that sample, and their flags (see `Drawn`); valid when the step's work has
    been waited for, and until the block is given back"""


class StepGraphs:
    """The graphs of one executor. Everything here runs inside submitted work, in step order."""

    def __init__(
        self,
        model: Model,
        pool: KvPool,
        table: RequestTable,
        attention: AttentionBackend,
        sampling: SamplingBatch,
        shapes: list[Shape],
        mark: Callable[[str], None] = lambda part: None,
        gated: KvLayers | None = None,
    ) -> None:
        """`mark` is told when the host has filled in all that a step brings, see `Platform.mark`. `gated` are the
        pool's layers for steps whose pages may still be on their way (see `PageCopies`); None: no steps are like
        that."""
        assert sampling.columns is not None
        device = table.pages.device
        self._model = model
        self._pool = pool
        self._table = table
        self._attention = attention
        self._sampling = sampling
        self._columns = sampling.columns
        self._gated = pool.layers if gated is None else gated
        self._mark = mark
        self._decodes = sorted(shape for shape in shapes if shape.decodes and not shape.tree)
        self._trees = sorted(shape for shape in shapes if shape.tree)
        self._planner = _planner(model, pool, attention) if self._trees else None
        self._prompts = sorted(shape for shape in shapes if not shape.decodes)
        self._alone: set[Shape] = set()
        """decode steps none of whose rows may read what another one writes"""
        tokens, rows = max(shape.tokens for shape in shapes), max(shape.rows for shape in shapes)
        self._ids, self._positions, self._slots = torch.zeros((3, tokens), dtype=torch.int64, device=device)
        self._wanted = torch.zeros(rows, dtype=torch.int64, device=device)
        size = max(map(step_size, shapes))
        self.blocks = StepBlocks(size, rows, device)
        self._packed = torch.zeros(size, dtype=torch.int32, device=device)
        home = torch.zeros(2 * rows, dtype=torch.int32, device=device)
        self._homes = {shape: home[: 2 * shape.rows].view(2, shape.rows) for shape in shapes}
        self._replays: dict[Shape, Replay] = {}
        self._masked = torch.zeros((3, -(-rows // 4) * 4), dtype=torch.int32, device=device)
        """for the draw of masked rows: a step's drawing rows; what they had drawn before, -1 to pass over one; and
        to which of them the masks belong, -1 for none"""
        self._bits: torch.Tensor | None = None
        """[rows, words] the masks"""
        self._draws: dict[Shape, Replay] = {}
        self._scores: dict[Shape, torch.Tensor] = {}
        """[rows, vocabulary] what a shape's last run left"""
        self._last: tuple[StepPlan, Shape, npt.NDArray[np.int64]] | None = None
        """the step that ran last, and the tokens that its drawing rows had drawn before"""
        self._decode: DecodePack | None = None
        """the rows that decoded last"""

    def capture(self, record: Record, progress: Callable[[int, int], None], draws: Record | None = None) -> None:
        """Record all shapes, the largest first, so that the others fit into its memory. `draws` records the draws
        of masked rows when they come, which must not use that memory: they read what a step left in it."""
        self._record_draw = draws or record
        shapes = sorted(self._decodes + self._trees + self._prompts, reverse=True)
        # Compiles what is not compiled yet; prompt steps beyond the kernels for few tokens are all alike.
        unlike = [shape for shape in shapes if shape.decodes or shape.tokens <= MAX_TOKENS or shape == shapes[0]]
        compiled_ahead(self._packed.device, lambda: self._try_out(unlike))
        for done, shape in enumerate(shapes):
            self._replays[shape] = record(partial(self._step, shape))
            progress(done + 1, len(shapes))
        self.blocks.restart()

    def _try_out(self, shapes: list[Shape]) -> None:
        for shape in shapes:
            self._step(shape)
        scores = self._scores[shapes[0]]
        words = torch.full((1, -(-scores.shape[1] // 32)), -1, dtype=torch.int32, device=scores.device)
        apply_bitmask(scores, torch.zeros(1, dtype=torch.int32, device=scores.device), words)

    def _step(self, shape: Shape) -> None:
        table, tokens, rows = self._table, shape.tokens, shape.rows
        packed = self._packed[: packed_size(tokens, rows)]
        batch_rows, query_starts, lengths, _, drawing, drawn, *_ = sections(packed, tokens, rows)
        size = rows if shape.decodes else rows + 1
        tree = self._packed[len(packed) : step_size(shape)]
        fetch(self.blocks.out, self.blocks.turn, self._packed[: step_size(shape)])
        batch = ForwardBatch(
            input_ids=self._ids[:tokens],
            positions=self._positions[:tokens],
            slots=self._slots[:tokens],
            rows=batch_rows[:size],
            query_starts=query_starts[: size + 1],
            lengths=lengths[:size],
            page_table=table.pages,
            page_size=self._pool.page_size,
            max_query=1 if shape.decodes else tokens,
            max_length=table.pages.shape[1] * self._pool.page_size,
            wanted=None if shape.decodes else self._wanted[:rows],
            separate=shape.decodes,
            tree=TreeWork(*tree_sections(tree, rows)) if shape.tree else None,
        )
        step_inputs(
            packed,
            table.next_token,
            table.pages,
            batch.input_ids,
            batch.positions,
            batch.slots,
            self._wanted[:rows],
        )
        plan = self._attention.plan(batch)
        if getattr(plan, "fused", None) is not None:
            self._alone.add(shape)
        # Rows that decode have used their pages before: only a prompt begins with pages that are being loaded.
        kv = self._pool.layers if shape.decodes else self._gated
        with forwarding(ForwardContext(batch, self._attention, plan, kv)):
            hidden = self._model(batch.input_ids, batch.positions)
            # A model may have left the tokens out that nobody wants.
            scores = self._model.scores(hidden if len(hidden) == rows else hidden[self._wanted[:rows]])
        self._sampling.draw(scores, drawing, drawn, table.next_token, self._homes[shape])
        deliver(self._homes[shape], self.blocks.home, self.blocks.turn)
        self._scores[shape] = lent(scores) if scores.is_cuda else scores

    def find(self, plan: StepPlan) -> Shape | None:
        """The smallest shape that can run the plan: one that asks for nothing but tokens."""
        single = self._single(plan)
        if plan.logprobs or plan.pools.any():
            return None
        if not single and spreads(plan):
            for shape in self._decodes[bisect_left(self._decodes, Shape(plan.tokens, plan.tokens)) :]:
                if shape not in self._alone:
                    return shape
        ladder = self._decodes if single else self._prompts
        for shape in ladder[bisect_left(ladder, Shape(plan.tokens, plan.size)) :]:
            if shape.rows >= plan.size:
                return shape
        return None

    @staticmethod
    def _single(plan: StepPlan) -> bool:
        """All rows draw behind a token that only the device knows: no row can have it in its prefix."""
        return plan.size == plan.tokens and bool((plan.token_ids == FROM_TABLE).all() and plan.samples.all())

    def run(self, plan: StepPlan) -> Ran | None:
        """Run a checked plan, whose actions are done, if a shape holds it. None: nothing was done. What comes home
        for masked rows means nothing before `draw`."""
        shape = self.find(plan)
        if shape is None:
            return None
        self._sampling.settle()
        more = plan.new_pages.reshape(-1, 3)[shape.tokens :]
        if len(more):  # a long prefix was found in the cache
            self._table.write(self._sampling.upload(more.astype(np.int32)))
        if not shape.decodes:
            return self._run_prompts(plan, shape)
        if not self._single(plan):
            return self._run_spread(plan, shape)
        self._decode = self._decode_pack(plan, shape)
        return self._run_decode(plan, self._decode)

    def _decode_pack(self, plan: StepPlan, shape: Shape) -> DecodePack:
        """The numbers of rows that begin to decode together, and how they read what they share."""
        tree = None
        if self._planner is not None:
            pages = self._table.host_pages
            entries = plan.new_pages.reshape(-1, 3)
            pages[entries[:, 0], entries[:, 1]] = entries[:, 2]
            tree = self._planner.plan(plan.rows, plan.starts, pages)
            if tree is not None:
                shape = self._trees[bisect_left(self._trees, shape)]
        return DecodePack(plan, shape, self._table, self._pool.page_size, tree)

    def repeat(self, plan: StepPlan) -> Ran | None:
        """As `run`, without a check, for one more step of the rows that decoded last. None: it is another one."""
        pack = self._decode
        return self._run_decode(plan, pack) if pack is not None and pack.holds(plan) else None

    def _run_decode(self, plan: StepPlan, pack: DecodePack) -> Ran:
        before = self._sampling.draw_next(pack.rows)
        pack.fill(plan, before)
        block = self.blocks.free()
        block.out(len(pack.packed))[:] = pack.packed
        return self._replay(plan, pack.shape, block, before)

    def _run_spread(self, plan: StepPlan, shape: Shape) -> Ran:
        layout = lay_out(plan, self._table, self._pool.page_size)
        before = self._sampling.draw_next(plan.rows[layout.sampling])
        block = self.blocks.free()
        fill_spread(block.out(step_size(shape)), plan, layout, before, shape)
        return self._replay(plan, shape, block, before)

    def _run_prompts(self, plan: StepPlan, shape: Shape) -> Ran:
        table, size, tokens = self._table, plan.size, plan.tokens
        layout = lay_out(plan, table, self._pool.page_size)
        entries = plan.new_pages.reshape(-1, 3)[: shape.tokens]
        draws = plan.rows[layout.sampling]
        block = self.blocks.free()
        numbers = block.out(step_size(shape))
        numbers.fill(0)
        rows, starts, lengths, wanted, drawing, drawn, ids, positions, slots, pages = sections(
            numbers, shape.tokens, shape.rows
        )
        rows[:size] = plan.rows
        starts[: size + 1] = layout.query_starts
        starts[size + 1 :] = shape.tokens  # the first padding row has all that are left
        lengths[:size] = layout.lengths
        wanted[: len(draws)] = layout.ends[layout.sampling]
        wanted[len(draws) :] = tokens - 1
        drawing[: len(draws)] = draws
        before = self._sampling.draw_next(draws)
        drawn[: len(draws)] = before
        drawn[(np.cumsum(plan.samples) - 1)[plan.masked]] = -1
        ids[:tokens] = np.where(plan.token_ids == FROM_TABLE, -plan.rows[layout.of], plan.token_ids)
        positions[:tokens] = layout.positions
        slots[:tokens] = layout.slots
        pages[: entries.size] = entries.ravel()
        return self._replay(plan, shape, block, before)

    def _replay(self, plan: StepPlan, shape: Shape, block: StepBlock, before: npt.NDArray[np.int64]) -> Ran:
        self._mark("copy")
        self._replays[shape]()
        self._last = plan, shape, before
        return Ran(block, self.blocks.ran(block), block.home(shape.rows))

    def draw(self, plan: StepPlan, bits: torch.Tensor) -> None:
        """Draw the masked rows of the plan that was run last; they come home where its others did.

        `bits` int32 [G, words] are on the device, set where a token is allowed.

        Raises:
            EngineError: another step was run since.
        """
        if self._last is None or self._last[0] is not plan:
            raise EngineError(f"Step {plan.step} must be sampled before the next step is launched.")
        _, shape, before = self._last
        draws = plan.rows[plan.samples]
        at = (np.cumsum(plan.samples) - 1)[plan.masked]
        numbers = np.full((3, shape.rows), -1, np.int32)
        numbers[0, : len(draws)], numbers[0, len(draws) :] = draws, 0
        numbers[1, at] = before[at]
        numbers[2, : len(at)] = at
        if self._bits is None:
            self._bits = bits.new_zeros(self._masked.shape[1], bits.shape[1])
        replay = self._draws.get(shape)
        if replay is None:
            self._masked[1:] = -1  # whoever records may run it: nothing is masked or drawn
            replay = self._draws[shape] = self._record_draw(partial(self._draw_masked, shape, self._bits))
        self._bits[: len(bits)].copy_(bits)
        self._masked[:, : shape.rows].copy_(self._sampling.upload(numbers))
        replay()

    def _draw_masked(self, shape: Shape, bits: torch.Tensor) -> None:
        rows, drawn, index = self._masked[:, : shape.rows]
        scores = self._scores[shape]
        apply_bitmask(scores, index, bits[: shape.rows])
        self._columns.draw(scores, rows, drawn, self._table.next_token, self._homes[shape])
        deliver(self._homes[shape], self.blocks.home, self.blocks.turn)


def _planner(model: Model, pool: KvPool, attention: AttentionBackend) -> PrefixPlanner:
    spec, size = model.spec, pool.layers[0][0].element_size()
    kv = KvShape(spec.num_heads, spec.num_kv_heads, spec.head_dim, size, pool.page_size)
    return PrefixPlanner(attention.tree[size], kv)
