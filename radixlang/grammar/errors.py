"""What can be wrong with a constraint."""

from __future__ import annotations

from radixlang.errors import RadixLangError, RequestError


class GrammarError(RequestError):
    """A constraint that cannot be served: a 400 whose sentence names the place, where there is one.

    `pointer` is a JSON pointer into the schema (None: not a schema), `keyword` the keyword at fault.
    """

    def __init__(
        self, message: str, pointer: str | None = None, keyword: str | None = None, param: str | None = None
    ) -> None:
        where = "" if pointer is None else f" (at {pointer or 'the root'}{f', {keyword}' if keyword else ''})"
        super().__init__(message.rstrip(".") + where + ".", param)
        self.pointer = pointer
        self.keyword = keyword


class GrammarFailure(RadixLangError):
    """A constraint that fails while its text is generated: ends that request and no other."""
