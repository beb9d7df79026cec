"""Which running request makes way for a waiting one that is far more urgent. Must not know pages or plans."""

from __future__ import annotations

from collections.abc import Iterable

from radixlang.scheduler.policy import aged
from radixlang.scheduler.queue import level
from radixlang.scheduler.request import Request


def victim(waiting: Request, running: Iterable[Request], threshold: int) -> Request | None:
    """The request of lowest priority, of equals the one admitted last, if it is `threshold` levels or more below
    `waiting`; None if there is none.

    It must also stand behind `waiting` in the order of the policy `priority`, or it would be admitted again first.
    That bounds how often a request can be sent back: not by requests that arrive too long after it.
    """
    lowest = min(running, key=lambda request: (level(request), -request.admission), default=None)
    if lowest is None or level(waiting) - level(lowest) < threshold or aged(waiting) >= aged(lowest):
        return None
    return lowest
