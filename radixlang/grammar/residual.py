"""The residual check: what a grammar cannot state is validated while the text grows, and wrong tokens are vetoed.

`ResidualGrammar` wraps a grammar that allows too much. A token that would complete a wrong value (the value's last
byte, or for a number the byte after it) is refused by `accept`; from then on `fill` leaves it out:

    state.fill(row); token = sample(row)
    if not state.accept(token):             # vetoed, nothing has changed
        undone = state.backtrack()          # 0: sample again at the same place
        drop the request's last `undone` tokens, then fill and sample again

`backtrack` undoes tokens where no other choice is left, or where the same value has failed several times over; it
goes back further each time, and gives up with a GrammarFailure when its budget is spent.

Numbers too large for a double (`1e999`) are vetoed as well, at the digit that makes them so: grammars allow any
exponent, and readers turn such numbers into infinity. That alone is worth wrapping a grammar (`checks=None`).
Knows JSON text and tokens; must not know schemas (schema/obligations.py says what applies where).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Hashable
from typing import Any, NamedTuple, Protocol

import numpy as np

from radixlang.grammar.errors import GrammarFailure
from radixlang.grammar.filling import Filling, alone
from radixlang.grammar.schema import Obligations
from radixlang.grammar.schema.terms import canonical

MAX_BACKTRACKS = 256  # a request
MAX_UNDONE = 2_048  # tokens of a request
MAX_VETOES = 4  # of one value before it is begun again further back
MAX_RESTARTS = 3  # of one value before what stands in front of it is undone

_SPACE = b" \t\n\r"
_ENDS_SCALAR = b",]} \t\n\r"
_NEXT = {
    "s": re.compile(rb'["\\]'),
    "n": re.compile(rb"[,\]} \t\n\r]"),
    "v": re.compile(rb'["\-0-9]'),
}
"""what ends a mode where only numbers are checked"""


class State(Protocol):
    """What is asked of the wrapped grammar's state (see grammar.GrammarState)."""

    def filling(self, row: np.ndarray) -> Filling[None]: ...
    def ready(self) -> np.ndarray | None: ...
    def accept(self, token: int) -> bool: ...
    def rollback(self, tokens: int) -> None: ...
    def forced(self) -> list[int]: ...
    def draft(self) -> list[int]: ...
    @property
    def finished(self) -> bool: ...
    @property
    def can_end(self) -> bool: ...
    def copy(self) -> Any: ...
    def ahead(self, tokens: list[int]) -> Any: ...


class Inner(Protocol):
    """What is asked of the wrapped grammar."""

    @property
    def nbytes(self) -> int: ...
    def start(self) -> Any: ...


class Tokens(Protocol):
    """What is asked of the vocabulary."""

    @property
    def tokens(self) -> list[bytes]: ...
    @property
    def eos_ids(self) -> tuple[int, ...]: ...
    @property
    def words(self) -> int: ...
    def beginning_with(self, data: bytes) -> np.ndarray: ...


class _Frame(NamedTuple):
    """An object or array that is open; `seen` are the items of an array that must not repeat any."""

    parent: _Frame | None
    is_object: bool
    nodes: tuple
    start: int
    at: int = 0
    key: str | None = None
    seen: frozenset | None = None


class _Place(NamedTuple):
    """Where the text stands. mode: v(alue), k(ey), s(tring), S(tring that is a key), n(umber or word), a(fter)."""

    frame: _Frame | None = None
    mode: str = "v"
    start: int = 0
    escaped: bool = False


class _WrongValueError(Exception):
    """The value that begins at `start` is complete and wrong."""

    def __init__(self, start: int) -> None:
        self.start = start


class _TooLargeError(Exception):
    """No number that begins like this is allowed, or no double holds it; other digits, or fewer, would do."""


class _MisplacedError(Exception):
    """An object ends before it has all its keys, or goes on when it has them."""


class _Step(NamedTuple):
    """An accepted token, and what was before it. `free`: other tokens were allowed."""

    token: int
    place: _Place
    length: int
    free: bool


