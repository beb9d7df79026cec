"""Text that arrives in pieces, read as if it lay there whole.

A reading is a generator: it works through a `Reader` and yields where it needs more text. Whatever it does next
depends on the text alone and never on where the pieces were cut, because every method waits until more text could
not change its answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""Yields wherever more text is needed, and returns a T."""

Sink: TypeAlias = Callable[[str], Any]

_IN_STRING = re.compile(r'["\\]')
_OUTSIDE = re.compile(r'["{}\[\]]')


@lru_cache(256)
def _any_of(markers: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(markers, key=len, reverse=True))))


class Reader:
    """The text so far from `at` on; `closed` when nothing follows."""

    def __init__(self) -> None:
        self.data = ""
        self.at = 0
        self.closed = False

    def commit(self) -> None:
        """What lies before `at` may be forgotten."""
        if 2 * self.at > len(self.data):
            self.data = self.data[self.at :]
            self.at = 0

    def begins(self, *literals: str) -> Steps[str | None]:
        """The longest of the literals that stands at `at`, or None."""
        longest = sorted(literals, key=len, reverse=True)
        while True:
            for literal in longest:
                have = self.data[self.at : self.at + len(literal)]
                if have == literal:
                    return literal
                if not self.closed and literal.startswith(have):
                    break  # may still come
            else:
                return None
            yield

    def take(self, *literals: str) -> Steps[str | None]:
        """As `begins`, and go behind it."""
        found = yield from self.begins(*literals)
        self.at += len(found or "")
        return found

    def skip_space(self) -> Steps[None]:
        """Go to the next character that is no white space."""
        while True:
            while self.at < len(self.data) and self.data[self.at].isspace():
                self.at += 1
            if self.closed or self.at < len(self.data):
                return
            yield

    def until(self, markers: tuple[str, ...], sink: Sink) -> Steps[str | None]:
        """Give the text before the first of the markers to `sink`, piece by piece. The marker, with `at` behind
        it; None when the text ends without one."""
        while True:
            hit = self._first(markers)
            if hit is not None:
                position, marker = hit
                self._give(position, sink)
                self.at += len(marker)
                return marker
            if self.closed:
                self._give(len(self.data), sink)
                return None
            self._give(len(self.data) - self._begun(markers), sink)
            yield

    def _give(self, end: int, sink: Sink) -> None:
        if end > self.at:
            sink(self.data[self.at : end])
            self.at = end

    def _first(self, markers: tuple[str, ...]) -> tuple[int, str] | None:
        """The earliest marker that can be told from every other; a longer one at the same place wins."""
        match = _any_of(markers).search(self.data, self.at)
        if match is None:
            return None
        # One that begins no later may still become whole.
        if not self.closed and len(self.data) - self._begun(markers) <= match.start():
            return None
        return match.start(), match.group()

    def _begun(self, markers: tuple[str, ...]) -> int:
        """Length of the longest tail with which a marker may have begun."""
        most = min(len(self.data) - self.at, max(map(len, markers)) - 1)
        for n in range(most, 0, -1):
            tail = self.data[-n:]
            if any(len(marker) > n and marker.startswith(tail) for marker in markers):
                return n
        return 0

    def word(self, ends: str) -> Steps[str | None]:
        """The text before the first of the characters `ends`, with `at` on that character; None without one."""
        position = self.at
        while True:
            while position < len(self.data):
                if self.data[position] in ends:
                    text, self.at = self.data[self.at : position], position
                    return text
                position += 1
            if self.closed:
                return None
            yield

    def json_string(self) -> Steps[str | None]:
        """The value of the JSON string at `at`; None if there is none."""
        if not (yield from self.begins('"')):
            return None
        end = yield from self._string_end(self.at + 1)
        if end is None:
            return None
        try:
            value: str = json.loads(self.data[self.at : end], strict=False)
        except ValueError:
            return None
        self.at = end
        return value

    def _string_end(self, position: int) -> Steps[int | None]:
        """The place behind a string whose content goes on at `position`."""
        while True:
            match = _IN_STRING.search(self.data, position)
            if match is None:
                position = len(self.data)
            elif match.group() == '"':
                return match.end()
            elif match.end() < len(self.data):
                position = match.end() + 1
                continue
            else:
                position = match.start()
            if self.closed:
                return None
            yield

    def json_object(self, sink: Sink | None = None, brackets: str = "{") -> Steps[str | None]:
        """The text of the JSON object at `at` (or array, as `brackets` says), told by its brackets and strings
        alone; None if there is none or it does not end. `sink` gets it piece by piece."""
        if not (yield from self.begins(*brackets)):
            return None
        begin = given = position = self.at
        depth, in_string = 0, False
        while True:
            match = (_IN_STRING if in_string else _OUTSIDE).search(self.data, position)
            if match is not None and match.group() == "\\":
                if match.end() < len(self.data):
                    position = match.end() + 1
                    continue
                position, match = match.start(), None
            elif match is not None:
                position = match.end()
                if match.group() == '"':
                    in_string = not in_string
                    continue
                depth += 1 if match.group() in "{[" else -1
                if depth:
                    continue
            else:
                position = len(self.data)
            self.at = position
            if sink is not None and position > given:
                sink(self.data[given:position])
                given = position
            if match is not None:
                return self.data[begin:position]
            if self.closed:
                return None
            yield


class Reading:
    """Drives one generator over a reader."""

    def __init__(self, read: Callable[[Reader], Steps[None]]) -> None:
        self.reader = Reader()
        self._steps: Steps[None] | None = read(self.reader)

    def feed(self, text: str) -> None:
        """Go on with more text."""
        if text:
            self.reader.data += text
            self._step()

    def close(self) -> None:
        """Nothing follows."""
        self.reader.closed = True
        self._step()

    def _step(self) -> None:
        if self._steps is not None:
            try:
                next(self._steps)
            except StopIteration:
                self._steps = None
