"""Python's own tree of a regular expression. Must not know what it is for."""

from __future__ import annotations

import warnings
from re import _parser as sre  # type: ignore[attr-defined]
from typing import Any


def tree_of(pattern: str) -> Any:
    """The tree that `re` compiles, with the flags in its `state`.

    Raises:
        re.error, OverflowError, RecursionError: it is no expression, counts too far, or is nested too deeply.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about sets that may mean something else some day
        return sre.parse(pattern)
