"""`radixlang.show(state)`: programs as a page to look at."""

from __future__ import annotations

import html
import os
import re
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import Any

from radixlang.errors import ConfigError
from radixlang.lang.page import page
from radixlang.lang.record import Record

_HEIGHT = 640


def show(
    *states: Any,
    path: str | os.PathLike[str] | None = None,
    open_browser: bool | None = None,
    title: str | None = None,
) -> Any:
    """Show what programs did: calls over time, forks side by side, the text, tokens, cache hits and errors.

    Waits for the programs to end. In a notebook the page appears below the cell; elsewhere it is written to `path`
    (a new temporary file by default) and opened in a browser.

    Args:
        states: states of programs, or lists of them such as `run_batch` returns.
        open_browser: None: when a person with a desktop has started the program.

    Returns:
        The page's path; in a notebook, unless `path` is given, what the notebook displays.

    Raises:
        ConfigError: something that is no state; the file cannot be written.
    """
    records = [record for state in states for record in records_of(state)]
    if not records:
        raise ConfigError("show needs the state of a program, as run(…) returns it.")
    text = page(records, title)
    if path is None and _in_notebook():
        from IPython.display import HTML

        return HTML(
            f'<iframe srcdoc="{html.escape(text)}" sandbox="allow-scripts" loading="lazy"'
            f' style="width:100%;height:{_HEIGHT}px;border:1px solid #8884"></iframe>'
        )
    written = write_page(text, path, records[0].name)
    if _has_desktop() if open_browser is None else open_browser:
        webbrowser.open(written.as_uri())
    return written


def records_of(state: Any) -> list[Record]:
    """The record of a state, or those of a list of states; waits for their ends."""
    if isinstance(state, Record):
        return [state]
    if isinstance(state, list | tuple):
        return [record for one in state for record in records_of(one)]
    record = getattr(state, "record", None)
    if not isinstance(record, Record):
        raise ConfigError(f"show takes states of programs, not {type(state).__name__}.")
    state.error()  # waits, and does not raise: a failed program is worth looking at
    return [record]


def write_page(text: str, path: str | os.PathLike[str] | None, name: str) -> Path:
    """Write the page to `path`, or to a new temporary file named after the program.

    Raises:
        ConfigError: it cannot be written.
    """
    if path is None:
        stem = re.sub(r"[^\w-]+", "-", name)[:40] or "program"
        handle, made = tempfile.mkstemp(prefix=f"radixlang-{stem}-", suffix=".html")
        os.close(handle)
        path = made
    target = Path(path).expanduser().absolute()
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"The page cannot be written to {target}: {error.strerror}.") from error
    return target


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def _has_desktop() -> bool:
    if not sys.stdout.isatty():
        return False
    return sys.platform in ("win32", "darwin") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
