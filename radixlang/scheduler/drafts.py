"""The books of drafts: the token that stands in a row before it is drawn, and the lent row whose draw tells.

Must not know grammars, phases or plans.
"""

from __future__ import annotations

from radixlang.scheduler.request import Draft, Request
from radixlang.scheduler.rows import Rows

DRAFTING = 4
"""running constrained requests up to which drafts are made: a draft saves its request a step, and costs 0.2 to
0.4 ms of the host's time, which a step of many rows does not have for each of them"""


class Drafts:
    """`Request.draft` of running requests, one at most of each."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def possible(self, request: Request, gain: int) -> bool:
        """Whether a draft would be worth it and has room; `gain` tokens before it are more than what is launched
        will draw."""
        rows = self._rows
        if rows.bound > DRAFTING or not rows.available:
            return False
        return gain >= 0 and rows.known(request) + 2 <= request.limit

    def write(self, request: Request, draft: Draft) -> None:
        """Let the request's text go on by the draft, which is `possible`."""
        request.draft = draft
        draft.row = self._rows.lend()
        self._rows.put(request, [draft.token])

    def judge(self, request: Request, token: int) -> bool:
        """`token` was drawn where the draft stands. → whether it is the draft; otherwise that is still there"""
        draft = request.draft
        assert draft is not None
        self._rows.give_lent(draft.row)
        draft.row = 0
        draft.sure = token == draft.token
        return draft.sure

    def drop(self, request: Request) -> None:
        """Forget the draft; whatever is drawn behind it is surplus. Its token must be among `Request.tokens`."""
        rows, draft = self._rows, request.draft
        assert draft is not None
        request.surplus += rows.flying(request)
        request.tokens.size -= 1
        rows.length[request.row] = request.tokens.size
        request.grammar, request.draft = draft.before, None
        if draft.row:
            rows.give_lent(draft.row)

    def check(self) -> None:
        """Assert that every lent row is some draft's."""
        drafts = [request.draft for request in self._rows.running.values() if request.draft is not None]
        assert len({draft.row for draft in drafts if draft.row}) == self._rows.lent, "a lent row is lost"
