"""Collects the grants of one step into a `StepPlan`. Must not decide anything."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from radixlang.plan import Action, CopyPages, Ints, LogprobWish, RowSetup, StepPlan, Transfer
from radixlang.scheduler.request import Request
from radixlang.scheduler.rows import Decoders, Rows

_EMPTY: Ints = np.zeros(0, np.int32)
_NO_TENANTS: npt.NDArray[np.int64] = np.zeros(0, np.int64)
_NO_ENTRIES: Ints = np.zeros((0, 3), np.int32)

Item = TypeVar("Item", bound=np.generic)


class StepBuilder:
    """Rows in the order of their grants: first those that go on decoding, then parts of prompts."""

    def __init__(self, number: int, budget: int) -> None:
        self.number = number
        self.budget = budget
        """prompt tokens that it may still hold"""
        self.requests: list[Request] = []
        """by plan index"""
        self.tenants = _NO_TENANTS
        """by plan index, the rows' tenants (see `Rows.tenant`) when the plan was made"""
        self.given = 0
        """`Rows.given` at that time"""
        self.ending: list[int] = []
        """plan indexes of requests that end with this step without a token"""
        self.drafts: set[int] = set()
        """plan indexes whose draws tell whether a draft holds"""
        self.alone: Decoders | None = None
        """its rows, if all of them decode; set when the plan is made"""
        self.prompt_tokens = 0
        self._decoders: Decoders | None = None
        self._rows: list[Ints] = []
        self._starts: list[Ints] = []
        self._counts: list[Ints] = []
        self._tokens: list[Ints] = []
        self._samples: list[npt.NDArray[np.bool_]] = []
        self._pooled: list[int] = []
        self._copies: list[tuple[int, int]] = []
        self._copies_behind: list[tuple[int, int]] = []
        self._table: list[Ints] = []
        self._setups: list[RowSetup] = []
        self._wishes: list[LogprobWish] = []

    @property
    def size(self) -> int:
        return len(self.requests)

    def page_entries(
        self, rows: npt.NDArray[np.integer] | int, indexes: npt.NDArray[np.integer], pages: Ints
    ) -> None:
        """Page-table entries to write before the step."""
        entries = np.empty((len(pages), 3), np.int32)
        entries[:, 0], entries[:, 1], entries[:, 2] = rows, indexes, pages
        self._table.append(entries)

    def page_run(self, row: int, first: int, pages: Ints) -> None:
        """Entries `first`, `first + 1`, … of one row."""
        if len(pages):
            self.page_entries(row, np.arange(first, first + len(pages), dtype=np.int32), pages)

    def copy_page(self, source: int, target: int, behind: bool = False) -> None:
        """Copy a page before the step's writes, or behind them."""
        (self._copies_behind if behind else self._copies).append((source, target))

    def setup(self, request: Request) -> None:
        """The request has just been given its row, or tokens that were not drawn."""
        self._setup(request, request.row, request.generated)

    def _setup(self, request: Request, row: int, generated: int) -> None:
        sampling = request.sampling
        prompt = output = _EMPTY
        if sampling.repetition_penalty != 1.0:
            prompt = request.tokens.view()[: request.prompt_length].copy()
        if sampling.penalised or sampling.min_new_tokens:
            output = request.output()[:generated].copy()
        automaton = request.automaton if row == request.row else None
        self._setups.append(RowSetup(row, sampling, prompt, output, generated, automaton))

    def decodes(self, decoders: Decoders, starts: Ints) -> None:
        """Rows that take their one token from the device's table and draw the next. They come first in a step."""
        assert not self.requests
        self._decoders = decoders
        self.requests.extend(decoders.requests)
        self._rows.append(decoders.rows)
        self._starts.append(starts)
        self._counts.append(decoders.counts)
        self._tokens.append(decoders.token_ids)
        self._samples.append(decoders.samples)
        for at in decoders.wishes.tolist():
            self._wish(at, decoders.requests[at], 0, 0, True)

    def prompt(self, request: Request, start: int, count: int, complete: bool) -> None:
        """A part of the known tokens; `complete` when it reaches the end of them."""
        samples = complete and request.samples
        if complete and request.pools:
            self._pooled.append(self.size)
        elif complete and not samples:
            self.ending.append(self.size)
        self._wish(self.size, request, start, start + count, samples)
        self._grant(request, request.row, start, count, samples)

    def up_to_draft(self, request: Request, start: int, count: int, pages: Ints) -> None:
        """The known tokens up to the draft, in the row whose draw tells whether it holds. The request's own row
        takes the draft in the same step, and reads what this one writes."""
        assert request.draft is not None
        row = request.draft.row
        self.drafts.add(self.size)
        self._setup(request, row, request.generated - 1)
        self.page_run(row, 0, pages)
        self._grant(request, row, start, count, True)

    def _grant(self, request: Request, row: int, start: int, count: int, samples: bool) -> None:
        self.requests.append(request)
        self._rows.append(np.array([row], np.int32))
        self._starts.append(np.array([start], np.int32))
        self._counts.append(np.array([count], np.int32))
        self._tokens.append(request.tokens.view()[start : start + count].copy())
        self._samples.append(np.array([samples], np.bool_))
        self.prompt_tokens += count

    def _wish(self, index: int, request: Request, start: int, end: int, samples: bool) -> None:
        if request.logprobs is not None:
            wish = request.logprobs.wish(index, request.tokens.view(), start, end, samples)
            if wish is not None:
                self._wishes.append(wish)

    def forget_wishes(self) -> None:
        """The step has no result: what was asked of prompts in it must be asked again."""
        for wish in self._wishes:
            state = self.requests[wish.index].logprobs
            if state is not None and wish.first_logit >= 0:
                state.next = min(state.next, wish.first_logit)

    def build(self, actions: tuple[Action, ...], transfers: tuple[Transfer, ...], columns: Rows) -> StepPlan:
        """The plan of what was granted; there may be no rows, but transfers."""
        self.given = columns.given
        if self._copies:
            actions += (_copy(self._copies),)
        if not self.size:
            self._rows, self._starts, self._counts, self._tokens = ([_EMPTY] for _ in range(4))
            self._samples = [np.zeros(0, np.bool_)]
        rows, samples = _joined(self._rows), _joined(self._samples)
        if self._decoders is not None and len(self._rows) == 1:
            self.alone = self._decoders
            pools, masked, self.tenants = self._decoders.pools, self._decoders.masked, self._decoders.tenants
        else:
            pools = np.zeros(self.size, np.bool_)
            pools[self._pooled] = True
            masked = (samples & columns.constrained[rows]).nonzero()[0].astype(np.int32)
            self.tenants = columns.tenant[rows]
        return StepPlan(
            step=self.number,
            rows=rows,
            starts=_joined(self._starts),
            counts=_joined(self._counts),
            token_ids=_joined(self._tokens),
            samples=samples,
            pools=pools,
            new_pages=_joined(self._table) if self._table else _NO_ENTRIES,
            setups=tuple(self._setups),
            logprobs=tuple(self._wishes),
            actions=actions,
            masked=masked,
            transfers=transfers,
            copies=_copy(self._copies_behind) if self._copies_behind else None,
        )


def _copy(pairs: list[tuple[int, int]]) -> CopyPages:
    source, target = np.array(pairs, np.int32).T.copy()
    return CopyPages(source, target)


def _joined(parts: list[npt.NDArray[Item]]) -> npt.NDArray[Item]:
    """The only part as it is."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
