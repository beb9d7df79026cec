"""What can be wrong with a constraint."""

from __future__ import annotations

from radixlang.errors import RadixLangError, RequestError


class GrammarError(RequestError):
    """A constraint that cannot be served: a 400 whose sentence names the place, where there is one.

    `pointer` is a JSON pointer into the schema or the tag (None: it is neither), `keyword` the keyword at fault.
    """

    def __init__(
        self, message: str, pointer: str | None = None, keyword: str | None = None, param: str | None = None
    ) -> None:
        if pointer is not None:
            what = "structural tag" if param == "structural_tag" else "JSON schema"
            message = f"The {what} cannot be used: at #{pointer}{f'/{keyword}' if keyword else ''}, {message}"
        super().__init__(message.rstrip(".") + ".", param)
        self.pointer = pointer
        self.keyword = keyword


class GrammarFailure(RadixLangError):
    """A constraint that fails while its text is generated: ends that request and no other. A 400, or a 500 where
    the fault is `ours` and not the constraint's.
    """

    status = 400
    kind = "invalid_request_error"

    def __init__(self, message: str, ours: bool = False) -> None:
        super().__init__(message)
        self.ours = ours
        if ours:
            self.status, self.kind = RadixLangError.status, RadixLangError.kind
