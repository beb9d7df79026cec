"""Logging: one logger tree `radixlang`, one line format, on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from contextvars import ContextVar

#: id of the HTTP request that is being served; every line that is logged meanwhile ends with it
request_id: ContextVar[str] = ContextVar("request_id", default="")


class LineFormat(logging.Formatter):
    """`[time process] LEVEL message id=request`; the id only where a request is served."""

    def __init__(self, process: str) -> None:
        super().__init__(f"[%(asctime)s {process}] %(levelname)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line, served = super().formatMessage(record), request_id.get()
        return f"{line} id={served}" if served else line


def get_logger(name: str) -> logging.Logger:
    """The logger of a module (pass `__name__`)."""
    return logging.getLogger(name)


def configure(level: str = "info", process: str = "main", others: Iterable[str] = ()) -> None:
    """Set up the `radixlang` logger of this process; may be called again to change the level.

    `others` are loggers of libraries whose warnings and errors get the same lines.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormat(process))
    for name in ("radixlang", *others):
        logger = logging.getLogger(name)
        logger.setLevel(level.upper() if name == "radixlang" else logging.WARNING)
        logger.propagate = False
        logger.handlers[:] = [handler]


def printable(text: str) -> str:
    """`text` on one line, with escapes for what is not printable ASCII: what clients send must not write lines of
    its own, or to a terminal."""
    return "".join(c if " " <= c <= "~" else c.encode("unicode_escape").decode() for c in text)
