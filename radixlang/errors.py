"""The exception tree: every error says whose fault it is, its HTTP status, and what to do next.

    RadixLangError                      500
    ├─ ConfigError                      the operator's flags; found before weights load, exit code 2
    ├─ ModelError                       the checkpoint
    │  ├─ UnsupportedModelError         an architecture or config key this version does not implement
    │  └─ WeightError                   a missing, extra, misshapen or truncated tensor or file
    ├─ RequestError                     the client; 400
    │  ├─ UnauthorizedError             401
    │  ├─ NotFoundError                 404
    │  └─ OverloadedError               503, try again later
    ├─ UnsupportedError                 a backend of a program lacks a capability; 400
    ├─ BackendError                     a backend of a program cannot be reached or failed; 502
    ├─ ProgramError                     a program of the language failed; says where in it
    ├─ AbortedError                     somebody asked for the request to end; 499
    └─ EngineError                      ours; 500
       └─ EngineDeadError               the engine is gone; 503
          └─ RankLostError              it ends because another of its ranks has gone

Imports nothing from the package.
"""

from __future__ import annotations


class RadixLangError(Exception):
    """Base of all errors raised on purpose. `status` is the HTTP status it maps to."""

    status = 500
    kind = "internal_error"


class ConfigError(RadixLangError):
    """A flag or a combination of flags cannot work; the message names the flag and the fix."""

    kind = "config_error"


class ModelError(RadixLangError):
    """The model's files cannot be used."""

    kind = "model_error"


class UnsupportedModelError(ModelError):
    """The architecture, or a key of its config, is not implemented."""


class WeightError(ModelError):
    """A tensor or a weight file is missing, unexpected, misshapen or damaged."""


class RequestError(RadixLangError):
    """The client sent something that cannot be served. `param` names the field."""

    status = 400
    kind = "invalid_request_error"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnauthorizedError(RequestError):
    """No key, or the wrong one."""

    status = 401
    kind = "authentication_error"


class NotFoundError(RequestError):
    """The named model, route or object does not exist."""

    status = 404
    kind = "not_found_error"


class OverloadedError(RequestError):
    """The queue is full or the wait was too long; `retry_after` is in seconds."""

    status = 503
    kind = "overloaded_error"

    def __init__(self, message: str, param: str | None = None, retry_after: int = 1) -> None:
        super().__init__(message, param)
        self.retry_after = retry_after


class UnsupportedError(RadixLangError):
    """The backend of a program cannot do what a call asks for; the message names both and says what to do."""

    status = 400
    kind = "unsupported"


class BackendError(RadixLangError):
    """The backend of a program is not there, has gone, or answered with an error."""

    status = 502
    kind = "backend_error"


class ProgramError(RadixLangError):
    """A program of the frontend language failed. `where` is the file and line of its statement; the cause is
    chained."""

    kind = "program_error"

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(f"{message} (in {where})" if where else message)
        self.where = where


class AbortedError(RadixLangError):
    """The request was ended by an abort before it finished."""

    status = 499
    kind = "aborted"


class EngineError(RadixLangError):
    """A fault of the engine while it served one request; the others go on."""


class EngineDeadError(EngineError):
    """The engine process is gone; nothing can be served any more."""

    status = 503
    kind = "engine_dead"


class RankLostError(EngineDeadError):
    """Another rank no longer answers, and no step can be computed without it. Why it is gone is not known here."""


_BY_STATUS: dict[int, type[RadixLangError]] = {
    400: RequestError,
    401: UnauthorizedError,
    404: NotFoundError,
    499: AbortedError,
    503: OverloadedError,
}


def from_status(status: int, message: str, param: str | None = None) -> RadixLangError:
    """The exception that a `Failed` message from another process stands for; `param` as in `RequestError`."""
    error = _BY_STATUS.get(status, EngineError)(message)
    if isinstance(error, RequestError):
        error.param = param
    return error
