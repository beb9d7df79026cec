"""Logging: one logger tree `radixlang`, one line format, on standard error."""

from __future__ import annotations

import logging
import sys


def get_logger(name: str) -> logging.Logger:
    """The logger of a module (pass `__name__`)."""
    return logging.getLogger(name)


def configure(level: str = "info", process: str = "main") -> None:
    """Set up the `radixlang` logger of this process; may be called again to change the level."""
    root = logging.getLogger("radixlang")
    root.setLevel(level.upper())
    root.propagate = False
    for handler in list(root.handlers):
        root.removeHandler(handler)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter(f"[%(asctime)s {process}] %(levelname)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
    )
    root.addHandler(handler)
