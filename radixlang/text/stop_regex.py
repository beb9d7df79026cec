"""Stop expressions: finding where a regular expression first matches in text that arrives piece by piece.

The expression becomes a nondeterministic automaton that is advanced one character at a time. So the time is
linear in the text whatever the expression, the result does not depend on how the text was cut, and it is known
how much of the tail may still turn into a match. Look-around, back-references and the like have no automaton
and are refused. Must not know tokens or requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as sre  # type: ignore[attr-defined]
from typing import Any

from radixlang.errors import RequestError

#: at most this many characters before the end of a match are held back and trimmed
WINDOW = 256
#: of all expressions of a request: each state costs up to a microsecond a character, in a thread that all share
MAX_STATES = 1024

Test = Callable[[str], bool]
#: (character before or None at the start of the text, character after or None at its end) -> may pass
Condition = Callable[[str | None, str | None], bool]


@dataclass(slots=True)
class _State:
    """Either reads one character (`test`) or is passed for nothing, if `condition` holds."""

    test: Test | None = None
    condition: Condition | None = None
    next: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StopRegex:
    """A compiled expression; shared by all requests that use it."""

    pattern: str
    states: tuple[_State, ...]
    start: int
    accept: int
    width: int  # longest possible match in characters, at most WINDOW

    def scanner(self) -> RegexScanner:
        return RegexScanner(self)


class RegexScanner:
    """Reads one text. `at`: characters read; `held_from`: where a match that is still possible begins."""

    def __init__(self, regex: StopRegex) -> None:
        self._regex = regex
        # state -> where the earliest way into it began; always in the order of these beginnings, oldest first,
        # because each step goes through the states in this order and starts a new match last
        self._live: dict[int, int] = {}
        self._last: str | None = None
        self.at = 0

    @property
    def held_from(self) -> int:
        return next(iter(self._live.values()), self.at)

    def step(self, character: str) -> int | None:
        """Reads one character; returns where a match that ends behind it begins (the earliest such), or None."""
        regex, oldest = self._regex, self.at + 1 - self._regex.width
        before = dict(self._live)
        before.setdefault(regex.start, self.at)
        after: dict[int, int] = {}
        for state, began in self._closure(before, character).items():
            test = regex.states[state].test
            if test is not None and test(character):
                began = max(began, oldest)
                for target in regex.states[state].next:
                    after.setdefault(target, began)
        self.at += 1
        self._last = character
        self._live = after
        return self._closure(after, None).get(regex.accept)

    def _closure(self, states: dict[int, int], following: str | None) -> dict[int, int]:
        """All states reachable without reading, each with its earliest beginning."""
        table = self._regex.states
        reached: dict[int, int] = {}
        for state, began in states.items():
            stack = [state]
            while stack:
                one = stack.pop()
                if one in reached:
                    continue
                reached[one] = began
                node = table[one]
                if node.test is None and (node.condition is None or node.condition(self._last, following)):
                    stack.extend(node.next)
        return reached


def compile_stop_regexes(patterns: Iterable[str]) -> dict[str, StopRegex]:
    """All expressions of one request. Raises RequestError as `compile_stop_regex` does, and if all together are
    too large."""
    compiled = {pattern: compile_stop_regex(pattern) for pattern in dict.fromkeys(patterns)}
    if sum(len(one.states) for one in compiled.values()) > MAX_STATES:
        raise RequestError(
            f"The {len(compiled)} stop_regex patterns are too large together: use fewer or smaller repeats.",
            "stop_regex",
        )
    return compiled


@lru_cache(maxsize=256)
def compile_stop_regex(pattern: str) -> StopRegex:
    """Raises RequestError when the expression is not valid, not supported, too large or matches empty text."""
    try:
        tree = sre.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise RequestError(f"stop_regex {pattern!r} is not a valid expression: {error}.", "stop_regex") from error
    low, high = tree.getwidth()
    if low == 0:
        raise RequestError(f"stop_regex {pattern!r} matches empty text, so it would stop at once.", "stop_regex")
    builder = _Builder(pattern)
    accept = builder.add(_State())
    start = builder.sequence(tree, accept, tree.state.flags)
    return StopRegex(pattern, tuple(builder.states), start, accept, min(high, WINDOW))


class _Builder:
    """Builds backwards: every method gets the state that follows and returns the one that comes first."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.states: list[_State] = []

    def add(self, state: _State) -> int:
        if len(self.states) >= MAX_STATES:
            raise RequestError(
                f"stop_regex {self.pattern!r} is too large: use smaller repeat counts.", "stop_regex"
            )
        self.states.append(state)
        return len(self.states) - 1

    def sequence(self, items: Any, follow: int, flags: int) -> int:
        for kind, argument in reversed(list(items)):
            follow = self.item(kind, argument, follow, flags)
        return follow

    def item(self, kind: Any, argument: Any, follow: int, flags: int) -> int:
        if kind is op.BRANCH:
            return self.add(_State(next=[self.sequence(way, follow, flags) for way in argument[1]]))
        if kind is op.SUBPATTERN:
            _, added, removed, body = argument
            return self.sequence(body, follow, (flags | added) & ~removed)
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            low, high, body = argument
            return self.repeat(low, high, body, follow, flags)
        if kind is op.AT:
            return self.add(_State(condition=self.condition(argument, flags), next=[follow]))
        return self.add(_State(test=self.test(kind, argument, flags), next=[follow]))

    def repeat(self, low: int, high: int, body: Any, follow: int, flags: int) -> int:
        if high is op.MAXREPEAT:
            loop = self.add(_State(next=[follow]))
            self.states[loop].next.append(self.sequence(body, loop, flags))
            follow = loop
        else:
            end = follow
            for _ in range(high - low):
                follow = self.add(_State(next=[end, self.sequence(body, follow, flags)]))
        for _ in range(low):
            before, follow = follow, self.sequence(body, follow, flags)
            if follow == before:  # nothing is repeated
                break
        return follow

    def condition(self, kind: Any, flags: int) -> Condition:
        if kind in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
            lines = kind is op.AT_BEGINNING and flags & re.MULTILINE
            return lambda before, _: before is None or (bool(lines) and before == "\n")
        if kind in (op.AT_END, op.AT_END_STRING):
            lines = kind is op.AT_END and flags & re.MULTILINE
            return lambda _, after: after is None or (bool(lines) and after == "\n")
        if kind in (op.AT_BOUNDARY, op.AT_NON_BOUNDARY):
            word, wanted = _category(op.CATEGORY_WORD, flags), kind is op.AT_BOUNDARY
            return lambda before, after: (
                ((before is not None and word(before)) != (after is not None and word(after))) == wanted
            )
        raise self.unsupported(kind)

    def test(self, kind: Any, argument: Any, flags: int) -> Test:
        if kind is op.ANY:
            return (lambda _: True) if flags & re.DOTALL else (lambda character: character != "\n")
        if kind is op.IN:
            negate = bool(argument) and argument[0][0] is op.NEGATE
            members = [self.member(*one) for one in argument if one[0] is not op.NEGATE]
            plain: Test = lambda character: any(member(character) for member in members)  # noqa: E731
        elif kind is op.NOT_LITERAL:
            negate, plain = True, self.member(op.LITERAL, argument)
        else:
            negate, plain = False, self.member(kind, argument, flags)
        folded = plain
        if flags & re.IGNORECASE:
            folded = lambda character: any(plain(form) for form in _cases(character))  # noqa: E731
        return (lambda character: not folded(character)) if negate else folded

    def member(self, kind: Any, argument: Any, flags: int = 0) -> Test:
        if kind is op.LITERAL:
            wanted = chr(argument)
            return lambda character: character == wanted
        if kind is op.RANGE:
            low, high = chr(argument[0]), chr(argument[1])
            return lambda character: low <= character <= high
        if kind is op.CATEGORY:
            return _category(argument, flags)
        raise self.unsupported(kind)

    def unsupported(self, kind: Any) -> RequestError:
        name = str(kind).lower().replace("_", " ")
        return RequestError(
            f"stop_regex {self.pattern!r} uses {name}, which is not supported: write it without look-around, "
            "back-references or atomic groups.",
            "stop_regex",
        )


def _cases(character: str) -> set[str]:
    """The forms of one character that count as the same when case is ignored."""
    return {form for form in (character, character.lower(), character.upper()) if len(form) == 1}


def _category(kind: Any, flags: int) -> Test:
    name = str(kind).lower()
    letter = {"digit": r"\d", "space": r"\s", "word": r"\w"}[name.rsplit("_", 1)[1]]
    if "not" in name:
        letter = letter.upper()
    match = re.compile(letter, flags & re.ASCII).match
    return lambda character: match(character) is not None
