"""Results kept by the text that they were made of: many of short texts and few of long ones, so that texts from
clients cannot hold much memory. Must not know what the results are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def kept(
    many: int, short: int, few: int = 2, size: Callable[[Any], int] = len
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: the last `many` results are kept where the first argument has a `size` of at most `short`
    characters, and the last `few` of longer ones. Errors are not kept. Threads may make one twice."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        of_short: Callable[..., R] = lru_cache(many)(function)
        of_long: Callable[..., R] = lru_cache(few)(function)

        @wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            return (of_short if size(args[0]) <= short else of_long)(*args, **kwargs)

        return wrapper

    return decorate
