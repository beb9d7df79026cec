"""Shares a step out among running requests: a token to each row that decodes, parts of prompts, forced tokens.

Memory that is short is evicted from the tree, then taken from running requests, which go back to the queue with
their tokens (retraction). Must not know the queue, policies or results.
"""

from __future__ import annotations

import numpy as np

from radixlang.scheduler.drafts import Drafts
from radixlang.scheduler.expected import NewTokenRatio
from radixlang.scheduler.lifecycle import BAD_REQUEST, Lifecycle
from radixlang.scheduler.limits import SchedulerLimits
from radixlang.scheduler.lower_tiers import LowerTiers
from radixlang.scheduler.pages import Pages
from radixlang.scheduler.phases import Phases
from radixlang.scheduler.queue import level
from radixlang.scheduler.request import Request
from radixlang.scheduler.rows import Rows
from radixlang.scheduler.step_builder import StepBuilder


class Grants:
    """Puts work of running rows into steps, and pages into rows."""

    def __init__(
        self,
        limits: SchedulerLimits,
        rows: Rows,
        phases: Phases,
        pages: Pages,
        drafts: Drafts,
        lower: LowerTiers,
        ratio: NewTokenRatio,
        lifecycle: Lifecycle,
    ) -> None:
        self._limits = limits
        self._rows = rows
        self._phases = phases
        self._pages = pages
        self._drafts = drafts
        self._lower = lower
        self._ratio = ratio
        self._lifecycle = lifecycle

    def decodes(self, step: StepBuilder, awaited: bool) -> bool:
        """One token to every row that is one token short, and what budget allows to those whose grammars forced
        more. Room is made for all of them first: a row that has its grant must not lose its pages in the same
        step. `awaited`: results of earlier steps are unknown. → whether memory was too short"""
        phases, columns = self._phases, self._rows
        retracted = False
        while phases.decoding or phases.jumping:
            decoders, starts = phases.going()
            rows = decoders.index
            (full,) = (starts >= columns.capacity.take(rows)).nonzero()
            needed = len(full) + self._jump_pages(step.budget)
            if needed and needed > self._pages.free_up(needed):
                if len(columns.running) == 1 and (awaited or self._lower.fetches):
                    return True  # it cannot go on; but the token on its way may be its last, or pages come free
                retracted |= self._make_room()
                continue
            if len(rows):
                if len(full):
                    pages = self._pages.take(len(full))
                    assert pages is not None
                    indexes = starts[full] // self._limits.page_size
                    columns.add_page_each(rows[full], indexes, pages)
                    step.page_entries(rows[full], indexes, pages)
                step.decodes(decoders, starts.astype(np.int32))
                columns.computed[rows] = starts + 1
                columns.length[rows] += 1
            for request in list(phases.jumping.values()):
                if step.budget > 0:
                    granted = self.prompt(step, request)
                    assert granted, "a forced token got no grant"
            break
        return retracted

    def _jump_pages(self, budget: int) -> int:
        """Pages that rows that jump lack for what the budget allows them in this step."""
        limits, columns, pages = self._limits, self._rows, 0
        for row in self._phases.jumping:
            if budget <= 0:
                break
            start = int(columns.computed[row])
            end = min(int(columns.length[row]), start + budget)
            pages += max(0, limits.pages_for(end) - int(columns.capacity[row]) // limits.page_size)
            budget -= end - start
        return pages

    def prompts(self, step: StepBuilder) -> bool:
        """Go on with prompts begun earlier. → whether one of them got nothing for want of memory"""
        for request in list(self._phases.prompts.values()):
            if step.budget <= 0:
                break
            if not self.prompt(step, request):
                return True
        return False

    def prompt(self, step: StepBuilder, request: Request) -> bool:
        """As much of the request's known tokens as budget and memory allow. → whether that was any"""
        limits, columns, row = self._limits, self._rows, request.row
        jumps = row in self._phases.jumping
        have = int(columns.capacity[row]) // limits.page_size
        start, length = int(columns.computed[row]), int(columns.length[row])
        cut = limits.chunked or jumps  # only a prompt may have to be computed in one step
        end = min(length, start + step.budget) if cut else length
        if request.draft is not None and end == length - 1:  # the draft and the draw before it go together
            self._drafts.drop(request)
            length = end
        missing = limits.pages_for(end) - have
        room = self._pages.free_up(missing)
        if missing > room:
            if not cut:
                return False
            missing, end = room, (have + room) * limits.page_size
            if end <= start:
                return False
        if missing > 0:
            fresh = self._pages.take(missing)
            assert fresh is not None
            step.page_run(row, have, fresh)
            columns.add_pages(request, fresh)
        complete = end == length
        if complete and jumps and request.sampling.follows_output:
            step.setup(request)  # the device has not seen the tokens that were not drawn
        if complete and request.draft is not None:
            step.up_to_draft(request, start, end - 1 - start, columns.pages_of(request))
            step.prompt(request, end - 1, 1, True)
        else:
            step.prompt(request, start, end - start, complete)
        columns.computed[row] = end
        step.budget -= end - start
        if complete:
            columns.length[row] += request.samples
            if self._phases.decode(request):
                self._pages.settle(request, length)
        return True

    def _make_room(self) -> bool:
        """Free the pages of one running request. → whether it was retracted"""
        running = list(self._rows.running.values())
        for request in running:
            if self._rows.computed[request.row] >= request.work and request.draft is None:
                self._lifecycle.land(request)
                return False
        if len(running) == 1:
            self._lifecycle.fail_aside(running[0], BAD_REQUEST, self.too_large(running[0]))
            return False
        by_level = self._limits.policy == "priority"
        least = min(running, key=lambda item: (level(item) if by_level else 0, -item.admission))
        self._ratio.retracted(self._rows)
        self._lifecycle.retract(least)
        return True

    def too_large(self, request: Request) -> str:
        """What the client of a request that all memory cannot hold is told."""
        return (
            f"The request has grown to {self._rows.known(request)} tokens, but the KV cache holds only "
            f"{self._limits.capacity}; lower max_new_tokens or start the server with more KV memory."
        )
