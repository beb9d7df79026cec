"""The bridge between the two columns: what the host tells the device, and what comes back.

Plain ints and numpy arrays only, so that a plan can be logged, replayed, broadcast and simulated. Nobody
changes a plan or a result once it is made. Must not import torch or anything of either column.

The one work rule: a row has `length` tokens and KV for `computed` of them; a step grants it some of the
difference. Per row b of a plan:

      0 ........ starts[b] ........ starts[b] + counts[b] ........ length
      |  in pages |      granted in this step       |   later steps |

When the grant reaches the end of the known tokens (`samples[b]`), the row's next token is drawn from the
logits of its last granted position, and stays on the device as that row's next input (token id -1 in the
next plan: "take it from the table").
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from radixlang.sampling_params import RowSampling

Ints: TypeAlias = npt.NDArray[np.int32]
Floats: TypeAlias = npt.NDArray[np.float32]

FROM_TABLE = -1
"""A token id that means: the row's next token, which only the device knows yet."""

AUTOMATON_STATES = 512
"""states of an automaton on the device at most, the one for ended texts included"""
AUTOMATON_MASKS = 128
"""different masks of one at most"""
TOKEN_BYTES = 16
"""bytes of a token that the device has room for, on average"""


@dataclass(frozen=True)
class CopyPages:
    """Copy the KV of page `source[i]` to page `target[i]`."""

    source: Ints
    target: Ints


@dataclass(frozen=True)
class Flush:
    """Forget everything cached beside the KV pages (the host has already freed the pages)."""


@dataclass(frozen=True)
class LoadTokens:
    """Tell the device the tokens' bytes, which its automata read: before the first `LoadAutomaton`."""

    letters: npt.NDArray[np.uint8]
    """[total] one token after the other, at most `TOKEN_BYTES` a token on average"""
    ends: Ints
    """[vocab + 1] token i has letters[ends[i] : ends[i + 1]]; none for end tokens and what no automaton allows"""


@dataclass(frozen=True)
class LoadAutomaton:
    """Put an automaton of n states into a slot of the device before the step's rows are set up.

    The host sees to it that no row is in the slot's automaton any more. All arrays are flat; n and m are at most
    `AUTOMATON_STATES` and `AUTOMATON_MASKS`.
    """

    slot: int
    next_byte: npt.NDArray[np.int16]
    """[n * 256] the state each byte leads to, -1 for none; the last state is where the text has ended"""
    mask_row: Ints
    """[n] which of the masks holds in a state"""
    masks: Ints
    """[m * words]"""


Action: TypeAlias = CopyPages | Flush | LoadTokens | LoadAutomaton


@dataclass(frozen=True)
class StorePages:
    """Begin to copy device page `pages[i]` to slot `slots[i]` of host memory, beside the step: the copy reads what
    all steps before this one have written. Nobody may write these pages before a plan that awaits `copy`."""

    copy: int
    """names the copy"""
    pages: Ints
    slots: Ints


@dataclass(frozen=True)
class LoadPages:
    """Begin to copy slot `slots[i]` of host memory to device page `pages[i]`, beside the step and after all steps
    before this one. Nobody may use these pages before a plan that awaits `copy`, unless the load is `layered`."""

    copy: int
    slots: Ints
    pages: Ints
    layered: bool = False
    """this plan's rows use the pages: each layer of the step waits for its own part of them. The step fails if
    they cannot be copied. Such loads come before all others of a plan"""


@dataclass(frozen=True)
class AwaitCopies:
    """This step, the loads behind this entry, and whatever comes later begin when the named copies have ended."""

    copies: tuple[int, ...]


Transfer: TypeAlias = StorePages | LoadPages | AwaitCopies


@dataclass(frozen=True)
class RowSetup:
    """A row of the request table changes hands, or comes back after a retraction.

    `prompt` is needed by the repetition penalty, `output` (tokens generated before a retraction) by all
    penalties and by `min_new_tokens`; both are empty int32 arrays where nothing needs them.
    `generated` counts the output tokens so far.
    """

    row: int
    sampling: RowSampling
    prompt: Ints
    output: Ints
    generated: int = 0
    automaton: tuple[int, int] | None = None
    """(slot, state): the device masks and steps the row by itself from this state on"""


