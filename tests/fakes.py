"""An executor without a model: its "KV" is a hash chain, so that any mix-up of pages shows in the next token.

The slot of position p holds a hash of *all* slots before it as read through the page table, the token and p.
The next token is a hash of all slots of the row. A wrong page, a stale or early write, a wrong position or a
page given away too soon change every token that follows. `FakeModel.answer` is the same arithmetic for one
request alone, without pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from radixlang.plan import FROM_TABLE, CopyPages, PositionLogprobs, StepPlan, StepResult
from radixlang.sampling_params import RowSampling

_WORD = (1 << 64) - 1


def mix(x: int) -> int:
    """A 64-bit hash of a number."""
    x = (x + 0x9E3779B97F4A7C15) & _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)


@dataclass(frozen=True)
class FakeModel:
    """The arithmetic. A context is a running sum over slots: sum of slot[p] * (2p + 1), modulo 2**64."""

    vocab_size: int = 29

    def slot(self, context: int, token: int, position: int) -> int:
        return mix(context ^ mix(token * 1_000_003 + position))

    def extend(self, context: int, slot: int, position: int) -> int:
        return (context + slot * (2 * position + 1)) & _WORD

    def context(self, slots: np.ndarray) -> int:
        """Of uint64 slots 0 … n - 1."""
        return int((slots * (2 * np.arange(len(slots), dtype=np.uint64) + np.uint64(1))).sum(dtype=np.uint64))

    def next_token(
        self,
        context: int,
        sampling: RowSampling,
        output: Sequence[int],
        allowed: Sequence[int] = (),
        prompt: Sequence[int] = (),
    ) -> int:
        """Depends on the seed and the number of tokens made unless greedy, on which they are where these are
        penalised; end ids are not drawn before `min_new_tokens`. `allowed`: all if empty."""
        generated = len(output)
        x = mix(context if sampling.greedy else context ^ mix(sampling.seed + generated))
        if sampling.penalised:
            for token in sorted(output):
                x = mix(x ^ token)
        if sampling.repetition_penalty != 1.0:
            for token in sorted(set(prompt)):
                x = mix(x ^ token)
        if len(allowed):
            return allowed[x % len(allowed)]
        while True:
            token = x % self.vocab_size
            if generated >= sampling.min_new_tokens or token not in sampling.end_ids:
                return token
            x = mix(x)

    def logprob(self, context: int, token: int) -> float:
        """A made-up log-probability of `token` after `context`, exact in float32."""
        return -(mix(context ^ mix(token)) % 4096) / 256

    def values(self, contexts: list[int], tokens: Sequence[int], top: int, ids: Sequence[int]) -> PositionLogprobs:
        best = [[mix(c ^ k) % self.vocab_size for k in range(top)] for c in contexts]
        return PositionLogprobs(
            np.array([self.logprob(c, t) for c, t in zip(contexts, tokens, strict=True)], np.float32),
            np.array(best, np.int32).reshape(len(contexts), top),
            np.array(
                [[self.logprob(c, t) for t in b] for c, b in zip(contexts, best, strict=True)], np.float32
            ).reshape(len(contexts), top),
            np.array([[self.logprob(c, t) for t in ids] for c in contexts], np.float32).reshape(
                len(contexts), len(ids)
            ),
        )

    def embedding(self, context: int) -> np.ndarray:
        return np.array([mix(context ^ k) % 1000 / 8 for k in range(4)], np.float32)

    def contexts(self, tokens: Sequence[int]) -> list[int]:
        """`contexts[p]` stands before position p; one more for the end."""
        contexts = [0]
        for position, token in enumerate(tokens):
            slot = self.slot(contexts[-1], token, position)
            contexts.append(self.extend(contexts[-1], slot, position))
        return contexts

    def answer(self, prompt: Sequence[int], count: int, sampling: RowSampling) -> list[int]:
        """Output of one request alone: at most `count` tokens, an end id is the last."""
        context = self.contexts(prompt)[-1]
        output: list[int] = []
        while len(output) < count:
            token = self.next_token(context, sampling, output, prompt=prompt)
            output.append(token)
            if token in sampling.end_ids:
                break
            position = len(prompt) + len(output) - 1
            context = self.extend(context, self.slot(context, token, position), position)
        return output


@dataclass
class FakeExecutor:
    """`executor.Executor` over a `FakeModel`. Plans run in order, and only when a result is asked for.

    A row that is granted the token `poison` is reported as failed. The steps in `broken` raise, and so does every
    step that grants the token `curse`. Masked rows must be given their masks before the next step is launched.
    """

    num_pages: int
    page_size: int
    max_rows: int
    max_tokens: int
    model: FakeModel = field(default_factory=FakeModel)
    poison: int = -7
    curse: int = -8
    broken: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        generator = np.random.default_rng(0)
        slots = self.num_pages * self.page_size
        self.kv = generator.integers(0, 1 << 63, slots, dtype=np.uint64)  # garbage, as in fresh memory
        self.table = np.zeros((self.max_rows + 1, -(-self.max_tokens // self.page_size) + 1), np.int64)
        self.next = np.zeros(self.max_rows + 1, np.int64)
        self.prompts: list[list[int]] = [[]] * (self.max_rows + 1)
        self.outputs: list[list[int]] = [[]] * (self.max_rows + 1)
        self.masks: dict[int, list[list[int]]] = {}
        self.sampling = [RowSampling()] * (self.max_rows + 1)
        self.waiting: list[StepPlan] = []
        self.results: dict[int, StepResult | RuntimeError] = {}
        self.closed = False

    def launch(self, plan: StepPlan) -> Any:
        for array in (plan.rows, plan.starts, plan.counts, plan.token_ids, plan.samples, plan.new_pages):
            array.flags.writeable = False
        assert all(not len(earlier.masked) or earlier.step in self.masks for earlier in self.waiting)
        self.waiting.append(plan)
        return plan.step

    def sample(self, ticket: Any, masks: np.ndarray | None) -> None:
        assert masks is not None
        assert len(masks) == len(next(plan for plan in self.waiting if plan.step == ticket).masked)
        bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")[:, : self.model.vocab_size]
        self.masks[ticket] = [np.flatnonzero(row).tolist() for row in bits]

    def result(self, ticket: Any) -> StepResult:
        while ticket not in self.results:
            plan = self.waiting.pop(0)
            if len(plan.masked) and plan.step not in self.masks:
                self.results[plan.step] = RuntimeError(f"step {plan.step} was never sampled")
                continue
            self.results[plan.step] = self._run(plan)
        result = self.results.pop(ticket)
        if isinstance(result, RuntimeError):
            raise result
        return result

    def close(self) -> None:
        self.closed = True

    def _run(self, plan: StepPlan) -> StepResult | RuntimeError:
        size = self.page_size
        if plan.step in self.broken or self.curse in plan.token_ids:
            for later in self.waiting:  # launched behind it: they ran on what it did not write
                self.results[later.step] = RuntimeError(f"step {later.step} came to nothing")
            self.waiting.clear()
            return RuntimeError(f"step {plan.step} broke")
        pages = self.kv.reshape(-1, size)
        for action in plan.actions:
            if isinstance(action, CopyPages):
                pages[action.target] = pages[action.source]
        self.table[plan.new_pages[:, 0], plan.new_pages[:, 1]] = plan.new_pages[:, 2]
        assert (plan.new_pages[:, 2] > 0).all(), "the sink was handed out"
        for setup in plan.setups:
            self.sampling[setup.row] = setup.sampling
            self.prompts[setup.row] = setup.prompt.tolist()
            # Tokens that nobody asks for need not be sent, only their number.
            self.outputs[setup.row] = setup.output.tolist() or [-1] * setup.generated
            assert len(self.outputs[setup.row]) == setup.generated
        assert len(np.unique(plan.rows)) == plan.size
        assert (plan.rows > 0).all()
        assert (plan.counts > 0).all()
        wishes = {wish.index: wish for wish in plan.logprobs}
        allowed = dict(zip(plan.masked.tolist(), self.masks.pop(plan.step, []), strict=True))
        result = StepResult(plan.step, np.zeros(int(plan.samples.sum()), np.int32))
        written: dict[int, int] = {}
        drawn, at = 0, 0
        for index, row in enumerate(plan.rows.tolist()):
            start, count = int(plan.starts[index]), int(plan.counts[index])
            tokens = plan.token_ids[at : at + count].tolist()
            at += count
            assert FROM_TABLE not in tokens[1:]
            if tokens[0] == FROM_TABLE:
                tokens[0] = int(self.next[row])
            positions = np.arange(start + count)
            slots = self.table[row, positions // size] * size + positions % size
            assert (slots >= size).all(), "a position in the sink"
            context = self.model.context(self.kv[slots[:start]])
            contexts = []
            for position, token in enumerate(tokens, start):
                value = self.model.slot(context, token, position)
                slot = int(slots[position])
                assert written.setdefault(slot, value) == value, "two rows write one slot"
                self.kv[slot] = value
                context = self.model.extend(context, value, position)
                contexts.append(context)
            if self.poison in tokens:
                result.failed[index] = "The model's numbers are not finite."
            wish = wishes.get(index)
            if wish is not None and wish.first_logit >= 0:
                at_logits = contexts[wish.first_logit - start :][: len(wish.targets)]
                assert len(at_logits) == len(wish.targets) > 0
                result.prompt_logprobs[index] = self.model.values(
                    at_logits, wish.targets.tolist(), wish.top, wish.token_ids
                )
            if plan.samples[index]:
                only, output = allowed.get(index, ()), self.outputs[row]
                token = self.model.next_token(context, self.sampling[row], output, only, self.prompts[row])
                if index in allowed and not only:
                    result.failed[index] = "No token may follow."
                output.append(token)
                self.next[row] = result.tokens[drawn] = token
                drawn += 1
                if wish is not None and wish.output:
                    result.output_logprobs[index] = self.model.values([context], [token], wish.top, wish.token_ids)
            if plan.pools[index]:
                result.embeddings[index] = self.model.embedding(context)
        assert at == plan.tokens
        if plan.copies is not None:
            pages[plan.copies.target] = pages[plan.copies.source]
        return result
