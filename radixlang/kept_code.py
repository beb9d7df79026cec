"""Machine code that numba keeps on disk: how a function gets it, whatever is the matter with the disk.

Used by all that compile. Must not know what is compiled; needs numba.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from radixlang.log import get_logger

log = get_logger(__name__)
T = TypeVar("T")


def compile_kept(function: Any, compiled: Callable[[bool], T]) -> T:
    """`compiled(True)`, which takes the code of `function` from numba's cache or puts it there; where the disk
    does not let it, `compiled(False)`, which compiles for this process only."""
    try:
        return compiled(True)
    except RuntimeError:  # no folder can be written to
        return compiled(False)
    except Exception as error:
        # A file that was cut off (numba does not sync them) can show as any error, and would at every start.
        log.warning(
            "the compiled code of %s cannot be used (%s: %s) and is made anew",
            function.__qualname__,
            type(error).__name__,
            error,
        )
    with contextlib.suppress(Exception):  # the disk may be full
        from numba.core.caching import FunctionCache

        FunctionCache(function).flush()
        return compiled(True)
    return compiled(False)
