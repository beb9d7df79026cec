"""Reading the regular expressions of JSON schemas (ECMA-262) into a small tree, and writing the tree down.

`parse` refuses what is not regular, not portable, or reads differently in different libraries. Knows nothing of
schemas or automata.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from radixlang.grammar.kept import kept
from radixlang.grammar.ranges import LAST, Ranges, invert, union, without

Tree = (
    tuple  # ("set", ranges) | ("cat", trees) | ("alt", trees) | ("rep", tree, low, high) | ("start",) | ("end",)
)
#               | ("look", tree, positive) | ("behind", tree, positive) | ("property", text)

ANY: Ranges = ((0, LAST),)


class UnsupportedPatternError(ValueError):
    """The pattern has no statement as a plain regular expression, or only one that is too large."""


class IrregularPatternError(UnsupportedPatternError):
    """No grammar states the pattern, and texts would end in places where nothing fits it."""


class Parsed(NamedTuple):
    """`plain`: the source means the same to the regex library as it is. `looks`: it looks ahead or behind."""

    tree: Tree
    plain: bool
    looks: bool


_DIGIT: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = union(
    [(9, 13), (32, 32), (0xFEFF, 0xFEFF), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
     (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)]
)  # fmt: skip
_DOT: Ranges = invert(((10, 10),))
_CLASSES = {"d": _DIGIT, "D": invert(_DIGIT), "w": _WORD, "W": invert(_WORD), "s": _SPACE, "S": invert(_SPACE)}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_EMPTY: Tree = ("cat", ())
_NOTHING: Tree = ("alt", ())


def boundary(word: Ranges, wanted: bool) -> Tree:
    """Where a text goes from characters of words to others or back (`\\b`), or where it does not (`\\B`)."""

    def between(inside: bool) -> Tree:
        return ("cat", (("behind", ("set", word), inside), ("look", ("set", word), inside != wanted)))

    return ("alt", (between(True), between(False)))


_FLAGS = re.compile(r"\(\?(?=[is-])([is]*)(?:-([is]+))?([:)])")
"""`(?i)` and `(?i:`, with other flags and those that are taken back"""


@cache
def _relatives() -> dict[int, tuple[int, ...]]:
    """Characters that differ in case alone, by each of them (Unicode's simple case folding)."""
    alike: dict[str, list[int]] = {}
    for code in range(0x20000):
        char = chr(code)
        folded = next((form for form in (char.casefold(), char.lower()) if len(form) == 1), char)
        alike.setdefault(folded, []).append(code)
    return {code: tuple(same) for same in alike.values() if len(same) > 1 for code in same}


def in_any_case(ranges: Ranges) -> Ranges:
    """With the characters that differ from these in case alone."""
    more = [
        (other, other)
        for code, same in _relatives().items()
        if any(low <= code <= high for low, high in ranges)
        for other in same
    ]
    return union([*ranges, *more])


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.plain = text, 0, True
        self.flags: frozenset[str] = frozenset()
        """of `i` and `s`, those that hold here"""

    def peek(self, text: str | tuple[str, ...]) -> bool:
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
            if self.flags_here():
                continue
            in_group = self.peek("(") and not self.peek(("(?=", "(?!", "(?<=", "(?<!"))
            item = self.atom(depth)
            items.append(self.quantified(item, in_group))
        return items[0] if len(items) == 1 else ("cat", tuple(items))

    def quantified(self, item: Tree, in_group: bool) -> Tree:
        bounds = self.quantifier()
        if bounds is None:
            return item
        if item[0] in ("start", "end") or (item[0] in ("look", "behind") and not in_group):
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
            return ("set", ANY if "s" in self.flags else _DOT)
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
        return ("set", self.any_case(((ord(char), ord(char)),)))

    def any_case(self, ranges: Ranges) -> Ranges:
        return in_any_case(ranges) if "i" in self.flags else ranges

    def flags_here(self) -> bool:
        """Take `(?i)`, which holds up to the end of the group."""
        found = _FLAGS.match(self.text, self.at)
        if found is None or found[3] == ":":
            return False
        self.at, self.plain = found.end(), False
        self.flags = (self.flags | set(found[1])) - set(found[2] or "")
        return True

    def group(self, depth: int) -> Tree:
        look, positive, outside = "", True, self.flags
        found = _FLAGS.match(self.text, self.at - 1)
        if found is not None:
            self.at, self.plain = found.end(), False
            self.flags = (self.flags | set(found[1])) - set(found[2] or "")
        elif self.peek(("?=", "?!", "?<=", "?<!")):
            look = "behind" if self.take("?<") or not self.take("?") else "look"
            positive = self.text[self.at] == "="
            self.at += 1
        elif self.take("?<") or self.take("?P<"):
            end = self.text.find(">", self.at)
            if end < 0 or not self.text[self.at : end].isidentifier():
                raise UnsupportedPatternError("the name of a group is broken")
            self.at, self.plain = end + 1, False
        elif self.peek("?") and not self.take("?:"):
            raise UnsupportedPatternError("it uses a group extension")
        inner = self.alternatives(depth + 1)
        self.flags = outside
        if not self.take(")"):
            raise UnsupportedPatternError("a group is not closed")
        return (look, inner, positive) if look else inner

    def escape(self, inside: bool) -> Tree:
        if self.at >= len(self.text):
            raise UnsupportedPatternError("it ends in a backslash")
        char = self.text[self.at]
        self.at += 1
        if char in _CLASSES:
            self.plain = self.plain and char not in "sS"  # white space differs by a few characters elsewhere
            return ("set", _CLASSES[char] if inside else self.any_case(_CLASSES[char]))
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
        elif char in "bB" and not inside:
            return boundary(_WORD, char == "b")
        elif char.isalnum():
            if char in "123456789k":
                raise IrregularPatternError("refers back to a group")
            raise UnsupportedPatternError(f"the escape \\{char} is not portable")
        else:
            code = ord(char)
            if char in "<>" or not char.isascii():
                self.plain = False
        return ("set", ((code, code),) if inside else self.any_case(((code, code),)))

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
        if 0xD800 <= code < 0xE000 or code > LAST:
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
        whole = self.any_case(union(ranges))
        return ("set", invert(whole) if negated else whole)

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


@kept(many=256, short=1 << 12, few=4)
def parse(pattern: str) -> Parsed:
    """Read a pattern.

    Raises:
        UnsupportedPatternError: it is not regular, not ECMA-262, or reads differently in different libraries.
    """
    parser = _Parser(pattern)
    tree = parser.alternatives(0)
    if parser.at < len(pattern):
        raise UnsupportedPatternError("a parenthesis is not opened")
    return Parsed(tree, parser.plain, looks(tree))


def write(tree: Tree, whole: bool = False) -> str:
    """The tree as source text every Rust-like regex library reads alike. `whole`: what the grammar library does
    not take may be in it, look-arounds and sets that are not `spelt`.

    Raises:
        UnsupportedPatternError: it looks around.
    """
    kind = tree[0]
    if kind == "set":
        return set_text(tree[1]) if whole else write_set(tree[1])
    if kind == "cat":
        return "".join(f"(?:{write(t, whole)})" if t[0] == "alt" else write(t, whole) for t in tree[1])
    if kind == "alt":
        return "|".join([write(t, whole) for t in tree[1]]) if tree[1] else r"[^\s\S]"
    if kind == "rep":
        _, inner, low, high = tree
        body = write(inner, whole) if inner[0] in ("set", "property") else f"(?:{write(inner, whole)})"
        sign = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
        if sign is None:
            sign = f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"
        return body + sign
    if kind == "property":
        return tree[1]
    if kind in ("look", "behind"):
        if not whole:
            raise UnsupportedPatternError("it looks around")
        return f"(?{'<' * (kind == 'behind')}{'=' if tree[2] else '!'}{write(tree[1], whole)})"
    return "^" if kind == "start" else "$"


def spelt(ranges: Ranges) -> Ranges:
    """The characters as the library takes them right (llguidance 1.9): in a set with all control characters
    and without a quote or a backslash it lets these through where they are escaped. The control characters that no
    letter escapes, and that strings therefore never hold, are left out of such sets."""
    if all(any(low <= code <= high for low, high in ranges) for code in (0x22, 0x5C)):
        return ranges
    return without(ranges, ((0, 7), (11, 11), (14, 31))) or ranges


def written_as_it_is(tree: Tree) -> bool:
    """Whether all sets of the tree are `spelt` already."""
    if tree[0] == "set":
        return spelt(tree[1]) == tree[1]
    if tree[0] in ("cat", "alt"):
        return all(map(written_as_it_is, tree[1]))
    return tree[0] != "rep" or written_as_it_is(tree[1])


@kept(many=512, short=64)
def write_set(ranges: Ranges) -> str:
    return set_text(spelt(ranges))


def set_text(ranges: Ranges) -> str:
    """A class with just these characters."""
    if ranges == ANY:
        return r"[\s\S]"
    if not ranges:
        return r"[^\s\S]"
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return write_char(ranges[0][0])
    sign, shown = "", ranges
    if ranges[-1][1] == LAST:  # a set that goes on for ever reads better as what it leaves out
        sign, shown = "^", invert(ranges)
    return f"[{sign}{''.join(write_char(a) if a == b else f'{write_char(a)}-{write_char(b)}' for a, b in shown)}]"


def write_char(code: int) -> str:
    char = chr(code)
    if code < 0x80 and (char.isalnum() or char in " _"):
        return char
    if 0x20 < code < 0x7F:
        return char if char in "<>'\"!%,:;=@`" else "\\" + char
    if code > 0xA0 and char.isalpha():
        return char
    return f"\\x{code:02X}" if code < 0x100 else f"\\u{code:04X}" if code < 0x10000 else f"\\u{{{code:X}}}"


def holds(tree: Tree, *kinds: str) -> bool:
    """Whether a node of one of these kinds is in the tree."""
    stack = [tree]
    while stack:
        part = stack.pop()
        kind = part[0]
        if kind in kinds:
            return True
        if kind in ("cat", "alt"):
            stack.extend(part[1])
        elif kind in ("rep", "look", "behind"):
            stack.append(part[1])
    return False


def looks(tree: Tree) -> bool:
    """Whether the tree looks ahead or behind."""
    return holds(tree, "look", "behind")


def searched(tree: Tree) -> Tree:
    """The tree of the whole texts in which another one is found; anchors that do not stand at an end are left."""
    if tree[0] == "alt" and tree[1]:
        return ("alt", tuple(map(searched, tree[1])))
    parts = tree[1] if tree[0] == "cat" else (tree,)
    begins = parts[:1] == (("start",),)
    ends = parts[begins:][-1:] == (("end",),)
    inner = parts[begins : len(parts) - ends]
    rest: tuple[Tree, ...] = (("rep", ("set", ANY), 0, None),)
    whole = (*(() if begins else rest), *inner, *(() if ends else rest))
    return whole[0] if len(whole) == 1 else ("cat", whole)


def has_anchor(tree: Tree) -> bool:
    """Whether the tree looks for the start or the end of the text."""
    return holds(tree, "start", "end")


def flat(tree: Tree) -> tuple[Tree, ...]:
    """What follows on each other in a tree."""
    return tuple([one for part in tree[1] for one in flat(part)]) if tree[0] == "cat" else (tree,)


def lengths(tree: Tree) -> tuple[int, int | None]:
    """How many characters a tree matches, at least and at most (None: any number)."""
    kind = tree[0]
    if kind in ("set", "property"):
        return 1, 1
    if kind == "rep":
        low, high = lengths(tree[1])
        most = 0 if high == 0 else None if high is None or tree[3] is None else high * tree[3]
        return low * tree[2], most
    if kind in ("cat", "alt") and tree[1]:
        found = [lengths(part) for part in tree[1]]
        least, most_of = (sum, sum) if kind == "cat" else (min, max)
        highs = [high for _, high in found if high is not None]
        return least(low for low, _ in found), most_of(highs) if len(highs) == len(found) else None
    return 0, 0