class ResidualGrammar:
    """A grammar whose texts are also validated; immutable, shared between threads like the one it wraps."""

    def __init__(self, inner: Inner, checks: Obligations | None, vocabulary: Tokens) -> None:
        """`checks`: what to validate (Normalised.checks); None: nothing but the size of numbers."""
        self.inner, self.checks, self.vocabulary = inner, checks, vocabulary

    @property
    def nbytes(self) -> int:
        """What the cache counts."""
        return self.inner.nbytes

    def start(self) -> ResidualState:
        """A state before the first token."""
        return ResidualState(self, self.inner.start())


class ResidualState:
    """The state of one request; used by one thread at a time."""

    def __init__(self, grammar: ResidualGrammar, inner: State) -> None:
        self._grammar, self._inner = grammar, inner
        self._place = _Place()
        self._text = bytearray()
        self._steps: list[_Step] = []
        self._vetoed: dict[int, set[int]] = {}  # how many tokens were accepted -> tokens refused there
        self._failures: dict[int, int] = {}  # start of a value -> how often it was wrong
        self._restarts: dict[int, int] = {}  # start of a value -> how often it was begun again
        self._free = False
        self._vetoed_value: int | None = None
        self._backtracks = 0
        self._undone = 0
        self._ended = 0  # end tokens accepted, which are no steps

    def fill(self, row: np.ndarray) -> None:
        """Set the bits of the allowed tokens; vetoed ones are not.

        Raises:
            GrammarFailure: nothing is allowed.
        """
        alone(self.filling(row))

    def filling(self, row: np.ndarray) -> Filling[None]:
        """`fill`, for `filling.together`."""
        if self._grammar.checks is None and not self._vetoed:  # nothing is left out, and nothing taken back
            return self._inner.filling(row)
        return self._checked_filling(row)

    def ready(self) -> np.ndarray | None:
        """The mask, where nothing has to be looked for (see `GrammarState.ready`)."""
        return self._inner.ready() if self._grammar.checks is None and not self._vetoed else None

    @property
    def place(self) -> Hashable:
        """That of the wrapped state, where nothing has been left out; None: not known."""
        return None if self._vetoed else getattr(self._inner, "place", None)

    def _checked_filling(self, row: np.ndarray) -> Filling[None]:
        yield from self._filling(row)
        used = np.count_nonzero(row)
        if not used:
            raise GrammarFailure(
                "The text cannot be completed: no token satisfies the schema here; call backtrack() after a veto."
            )
        self._free = bool(used > 1) or int(row.view(np.uint32)[(row != 0).argmax()]).bit_count() > 1

    def _filling(self, row: np.ndarray) -> Filling[None]:
        yield from self._inner.filling(row)
        bits = row.view(np.uint32)
        vetoed = self._vetoed.get(len(self._steps), set())
        if self._inner.can_end and not self._may_end():
            vetoed = vetoed | set(self._grammar.vocabulary.eos_ids)
        for token in vetoed:
            bits[token >> 5] &= np.uint32(0xFFFFFFFF ^ (1 << (token & 31)))

    def accept(self, token: int) -> bool:
        """Take a token. False: it is not allowed or completes a wrong value; nothing has changed."""
        self._vetoed_value = None
        if token in self._vetoed.get(len(self._steps), ()):
            return False
        if token in self._grammar.vocabulary.eos_ids:
            if not self._may_end():
                self._veto(token)
                return False
            taken = self._inner.accept(token)
            self._ended += taken
            return taken
        data = self._grammar.vocabulary.tokens[token]
        try:
            place = self._scan(self._place, data)
        except _WrongValueError as wrong:
            self._veto(token)
            self._failures[wrong.start] = self._failures.get(wrong.start, 0) + 1
            self._vetoed_value = wrong.start
            return False
        except _TooLargeError:
            self._veto(token)
            self._veto_digits()
            return False
        except _MisplacedError:
            self._veto(token)
            return False
        except ValueError:  # no JSON: the wrapped grammar has not allowed it
            return False
        if not self._inner.accept(token):
            return False
        if place.mode == "n" and place.frame is None and self._ends_wrong(place, data):
            self._inner.rollback(1)
            self._veto(token)
            self._failures[place.start] = self._failures.get(place.start, 0) + 1
            self._vetoed_value = place.start
            return False
        self._steps.append(_Step(token, self._place, len(self._text), self._free))
        self._text += data
        self._place, self._free = place, False
        return True

    def backtrack(self) -> int:
        """After a refused token: how many tokens were undone, 0 where another token will do.

        Raises:
            GrammarFailure: the budget is spent, or nothing is left to undo.
        """
        value, others = self._vetoed_value, self._others()
        # Without checks clients have the text already; but there is always a number that is small enough.
        again = self.revises and value is not None and self._failures[value] >= MAX_VETOES
        if others and not again:
            return 0
        if not self.revises:
            raise GrammarFailure("The text cannot be completed: every number that may stand here is too large.")
        self._backtracks += 1
        places = [i for i, step in enumerate(self._steps) if step.free]
        if not places or self._backtracks > MAX_BACKTRACKS or self._undone > MAX_UNDONE:
            raise GrammarFailure(
                f"The text cannot be completed: no valid continuation was found in {self._backtracks} attempts; "
                "simplify the schema's keywords that no grammar states (uniqueItems, overlapping oneOf, ...)."
            )
        target = places[-1]
        if value is not None and again:
            # The value's end is not what is wrong with it: go back by half of its choices, three quarters, ...
            inside = [i for i in places if self._steps[i].length >= value] or places
            before = [i for i in places if self._steps[i].length < value]
            self._restarts[value] = self._restarts.get(value, 0) + 1
            target = inside[(len(inside) - 1) >> min(self._restarts[value], 30)]
            if before and self._restarts[value] > MAX_RESTARTS:  # nothing fits here: not the value is wrong
                target = before[-1]
                self._restarts[value] = 0
            self._failures[value] = 0
        length = len(self._steps)
        while True:
            token = self._steps[target].token
            self.rollback(len(self._steps) - target)
            self._veto(token)
            if self._others():
                undone = length - len(self._steps)
                self._undone += undone
                return undone
            # All choices here have failed: so the choice before was wrong.
            places = [i for i in places if i < target]
            if not places:
                raise GrammarFailure("The text cannot be completed: no value fulfils what is left of the schema.")
            target = places[-1]

    def _veto(self, token: int) -> None:
        """Leave the token out of the masks at this place."""
        self._vetoed.setdefault(len(self._steps), set()).add(token)

    def _veto_digits(self) -> None:
        """A digit made the number too large: so would others, which need not be drawn one by one."""
        for digit in b"0123456789":
            for token in self._grammar.vocabulary.beginning_with(bytes([digit])).tolist():
                try:
                    self._scan(self._place, self._grammar.vocabulary.tokens[token])
                except _TooLargeError:
                    self._veto(token)
                except (_WrongValueError, _MisplacedError, ValueError):
                    pass  # not a number's beginning, or the wrapped grammar does not allow it

    def _others(self) -> bool:
        """Whether the mask has a token left."""
        row = np.zeros(self._grammar.vocabulary.words, dtype=np.uint32)
        alone(self._filling(row))
        return bool(row.any())

    def rollback(self, tokens: int) -> None:
        """Undo the last accepted tokens."""
        ends = min(max(tokens, 0), self._ended)
        self._ended -= ends
        self._inner.rollback(ends)
        tokens -= ends
        if tokens <= 0:
            return
        first = self._steps[-tokens]
        self._inner.rollback(tokens)
        del self._steps[-tokens:]
        del self._text[first.length :]
        self._place, self._free = first.place, first.free
        self._vetoed = {at: refused for at, refused in self._vetoed.items() if at <= len(self._steps)}

    def known(self) -> list[int]:
        return []

    def forced(self) -> list[int]:
        """The tokens that must follow, up to the first that would complete a wrong value."""
        place, length = self._place, len(self._text)
        out: list[int] = []
        forced = self._inner.forced()
        if not forced:
            return []
        try:
            if self._grammar.checks is None and not self._vetoed:
                self._scan(place, b"".join([self._grammar.vocabulary.tokens[token] for token in forced]))
                return forced
        except _TooLargeError:
            pass  # somewhere in there
        try:
            for token in forced:
                if not out and token in self._vetoed.get(len(self._steps), ()):
                    break
                data = self._grammar.vocabulary.tokens[token]
                place = self._scan(place, data)
                self._text += data
                out.append(token)
        except (_WrongValueError, _TooLargeError, _MisplacedError):
            pass
        finally:
            del self._text[length:]
        return out

    def draft(self) -> list[int]:
        """Bytes that must follow, cut as they are alone; none where values are checked."""
        return [] if self.revises else self._inner.draft()

    @property
    def can_end(self) -> bool:
        """Whether the text may end here."""
        return self._inner.can_end and self._may_end()

    @property
    def finished(self) -> bool:
        """Whether nothing but the end may follow."""
        return self._inner.finished and self._may_end()

    @property
    def revises(self) -> bool:
        """Whether `backtrack` may undo tokens."""
        return self._grammar.checks is not None

    def ahead(self, tokens: list[int]) -> Any:
        """A state of the wrapped grammar, which refuses nothing that is allowed here."""
        return self._inner.ahead(tokens)

    def copy(self) -> ResidualState:
        """An independent state at the same place."""
        new = ResidualState(self._grammar, self._inner.copy())
        new._place, new._text, new._steps = self._place, bytearray(self._text), list(self._steps)
        new._vetoed = {at: set(refused) for at, refused in self._vetoed.items()}
        new._failures, new._restarts, new._free = dict(self._failures), dict(self._restarts), self._free
        new._vetoed_value, new._backtracks, new._undone = self._vetoed_value, self._backtracks, self._undone
        new._ended = self._ended
        return new

    # ---- reading the text

    def _ends_wrong(self, place: _Place, data: bytes) -> bool:
        """Whether `data` completes a wrong number, which is the whole text and cannot go on."""
        if not self._inner.can_end:
            return False
        try:
            self._close(None, place.start, bytes(self._text[place.start :]) + data)
        except _WrongValueError:
            row = np.zeros(self._grammar.vocabulary.words, dtype=np.int32)
            alone(self._inner.filling(row))
            for token in self._grammar.vocabulary.eos_ids:
                row.view(np.uint32)[token >> 5] &= np.uint32(0xFFFFFFFF ^ (1 << (token & 31)))
            return not row.any()
        return False

    def _may_end(self) -> bool:
        """Whether the root value, if a number or word that ends with the text, is right."""
        if self._place.mode != "n" or self._place.frame is not None:
            return True
        try:
            self._close(None, self._place.start, bytes(self._text[self._place.start :]))
        except _WrongValueError:
            return False
        return True

    def _scan(self, place: _Place, data: bytes) -> _Place:
        """The place after `data`, which is appended to the text read so far."""
        if self._grammar.checks is None:
            return self._scan_numbers(place, data)
        frame, mode, start, escaped = place
        if mode in "sS" and not escaped and b'"' not in data and b"\\" not in data:
            return place
        text = self._text
        base = len(text)
        for at, byte in enumerate(data, base):
            if mode in "sS":
                if escaped:
                    escaped = False
                elif byte == 0x5C:
                    escaped = True
                elif byte == 0x22:
                    piece = bytes(text[start:]) + data[max(start - base, 0) : at + 1 - base]
                    if mode == "S" and frame is not None:
                        frame, mode = frame._replace(key=json.loads(piece)), "k"
                        self._check_room(frame)
                    else:
                        frame, mode = self._close(frame, start, piece), "a"
                continue
            if mode == "n":
                if byte not in _ENDS_SCALAR:
                    continue
                piece = bytes(text[start:]) + data[max(start - base, 0) : at - base]
                _check_finite(piece)
                frame, mode = self._close(frame, start, piece), "a"
            if byte in _SPACE:
                continue
            char = chr(byte)
            if char in "{[":
                nodes = self._nodes(frame)
                checks = self._grammar.checks
                unique = char == "[" and checks is not None and checks.unique(nodes)
                frame = _Frame(frame, char == "{", nodes, at, seen=frozenset() if unique else None)
                mode = "k" if char == "{" else "v"
            elif char in "}]" and frame is not None:
                if char == "}" and frame.nodes:
                    self._check_keys(frame, frame.at + (mode != "k"), ends=True)
                piece = bytes(text[frame.start :]) + data[max(frame.start - base, 0) : at + 1 - base]
                frame, mode = self._close(frame.parent, frame.start, piece, frame.nodes), "a"
            elif char == "," and frame is not None:
                if frame.is_object and frame.nodes:
                    self._check_keys(frame, frame.at + 2)
                frame, mode = frame._replace(at=frame.at + 1), "k" if frame.is_object else "v"
            elif char == ":":
                mode = "v"
            elif char == '"':
                mode, start = "S" if mode == "k" else "s", at
            else:
                mode, start = "n", at
        if mode == "n":
            piece = bytes(text[start:]) + data[max(start - base, 0) :]
            _check_finite(piece)
            checks = self._grammar.checks
            bounds = None if checks is None else checks.integers(self._nodes(frame))
            if bounds and not _may_become(piece, *bounds):
                raise _TooLargeError
        return _Place(frame, mode, start, escaped)

    def _scan_numbers(self, place: _Place, data: bytes) -> _Place:
        """`_scan` where only numbers are checked; outside of numbers and strings the mode stays v."""
        _, mode, start, escaped = place
        at = 0
        while at < len(data):
            if escaped:
                escaped, at = False, at + 1
            found = _NEXT[mode].search(data, at)
            if found is None:
                break
            at, byte = found.end(), found[0]
            if mode == "s":
                escaped, mode = byte == b"\\", "s" if byte == b"\\" else "v"
            elif mode == "n":
                self._check_number(start, data[: at - 1])
                mode = "v"
            elif byte == b'"':
                mode = "s"
            else:
                mode, start = "n", len(self._text) + at - 1
        if mode == "n":
            self._check_number(start, data)
        return place if (mode, start, escaped) == place[1:] else _Place(None, mode, start, escaped)

    def _check_number(self, start: int, data: bytes) -> None:
        """The number from `start` on is finite, as far as it is in the text and `data` behind it."""
        base = len(self._text)
        _check_finite(bytes(self._text[start:]) + data[max(start - base, 0) :])

    def _check_keys(self, frame: _Frame, count: int, ends: bool = False) -> None:
        """Refuse more keys than an object may have, and its end before it has as many as it must."""
        checks = self._grammar.checks
        low, high = (0, None) if checks is None else checks.keys(frame.nodes)
        if (ends and count < low) or (high is not None and count > high):
            raise _MisplacedError

    def _check_room(self, frame: _Frame) -> None:
        """Refuse a key behind which too few others may stand."""
        checks = self._grammar.checks
        if checks is None or not frame.nodes:
            return
        low = checks.keys(frame.nodes)[0]
        left = checks.keys_behind(frame.nodes, frame.key or "") if low else None
        if left is not None and frame.at + 1 + left < low:
            raise _MisplacedError

    def _nodes(self, frame: _Frame | None) -> tuple:
        """What obliges the value that begins in `frame`."""
        checks = self._grammar.checks
        if checks is None:
            return ()
        if frame is None:
            return checks.root
        if not frame.nodes:
            return ()
        if frame.is_object:
            return checks.property(frame.nodes, frame.key or "")
        return checks.item(frame.nodes, frame.at)

    def _close(self, frame: _Frame | None, start: int, piece: bytes, nodes: tuple | None = None) -> _Frame | None:
        """A value in `frame` is complete; returns the frame after it."""
        checks = self._grammar.checks
        if checks is None:
            return frame
        due = checks.due(self._nodes(frame) if nodes is None else nodes)
        unique = frame is not None and frame.seen is not None
        if not due and not unique:
            return frame
        value = json.loads(piece)
        if due and not checks.valid(due, value):
            raise _WrongValueError(start)
        if frame is not None and frame.seen is not None:
            key = canonical(value)
            if key in frame.seen:
                raise _WrongValueError(start)
            frame = frame._replace(seen=frame.seen | {key})
        return frame


def _check_finite(piece: bytes) -> None:
    """Refuse a number, or the beginning of one, that no double holds; more digits would not make it smaller."""
    if (len(piece) > 300 or b"e" in piece or b"E" in piece) and piece[-1:].isdigit():
        if not math.isfinite(float(piece)):
            raise _TooLargeError


def _may_become(piece: bytes, low: int | None, high: int | None) -> bool:
    """Whether an integer within the bounds begins like this."""
    digits = piece.removeprefix(b"-")
    if not digits:
        return low is None or low < 0
    if not digits.isdigit() or len(digits) > 300:
        return True
    if len(digits) < len(piece):
        low, high = None if high is None else -high, None if low is None else -low
    first = last = int(digits)
    while high is None or first <= high:
        if low is None or last >= low:
            return True
        if not last:
            return False
        first, last = 10 * first, 10 * last + 9
    return False
