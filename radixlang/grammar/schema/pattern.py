"""Regular expressions of JSON schemas (ECMA-262): reading them, and stating them for a regex library without lies.

`parse` reads a pattern into a small tree and refuses what is not regular or not portable. `Language` is a set of
strings built from patterns by conjunction and complement; it can be matched, compared, and written back as one
pattern that needs neither look-arounds nor a complement operator (subset construction, then state elimination).
Knows nothing of schemas. Patterns are *searched*: `b` matches "abc".
"""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

Ranges = tuple[tuple[int, int], ...]
Tree = tuple  # ("set", ranges) | ("cat", trees) | ("alt", trees) | ("rep", tree, low, high) | ("start",) | ("end",)
#               | ("look", tree, positive) | ("property", text)

_LAST = 0x10FFFF
_ANY: Ranges = ((0, _LAST),)
_MAX_NFA = 3_000
_MAX_DFA = 64
_MAX_TEXT = 1_000


class UnsupportedPatternError(ValueError):
    """The pattern has no statement as a plain regular expression, or only one that is too large."""


class Parsed(NamedTuple):
    """`plain`: the source means the same to the regex library as it is."""

    tree: Tree
    plain: bool


def _normal(ranges: list[tuple[int, int]]) -> Ranges:
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return tuple(out)


def _invert(ranges: Ranges) -> Ranges:
    out, at = [], 0
    for low, high in ranges:
        if low > at:
            out.append((at, low - 1))
        at = high + 1
    if at <= _LAST:
        out.append((at, _LAST))
    return tuple(out)


