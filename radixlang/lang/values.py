"""A variable of a program: declared when its statement is submitted, filled when the statement has run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from radixlang.errors import ProgramError
from radixlang.lang.loop import Watched


class Value(Watched):
    """`text` grows while an answer streams; `result` is the value (text, a list of n texts, or what the program
    set). Written on the loop's thread, except by `Value.of`."""

    __slots__ = ("_after", "done", "error", "meta", "result", "text")

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.result: Any = None
        self.meta: Any = None
        self.error: ProgramError | None = None
        self.done = False
        self._after: list[Callable[[Value], None]] = []

    @classmethod
    def of(cls, result: Any) -> Value:
        """A value that is known."""
        value = cls()
        value.finish(result, None)
        return value

    def grow(self, text: str, meta: Any) -> None:
        """A piece of a stream has come."""
        self.text += text
        self.meta = meta
        self.changed()

    def finish(self, result: Any, meta: Any) -> None:
        """The value is complete."""
        if self.done:
            return
        self.result, self.meta = result, meta
        if isinstance(result, str):
            self.text = result
        self._end()

    def fail(self, error: ProgramError) -> None:
        """There will be no value."""
        if self.done:
            return
        self.error = error
        self._end()

    def then(self, action: Callable[[Value], None]) -> None:
        """Call `action` when the value is done; now if it is. Call it on the loop's thread."""
        if self.done:
            action(self)
        else:
            self._after.append(action)

    def _end(self) -> None:
        self.done = True
        actions, self._after = self._after, []
        for action in actions:
            action(self)
        self.changed()

    def read(self) -> Value | None:
        """Itself once done, for `wait`."""
        return self if self.done else None


def gathered(parts: list[Value]) -> Value:
    """A value that is the list of `parts`, done when all are. Call it on the loop's thread."""
    whole = Value()
    left = len(parts)

    def one_more(part: Value) -> None:
        nonlocal left
        left -= 1
        if part.error is not None:
            whole.fail(part.error)
        elif not left:
            whole.finish([each.result for each in parts], [each.meta for each in parts])

    for part in parts:
        part.then(one_more)
    return whole
