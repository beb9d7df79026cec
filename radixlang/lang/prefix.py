"""What the branches of a fork share is computed before the first call of any of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from radixlang.errors import RadixLangError
from radixlang.lang.record import Span
from radixlang.log import get_logger

if TYPE_CHECKING:
    from radixlang.lang.program import Program

log = get_logger(__name__)

#: characters of text that a fork must share, beyond what is cached, to be announced: about two small pages
LEAST_SHARED = 128


class SharedPrefix:
    """The text that the branches of a fork share: computed once, before the first call of any of them."""

    def __init__(self, text: str, before: SharedPrefix | None, known: int, span: Callable[[], Span]) -> None:
        self._text = text
        self._before = before
        self._worth = len(text) - known >= LEAST_SHARED
        self._span = span
        self._work: asyncio.Task[None] | None = None

    async def ready(self, program: Program) -> None:
        """Wait until the backend has it. Its failure is not ours to report: the calls will fail likewise."""
        if self._work is None:
            self._work = asyncio.ensure_future(self._announce(program))
        # One branch that is cancelled must not cancel it for the others.
        await asyncio.shield(self._work)

    async def _announce(self, program: Program) -> None:
        if self._before is not None:
            await self._before.ready(program)
        if not self._worth:
            return
        span = self._span()
        try:
            await program.backend.cache_prefix(self._text)
            program.record.end(span)
        except RadixLangError as error:
            program.record.end(span, error=str(error))
            log.debug("a shared prefix was not cached: %s", error)
