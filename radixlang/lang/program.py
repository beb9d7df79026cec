"""One run of a function: what its branches share (backend, defaults, record), its beginning and its end."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import uuid
import weakref
from collections.abc import Coroutine
from typing import Any

from radixlang.errors import ProgramError
from radixlang.lang.backends.base import Backend
from radixlang.lang.interpreter import Branch
from radixlang.lang.loop import call, get_loop, started
from radixlang.lang.params import SamplingParams
from radixlang.lang.record import Record
from radixlang.log import get_logger

log = get_logger(__name__)

#: seconds that the end of the process may wait for backends to hear of programs that have ended
FAREWELL = 1.0


class Program:
    """One run of a function: what its branches have in common."""

    def __init__(
        self,
        name: str,
        backend: Backend,
        defaults: SamplingParams,
        stream: bool = False,
        num_api_spec_tokens: int | None = None,
        background: bool = False,
    ) -> None:
        self.name = name
        self.id = uuid.uuid4().hex
        self.backend = backend if num_api_spec_tokens is None else backend.speculative(num_api_spec_tokens)
        self.template = backend.chat_template()
        self.defaults = defaults
        self.stream = stream
        #: the function runs in a thread or task of its own, so that names may still appear while others read
        self.background = background
        capabilities = backend.capabilities
        #: whole turns of the assistant are collected and made in one call
        self.by_turns = num_api_spec_tokens is not None and capabilities.chat and not capabilities.completion
        self.record = Record(name, backend.name)
        self.branches: list[Branch] = []
        self.returned = False  # the function has: nothing new is submitted
        self.error: ProgramError | None = None
        self.error_was_read = False
        self.ended = False
        self._begun: asyncio.Task[None] | None = None
        self.root = Branch(self, None, 0)
        _programs.add(self)

    async def begin(self) -> None:
        """Tell the backend, once, before the first call."""
        if self._begun is None:
            self._begun = asyncio.ensure_future(self.backend.begin(self.id))
        await asyncio.shield(self._begun)

    def function_returned(self, error: ProgramError | None = None) -> None:
        """The function has ended, by `error` or well. May be called from any thread."""

        def on_loop() -> None:
            self.returned = True
            if error is not None:
                self.fail(error)
            for branch in list(self.branches):
                branch.changed()
            self.look_for_end()

        get_loop().call_soon_threadsafe(on_loop)

    def fail(self, error: ProgramError) -> None:
        """End all branches. On the loop's thread."""
        if self.error is None:
            self.error = error
        for branch in list(self.branches):
            branch.fail(error)

    def cancel(self, reason: str) -> None:
        """Give up what has not finished; the backend's requests are aborted. May be called from any thread."""
        if self.ended:
            return

        def on_loop() -> None:
            self.error_was_read = True  # whoever cancels knows
            if not self.ended:
                self.fail(ProgramError(reason))
                self.returned = True
                self.look_for_end()

        loop = get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(on_loop)

    def look_for_end(self) -> None:
        """Tell the backend when everything is over."""
        if self.returned and not self.ended and not any(branch.busy for branch in self.branches):
            self.ended = True
            for branch in self.branches:
                said = {"messages": branch.transcript.messages_so_far()}
                error = branch.error or (self.error if branch is self.root else None)
                self.record.end(branch.span, branch.transcript.text, said, str(error) if error else None)
                branch.changed()
            if self._begun is not None:
                _in_background(self.backend.end(self.id))

    def forgotten(self) -> None:
        """Nobody can read this program any more."""
        if not self.ended:
            self.cancel("The program was forgotten before it had finished.")
        elif not self.error_was_read:
            for error in [branch.error for branch in self.branches if branch.error is not None][:1]:
                log.warning("program %s failed, and nobody read its error: %s", self.name, error)


_programs: weakref.WeakSet[Program] = weakref.WeakSet()
_background: set[asyncio.Task[None]] = set()
# A forked process is not the one to say that its parent's programs have ended.
os.register_at_fork(after_in_child=lambda: (_programs.clear(), _background.clear()))  # type: ignore[func-returns-value]


def _in_background(work: Coroutine[Any, Any, None]) -> None:
    """Run what nobody waits for; the loop itself keeps weak references only."""
    task = asyncio.ensure_future(work)
    _background.add(task)
    task.add_done_callback(_background.discard)


@atexit.register
def _farewell() -> None:
    """At the end of the process: give up what still runs and tell backends, or its pins stay until their time."""
    if not started():
        return
    for program in list(_programs):
        program.cancel("The process ended")

    async def told() -> None:
        await asyncio.wait_for(asyncio.gather(*_background, return_exceptions=True), FAREWELL)

    with contextlib.suppress(Exception):
        call(told())