@dataclass(frozen=True)
class LogprobWish:
    """Log-probabilities wanted from one row of this step.

    Prompt part: for the granted positions p with `prompt_from <= p`, the log-probability of prompt token
    p given what precedes it, taken from the logits of position p - 1 where these are computed in this step;
    `targets` are the tokens that follow each granted position (int32, one per granted position from
    `first_logit` on): entry i is the token at position `first_logit + i + 1`.
    `first_logit` is the first granted *position* whose logits are needed, -1 for none.
    Output part: `output` asks for the sampled token's log-probability when the row samples.
    `top` is the number of best tokens to report, `token_ids` further ids to report at each position.
    """

    index: int
    """index of the row inside this plan (b)"""
    first_logit: int
    targets: Ints
    output: bool
    top: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class StepPlan:
    """One forward pass. B rows, T = sum(counts) tokens; rows are ordered as the device shall see them.

    Plans may share arrays: the same array in two plans stands for the same numbers. A plan of no rows is for its
    transfers.
    """

    step: int
    rows: Ints
    """[B] rows of the request table (never 0, the sink)"""
    starts: Ints
    """[B] first granted position = tokens whose KV is already in pages"""
    counts: Ints
    """[B] granted tokens, >= 1"""
    token_ids: Ints
    """[T] the granted tokens, row after row; FROM_TABLE where only the device knows the token"""
    samples: npt.NDArray[np.bool_]
    """[B] the row draws its next token in this step"""
    pools: npt.NDArray[np.bool_]
    """[B] the row wants its pooled hidden state (embedding) in this step"""
    new_pages: Ints
    """[P, 3] (row, index in the row's page list, page id): page-table entries to write before the step"""
    setups: tuple[RowSetup, ...] = ()
    logprobs: tuple[LogprobWish, ...] = ()
    actions: tuple[Action, ...] = ()
    """in this order, before everything else of the step"""
    masked: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    """[G] indexes b of rows that have a grammar and no automaton: the host fills one mask row each before
    `sample`"""
    transfers: tuple[Transfer, ...] = ()
    """copies between device and host memory, begun in this order before all else"""
    copies: CopyPages | None = None
    """made behind the step's writes"""

    @property
    def size(self) -> int:
        return len(self.rows)

    @property
    def tokens(self) -> int:
        return len(self.token_ids)

    @property
    def loads(self) -> bool:
        """Pages of its rows come with it."""
        return any(isinstance(transfer, LoadPages) and transfer.layered for transfer in self.transfers)


@dataclass(frozen=True)
class PositionLogprobs:
    """Log-probabilities at n positions of one row.

    `chosen` [n] (the token that stands there), `top_ids`/`top` [n, k], `ids` [n, len(token_ids)].
    """

    chosen: Floats
    top_ids: Ints
    top: Floats
    ids: Floats


@dataclass(frozen=True)
class StepResult:
    """What one step produced, in the order of its plan.

    `tokens` [S] for the rows with `samples`, in plan order. `failed` maps a plan index to a sentence: that
    row's numbers are unusable (for example NaN logits) and its request alone must fail.
    """

    step: int
    tokens: Ints
    prompt_logprobs: dict[int, PositionLogprobs] = field(default_factory=dict)
    """plan index → values for prompt positions first_logit + 1 … (as many as `targets`)"""
    output_logprobs: dict[int, PositionLogprobs] = field(default_factory=dict)
    """plan index → values for the one sampled position"""
    embeddings: dict[int, Floats] = field(default_factory=dict)
    """plan index → [hidden] float32"""
    failed: dict[int, str] = field(default_factory=dict)
    ended: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    """indexes into `tokens` of rows whose automaton lets nothing but the end follow"""
