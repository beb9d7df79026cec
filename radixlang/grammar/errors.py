"""Errors of structured output: a grammar that cannot be built, and a generation that can no longer be valid.

Must not know requests, tokens or any grammar library.
"""

from __future__ import annotations

from radixlang.errors import EngineError, RequestError


class GrammarError(RequestError):
    """The client's grammar cannot be used (400); one sentence that names the JSON pointer and the keyword.

    `pointer` is the place in the client's schema ("" is its root), `keyword` the keyword found there;
    both are None for grammars that are not JSON.
    """

    def __init__(
        self, message: str, *, pointer: str | None = None, keyword: str | None = None, param: str | None = None
    ) -> None:
        if pointer is not None:
            place = "#" + pointer + (f"/{keyword}" if keyword else "")
            message = f"The JSON schema cannot be used: at {place}, {message}"
        super().__init__(message, param)
        self.pointer = pointer
        self.keyword = keyword


class GrammarFailure(EngineError):
    """One generation cannot go on under its grammar: no token is allowed, or the grammar engine gave up."""
