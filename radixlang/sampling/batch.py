"""What the sampler knows of each row, and the changes it makes to logits before a draw.

Rows are set up by plans and advance with each token. A step's sampling rows form a `Group`: tensors gathered
once and kept until the set of rows, or one of them, changes. Order of changes: frequency, presence and
minimum-length penalties, repetition penalty, grammar mask, logit bias. Where draws are made by kernels, on GPUs,
there are no groups: the kernels change the logits by what lies in columns and buffers on the device.

Automata mask before anything else is changed, and step after the draw. Must not know requests or text.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
import torch

from radixlang.plan import Ints, RowSetup
from radixlang.platforms import Platform
from radixlang.sampling.automata import Automata
from radixlang.sampling.columns import RowColumns
from radixlang.sampling.edits import EditBuffers
from radixlang.sampling.noise import uniforms
from radixlang.sampling.penalties import TokenCounts
from radixlang.sampling_params import SEED_MASK, RowSampling


@dataclass(frozen=True)
class Limits:
    """Rows whose candidates are limited, with their bounds [R, 1] on the device."""

    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    max_top_k: int | None
    """largest top_k, None when some row has none"""
    uses_top_p: bool


@dataclass(frozen=True)
class Penalties:
    """S-indexes and slots of penalised rows; `factors` [3, P, 1] are frequency, presence, repetition."""

    index: torch.Tensor
    slots: npt.NDArray[np.int64]
    factors: torch.Tensor


@dataclass(frozen=True)
class Bias:
    """Values to add at (row, token)."""

    index: torch.Tensor
    tokens: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True)
class Group:
    """S sampling rows, parted by the int64 S-indexes `greedy`, `free` and `limited` (any may be empty)."""

    rows: Ints
    seeds: npt.NDArray[np.uint64]
    temperature: torch.Tensor | None
    """[S, 1] float32, 1 for greedy rows; None when all rows are greedy"""
    greedy: torch.Tensor
    free: torch.Tensor
    limited: torch.Tensor
    limits: Limits | None
    penalties: Penalties | None
    bias: Bias | None
    minimums: tuple[tuple[int, int, tuple[int, ...]], ...]
    """(S-index, min_new_tokens, end ids) of rows that must not end too early"""

    @property
    def size(self) -> int:
        return len(self.rows)


def kernels_draw(platform: Platform) -> bool:
    """Draws are made by Triton kernels here."""
    return platform.device.type in ("cuda", "xpu") and find_spec("triton") is not None


class SamplingBatch:
    """State of all table rows. `vocab` is the width of the logits.

    `columns` and `edits` hold it where draws are made by kernels; `by_kernels` says so in place of the platform.
    `automata`: what rows may follow without the host; None if there is no such thing here.
    """

    def __init__(
        self,
        rows: int,
        vocab: int,
        platform: Platform,
        by_kernels: bool | None = None,
        automata: Automata | None = None,
    ) -> None:
        self.vocab = vocab
        self.columns: RowColumns | None = None
        if kernels_draw(platform) if by_kernels is None else by_kernels:
            self.columns = RowColumns(rows, platform)
        self.edits = EditBuffers(vocab, platform)
        self.automata = automata
        self._platform = platform
        self._fresh: dict[int, None] = {}
        self._sampling = [RowSampling()] * rows
        self._generated = np.zeros(rows, np.int64)
        self._counts = TokenCounts(vocab, platform)
        self._group: Group | None = None

    def setup(self, setup: RowSetup) -> None:
        """Put a row's numbers in place."""
        row = setup.row
        self._sampling[row] = setup.sampling
        self._generated[row] = setup.generated
        self._group = None
        if self.automata is not None:
            self.automata.setup(row, setup.automaton)
        if self.columns is not None:
            self._fresh[row] = None
            self.edits.setup(row, setup.sampling, setup.prompt, setup.output)
        elif setup.sampling.penalised:
            self._counts.start(row, setup.prompt, setup.output)
        else:
            self._counts.release(row)

    def settle(self) -> None:
        """Put on the device what it must know of rows that were set up since the last call."""
        if self.automata is not None:
            self.automata.settle()
        if self._fresh and self.columns is not None:
            rows = list(self._fresh)
            addresses = [self.edits.addresses(row) for row in rows]
            self.columns.write(rows, [self._sampling[row] for row in rows], addresses)
            self._fresh.clear()

    def draw(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        drawn: torch.Tensor,
        next_token: torch.Tensor,
        home: torch.Tensor,
    ) -> torch.Tensor:
        """`RowColumns.draw` of settled rows, some of which follow automata. May stand in a CUDA graph."""
        assert self.columns is not None
        if self.automata is None:
            return self.columns.draw(logits, rows, drawn, next_token, home)
        self.automata.mask(logits, rows, drawn)
        tokens = self.columns.draw(logits, rows, drawn, next_token, home)
        self.automata.advance(tokens, rows, home[1], drawn)
        return tokens

    def upload(self, array: np.ndarray) -> torch.Tensor:
        """To the device."""
        return self._platform.upload(array)

    def draw_next(self, rows: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """A kernel draws one token more for each of the distinct rows, and counts it for their penalties.
        → [n] how many each has drawn before"""
        before = self._generated.take(rows)
        self._generated[rows] = before + 1
        return before

    def group(self, rows: Ints) -> Group:
        """The group of these rows, in this order."""
        if self._group is None or not np.array_equal(self._group.rows, rows):
            self._group = self._make_group(rows.copy())
        return self._group

    def uniforms(self, group: Group) -> torch.Tensor:
        """[S, 1] this step's noise."""
        noise = uniforms(group.seeds, self._generated[group.rows])
        return self._platform.upload(noise[:, None])

    def adjust(self, logits: torch.Tensor, group: Group, bits: torch.Tensor | None, masked: Ints) -> None:
        """Change float32 logits [S, vocab] in place; `bits` int32 [G, words] mask the S-indexes `masked`."""
        self._penalise(logits, group)
        if bits is not None:
            _apply_masks(logits, bits, self._platform.upload(masked.astype(np.int64)))
        if group.bias is not None:
            bias = group.bias
            logits[bias.index, bias.tokens] += bias.values

    def _penalise(self, logits: torch.Tensor, group: Group) -> None:
        penalties = group.penalties
        if penalties is not None:
            self._counts.penalise(logits, penalties.index, penalties.slots, penalties.factors)
        # After the repetition penalty, which leaves minus infinity as it is.
        early = [
            (s, token)
            for s, least, ends in group.minimums
            if self._generated[group.rows[s]] < least
            for token in ends
        ]
        if early:
            where = self._platform.upload(np.array(early, np.int64))
            logits[where[:, 0], where[:, 1]] = -torch.inf

    def advance(self, group: Group, tokens: torch.Tensor) -> None:
        """Count the drawn tokens [S]."""
        self._generated[group.rows] += 1
        if group.penalties is not None:
            self._counts.add(group.penalties.slots, tokens[group.penalties.index])

    def _make_group(self, rows: Ints) -> Group:
        upload = self._platform.upload
        sampling = [self._sampling[row] for row in rows]

        def ints(values: list[int]) -> torch.Tensor:
            return upload(np.array(values, np.int64))

        def column(values: list[float]) -> torch.Tensor:
            return upload(np.array(values, np.float32)[:, None])

        kinds = [_kind(one) for one in sampling]
        at = {kind: [s for s, k in enumerate(kinds) if k == kind] for kind in ("greedy", "free", "limited")}
        limits = None
        if at["limited"]:
            limited = [sampling[s] for s in at["limited"]]
            most = [min(one.top_k, self.vocab) if one.top_k > 0 else self.vocab for one in limited]
            limits = Limits(
                top_k=ints(most)[:, None],
                # A bound of 1 must not cut a token off by rounding.
                top_p=column([one.top_p if one.top_p < 1 else np.inf for one in limited]),
                min_p=column([one.min_p for one in limited]),
                max_top_k=max(most) if all(one.top_k > 0 for one in limited) else None,
                uses_top_p=any(one.top_p < 1 for one in limited),
            )
        slots = [(s, self._counts.slot(int(row))) for s, row in enumerate(rows)]
        counted = [(s, slot) for s, slot in slots if slot is not None]
        penalties = None
        if counted:
            mine = [sampling[s] for s, _ in counted]
            factors = [
                [one.frequency_penalty for one in mine],
                [one.presence_penalty for one in mine],
                [one.repetition_penalty for one in mine],
            ]
            penalties = Penalties(
                index=ints([s for s, _ in counted]),
                slots=np.array([slot for _, slot in counted], np.int64),
                factors=upload(np.array(factors, np.float32)[:, :, None]),
            )
        added = [
            (s, token, value)
            for s, one in enumerate(sampling)
            for token, value in one.logit_bias.items()
            if token < self.vocab
        ]
        bias = None
        if added:
            bias = Bias(
                index=ints([s for s, _, _ in added]),
                tokens=ints([token for _, token, _ in added]),
                values=upload(np.array([value for _, _, value in added], np.float32)),
            )
        drawn = len(at["greedy"]) < len(rows)
        return Group(
            rows=rows,
            seeds=np.array([one.seed & SEED_MASK for one in sampling], np.uint64),
            temperature=column([1.0 if one.greedy else one.temperature for one in sampling]) if drawn else None,
            greedy=ints(at["greedy"]),
            free=ints(at["free"]),
            limited=ints(at["limited"]),
            limits=limits,
            penalties=penalties,
            bias=bias,
            minimums=tuple(
                (s, one.min_new_tokens, tuple(token for token in one.end_ids if token < self.vocab))
                for s, one in enumerate(sampling)
                if one.min_new_tokens > 0 and one.end_ids
            ),
        )


def _kind(sampling: RowSampling) -> str:
    # min_p 1 keeps only what is as likely as the best token: greedy, whatever the ties.
    if sampling.greedy or sampling.min_p >= 1:
        return "greedy"
    if sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0:
        return "limited"
    return "free"


def _apply_masks(logits: torch.Tensor, bits: torch.Tensor, index: torch.Tensor) -> None:
    """Tokens whose bit is 0 (and tokens past the mask's end) become minus infinity."""
    vocab = logits.shape[1]
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    allowed = ((bits[:, :, None] >> shifts) & 1).bool().flatten(1)[:, :vocab]
    if allowed.shape[1] < vocab:
        allowed = torch.nn.functional.pad(allowed, (0, vocab - allowed.shape[1]), value=False)
    logits[index] = logits[index].masked_fill(~allowed, -torch.inf)
