"""The columns of running requests: one entry per row of the request table, so that a step is arithmetic on
whole arrays. Row 0 is the sink and stays unused. Must not know policies, the tree or plans.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radixlang.plan import FROM_TABLE, Ints
from radixlang.scheduler.limits import SchedulerLimits
from radixlang.scheduler.request import Request, State

ENDS = 8
"""end ids of a row that are compared for all rows at once; a row with more is looked at token by token"""
_NO_TOKEN = -1

Bools = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Decoders:
    """n running rows that decode, and what stays as it is while they do. Plans of steps in which the same rows go
    on share these arrays, and the device column may know them by that."""

    rows: Ints
    index: npt.NDArray[np.intp]
    """`rows` as numpy wants them: it converts others at every use"""
    places: npt.NDArray[np.intp]
    """0 … n - 1"""
    requests: list[Request]
    rids: list[str]
    work: Longs
    """as in `Rows`, and so are the next ones"""
    tenants: Longs
    wishes: Ints
    """which of the n want log-probabilities"""
    masked: Ints
    """which of the n have a grammar"""
    counts: Ints
    """all 1: what a step grants them"""
    token_ids: Ints
    """all `FROM_TABLE`"""
    samples: Bools
    """all true"""
    pools: Bools
    """all false"""

    def part(self, which: Bools) -> Decoders:
        """Some of them."""
        rows = self.rows[which]
        size = len(rows)
        return Decoders(
            rows=rows,
            index=self.index[which],
            places=self.places[:size],
            requests=list(itertools.compress(self.requests, which.tolist())),
            rids=list(itertools.compress(self.rids, which.tolist())),
            work=self.work[which],
            tenants=self.tenants[which],
            wishes=_places(self.wishes, which),
            masked=_places(self.masked, which),
            counts=self.counts[:size],
            token_ids=self.token_ids[:size],
            samples=self.samples[:size],
            pools=self.pools[:size],
        )


def _indexes(which: Bools) -> Ints:
    return which.nonzero()[0].astype(np.int32)


def _places(indexes: Ints, which: Bools) -> Ints:
    """Where the `indexes` that stay are when only `which` are left."""
    return _indexes(np.isin(np.flatnonzero(which), indexes)) if len(indexes) else indexes


class Rows:
    """`count` rows, numbered from 1. Columns are int64 [count + 1] unless said otherwise; they mean nothing for a
    free row.

    The two wide tables take address space for every row at the longest context, but memory only where they have
    been written.
    """

    def __init__(self, limits: SchedulerLimits) -> None:
        self.count = limits.max_running_requests
        size = self.count + 1
        self._page_size = limits.page_size
        self._free = list(range(self.count, 0, -1))
        self._takings = 0
        self.computed: Longs = np.zeros(size, np.int64)
        """tokens whose KV is in pages once everything launched has run"""
        self.length: Longs = np.zeros(size, np.int64)
        """tokens that exist, those the host does not know yet included"""
        self.capacity: Longs = np.zeros(size, np.int64)
        """tokens that the row's pages can hold"""
        self.work: Longs = np.zeros(size, np.int64)
        """`Request.work`: the row is done computing at this many tokens"""
        self.limit: Longs = np.zeros(size, np.int64)
        self.made: Longs = np.zeros(size, np.int64)
        """tokens in `outputs`; 0 for a free row"""
        self.look_from: Longs = np.zeros(size, np.int64)
        """`made` from which on each token is looked at by itself: 0 before the first token of a request has been
        told, and where log-probabilities belong to each, else the number at which the request ends"""
        self.tenant: Longs = np.zeros(size, np.int64)
        """a number that no other taking of any row has; 0 for a free row"""
        self.wishes: Bools = np.zeros(size, np.bool_)
        """log-probabilities are wanted"""
        self.constrained: Bools = np.zeros(size, np.bool_)
        """the request has a grammar that the host follows"""
        self.ends: Ints = np.full((ENDS, size), _NO_TOKEN, np.int32)
        """[ENDS, count + 1] token ids that end the request"""
        self._most_ends = 0
        """of a request so far"""
        self.given = 0
        """rows given back so far"""
        self.bound = 0
        """running rows that are `constrained`"""
        self.outputs: Ints = np.zeros((size, limits.context_length), np.int32)
        """[count + 1, context] the tokens made since the row was taken, as far as the host knows them"""
        self.pages: Ints = np.zeros((size, limits.pages_for(limits.context_length)), np.int32)
        """[count + 1, pages] page ids in order; the first `Request.shared` belong to the tree"""
        self.rids = np.full(size, "", object)
        self.requests = np.full(size, None, object)
        self.running: dict[int, Request] = {}
        """row → request, in order of admission"""
        self.lent = 0
        """rows that are lent"""
        # What is the same for all `Decoders` but for its length: they have views of it.
        self._places = np.arange(size)
        self._counts = np.ones(size, np.int32)
        self._token_ids = np.full(size, FROM_TABLE, np.int32)
        self._samples = np.ones(size, np.bool_)
        self._pools = np.zeros(size, np.bool_)

    @property
    def available(self) -> int:
        return len(self._free)

    def take(self, request: Request, computed: int, pages: Ints) -> None:
        """Give the request a row that begins with `pages`. Caller guarantees `available`."""
        row = self._free.pop()
        self._takings += 1
        request.row = row
        request.state = State.RUNNING
        self.rids[row] = request.rid
        self.requests[row] = request
        self.running[row] = request
        self.computed[row] = computed
        self.length[row] = request.tokens.size
        self.work[row] = request.work
        self.limit[row] = request.limit
        self.look_from[row] = 0
        self.tenant[row] = self._takings
        self.wishes[row] = request.logprobs is not None
        self.constrained[row] = request.grammar is not None and request.table is None
        self.bound += int(self.constrained[row])
        self.ends[:, row] = _NO_TOKEN
        if len(request.ends) <= ENDS:
            self.ends[: len(request.ends), row] = list(request.ends)
            self._most_ends = max(self._most_ends, len(request.ends))
        self.capacity[row] = 0
        self.add_pages(request, pages)

    def give(self, request: Request) -> None:
        """Take the row back; its tokens still in flight become `pending`. `fold` comes first."""
        row = request.row
        request.pending = int(self.length[row]) - request.tokens.size
        request.row = 0
        self.tenant[row] = 0
        self.requests[row] = None
        self.given += 1
        self.bound -= int(self.constrained[row])
        del self.running[row]
        self._free.append(row)

    def lend(self) -> int:
        """A row for one more draw of a request that has one; the number of its taking is in `tenant`. Caller
        guarantees `available`."""
        row = self._free.pop()
        self._takings += 1
        self.tenant[row] = self._takings
        self.constrained[row] = True
        self.lent += 1
        return row

    def give_lent(self, row: int) -> None:
        """Take a lent row back."""
        self.tenant[row] = 0
        self.given += 1
        self.lent -= 1
        self._free.append(row)

    def decoders(self, rows: Iterable[int], count: int) -> Decoders:
        """The `count` rows, all of which decode."""
        numbers = np.fromiter(rows, np.int32, count)
        index = numbers.astype(np.intp)
        return Decoders(
            rows=numbers,
            index=index,
            places=self._places[:count],
            requests=self.requests.take(index).tolist(),
            rids=self.rids.take(index).tolist(),
            work=self.work.take(index),
            tenants=self.tenant.take(index),
            wishes=_indexes(self.wishes.take(index)),
            masked=_indexes(self.constrained.take(index)),
            counts=self._counts[:count],
            token_ids=self._token_ids[:count],
            samples=self._samples[:count],
            pools=self._pools[:count],
        )

    # ---- tokens ----

    def append(self, rows: npt.NDArray[np.intp], tokens: Ints) -> Bools:
        """One more token for each of distinct rows → [n] which of them need a look: see `look_from`, and ends."""
        made = self.made.take(rows)
        self.outputs[rows, made] = tokens
        made += 1
        self.made[rows] = made
        look: Bools = made >= self.look_from.take(rows)
        for ends in self.ends[: self._most_ends]:
            look |= ends.take(rows) == tokens
        return look

    def put(self, request: Request, tokens: list[int]) -> None:
        """Some more tokens for one row."""
        row, made = request.row, int(self.made[request.row])
        self.outputs[row, made : made + len(tokens)] = tokens
        self.made[row] = made + len(tokens)

    def flying(self, request: Request) -> int:
        """Tokens of the request that what is launched draws, and that the host does not know."""
        return int(self.length[request.row]) - self.known(request)

    def looked(self, request: Request) -> None:
        """A token has been told; look on only at what cannot be seen in the columns."""
        if request.logprobs is None and len(request.ends) <= ENDS:
            self.look_from[request.row] = request.limit - request.tokens.size

    def known(self, request: Request) -> int:
        """Tokens of the request that the host knows, wherever it is."""
        return request.tokens.size + int(self.made[request.row])

    def fold(self, request: Request) -> None:
        """Put the tokens made in this row to the request's others."""
        row = request.row
        request.tokens.extend(self.outputs[row, : self.made[row]])
        self.made[row] = 0

    # ---- pages ----

    def pages_of(self, request: Request) -> Ints:
        """The running request's page ids (a view)."""
        return self.pages[request.row, : self.capacity[request.row] // self._page_size]

    def add_pages(self, request: Request, pages: Ints) -> None:
        """Put page ids to the end of the request's."""
        row, size = request.row, self._page_size
        have = int(self.capacity[row]) // size
        self.pages[row, have : have + len(pages)] = pages
        self.capacity[row] = (have + len(pages)) * size

    def add_page_each(self, rows: npt.NDArray[np.intp], indexes: Longs, pages: Ints) -> None:
        """Put one page id to the end, at `indexes`, of each of distinct rows."""
        self.pages[rows, indexes] = pages
        self.capacity[rows] += self._page_size

    def check(self) -> None:
        """Assert what must hold between the columns."""
        assert len(self.running) + self.available + self.lent == self.count, "a row is lost"
        assert not self.made[self.tenant == 0].any(), "a free row has tokens"
        bound = [request.grammar is not None and request.table is None for request in self.running.values()]
        assert self.bound == sum(bound), "grammars are miscounted"
        for row, request in self.running.items():
            computed, length = int(self.computed[row]), int(self.length[row])
            assert request.state is State.RUNNING
            assert request.row == row
            assert computed <= length <= max(request.limit, request.prompt_length), "more computed than exists"
            assert self.known(request) <= length, "more tokens known than exist"
            assert computed <= self.capacity[row], "KV without pages"
            assert request.shared * self._page_size <= computed, "shared pages that are not computed"
