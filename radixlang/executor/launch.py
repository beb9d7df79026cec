"""The executor of one device: runs plans in order on the platform's stream.

    launch:  transfers, actions, setups, new pages
             → forward pass → prompt log-probabilities, embeddings, last logits
    sample:  draw, next tokens into the table       (part of the launch when no row waits for a mask)
    result:  wait, and turn what came home into a `StepResult`

Everything that changes device state happens inside submitted work, hence in step order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from radixlang.attention import AttentionBackend
from radixlang.errors import EngineError
from radixlang.executor.copies import NoCopies, PageCopies
from radixlang.executor.inputs import Inputs, build_inputs, check
from radixlang.executor.pooling import pool_rows
from radixlang.forward import ForwardContext, forwarding
from radixlang.kernels.automaton_tables import ENDED
from radixlang.memory.host_pool import HostPool
from radixlang.memory.kv_pool import KvPool
from radixlang.memory.request_table import RequestTable
from radixlang.models import Model
from radixlang.plan import (
    Action,
    CopyPages,
    Flush,
    LoadAutomaton,
    LoadTokens,
    PositionLogprobs,
    StepPlan,
    StepResult,
)
from radixlang.platforms import Pending, Platform
from radixlang.sampling.automata import Automata
from radixlang.sampling.batch import SamplingBatch
from radixlang.sampling.logprobs import LogprobTensors, Segment, join, position_logprobs
from radixlang.sampling.sampler import BAD, Drawn, sample

if TYPE_CHECKING:
    from radixlang.executor.graphs import Ran, Shape, StepGraphs

LOGIT_BLOCK_BYTES = 64 << 20
"""prompt log-probabilities look at as many positions at once as have logits of this size"""
BAD_NUMBERS = "The model produced numbers that are not finite for this request."
NO_TOKEN = (
    "No token may follow: the model's numbers are not finite, or the constraints leave nothing to choose from."
)


@dataclass
class _Sampled:
    tokens: np.ndarray
    flags: np.ndarray
    """both [S], valid when the copies home are done"""
    logprobs: dict[int, LogprobTensors]


@dataclass
class Ticket:
    """A launched step. `logits` and `inputs`, or the graphs it ran in, wait for the masks; the rest comes home."""

    plan: StepPlan
    forward: Pending | None = None
    sampled: Pending | None = None
    inputs: Inputs | None = None
    logits: torch.Tensor | None = None
    graphs: StepGraphs | None = None
    ran: Ran | None = None
    """what the graphs lend the step until its result has been taken"""
    prompt: dict[int, list[LogprobTensors]] = field(default_factory=dict)
    pooled: dict[int, torch.Tensor] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    drawn: _Sampled | None = None


class DeviceExecutor:
    """Implements `radixlang.executor.Executor`."""

    def __init__(
        self,
        model: Model,
        platform: Platform,
        pool: KvPool,
        table: RequestTable,
        attention: AttentionBackend,
        automata: Automata | None = None,
    ) -> None:
        self.model = model
        self.spec = model.spec
        self.platform = platform
        self.pool = pool
        self.table = table
        self.attention = attention
        self.sampling = SamplingBatch(table.rows, self.spec.vocab_size, platform, automata=automata)
        self.graphs: StepGraphs | None = None
        self.copies: PageCopies = NoCopies(pool)
        self.host: HostPool | None = None
        """where `copies` go to"""

    def capture(self, shapes: list[Shape], progress: Callable[[int, int], None]) -> None:
        """From now on run the steps that fit one of the shapes as CUDA graphs."""
        from radixlang.executor.graphs import CudaRecorder, StepGraphs

        def work() -> None:
            parts = self.model, self.pool, self.table, self.attention, self.sampling
            graphs = StepGraphs(*parts, shapes, lambda part: self.platform.mark(part), self.copies.gated)
            graphs.capture(CudaRecorder(), progress, CudaRecorder())
            self.graphs = graphs

        self._submit(work).wait()

    def launch(self, plan: StepPlan) -> Ticket:
        ticket = Ticket(plan)

        def work() -> None:
            self._run(ticket)
            if plan.copies is not None:
                self._act(plan.copies)

        ticket.forward = self._submit(work)
        return ticket

    def sample(self, ticket: Ticket, masks: np.ndarray | None) -> None:
        if len(ticket.plan.masked):
            ticket.sampled = self._submit(lambda: self._sample(ticket, masks))

    def result(self, ticket: Ticket) -> StepResult:
        assert ticket.forward is not None
        ticket.forward.wait()
        if len(ticket.plan.masked):
            if ticket.sampled is None:
                raise EngineError(f"Step {ticket.plan.step} has masked rows but was never sampled.")
            ticket.sampled.wait()
        ran = ticket.ran
        if ran is not None and ran.block.lent != ran.lent:
            raise EngineError(
                f"The result of step {ticket.plan.step} was asked for too late: others came home since."
            )
        result = self._collect(ticket)
        if ran is not None:
            ran.block.lent = 0
            ticket.ran = ticket.drawn = None  # which lies in the block
        return result

    def close(self) -> None:
        self.platform.close()
        self.copies.close()

    def _submit(self, work: Callable[[], None]) -> Pending:
        def run() -> None:
            with torch.inference_mode():
                work()

        return self.platform.submit(run)

    # ---- inside the stream ----

    def _run(self, ticket: Ticket) -> None:
        plan = ticket.plan
        kv = self.copies.run(plan.transfers)
        if not plan.size:
            return
        ran = None if self.graphs is None else self.graphs.repeat(plan)
        if ran is None:
            check(plan, self.table, self.pool.page_size)
            for action in plan.actions:
                self._act(action)
            for setup in plan.setups:
                self.sampling.setup(setup)
            if self.graphs is not None:
                ran = self.graphs.run(plan)
        if ran is not None:
            ticket.graphs, ticket.ran = self.graphs, ran
            tokens, flags = ran.home[:, : np.count_nonzero(plan.samples)]
            ticket.drawn = _Sampled(tokens, flags, {})
            self.platform.mark("graph")
            return
        inputs = ticket.inputs = build_inputs(plan, self.table, self.pool.page_size, self.platform)
        self.platform.mark("copy")
        batch = inputs.batch
        prompts = any(wish.first_logit >= 0 and len(wish.targets) for wish in plan.logprobs)
        if batch.max_query > 1 and not (self.spec.encoder or prompts or plan.pools.any()):
            batch.wanted = inputs.sample_ends  # the last layer's work for the others would be thrown away
        attention_plan = None if self.spec.encoder else self.attention.plan(batch)
        with forwarding(ForwardContext(batch, self.attention, attention_plan, kv)):
            hidden = self.model(batch.input_ids, batch.positions)
            self._prompt_logprobs(ticket, hidden)
            if plan.pools.any():
                pooled, ticket.failed = pool_rows(plan, inputs, hidden, self.spec)
                ticket.pooled = {b: self.platform.home(vector) for b, vector in pooled.items()}
            if len(inputs.sample_rows):
                # A model may have left the others out already.
                last = hidden if len(hidden) == len(inputs.sample_ends) else hidden[inputs.sample_ends]
                ticket.logits = self.model.logits(last)
        self.platform.mark("forward")
        if not len(plan.masked):
            self._sample(ticket, None)
            self.platform.mark("sample")

    def _act(self, action: Action) -> None:
        automata = self.sampling.automata
        if isinstance(action, CopyPages):
            source, target = self.platform.upload(np.stack([action.source, action.target]).astype(np.int64))
            self.pool.copy(source, target)
        elif isinstance(action, LoadTokens) and automata is not None:
            automata.load_tokens(action.letters, action.ends)
        elif isinstance(action, LoadAutomaton) and automata is not None:
            automata.load(action.slot, action.next_byte, action.mask_row, action.masks)
        elif not isinstance(action, Flush):  # a flush needs nothing: all that is cached here is KV pages
            raise EngineError(f"This executor does not know the action {type(action).__name__}.")

    def _prompt_logprobs(self, ticket: Ticket, hidden: torch.Tensor) -> None:
        """Block by block, so that the logits of a long prompt never exist at once."""
        plan, inputs = ticket.plan, ticket.inputs
        assert inputs is not None
        wishes = [wish for wish in plan.logprobs if wish.first_logit >= 0 and len(wish.targets)]
        if not wishes:
            return
        firsts = [int(inputs.query_starts[w.index] + w.first_logit - plan.starts[w.index]) for w in wishes]
        at = np.concatenate([np.arange(f, f + len(w.targets)) for f, w in zip(firsts, wishes, strict=True)])
        targets = np.concatenate([wish.targets for wish in wishes])
        index, chosen = self.platform.upload(np.stack([at, targets]).astype(np.int64))
        bounds = np.cumsum([0] + [len(wish.targets) for wish in wishes])
        step = max(1, LOGIT_BLOCK_BYTES // (4 * self.spec.vocab_size))
        for begin in range(0, len(at), step):
            end = min(begin + step, len(at))
            segments, owners = [], []
            for wish, low, high in zip(wishes, bounds[:-1], bounds[1:], strict=True):
                low, high = max(int(low), begin) - begin, min(int(high), end) - begin
                if low < high:
                    segments.append(Segment(low, high, wish.top, wish.token_ids))
                    owners.append(wish.index)
            logits = self.model.logits(hidden[index[begin:end]])
            for b, part in zip(owners, position_logprobs(logits, chosen[begin:end], segments), strict=True):
                ticket.prompt.setdefault(b, []).append(part.home(self.platform))

    def _bits(self, plan: StepPlan, masks: np.ndarray | None) -> torch.Tensor | None:
        if not len(plan.masked):
            return None
        if masks is None or len(masks) != len(plan.masked):
            raise EngineError(f"Step {plan.step} needs {len(plan.masked)} mask rows.")
        return self.platform.upload_beside(np.ascontiguousarray(masks, np.int32))

    def _sample(self, ticket: Ticket, masks: np.ndarray | None) -> None:
        plan, inputs, logits = ticket.plan, ticket.inputs, ticket.logits
        if logits is None and ticket.graphs is None:
            return  # nothing samples, or the forward pass has failed and `result` says so
        bits = self._bits(plan, masks)
        if ticket.graphs is not None and bits is not None:
            ticket.graphs.draw(plan, bits)
            return
        assert logits is not None
        assert inputs is not None
        ticket.logits = None
        place = np.cumsum(plan.samples) - 1
        masked = place[plan.masked].astype(np.int32)
        wanted = any(wish.output for wish in plan.logprobs)
        drawn = sample(self.sampling, logits, inputs.sample_rows, bits, masked, self.table.next_token, wanted)
        logprobs = self._output_logprobs(plan, place, drawn)
        if drawn.packed is None:
            tokens, flags = self.platform.home(drawn.tokens), self.platform.home(drawn.flags)
        else:
            tokens, flags = self.platform.home(drawn.packed)
        ticket.drawn = _Sampled(tokens.numpy(), flags.numpy(), logprobs)

    def _output_logprobs(self, plan: StepPlan, place: np.ndarray, drawn: Drawn) -> dict[int, LogprobTensors]:
        wishes = [wish for wish in plan.logprobs if wish.output and plan.samples[wish.index]]
        if not wishes:
            return {}
        at = self.platform.upload(np.array([place[wish.index] for wish in wishes], np.int64))
        segments = [Segment(i, i + 1, wish.top, wish.token_ids) for i, wish in enumerate(wishes)]
        parts = position_logprobs(drawn.logits[at], drawn.tokens[at], segments)
        return {wish.index: part.home(self.platform) for wish, part in zip(wishes, parts, strict=True)}

    # ---- back on the host ----

    def _collect(self, ticket: Ticket) -> StepResult:
        plan, failed = ticket.plan, dict(ticket.failed)
        prompt: dict[int, PositionLogprobs] = {}
        for b, parts in ticket.prompt.items():
            prompt[b] = values = join(parts)
            if np.isnan(values.chosen).any():
                failed[b] = BAD_NUMBERS
        embeddings: dict[int, np.ndarray] = {}
        for b, tensor in ticket.pooled.items():
            embeddings[b] = vector = tensor.numpy()
            if not np.isfinite(vector).all():
                failed[b] = BAD_NUMBERS
        tokens = ended = np.zeros(0, np.int32)
        output: dict[int, PositionLogprobs] = {}
        if ticket.drawn is not None:
            tokens, flags = ticket.drawn.tokens.astype(np.int32), ticket.drawn.flags
            if np.count_nonzero(flags):
                sampling = np.flatnonzero(plan.samples)
                failed |= {int(sampling[s]): NO_TOKEN for s in np.flatnonzero(flags & BAD)}
                ended = np.flatnonzero(flags & ENDED).astype(np.int32)
            for b, part in ticket.drawn.logprobs.items():
                output[b] = join([part])
        return StepResult(plan.step, tokens, prompt, output, embeddings, failed, ended)
