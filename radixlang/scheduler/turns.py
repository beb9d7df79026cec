"""The turns that a constrained request takes between the plan of a step and its masks.

The device knows nothing of them: a row *jumps* over tokens that must follow, it *goes back* behind one that may
not stand, or it goes on by a *draft*, a token that the next draw confirms. What is on its way for the row then
becomes `surplus`, and the row goes on from the host's tokens. `constraints.py` says which tokens, this module what
they do to rows and phases. Must not know policies, pages or how steps are filled.
"""

from __future__ import annotations

import numpy as np

from radixlang.grammar.errors import GrammarFailure
from radixlang.grammar.grammar import GrammarState
from radixlang.plan import PositionLogprobs, StepPlan
from radixlang.scheduler.constraints import Constraints, Unconstrained
from radixlang.scheduler.drafts import Drafts
from radixlang.scheduler.finish import News
from radixlang.scheduler.lifecycle import BAD_REQUEST, INTERNAL, Lifecycle
from radixlang.scheduler.phases import Phases
from radixlang.scheduler.request import Request, State
from radixlang.scheduler.rows import Rows
from radixlang.scheduler.step_builder import StepBuilder


class Turns:
    """Takes the tokens that were drawn for requests whose grammars the host follows."""

    def __init__(
        self,
        page_size: int,
        rows: Rows,
        phases: Phases,
        drafts: Drafts,
        constraints: Unconstrained,
        lifecycle: Lifecycle,
    ) -> None:
        self._page_size = page_size
        self._rows = rows
        self._phases = phases
        self._drafts = drafts
        self._served = constraints
        self._lifecycle = lifecycle

    @property
    def _constraints(self) -> Constraints:
        assert isinstance(self._served, Constraints), "a request has a grammar that nobody made"
        return self._served

    def settle(self) -> None:
        """Let those go whose constraints are compiled, and end those that cannot have theirs."""
        if self._served.waiting:
            self._fail(self._served.settle())

    def take(self, request: Request, token: int, news: News, logprobs: PositionLogprobs | None) -> None:
        """A token of a running request, and those that its grammar makes follow it."""
        if request.surplus:
            request.surplus -= 1
            return
        rows = self._rows
        draft, request.draft = request.draft, None
        assert draft is None or draft.sure
        try:
            undone = self._constraints.take(request, token)
            if undone is not None:
                rows.length[request.row] -= 1
                self._go_back(request, undone)
                return
            flying = rows.flying(request) - 1
            room = request.limit - rows.known(request) - 1
            more = self._constraints.jump(request, token, room, flying, rows.bound)
        except GrammarFailure as error:
            self._fail([(request, str(error), error.ours)])
            return
        tokens = [token, *more]
        rows.put(request, tokens)
        self._lifecycle.tell(request, tokens if draft is None else [draft.token, *tokens], news, logprobs)
        if request.state is State.RUNNING and (self._write_draft(request, len(more) - flying) or more):
            self._jump(request, flying)

    def take_late(self, request: Request, token: int) -> list[int]:
        """A token of a request that lost its row while it was on its way. → tokens that go to its others; none if
        it was refused, or the constraint has failed"""
        tokens = [token]
        try:
            undone = self._constraints.take(request, token)
            if undone is not None:
                self._take_back(request, undone)
                if request.state is State.LANDING:
                    self._lifecycle.put_back(request)  # more tokens are to be made than was thought
                return []
            if not request.pending:
                room = request.limit - request.tokens.size - 1
                tokens += self._constraints.jump(request, token, room, 0, self._rows.bound)
        except GrammarFailure as error:
            self._fail([(request, str(error), error.ours)])
            return []
        return tokens

    def judge(self, request: Request, token: int, news: News) -> None:
        """`token` was drawn where the request's draft stands."""
        if self._drafts.judge(request, token):
            return  # it is told together with the token behind it, which comes next
        self._constraints.missed()
        self._jump(request, self._rows.flying(request))
        self._drafts.drop(request)
        try:
            if self._constraints.take(request, token) is not None:
                raise GrammarFailure("The constraint refuses a token that it allowed.", ours=True)
            room = request.limit - request.tokens.size - 1
            more = self._constraints.jump(request, token, room, 0, self._rows.bound)
        except GrammarFailure as error:
            self._fail([(request, str(error), error.ours)])
            return
        tokens = [token, *more]
        request.tokens.extend(np.array(tokens, np.int32))
        self._rewind(request, request.tokens.size - len(tokens))
        self._lifecycle.tell(request, tokens, news)

    def masks(self, plan: StepPlan, step: StepBuilder) -> np.ndarray:
        """What may come next in the masked rows of a launched plan, made by `step`, [G, words]. All results before
        it have been processed. Requests whose constraints fail end."""
        here = self._rows.tenant[plan.rows[plan.masked]] == step.tenants[plan.masked]
        rows: list[tuple[Request, GrammarState | None, int] | None] = []
        for index, there in zip(plan.masked.tolist(), here.tolist(), strict=True):
            request = step.requests[index]
            wanted = there and not request.surplus  # whatever is drawn for others is dropped
            grammar, made = request.grammar, self._rows.known(request) - request.prompt_length
            if index in step.drafts and request.draft is not None:
                grammar, made = request.draft.before, made - 1
            rows.append((request, grammar, made) if wanted else None)
        masks, failed = self._constraints.masks(rows)
        self._fail(failed)
        return masks

    def _write_draft(self, request: Request, gain: int) -> bool:
        """Let the text go on by a draft, if there is one; `gain` as in `Drafts.possible`. → whether there is"""
        draft = self._constraints.draft(request) if self._drafts.possible(request, gain) else None
        if draft is None:
            return False
        self._drafts.write(request, draft)
        return True

    def _jump(self, request: Request, flying: int) -> None:
        """The host knows better than the device: the `flying` tokens on their way are surplus, and the row goes on
        from the host's tokens."""
        request.surplus += flying
        self._rows.fold(request)
        self._rows.length[request.row] = request.tokens.size
        self._phases.jump(request)

    def _go_back(self, request: Request, undone: int) -> None:
        """The newest token is not taken, nor are the `undone` ones before it: the row draws again behind them."""
        self._jump(request, self._rows.flying(request))
        self._take_back(request, undone)
        self._rewind(request, request.tokens.size - 1)

    def _rewind(self, request: Request, right: int) -> None:
        """The tokens of a row that jumps have changed: at most `right` of them have the KV that they should."""
        rows, row = self._rows, request.row
        rows.length[row] = request.tokens.size
        rows.computed[row] = min(int(rows.computed[row]), right)
        if rows.computed[row] < request.shared * self._page_size:
            # The tree keeps pages of tokens that are undone now (it got them when memory was short): nobody may
            # write there again. The row begins anew with those that still hold.
            self._lifecycle.leave_row(request)
            self._lifecycle.put_back(request)

    def _take_back(self, request: Request, undone: int) -> None:
        """Drop the newest tokens, which no client has been told of.

        Raises:
            GrammarFailure: clients have been told.
        """
        if undone > len(request.held):
            raise GrammarFailure("The constraint takes back tokens that have been sent.", ours=True)
        if undone:
            del request.held[-undone:]
            del request.held_logprobs[-undone:]
            request.tokens.size -= undone

    def _fail(self, failures: list[tuple[Request, str, bool]]) -> None:
        """Constraints have failed: with a sentence, and whether that is our fault."""
        for request, sentence, ours in failures:
            self._lifecycle.fail_aside(request, INTERNAL if ours else BAD_REQUEST, sentence, constraint=True)
