"""What each running row does next: go on with its prompt, decode, or catch up with tokens that were not drawn.

Must not know policies, pages or plans.
"""

from __future__ import annotations

import numpy as np

from radixlang.scheduler.request import Request
from radixlang.scheduler.rows import Decoders, Longs, Rows


class Phases:
    """Every running row is in one of the three: row → request, in the order in which they got there."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.prompts: dict[int, Request] = {}
        """the rows that have more than their newest token to compute, in order of admission"""
        self.decoding: dict[int, Request] = {}
        self.jumping: dict[int, Request] = {}
        """those with several tokens to compute that no prompt brought: their grammars forced them"""
        self._decoders: Decoders | None = None
        """see `decoders`; None when out of date"""

    def begin(self, request: Request) -> None:
        """The request has just been given its row."""
        self.prompts[request.row] = request

    def decode(self, request: Request) -> bool:
        """All that is known of the request has been granted. → whether that was its prompt"""
        row = request.row
        jumped = self.jumping.pop(row, None) is not None
        if not jumped:
            del self.prompts[row]
        self.decoding[row] = request
        self._decoders = None
        return not jumped

    def jump(self, request: Request) -> None:
        """A row that decodes has got tokens that were not drawn."""
        del self.decoding[request.row]
        self._decoders = None
        self.jumping[request.row] = request

    def leave(self, row: int) -> None:
        """The row is about to be given back."""
        if self.prompts.pop(row, None) is None and self.jumping.pop(row, None) is None:
            del self.decoding[row]
            if self._decoders is not None and row in self._decoders.rows.tolist():
                self._decoders = None

    def decoders(self) -> Decoders:
        """Those of `decoding` that are not known to be done computing."""
        if self._decoders is None:
            self._decoders = self._rows.decoders(self.decoding, len(self.decoding))
        return self._decoders

    def going(self) -> tuple[Decoders, Longs]:
        """Those of `decoding` that have a token to compute, and how much each has computed."""
        decoders = self.decoders()
        starts = self._rows.computed.take(decoders.index)
        going = starts < decoders.work
        if np.count_nonzero(going) < len(going):
            starts = starts[going]
            decoders = self._decoders = decoders.part(going)
        return decoders, starts

    def can_decode(self) -> bool:
        """Some row has something to compute and no prompt."""
        decoders = self.decoders()
        going = self._rows.computed.take(decoders.index) < decoders.work
        return bool(self.jumping or np.count_nonzero(going))

    def check(self) -> None:
        """Assert that every running row is in one phase, and that `decoders` are right."""
        rows = self._rows
        assert rows.running == self.prompts | self.decoding | self.jumping
        assert len(rows.running) == len(self.prompts) + len(self.decoding) + len(self.jumping)
        if self._decoders is not None:
            left = set(self.decoding) - set(self._decoders.rows.tolist())
            assert len(left) + len(self._decoders.rows) == len(self.decoding), "another row decodes"
            assert all(rows.computed[row] >= rows.work[row] for row in left), "a row that could decode is left out"
            assert self._decoders.tenants.tolist() == rows.tenant[self._decoders.index].tolist()