_DIGIT: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = _normal(
    [(9, 13), (32, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
     (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)]
)  # fmt: skip
_DOT: Ranges = _invert(((10, 10),))
_CLASSES = {"d": _DIGIT, "D": _invert(_DIGIT), "w": _WORD, "W": _invert(_WORD), "s": _SPACE, "S": _invert(_SPACE)}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_EMPTY: Tree = ("cat", ())
_NOTHING: Tree = ("alt", ())


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.plain = text, 0, True

    def peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def take(self, text: str) -> bool:
        if self.peek(text):
            self.at += len(text)
            return True
        return False

    def alternatives(self, depth: int) -> Tree:
        if depth > 100:
            raise UnsupportedPatternError("it is nested too deeply")
        options = [self.sequence(depth)]
        while self.take("|"):
            options.append(self.sequence(depth))
        return options[0] if len(options) == 1 else ("alt", tuple(options))

    def sequence(self, depth: int) -> Tree:
        items: list[Tree] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            item = self.atom(depth)
            items.append(self.quantified(item))
        return items[0] if len(items) == 1 else ("cat", tuple(items))

    def quantified(self, item: Tree) -> Tree:
        bounds = self.quantifier()
        if bounds is None:
            return item
        if item[0] in ("start", "end", "look"):
            raise UnsupportedPatternError("an assertion is repeated")
        self.take("?")
        if self.at < len(self.text) and (self.text[self.at] in "*+?" or self.quantifier() is not None):
            raise UnsupportedPatternError("a quantifier follows a quantifier")
        return ("rep", item, *bounds)

    def quantifier(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.take(sign):
                return bounds
        if not self.peek("{"):
            return None
        end = self.text.find("}", self.at)
        low, comma, high = self.text[self.at + 1 : max(end, self.at + 1)].partition(",")
        if end < 0 or not (low.isascii() and low.isdigit()) or (high and not (high.isascii() and high.isdigit())):
            return None
        self.at = end + 1
        top = int(low) if not comma else int(high) if high else None
        if top is not None and top < int(low):
            raise UnsupportedPatternError("a quantifier's bounds are out of order")
        return int(low), top

    def atom(self, depth: int) -> Tree:
        if self.take("("):
            return self.group(depth)
        char = self.text[self.at]
        self.at += 1
        if char == "[":
            return self.char_class()
        if char == ".":
            return ("set", _DOT)
        if char == "^":
            return ("start",)
        if char == "$":
            return ("end",)
        if char == "\\":
            return self.escape(inside=False)
        if char in "*+?":
            raise UnsupportedPatternError("a quantifier has nothing to repeat")
        if char == "{" and self.peek(","):
            raise UnsupportedPatternError("a quantifier without a lower bound is not portable")
        if char in "{}]":
            self.plain = False
        return ("set", ((ord(char), ord(char)),))

    def group(self, depth: int) -> Tree:
        positive = None
        if self.take("?="):
            positive = True
        elif self.take("?!"):
            positive = False
        elif self.take("?<") or self.take("?P<"):
            end = self.text.find(">", self.at)
            if end < 0 or not self.text[self.at : end].isidentifier():
                raise UnsupportedPatternError("it looks behind")
            self.at, self.plain = end + 1, False
        elif self.peek("?") and not self.take("?:"):
            raise UnsupportedPatternError("it uses a group extension")
        inner = self.alternatives(depth + 1)
        if not self.take(")"):
            raise UnsupportedPatternError("a group is not closed")
        return inner if positive is None else ("look", inner, positive)

    def escape(self, inside: bool) -> Tree:
        if self.at >= len(self.text):
            raise UnsupportedPatternError("it ends in a backslash")
        char = self.text[self.at]
        self.at += 1
        if char in _CLASSES:
            return ("set", _CLASSES[char])
        if char in _CONTROLS:
            code = _CONTROLS[char]
        elif char in "pP":
            end = self.text.find("}", self.at)
            if not self.peek("{") or end < 0 or inside:
                raise UnsupportedPatternError("it uses a Unicode property in a way that is not portable")
            name, self.at = self.text[self.at + 1 : end], end + 1
            return ("property", f"\\{char}{{{name}}}")
        elif char == "x":
            code = self.hexadecimal(2)
        elif char == "u":
            code = self.unicode()
        elif char == "c" and self.text[self.at : self.at + 1].isalpha() and self.text[self.at].isascii():
            code, self.plain = ord(self.text[self.at].upper()) - 64, False
            self.at += 1
        elif char == "0" and not self.text[self.at : self.at + 1].isdigit():
            code, self.plain = 0, False
        elif char == "b" and inside:
            code, self.plain = 8, False
        elif char.isalnum():
            raise UnsupportedPatternError(f"the escape \\{char} is not portable")
        else:
            code = ord(char)
            if char in "<>" or not char.isascii():
                self.plain = False
        return ("set", ((code, code),))

    def hexadecimal(self, width: int) -> int:
        digits = self.text[self.at : self.at + width]
        try:
            code = int(digits, 16)
        except ValueError:
            raise UnsupportedPatternError("a hexadecimal escape is broken") from None
        if len(digits) < width or not digits.isalnum():
            raise UnsupportedPatternError("a hexadecimal escape is broken")
        self.at += width
        return code

    def unicode(self) -> int:
        self.plain = False
        if self.take("{"):
            end = self.text.find("}", self.at)
            code = self.hexadecimal(max(end - self.at, 1))
            self.at += 1
        else:
            code = self.hexadecimal(4)
            if 0xD800 <= code < 0xDC00 and self.take("\\u"):
                low = self.hexadecimal(4)
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
        if 0xD800 <= code < 0xE000 or code > _LAST:
            raise UnsupportedPatternError("it names half a surrogate pair")
        return code

    def char_class(self) -> Tree:
        negated = self.take("^")
        if self.peek("]"):
            raise UnsupportedPatternError("a character class begins with ]")
        ranges: list[tuple[int, int]] = []
        while not self.take("]"):
            low = self.class_atom()
            if self.peek("-") and not self.peek("-]"):
                self.at += 1
                if self.peek("-"):
                    self.plain = False
                high = self.class_atom()
                single = len(low) == len(high) == 1 and low[0][0] == low[0][1] and high[0][0] == high[0][1]
                if single and low[0][0] <= high[0][0]:
                    ranges.append((low[0][0], high[0][0]))
                    continue
                if single:
                    raise UnsupportedPatternError("a character range is out of order")
                self.plain = False
                ranges.extend([*low, (45, 45), *high])
                continue
            ranges.extend(low)
        whole = _normal(ranges)
        return ("set", _invert(whole) if negated else whole)

    def class_atom(self) -> Ranges:
        if self.at >= len(self.text):
            raise UnsupportedPatternError("a character class is not closed")
        char = self.text[self.at]
        self.at += 1
        if char == "\\":
            return self.escape(inside=True)[1]
        if char in "[&~":
            self.plain = False
        return ((ord(char), ord(char)),)


@functools.lru_cache(maxsize=1024)
def parse(pattern: str) -> Parsed:
    """Read a pattern.

    Raises:
        UnsupportedPatternError: it is not regular, not ECMA-262, or reads differently in different libraries.
    """
    parser = _Parser(pattern)
    tree = parser.alternatives(0)
    if parser.at < len(pattern):
        raise UnsupportedPatternError("a parenthesis is not opened")
    return Parsed(tree, parser.plain)


def write(tree: Tree) -> str:
    """The tree as source text every Rust-like regex library reads alike."""
    kind = tree[0]
    if kind == "set":
        return _write_set(tree[1])
    if kind == "cat":
        return "".join(f"(?:{write(t)})" if t[0] == "alt" else write(t) for t in tree[1])
    if kind == "alt":
        return "|".join(map(write, tree[1])) if tree[1] else r"[^\s\S]"
    if kind == "rep":
        _, inner, low, high = tree
        body = write(inner) if inner[0] in ("set", "property") else f"(?:{write(inner)})"
        sign = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
        if sign is None:
            sign = f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"
        return body + sign
    if kind == "property":
        return tree[1]
    if kind == "look":
        raise UnsupportedPatternError("it looks around")
    return "^" if kind == "start" else "$"


def _write_set(ranges: Ranges) -> str:
    if ranges == _ANY:
        return r"[\s\S]"
    if not ranges:
        return r"[^\s\S]"
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _write_char(ranges[0][0])
    sign, shown = "", ranges
    if ranges[-1][1] == _LAST:  # a set that goes on for ever reads better as what it leaves out
        sign, shown = "^", _invert(ranges)
    return f"[{sign}{''.join(_write_char(a) if a == b else f'{_write_char(a)}-{_write_char(b)}' for a, b in shown)}]"


def _write_char(code: int) -> str:
    char = chr(code)
    if code < 0x80 and (char.isalnum() or char in " _"):
        return char
    if 0x20 < code < 0x7F:
        return char if char in "<>'\"!%,:;=@`" else "\\" + char
    return char if code > 0xA0 and char.isalpha() else f"\\x{{{code:X}}}"


class _Nfa:
    """Thompson's construction, with the two anchors as guarded empty moves."""

    def __init__(self) -> None:
        self.empty: list[list[tuple[int, str]]] = []
        self.moves: list[list[tuple[Ranges, int]]] = []

    def state(self) -> int:
        if len(self.empty) >= _MAX_NFA:
            raise UnsupportedPatternError("it is too large to compare")
        self.empty.append([])
        self.moves.append([])
        return len(self.empty) - 1

    def add(self, tree: Tree, start: int) -> int:
        """Put `tree` behind `start`; returns where it ends."""
        kind = tree[0]
        if kind == "cat":
            for part in tree[1]:
                start = self.add(part, start)
            return start
        end = self.state()
        if kind == "set":
            self.moves[start].append((tree[1], end))
        elif kind == "alt":
            for option in tree[1]:
                self.empty[self.add(option, start)].append((end, ""))
        elif kind in ("start", "end"):
            self.empty[start].append((end, kind))
        elif kind == "rep":
            _, inner, low, high = tree
            for _ in range(low):
                start = self.add(inner, start)
            if high is None:
                loop = self.state()
                self.empty[start].append((loop, ""))
                self.empty[self.add(inner, loop)].append((loop, ""))
                start = loop
            else:
                for _ in range(high - low):
                    self.empty[start].append((end, ""))
                    start = self.add(inner, start)
            self.empty[start].append((end, ""))
        else:
            raise UnsupportedPatternError("it cannot be compared")
        return end

    def closure(self, states: frozenset[int], *guards: str) -> frozenset[int]:
        seen, stack = set(states), list(states)
        while stack:
            for target, guard in self.empty[stack.pop()]:
                if target not in seen and (not guard or guard in guards):
                    seen.add(target)
                    stack.append(target)
        return frozenset(seen)


class _Search:
    """The strings in which one tree is found, as a deterministic automaton that is unfolded on demand."""

    def __init__(self, tree: Tree) -> None:
        self.nfa = nfa = _Nfa()
        first = nfa.state()
        nfa.moves[first].append((_ANY, first))
        self.final = nfa.add(tree, first)
        nfa.moves[self.final].append((_ANY, self.final))
        self.initial = nfa.closure(frozenset([first]), "start")
        self._accepting: dict[frozenset[int], bool] = {}

    def step(self, states: frozenset[int], code: int) -> frozenset[int]:
        moves = self.nfa.moves
        return self.nfa.closure(
            frozenset(t for s in states for ranges, t in moves[s] if any(a <= code <= b for a, b in ranges))
        )

    def accepts(self, states: frozenset[int]) -> bool:
        if states not in self._accepting:
            guards = ("start", "end") if states == self.initial else ("end",)
            self._accepting[states] = self.final in self.nfa.closure(states, *guards)
        return self._accepting[states]


class Language(NamedTuple):
    """The strings that every pattern of `terms` with True is found in, and none with False."""

    terms: tuple[tuple[str, bool], ...]

    def matches(self, text: str) -> bool:
        """Whether `text` is in the language."""
        for part, sign in _searches(self.terms):
            states = part.initial
            for char in text:
                states = part.step(states, ord(char))
            if part.accepts(states) != sign:
                return False
        return True

    def empty(self) -> bool:
        """Whether no string is in the language."""
        return not any(accepting for accepting, _ in _product(self.terms))

    def source(self) -> str:
        """One pattern for the language.

        Raises:
            UnsupportedPatternError: it would be too large, or a pattern cannot be read.
        """
        if len(self.terms) == 1 and self.terms[0][1]:
            tree, plain = parse(self.terms[0][0])
            if plain and not _looks(tree):
                return self.terms[0][0]
            if not _looks(tree):
                return write(tree)
        return _eliminate(_product(self.terms))


@functools.lru_cache(maxsize=512)
def _searches(terms: tuple[tuple[str, bool], ...]) -> list[tuple[_Search, bool]]:
    return [(_Search(tree), sign) for pattern, wanted in terms for tree, sign in _split(parse(pattern).tree, wanted)]


def _looks(tree: Tree) -> bool:
    if tree[0] == "look":
        return True
    if tree[0] in ("cat", "alt"):
        return any(map(_looks, tree[1]))
    return tree[0] == "rep" and _looks(tree[1])


def _split(tree: Tree, wanted: bool) -> list[tuple[Tree, bool]]:
    """Take leading look-aheads out: `^(?!x)y` is "y from the start, and not x from the start"."""
    if not _looks(tree):
        return [(tree, wanted)]
    parts = tree[1] if tree[0] == "cat" else ()
    if not wanted or not parts or parts[0] != ("start",):
        raise UnsupportedPatternError("it looks around")
    rest = list(parts[1:])
    out: list[tuple[Tree, bool]] = []
    while rest and rest[0][0] == "look":
        _, inner, positive = rest.pop(0)
        if _looks(inner):
            raise UnsupportedPatternError("it looks around")
        out.append((("cat", (("start",), inner)), positive))
    if any(map(_looks, rest)):
        raise UnsupportedPatternError("it looks around")
    return [*out, (("cat", (("start",), *rest)), True)]


@functools.lru_cache(maxsize=256)
def _product(terms: tuple[tuple[str, bool], ...]) -> list[tuple[bool, dict[int, Ranges]]]:
    """The deterministic automaton of all terms: (accepting, target -> characters) a state; state 0 begins."""
    parts = _searches(terms)
    cuts = {0, _LAST + 1}
    for part, _ in parts:
        for moves in part.nfa.moves:
            for ranges, _target in moves:
                for low, high in ranges:
                    cuts.update((low, high + 1))
    ordered = sorted(cuts)
    intervals = [(a, b - 1) for a, b in itertools.pairwise(ordered)]
    if len(intervals) > 400:
        raise UnsupportedPatternError("it has too many character ranges to compare")
    first = tuple(part.initial for part, _ in parts)
    index = {first: 0}
    queue = [first]
    out: list[tuple[bool, dict[int, Ranges]]] = []
    for states in queue:
        edges: dict[int, list[tuple[int, int]]] = {}
        for low, high in intervals:
            target = tuple(part.step(s, low) for (part, _), s in zip(parts, states, strict=True))
            if target not in index:
                if len(index) >= _MAX_DFA:
                    raise UnsupportedPatternError("it has too many states to compare")
                index[target] = len(index)
                queue.append(target)
            edges.setdefault(index[target], []).append((low, high))
        accepting = all(part.accepts(s) == sign for (part, sign), s in zip(parts, states, strict=True))
        out.append((accepting, {target: _normal(ranges) for target, ranges in edges.items()}))
    return out


def _eliminate(automaton: list[tuple[bool, dict[int, Ranges]]]) -> str:
    """An automaton as one anchored pattern: states are taken out one by one, the least connected first."""
    live = _live(automaton)
    if 0 not in live:
        return r"[^\s\S]"
    start, end = -1, -2
    edges: dict[int, dict[int, str]] = {state: {} for state in live} | {start: {0: ""}}
    for state in live:
        for target, ranges in automaton[state][1].items():
            if target in live:
                edges[state][target] = _write_set(ranges)
        if automaton[state][0]:
            edges[state][end] = ""
    while len(edges) > 1:
        state = min((s for s in edges if s != start), key=lambda s: _weight(edges, s))
        out = edges.pop(state)
        loop = out.pop(state, None)
        middle = "" if loop is None else f"(?:{loop})*"
        for targets in edges.values():
            before = targets.pop(state, None)
            if before is None:
                continue
            for target, after in out.items():
                path = _group(before) + middle + _group(after)
                old = targets.get(target)
                targets[target] = path if old is None else f"{old}|{path}"
                if len(targets[target]) > _MAX_TEXT:
                    raise UnsupportedPatternError("its complement or conjunction is too large")
    return f"^(?:{edges[start].get(end, '')})$"


def _weight(edges: dict[int, dict[int, str]], state: int) -> int:
    entering = [len(out[state]) for source, out in edges.items() if state in out and source != state]
    leaving = [len(text) for target, text in edges[state].items() if target != state]
    return sum(entering) * len(leaving) + sum(leaving) * len(entering)


def _group(text: str) -> str:
    return f"(?:{text})" if "|" in text else text


def _live(automaton: list[tuple[bool, dict[int, Ranges]]]) -> set[int]:
    """The states from which the end can be reached."""
    sources: dict[int, list[int]] = {}
    for state, (_, edges) in enumerate(automaton):
        for target in edges:
            sources.setdefault(target, []).append(state)
    stack = [state for state, (accepting, _) in enumerate(automaton) if accepting]
    live = set(stack)
    while stack:
        for source in sources.get(stack.pop(), []):
            if source not in live:
                live.add(source)
                stack.append(source)
    return live


def universal(pattern: str) -> bool:
    """Whether the pattern is found in every string, as far as is cheap to say."""
    return pattern in ("", "^", "$", ".*", "^.*", ".*$", r"[\s\S]*", r"^[\s\S]*$", r"^[\s\S]*", "(.*)")


def without(words: frozenset[str]) -> str:
    """An anchored pattern for all strings but the given ones."""
    def rest(words: list[str]) -> str:
        heads: dict[str, list[str]] = {}
        for word in words:
            if word:
                heads.setdefault(word[0], []).append(word[1:])
        options = [] if "" in words else [""]
        points = _normal([(ord(c), ord(c)) for c in heads])
        options.append(_write_set(_invert(points)) + r"[\s\S]*")
        options.extend(_write_char(ord(c)) + rest(tails) for c, tails in sorted(heads.items()))
        return f"(?:{'|'.join(options)})"

    if sum(map(len, words)) > _MAX_TEXT or max(map(len, words), default=0) > 200:
        raise UnsupportedPatternError("the excluded strings are too long")
    return f"^{rest(sorted(words))}$"
