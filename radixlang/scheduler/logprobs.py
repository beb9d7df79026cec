"""Which log-probabilities a request still wants, and those that came back, in the form of messages.

A request that wants them from prompt position `start` gets values for `start + 1` … `prompt_length - 1`: the
value at position p comes from the logits of p - 1, and `start`'s own entry is null by definition (its receiver
adds it). Each position is asked for once, also when the prompt is computed again after a retraction.
"""

from __future__ import annotations

import numpy as np

from radixlang.messages import Generate, Logprobs, pack_ids
from radixlang.plan import Ints, LogprobWish, PositionLogprobs

_NO_TARGETS: Ints = np.zeros(0, np.int32)


def pack(ids: Ints, values: PositionLogprobs) -> Logprobs:
    """`ids` [n] are the tokens that stand at the n positions."""
    return Logprobs(
        pack_ids(ids),
        np.asarray(values.chosen, "<f4").tobytes(),
        pack_ids(values.top_ids),
        np.asarray(values.top, "<f4").tobytes(),
        np.asarray(values.ids, "<f4").tobytes(),
    )


class LogprobState:
    """The wishes of one request."""

    __slots__ = ("_parts", "next", "prompt_length", "token_ids", "top")

    def __init__(self, start: int, prompt_length: int, top: int, token_ids: tuple[int, ...]) -> None:
        self.prompt_length = prompt_length
        self.next = start
        """first position whose logits have not been asked for; `prompt_length - 1` or more: none left"""
        self.top = top
        self.token_ids = token_ids
        self._parts: list[Logprobs] = []

    @classmethod
    def of(cls, message: Generate, prompt_length: int) -> LogprobState | None:
        """None when no log-probabilities are wanted."""
        if not message.return_logprob:
            return None
        start = prompt_length if message.logprob_start_len < 0 else message.logprob_start_len
        return cls(start, prompt_length, message.top_logprobs_num, message.token_ids_logprob)

    @property
    def match_cap(self) -> int:
        """Prompt positions from here on must be computed, for their logits."""
        return self.next if self.next < self.prompt_length - 1 else 1 << 60

    def wish(self, index: int, tokens: Ints, start: int, end: int, samples: bool) -> LogprobWish | None:
        """What to ask of a grant of positions `start` … `end - 1`; marks the prompt part as asked for."""
        first = max(start, self.next)
        last = min(end, self.prompt_length - 1)
        if first < last:
            self.next = last
            targets = tokens[first + 1 : last + 1].copy()
        else:
            first, targets = -1, _NO_TARGETS
        if first < 0 and not samples:
            return None
        return LogprobWish(index, first, targets, samples, self.top, self.token_ids)

    def keep(self, wish: LogprobWish, values: PositionLogprobs) -> None:
        """Keep the values of prompt positions until the request's first message."""
        self._parts.append(pack(wish.targets, values))

    def take(self) -> Logprobs | None:
        """Everything kept, in order of position, once; None when there is nothing."""
        parts, self._parts = self._parts, []
        return join(parts) if parts else None


def join(parts: list[Logprobs]) -> Logprobs:
    """The values of one or more parts, in order."""
    if len(parts) == 1:
        return parts[0]
    return Logprobs(*(b"".join(column) for column in zip(*map(_columns, parts), strict=True)))


def _columns(part: Logprobs) -> tuple[bytes, ...]:
    return part.ids, part.chosen, part.top_ids, part.top, part.asked
