"""One sequence on its way through the engine. Only the scheduler changes it; must not know text.

        0 ......... computed ......... length ......... limit
        | KV in pages |  to be granted  | not made yet    |

`length` counts tokens that exist, among them `pending` ones that only the device knows so far (sampled in
steps whose results have not been processed). While a request runs, `computed` and `length` live in the
columns of its row (see `rows.py`), and so do its pages and the tokens made since it got there; a request
without a row has nothing computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from radixlang.grammar.grammar import GrammarState
from radixlang.grammar.tables import AutomatonTable
from radixlang.messages import Generate, RequestMeta
from radixlang.plan import Ints, PositionLogprobs
from radixlang.sampling_params import RowSampling
from radixlang.scheduler.logprobs import LogprobState

if TYPE_CHECKING:
    from radixlang.cache import TreeNode


class IntBuffer:
    """A growing int32 array."""

    __slots__ = ("data", "size")

    def __init__(self, values: Ints, room: int = 0) -> None:
        self.size = len(values)
        self.data: Ints = np.empty(self.size + room, np.int32)
        self.data[: self.size] = values

    def append(self, value: int) -> None:
        if self.size == len(self.data):
            self._grow(self.size + 1)
        self.data[self.size] = value
        self.size += 1

    def extend(self, values: Ints) -> None:
        end = self.size + len(values)
        if end > len(self.data):
            self._grow(end)
        self.data[self.size : end] = values
        self.size = end

    def _grow(self, size: int) -> None:
        data = np.empty(max(size, 2 * self.size, 16), np.int32)
        data[: self.size] = self.data[: self.size]
        self.data = data

    def view(self) -> Ints:
        """The values; not a copy, and valid until the next append."""
        return self.data[: self.size]


class State(Enum):
    """Where a request is. `LANDING`: all its work is launched and its row given back; results are awaited."""

    WAITING = 0
    RUNNING = 1
    LANDING = 2
    ENDED = 3


@dataclass
class Draft:
    """A request's newest token, written before it is drawn: the bytes are certain, but not how they are cut. It is
    computed in the same step as the draw that tells. `before`: the grammar in front of it. `row`: where that draw
    is made, 0 when it has been. `sure`: it was the draft.
    """

    token: int
    before: GrammarState
    row: int = 0
    sure: bool = False


class Request:
    """Made from a `Generate`; `limit` is the number of tokens, prompt and output, at which it ends."""

    __slots__ = (
        "admission",
        "automaton",
        "cached_host",
        "cached_storage",
        "cached_tokens",
        "draft",
        "ends",
        "eos_ids",
        "first_token_time",
        "grammar",
        "held",
        "held_logprobs",
        "ignores_eos",
        "least",
        "limit",
        "logprobs",
        "namespace",
        "node",
        "page_keys",
        "pending",
        "pin",
        "pools",
        "priority",
        "prompt_length",
        "queue_time",
        "received",
        "retractions",
        "rid",
        "row",
        "sampling",
        "serial",
        "shared",
        "state",
        "surplus",
        "table",
        "tokens",
        "waits",
        "work",
    )

    def __init__(
        self,
        message: Generate,
        tokens: Ints,
        limit: int,
        sampling: RowSampling,
        eos_ids: tuple[int, ...],
        now: float,
    ) -> None:
        self.rid = message.rid
        self.serial = -1
        """position among all arrivals"""
        self.prompt_length = len(tokens)
        self.limit = limit
        self.tokens = IntBuffer(tokens)
        """the prompt and the output tokens known to the host, without those made in the row it holds"""
        self.sampling = sampling
        self.ends = frozenset(sampling.end_ids)
        """token ids that end it"""
        self.eos_ids = eos_ids
        """how this model says that a text is over, whether that ends the request or not"""
        self.namespace = message.namespace
        self.priority = message.priority
        self.pin = message.pin
        self.pools = message.embed
        """the pooled hidden state is wanted, no tokens"""
        self.logprobs = LogprobState.of(message, len(tokens))
        self.work = max(limit - 1, self.prompt_length)
        """tokens that will be computed in all: the last output token never is"""
        self.grammar: GrammarState | None = None
        """what its text must look like; stands behind the last token known to the host, or behind none of the
        output while there is a `table`"""
        self.table: AutomatonTable | None = None
        """by which the device follows the grammar, whenever the request has a row"""
        self.automaton: tuple[int, int] | None = None
        """(slot, state) of its table on the device when it got its row"""
        self.draft: Draft | None = None
        """its newest token, if only the next draw will tell; clients do not know it yet"""
        self.waits: dict[str, None] = {}
        """names of what must come first, in order; it may be admitted when this is empty"""
        self.state = State.WAITING
        self.row = 0
        """its row of the request table while it runs, else 0"""
        self.shared = 0
        """the first pages of its row that belong to the tree and are locked through `node`"""
        self.node: TreeNode | None = None
        self.least = message.sampling.min_new_tokens
        """its grammar's masks leave out what would end it before so many output tokens, as far as they can"""
        self.ignores_eos = message.sampling.ignore_eos
        """its grammar's masks leave out the model's end tokens, as far as they can"""
        self.held: list[int] = []
        """newest tokens that clients are not told yet: its grammar may take them back"""
        self.held_logprobs: list[PositionLogprobs] = []
        """those of `held`, where they are wanted"""
        self.surplus = 0
        """its next results that are to be dropped: they were drawn before the host knew better"""
        self.pending = 0
        """tokens sampled before it lost its row whose values are still unknown"""
        self.admission = 0
        """position among all admissions, the latest one counts; 0: never admitted"""
        self.retractions = 0
        self.cached_tokens = 0
        """prompt tokens that were found in a cache, among them those found in host memory and in storage"""
        self.cached_host = 0
        self.cached_storage = 0
        self.page_keys: list[bytes] = []
        """keys of the prompt's full pages, where there are tiers that go by them"""
        self.received = message.received or now
        self.queue_time = 0.0
        self.first_token_time = 0.0

    @property
    def generated(self) -> int:
        """Output tokens in `tokens`."""
        return self.tokens.size - self.prompt_length

    @property
    def samples(self) -> bool:
        """False when the prompt is all there is to do."""
        return self.limit > self.prompt_length

    @property
    def match_cap(self) -> int:
        """Tokens that may come out of a cache: the last one is always computed, its logits are needed."""
        cap = self.tokens.size - 1
        return cap if self.logprobs is None else min(cap, self.logprobs.match_cap)

    def output(self) -> Ints:
        """The output tokens in `tokens` (a view)."""
        return self.tokens.view()[self.prompt_length :]

    def meta(self) -> RequestMeta:
        return RequestMeta(
            prompt_tokens=self.prompt_length,
            cached_tokens=self.cached_tokens,
            cached_host=self.cached_host,
            cached_storage=self.cached_storage,
            num_retractions=self.retractions,
            queue_time=self.queue_time,
            first_token_time=self.first_token_time,
        )
