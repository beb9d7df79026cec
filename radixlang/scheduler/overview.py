"""Where requests are, for those who look at the engine. Must not know how it is shown."""

from __future__ import annotations

from itertools import islice
from typing import Any

from radixlang.scheduler.constraints import WAIT
from radixlang.scheduler.queue import WaitingQueue
from radixlang.scheduler.request import Request
from radixlang.scheduler.rows import Rows


def _common(request: Request, sign: int) -> dict[str, Any]:
    return {
        "rid": request.rid,
        "received": request.received,
        "priority": sign * request.priority,
        "prompt_tokens": request.prompt_length,
        "limit": request.limit,
        "constrained": request.grammar is not None or WAIT in request.waits,
        "retractions": request.retractions,
    }


def _running(request: Request, rows: Rows, sign: int) -> dict[str, Any]:
    return _common(request, sign) | {
        "cached_tokens": request.cached_tokens,
        "computed_tokens": int(rows.computed[request.row]),
        "tokens": rows.known(request),
    }


def _waiting(request: Request, sign: int) -> dict[str, Any]:
    return _common(request, sign) | {"tokens": request.tokens.size, "waits": list(request.waits)}


def overview(rows: Rows, queue: WaitingQueue, limit: int, low_values_first: bool = False) -> dict[str, Any]:
    """`running` and `waiting`: up to `limit` requests each, with `num_running` and `num_waiting` there are.

    Of each `rid`, `received` (seconds since the epoch), `priority`, `prompt_tokens`, `tokens` (prompt and answer
    so far), `limit` (tokens at which it ends), `constrained`, `retractions`; of those that run `cached_tokens` and
    `computed_tokens` (their KV is there, or launched), of those that wait `waits` (what must come first; nothing:
    room).
    """
    # As the client sent it: inside, the higher value is always the more urgent one.
    sign = -1 if low_values_first else 1
    return {
        "running": [_running(request, rows, sign) for request in islice(rows.running.values(), limit)],
        "waiting": [_waiting(request, sign) for request in islice(queue, limit)],
        "num_running": len(rows.running),
        "num_waiting": len(queue),
    }
