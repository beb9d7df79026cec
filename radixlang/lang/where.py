"""Where in a program something stands, and the errors that say so."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from radixlang.errors import ProgramError, RadixLangError

#: where statements pass through on their way from a program
_NOT_PROGRAMS = (str(Path(__file__).parent), contextlib.__file__)


def program_line() -> str:
    """File and line of the innermost caller outside of the language."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_PROGRAMS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def error_of(cause: BaseException, where: str) -> ProgramError:
    """A `ProgramError` for whatever went wrong in a statement."""
    if isinstance(cause, ProgramError):
        return cause
    text = str(cause) if isinstance(cause, RadixLangError) else f"{type(cause).__name__}: {cause}"
    error = ProgramError(text.rstrip("."), where)
    error.__cause__ = cause
    return error
