"""What a program sees as `s`, and what its caller gets back: `ProgramState` and `ProgramStateGroup`.

A façade over `interpreter.Branch` for any thread or event loop; it holds no state of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from numbers import Integral
from typing import Any, Literal

from radixlang.errors import ProgramError
from radixlang.lang import ir
from radixlang.lang.interpreter import Branch
from radixlang.lang.program import Program
from radixlang.lang.record import Record
from radixlang.lang.values import Value

#: the branch of the program whose function runs here (not its state: contexts live on in the loop's tasks, and
#: would keep a program alive that everybody else has forgotten)
current_branch: contextvars.ContextVar[Branch | None] = contextvars.ContextVar("branch", default=None)
_STREAM_CLOSED = "The program was cancelled, because the stream of its text was closed"


class Lease:
    """Shared by all states of a program that its caller can reach: when the last is gone, nobody can read what is
    still being made, and it is given up."""

    def __init__(self, program: Program) -> None:
        self._finalizer = weakref.finalize(self, program.forgotten)
        self._finalizer.atexit = False
        if program.record.held is not None:
            program.record.held.append(self)


class ProgramState:
    """One branch of a program: append with `s += …`, read with `s["name"]`.

    Reading waits for that variable alone. Errors of the program are raised where a value is read, as
    `ProgramError` with the line of the statement that failed.
    """

    def __init__(self, branch: Branch, lease: Lease | None = None) -> None:
        self._branch = branch
        self._lease = lease
        #: held by the program's function, in whichever thread: nobody but itself will do what it waits for
        self._inside = lease is None
        self.ret_value: Any = None

    # ---- writing ----

    def __iadd__(self, other: Any) -> ProgramState:
        if other is None:
            raise ValueError("Tried to append None to the state.")
        self._branch.submit(ir.as_expr(other))
        return self

    def _turn(self, role: str, expr: Any) -> Any:
        if expr is not None:
            self._branch.submit(ir.concatenate(ir.RoleBegin(role), expr, ir.RoleEnd(role)))
            return None
        return self._block(ir.RoleBegin(role), ir.RoleEnd(role))

    @contextlib.contextmanager
    def _block(self, begin: ir.Expr, end: ir.Expr) -> Iterator[None]:
        self._branch.submit(begin)
        try:
            yield
        finally:  # who catches what the block has raised goes on behind it
            self._branch.submit(end)

    def system(self, expr: Any = None) -> Any:
        """Append a system turn with `expr`; without it, a context manager in which the turn is open."""
        return self._turn("system", expr)

    def user(self, expr: Any = None) -> Any:
        """Append a user's turn with `expr`; without it, a context manager in which the turn is open."""
        return self._turn("user", expr)

    def assistant(self, expr: Any = None) -> Any:
        """Append an assistant's turn with `expr`; without it, a context manager in which the turn is open."""
        return self._turn("assistant", expr)

    def var_scope(self, name: str) -> contextlib.AbstractContextManager[None]:
        """What is appended in the block becomes the variable `name` as well, when the block ends."""
        return self._block(ir.VarScopeBegin(name), ir.VarScopeEnd(name))

    def set_var(self, name: str, value: Any) -> None:
        """Set a variable."""
        self._branch.set(name, value)

    __setitem__ = set_var

    # ---- branching ----

    def fork(self, size: int = 1, position_ids_offset: list[int] | None = None) -> ProgramStateGroup:
        """`size` branches that begin here and run beside each other; what they share is computed once.

        `position_ids_offset` is accepted for compatibility and has no effect.
        """
        if not isinstance(size, Integral) or size < 1:
            raise ValueError(f"fork needs a whole number of branches, at least 1, got {size!r}.")
        branches = self._branch.fork(int(size))
        return ProgramStateGroup([ProgramState(branch, self._lease) for branch in branches], self)

    @contextlib.contextmanager
    def copy(self, position_ids_offset: list[int] | None = None) -> Iterator[ProgramState]:
        """A branch of its own for the block; its new variables come back as lists of one."""
        group = self.fork(1, position_ids_offset)
        yield group[0]
        group.join()

    # ---- reading ----

    def _find(self, name: str) -> Value | None:
        """The variable, once it exists; for `wait`.

        Raises:
            KeyError: there is none, and none will come. ProgramError: because the program failed.
        """
        branch = self._branch
        value = branch.names.get(name)
        if value is not None:
            return value
        program = branch.program
        if program.background and not self._inside and not branch.over():
            return None
        # The function may have declared it between the two looks.
        if (value := branch.names.get(name)) is not None:
            return value
        self._raise_error()
        known = ", ".join(sorted(map(str, branch.names))) or "none"
        raise KeyError(f"The program has no variable {name!r}; it has {known}.")

    def _error(self) -> ProgramError | None:
        """Of this branch; the function's own failure is the root's."""
        branch = self._branch
        return branch.error or (branch.program.error if branch is branch.program.root else None)

    def _raise_error(self) -> None:
        error = self._error()
        if error is not None:
            self._raise(error)

    def _raise(self, error: ProgramError) -> None:
        self._branch.program.error_was_read = True
        # A fresh one each time: one exception raised by many readers would collect all their tracebacks.
        again = ProgramError(str(error))
        again.where = error.where
        raise again from (error.__cause__ or error)

    def _result(self, value: Value) -> Any:
        if value.error is not None:
            self._raise(value.error)
        return value.result

    def _done(self, name: str) -> Value:
        value = self._branch.wait(lambda: self._find(name))
        if not value.done:
            self._branch.flush()
        return value.wait(value.read)

    async def _done_async(self, name: str) -> Value:
        value = await self._branch.wait_async(lambda: self._find(name))
        if not value.done:
            self._branch.flush()
        return await value.wait_async(value.read)

    def get_var(self, name: str) -> Any:
        """The value of a variable, as soon as it is known.

        Raises:
            KeyError: the program does not define it. ProgramError: the program failed before it was known.
        """
        return self._result(self._done(name))

    __getitem__ = get_var
    #: without it, a loop over the state would ask for the variables 0, 1, …
    __iter__ = None

    def __contains__(self, name: str) -> bool:
        return name in self._branch.names

    def get_meta_info(self, name: str) -> Any:
        """What the backend said of the call that made the variable (a list for n > 1); None for others."""
        value = self._done(name)
        self._result(value)
        return value.meta

    def sync(self) -> None:
        """Wait until everything appended so far has run.

        Raises:
            ProgramError: it failed.
        """
        self._settle()
        self._raise_error()

    def _settle(self) -> None:
        self._branch.flush()
        branch = self._branch
        branch.wait(self._settled())
        if branch.error is not None:
            branch.program.error_was_read = True

    def _settled(self) -> Callable[[], bool | None]:
        """For a caller outside of a program that still runs, everything means its end."""
        branch = self._branch
        if branch.program.background and not self._inside:
            return lambda: True if branch.over() else None
        return branch.idle

    def text(self) -> str:
        """All text so far: prompts and answers."""
        self.sync()
        return self._branch.transcript.text

    def messages(self) -> list[dict[str, Any]]:
        """The finished turns in OpenAI's form."""
        self.sync()
        return self._branch.transcript.messages()

    def error(self) -> ProgramError | None:
        """What went wrong, or None; waits like `sync`."""
        self._settle()
        self._branch.program.error_was_read = True
        return self._error()

    @property
    def record(self) -> Record:
        """What happened so far, for `radixlang.show`."""
        return self._branch.program.record

    def cancel(self) -> None:
        """Give up the whole program; requests under way are aborted."""
        self._branch.program.cancel("The program was cancelled")

    # ---- streams ----

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text, or that of a variable, piece by piece as it comes.

        Closing the stream of the whole text cancels the program.
        """
        if var_name is not None:
            value = self._branch.wait(lambda: self._find(var_name))
            seen = 0
            while True:
                piece, end = value.wait(functools.partial(_news, value, seen))
                seen += len(piece)
                for each, _ in _pieces(value, piece, end):
                    yield each
                if end:
                    self._result(value)
                    return
        seen = 0
        try:
            while True:
                piece, seen, end = self._branch.wait(functools.partial(self._new_text, seen))
                if piece:
                    yield piece
                if end:
                    break
        except GeneratorExit:
            self._branch.program.cancel(_STREAM_CLOSED)
            raise
        self._raise_error()

    async def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """`text_iter` for coroutines. With a variable and `return_meta_data` pairs of text and what the backend
        has said of the call so far (log-probabilities are those of all tokens so far)."""
        if var_name is not None:
            value = await self._branch.wait_async(lambda: self._find(var_name))
            seen = 0
            while True:
                piece, end = await value.wait_async(functools.partial(_news, value, seen))
                seen += len(piece)
                for each, meta in _pieces(value, piece, end):
                    yield (each, meta) if return_meta_data else each
                if end:
                    self._result(value)
                    return
        seen = 0
        try:
            while True:
                piece, seen, end = await self._branch.wait_async(functools.partial(self._new_text, seen))
                if piece:
                    yield piece
                if end:
                    break
        except (GeneratorExit, asyncio.CancelledError):
            self._branch.program.cancel(_STREAM_CLOSED)
            raise
        self._raise_error()

    def _new_text(self, seen: int) -> tuple[str, int, bool] | None:
        end = self._branch.over()
        text = self._branch.transcript.text
        if len(text) <= seen and not end:
            return None
        return text[seen:], max(seen, len(text)), end

    # ---- for coroutines ----

    async def get_var_async(self, name: str) -> Any:
        """`s[name]` for async programs."""
        return self._result(await self._done_async(name))

    async def sync_async(self) -> None:
        """`sync` for async programs."""
        self._branch.flush()
        await self._branch.wait_async(self._settled())
        self._raise_error()

    async def text_async(self) -> str:
        """`text` for async programs."""
        await self.sync_async()
        return self._branch.transcript.text

    def __repr__(self) -> str:
        return f"ProgramState({self._branch.transcript.text[-80:]!r})"


def _news(value: Value, seen: int) -> tuple[str, bool] | None:
    """What the text of a variable has beyond `seen` characters, and whether it is complete."""
    end = value.done
    text = value.text
    return (text[seen:], end) if len(text) > seen or end else None


def _pieces(value: Value, piece: str, end: bool) -> list[tuple[str, Any]]:
    """What a stream hands out, with what the backend said: a piece of text, or a value that is no text when it is
    known, each of a list by itself."""
    result = value.result
    if not end or value.error is not None or isinstance(result, str):
        return [(piece, value.meta)] if piece else []
    if not isinstance(result, list):
        return [(str(result), value.meta)]
    metas = value.meta if isinstance(value.meta, list) else [None] * len(result)
    return [(str(each), meta) for each, meta in zip(result, metas, strict=True)]


class ProgramStateGroup:
    """The branches of a fork. `group += x` appends to all: one expression, one per branch, or a function of the
    branch's index."""

    def __init__(self, states: list[ProgramState], src_state: ProgramState) -> None:
        self.states = states
        self.src_state = src_state

    def join(self, mode: Literal["gather_variable", "concate_and_append"] = "gather_variable") -> None:
        """End the fork: each new variable of the branches becomes a list in the state that was forked, or the
        branches' texts are appended to its own."""
        if mode not in ("gather_variable", "concate_and_append"):
            raise ValueError(f"join's mode is 'gather_variable' or 'concate_and_append', got {mode!r}.")
        branches = [state._branch for state in self.states]
        self.src_state._branch.join(branches, mode == "concate_and_append")

    def __getitem__(self, index: int) -> ProgramState:
        return self.states[index]

    def __setitem__(self, index: int, state: ProgramState) -> None:
        # `group[i] += x` ends with this.
        if state is not self.states[index]:
            raise ValueError("A branch of a fork cannot be replaced; append to it with +=.")

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self.states)

    def __iadd__(self, other: Any) -> ProgramStateGroup:
        if callable(other):
            parts: Sequence[Any] = [other(index) for index in range(len(self.states))]
        elif isinstance(other, list | tuple):
            parts = other
            if len(parts) != len(self.states):
                raise ValueError(f"The fork has {len(self.states)} branches, but {len(parts)} expressions came.")
        else:
            parts = [other] * len(self.states)
        for index, part in enumerate(parts):
            self.states[index] += part
        return self
