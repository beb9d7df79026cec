"""Context-free rules as small trees: checked, and written for xgrammar.

The library ignores some of what it reads with a line on standard error (look-ahead), and does not come back from a
rule that never ends. So nothing reaches it as a client wrote it: `check` says that the rules end and are not too
large, and `write` keeps to the part of its dialect that it reads exactly.

A tree is ("text", str), ("set", ranges), ("cat", trees), ("alt", trees), ("rep", tree, low, high or None),
("ref", name), or ("made", text, names): a rule in the library's own words, and the rules that it names. Must not
know the library, tokens, JSON, or where rules come from.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping

from radixlang.grammar.errors import GrammarError
from radixlang.grammar.ranges import LAST, Ranges, invert, union

Tree = tuple
Rules = dict[str, Tree]
"""by name; `root` is where texts begin"""

EMPTY: Tree = ("cat", ())
MAX_DEPTH = 250
"""nested groups; the library recurses on them"""
MAX_SIZE = 150_000
"""characters and references of a grammar as it is written; the library takes half a second for so many"""
MAX_UNFOLDED = 1 << 18
"""the same with counted repeats written out; and characters of the shortest text, all of which may be forced"""
MAX_ALTERNATIVES = 10_000
"""in one place; with 20,000 a mask took 20 seconds"""
WIDE = 16
"""ranges of a class beyond which its repeats cost the library much"""
MAX_WIDE = 200_000
"""such ranges with counted repeats written out; the library takes some microseconds for each"""

SURROGATES = (0xD800, 0xDFFF)


# ---- what every grammar must fulfil


def check(rules: Rules, param: str) -> None:
    """Refuses what the library could not end, and drops what nothing needs or no finite text fulfils.

    Raises:
        GrammarError: a rule is missing, nothing is left, or it is too large.
    """
    needed = _needed(rules, param)
    for name in rules.keys() - set(needed):
        del rules[name]
    parts = [part for tree in rules.values() for part in _parts(tree)]
    size = sum(len(part[1]) if part[0] in ("text", "made", "set") else 1 for part in parts)
    sizes: dict[str, int] = {}
    for name in needed:  # in grammars through references: nested repeats may be cut in many ways, JSON's may not
        sizes[name] = _unfolded(rules[name], sizes if param == "ebnf" else {})
    unfolded = max(sizes.values())
    widest = max((len(part[1]) for part in parts if part[0] == "alt"), default=0)
    wide = sum(_unfolded(tree, {}, wide=True) for tree in rules.values())
    for what, found, most in (
        ("characters and references", size, MAX_SIZE),
        ("characters and references with repeats written out", unfolded, MAX_UNFOLDED),
        ("alternatives in one place", widest, MAX_ALTERNATIVES),
        ("ranges in classes like \\w with repeats written out", wide, MAX_WIDE),
    ):
        if found > most:
            raise GrammarError(
                f"{param} is too large for --grammar-backend xgrammar: it has {found:,} {what}, and at most "
                f"{most:,} are possible", param=param,
            )  # fmt: skip
    shortest = _shortest(rules)
    if "root" not in shortest:
        raise GrammarError(f"{param} cannot be compiled: no finite text fulfils it", param=param)
    if shortest["root"] > MAX_UNFOLDED:
        raise GrammarError(
            f"{param} is too large: its shortest text has {shortest['root']:,} characters; at most "
            f"{MAX_UNFOLDED:,} can be held", param=param,
        )  # fmt: skip
    for name in list(rules):
        rules[name] = _ending(rules[name], shortest) or EMPTY
        if name not in shortest:
            del rules[name]


def _parts(tree: Tree, depth: int = 0) -> Iterator[Tree]:
    """The tree and all below it."""
    if depth > MAX_DEPTH:
        raise RecursionError
    yield tree
    below = tree[1] if tree[0] in ("cat", "alt") else (tree[1],) if tree[0] == "rep" else ()
    for each in below:
        yield from _parts(each, depth + 1)


def _ending(tree: Tree, known: Collection[str]) -> Tree | None:
    """The tree without what no finite text fulfils; None if that is all. `known`: the rules that end."""
    kind = tree[0]
    if kind == "rep":
        inner = _ending(tree[1], known)
        return (kind, inner, *tree[2:]) if inner else None if tree[2] else EMPTY
    if kind in ("cat", "alt"):
        parts = [_ending(each, known) for each in tree[1]]
        ended = tuple(part for part in parts if part)
        return (kind, ended) if len(ended) == len(parts) or (kind == "alt" and ended) else None
    missing = tree[1] not in known if kind == "ref" else kind == "set" and not tree[1]
    return None if missing else tree


def _names(tree: Tree) -> tuple[str, ...]:
    """The rules that the tree itself names."""
    return (tree[1],) if tree[0] == "ref" else tree[2] if tree[0] == "made" else ()


def _needed(rules: Rules, param: str) -> list[str]:
    """The rules that texts need, each behind those that it names where it is not one of theirs."""
    order: list[str] = []
    seen: set[str] = set()
    stack: list[tuple[str, Iterator[str]]] = [("", iter(["root"]))]
    while stack:
        name = next(stack[-1][1], None)
        if name is None:
            order.append(stack.pop()[0])
        elif name not in rules:
            raise GrammarError(f"{param} cannot be compiled: the rule {name!r} is missing", param=param)
        else:
            seen.add(name)
            below = (each for part in _parts(rules[name]) for each in _names(part))
            stack.append((name, (each for each in below if each not in seen)))
    return order[:-1]


def _unfolded(tree: Tree, sizes: Mapping[str, int], wide: bool = False) -> int:
    """Characters and references with repeats written out, `sizes` of them instead of the references that it holds;
    or `wide`: ranges of classes that have many."""
    if tree[0] in ("cat", "alt"):
        return sum(_unfolded(each, sizes, wide) for each in tree[1])
    if tree[0] == "rep":
        return _unfolded(tree[1], sizes, wide) * max(tree[2] if tree[3] is None else tree[3], 1)
    if wide:
        return len(tree[1]) if tree[0] == "set" and len(tree[1]) > WIDE else 0
    return len(tree[1]) if tree[0] == "text" else sizes.get(tree[1], 1) if tree[0] == "ref" else 1


def _shortest(rules: Rules) -> dict[str, int]:
    """Characters of each rule's shortest text, for those that some finite text fulfils. A tree is known when as
    many of its parts are as it needs, the shortest first (Knuth: A generalization of Dijkstra's algorithm, 1977).
    """
    waits: list[int] = []
    users: list[list[tuple[int, int]]] = []
    lengths: list[int] = []
    users_of: dict[str, list[int]] = {name: [] for name in rules}
    names: dict[int, str] = {}
    ready: list[tuple[int, int]] = []

    def place(tree: Tree) -> int:
        at = len(waits)
        waits.append(1)
        users.append([])
        lengths.append(0)
        if tree[0] in ("cat", "alt"):
            waits[at] = len(tree[1]) if tree[0] == "cat" else 1
            for each in map(place, tree[1]):
                users[each].append((at, 1))
        elif tree[0] == "rep" and tree[2]:
            users[place(tree[1])].append((at, tree[2]))
        elif tree[0] == "ref":
            users_of[tree[1]].append(at)
        elif tree[0] != "set" or tree[1]:
            waits[at] = 0
            lengths[at] = len(tree[1]) if tree[0] == "text" else tree[0] != "rep"
        if not waits[at]:
            ready.append((lengths[at], at))
        return at

    for name, tree in rules.items():
        names[place(tree)] = name
    heapq.heapify(ready)
    known: dict[str, int] = {}
    while ready:
        length, at = heapq.heappop(ready)
        above = users[at]
        if at in names:
            known[names[at]] = length
            above = [*above, *((each, 1) for each in users_of[names[at]])]
        for each, times in above:
            waits[each] -= 1
            lengths[each] += length * times
            if not waits[each]:
                heapq.heappush(ready, (lengths[each], each))
    return known


# ---- writing


def write(rules: Rules) -> str:
    """The rules as GBNF that the library reads exactly."""
    return "\n".join(f"{name} ::= {_written(tree)}" for name, tree in rules.items())


def _written(tree: Tree) -> str:
    kind = tree[0]
    if kind == "text":
        return f'"{"".join(map(_spelt, tree[1]))}"'
    if kind == "set":
        # What a class leaves out costs the library a thousandth of what it holds.
        negated = tree[1][-1][1] == LAST
        ranges = invert(tree[1]) if negated else tree[1]
        pairs = (_escape(low) + (f"-{_escape(high)}" if high > low else "") for low, high in ranges)
        return f"[{'^' * negated}{''.join(pairs)}]"
    if kind == "cat":
        return " ".join(map(_grouped, tree[1])) if tree[1] else '""'
    if kind == "alt":
        return " | ".join(map(_grouped, tree[1]))
    if kind == "rep":
        _, inner, low, high = tree
        sign = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
        if sign is None:
            sign = f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"
        return _grouped(inner) + sign
    return tree[1]


def _grouped(tree: Tree) -> str:
    return _written(tree) if tree[0] in ("text", "set", "ref") else f"({_written(tree)})"


def _spelt(char: str) -> str:
    return "\\" + char if char in '"\\' else char if char.isprintable() else _escape(ord(char))


def _escape(code: int) -> str:
    return f"\\U{code:08x}"


def without(ranges: Ranges) -> Ranges:
    """All other characters; halves of surrogate pairs are none."""
    return invert(union([*ranges, SURROGATES]))
