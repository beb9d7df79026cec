"""When a request has ended and why, and one step's news as a `Tokens` message. Must not know pages or rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from radixlang.messages import Logprobs, RequestMeta, Tokens, pack_ids
from radixlang.plan import Ints, PositionLogprobs
from radixlang.scheduler.constraints import is_finished
from radixlang.scheduler.logprobs import join, pack
from radixlang.scheduler.request import Request


def finish_reason(request: Request, token: int, size: int, ended: bool = False) -> dict[str, Any] | None:
    """The finish reason after `token`, the newest of `size` tokens; None while the request goes on. `ended`: the
    device followed its grammar and says that nothing but the end may follow."""
    if token in request.ends:
        return {"type": "stop", "matched": token}
    if ended or (request.grammar is not None and is_finished(request.grammar)):
        # The model has ended the text, or could do nothing else: then this says what it would have said.
        end = token if token in request.eos_ids else next(iter(request.eos_ids), None)
        return {"type": "stop", "matched": end}
    if size >= request.limit:
        return {"type": "length", "length": size - request.prompt_length}
    return None


class News:
    """The columns of a `Tokens` message in the making; it is `now`."""

    def __init__(self, now: float) -> None:
        self._now = now
        self.rids: list[str] = []
        self.size = 0
        """tokens"""
        self._ids: list[bytes] = []
        self.counts: list[int] = []
        self.finishes: list[dict[str, Any] | None] = []
        self.metas: list[RequestMeta | None] = []
        self.prompt_logprobs: dict[int, Logprobs] = {}
        self.output_logprobs: dict[int, Logprobs] = {}

    def plain(self, rids: list[str], tokens: Ints) -> None:
        """One more token each of requests that go on, and of which nothing else is to be told."""
        count = len(rids)
        self.rids += rids
        self._add(tokens)
        self.counts += [1] * count
        self.finishes += [None] * count
        self.metas += [None] * count

    def tokens(self, request: Request, tokens: list[int], reason: dict[str, Any] | None) -> None:
        """Some more tokens of a request, at least one."""
        self._add(tokens)
        self._entry(request, len(tokens), reason)

    def ending(self, request: Request, reason: dict[str, Any]) -> None:
        """The end of a request without a token."""
        self._entry(request, 0, reason)

    def _add(self, tokens: list[int] | Ints) -> None:
        self._ids.append(pack_ids(tokens))
        self.size += len(tokens)

    def _entry(self, request: Request, count: int, reason: dict[str, Any] | None) -> None:
        first = not request.first_token_time
        if first:
            request.first_token_time = self._now
            if request.logprobs is not None:
                kept = request.logprobs.take()
                if kept is not None:
                    self.prompt_logprobs[len(self.rids)] = kept
        self.rids.append(request.rid)
        self.counts.append(count)
        self.finishes.append(reason)
        self.metas.append(request.meta() if first or reason is not None else None)

    def logprobs(self, tokens: list[int], values: list[PositionLogprobs]) -> None:
        """Log-probabilities of the tokens added last, one by one."""
        self.output_logprobs[len(self.rids) - 1] = join(
            [pack(np.array([token], np.int32), value) for token, value in zip(tokens, values, strict=True)]
        )

    def message(self) -> Tokens:
        return Tokens(
            rids=self.rids,
            counts=self.counts,
            ids=b"".join(self._ids),
            finishes=self.finishes,
            metas=self.metas,
            prompt_logprobs=self.prompt_logprobs,
            output_logprobs=self.output_logprobs,
        )
