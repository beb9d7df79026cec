"""Automata of the strings in which one tree of `regex` is found, a character of theirs at a time.

`Search` is Thompson's construction run on sets of moves as bits of one integer. `Looking` takes trees that look
ahead and behind as well: what has been looked ahead for is an obligation that goes along with a place until it is
met or missed, and what lies behind is followed from the start of the text. Both are deterministic. Knows nothing
of schemas, or of what is asked of an automaton.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar

from radixlang.grammar.ranges import LAST, Ranges, union
from radixlang.grammar.schema.regex import ANY, Tree, UnsupportedPatternError, holds, looks

_MAX_NODES = 3_000
_MAX_CUTS = 8_000  # between characters that the moves tell apart; Unicode's letters and digits have 1,500
_MAX_KINDS = 500  # of characters
_MAX_HISTORY = 64  # look-behinds of a tree; each is followed at every character
_MAX_PLACES = 300  # of a text in a tree that looks around
K = TypeVar("K")
V = TypeVar("V")
_MAX_HELD = 50_000
"""of what rows follow, some 30 bytes each: patterns are kept"""
_KEPT = 4_096
"""steps of one automaton that are kept: texts of clients may lead through ever new states"""
_ENDS = 1
"""bit of a state of `Search`: the text may end here"""


class Alphabet:
    """Characters by *kind*: those of one kind are in the same ones of some sets."""

    def __init__(self, sets: Iterable[Ranges]) -> None:
        """Raises:
        UnsupportedPatternError: the sets tell too many characters apart.
        """
        distinct = list(dict.fromkeys(sets))
        cuts = sorted({0, *(cut for ranges in distinct for low, high in ranges for cut in (low, high + 1))})
        place = {cut: i for i, cut in enumerate(cuts)}
        if cuts[-1] != LAST + 1:
            place[LAST + 1] = len(cuts)
            cuts.append(LAST + 1)
        if len(cuts) > _MAX_CUTS:
            raise UnsupportedPatternError("it has too many character ranges to compare")
        inside = [0] * (len(cuts) - 1)
        for number, ranges in enumerate(distinct):
            for low, high in ranges:
                for i in range(place[low], place[high + 1]):
                    inside[i] |= 1 << number
        numbers: dict[int, int] = {}
        self._kinds = [numbers.setdefault(sets_here, len(numbers)) for sets_here in inside]
        if len(numbers) > _MAX_KINDS:
            raise UnsupportedPatternError("it tells too many characters apart")
        self._cuts = cuts
        self._spans: list[list[tuple[int, int]]] = [[] for _ in numbers]
        for i, kind in enumerate(self._kinds):
            self._spans[kind].append((cuts[i], cuts[i + 1] - 1))
        self._ranges: Made[int, Ranges] = Made(
            lambda kinds: union([span for kind, of in enumerate(self._spans) if kinds >> kind & 1 for span in of])
        )
        self.kinds_of: dict[Ranges, int] = {
            ranges: sum(1 << kind for sets_here, kind in numbers.items() if sets_here >> number & 1)
            for number, ranges in enumerate(distinct)
        }
        """of each set: a bit for each kind"""
        self.all = (1 << len(numbers)) - 1

    def __len__(self) -> int:
        return len(self._spans)

    def kind(self, code: int) -> int:
        return self._kinds[bisect_right(self._cuts, code) - 1]

    def ranges(self, kinds: int) -> Ranges:
        """The characters of some kinds."""
        return self._ranges[kinds]


def sets_of(tree: Tree) -> tuple[Ranges, ...]:
    """The different sets of characters in a tree.

    Raises:
        UnsupportedPatternError: there are others.
    """
    found: dict[Ranges, None] = {}
    stack = [tree]
    while stack:
        part = stack.pop()
        kind = part[0]
        if kind == "set":
            found[part[1]] = None
        elif kind in ("cat", "alt"):
            stack.extend(part[1])
        elif kind in ("rep", "look", "behind"):
            stack.append(part[1])
        elif kind == "property":
            raise UnsupportedPatternError("it cannot be compared")
    return tuple(found)


class Made(dict[K, V]):
    """A mapping that is filled while it is asked, and forgets all when it has `most`."""

    def __init__(self, make: Callable[[K], V], most: int | None = None) -> None:
        super().__init__()
        self._make = make
        self._most = most

    def __missing__(self, key: K) -> V:
        value = self._make(key)
        if len(self) == self._most:
            self.clear()
        self[key] = value
        return value


class Part(Protocol):
    """A deterministic automaton that is unfolded on demand; its states are what it likes."""

    initial: Any

    def weight(self, state: Any) -> int:
        """What is followed at once: microseconds of each step, about; 0 where it is never much."""

    def step(self, state: Any, kind: int) -> Any:
        """The state behind a character."""

    def row(self, state: Any) -> list[tuple[int, Any]]:
        """(kinds, state behind characters of these) for all kinds."""

    def accepts(self, state: Any) -> bool:
        """Whether the text may end in a state."""

    def fixed(self, state: Any) -> bool | None:
        """What `accepts` says whatever follows; None if that depends, as far as is easily told."""


def part_of(tree: Tree, alphabet: Alphabet) -> Part:
    """The strings in which a tree is found, by an alphabet that has its sets and `ANY`.

    Raises:
        UnsupportedPatternError: it is too large, or looks around in a way that is not followed.
    """
    return Looking(tree, alphabet) if looks(tree) else Search(Moves(tree), alphabet)


class _Nfa:
    """Thompson's construction. Empty moves may have a guard: `start` and `end` for the two anchors, the number of
    a look-around in `looks`."""

    def __init__(self, tree: Tree, searching: bool = True) -> None:
        """`searching`: the tree may begin anywhere."""
        self.empty: list[list[tuple[int, str | int]]] = []
        self.moves: list[list[tuple[Ranges, int]]] = []
        self.looks: list[Tree] = []
        self._looks: dict[int | Tree, int] = {}
        """their numbers, by what they are and, sooner found, by their identity"""
        self.first = self._node()
        self.final = self._add(tree, self.first)
        if searching:
            self.moves[self.first].append((ANY, self.first))
        self.moves[self.final].append((ANY, self.final))
        self._leave_out()

    def _node(self) -> int:
        if len(self.empty) >= _MAX_NODES:
            raise UnsupportedPatternError("it is too large to compare")
        self.empty.append([])
        self.moves.append([])
        return len(self.empty) - 1

    def _add(self, tree: Tree, start: int) -> int:
        """Put `tree` behind `start`; returns where it ends."""
        kind = tree[0]
        if kind == "cat":
            for part in tree[1]:
                start = self._add(part, start)
            return start
        end = self._node()
        if kind == "set":
            self.moves[start].append((tree[1], end))
        elif kind == "alt":
            for option in tree[1]:
                self.empty[self._add(option, start)].append((end, ""))
        elif kind == "rep":
            _, inner, low, high = tree
            for _ in range(low):
                before, start = start, self._add(inner, start)
                if start == before:  # nothing is repeated
                    break
            if high is None:
                loop = self._node()
                self.empty[start].append((loop, ""))
                self.empty[self._add(inner, loop)].append((loop, ""))
                start = loop
            else:
                for _ in range(high - low):
                    self.empty[start].append((end, ""))
                    before, start = start, self._add(inner, start)
                    if start == before:
                        break
            self.empty[start].append((end, ""))
        elif kind in ("look", "behind"):
            self.empty[start].append((end, self._number_of(tree)))
        else:
            self.empty[start].append((end, kind))
        return end

    def _number_of(self, look: Tree) -> int:
        """Of a look-around; what is repeated has but one."""
        number = self._looks.get(id(look))
        if number is None:
            number = self._looks[id(look)] = self._looks.setdefault(look, len(self.looks))
            if number == len(self.looks):
                self.looks.append(look)
        return number

    def _leave_out(self) -> None:
        """Take moves out behind which the tree cannot be found any more."""
        before: list[list[int]] = [[] for _ in self.empty]
        for node, ways in enumerate(self.empty):
            for target, guard in ways:
                if guard != "start":
                    before[target].append(node)
        for node, moves in enumerate(self.moves):
            for _, target in moves:
                before[target].append(node)
        alive, stack = {self.final}, [self.final]
        while stack:
            for node in before[stack.pop()]:
                if node not in alive:
                    alive.add(node)
                    stack.append(node)
        self.moves = [[move for move in moves if move[1] in alive] for moves in self.moves]


class Moves:
    """A tree that does not look around, whatever the alphabet: each of its moves has a bit, and a state is the
    bits of the moves that may come next, and `_ENDS`; 0 where the tree is not found whatever follows."""

    def __init__(self, tree: Tree) -> None:
        """Raises:
        UnsupportedPatternError: it is too large.
        """
        self._nfa = nfa = _Nfa(tree)
        self._bits = [0] * len(nfa.moves)
        self._targets: list[int] = [-1]
        self.reading: dict[Ranges, int] = {}
        """the moves that read just these characters"""
        for node, moves in enumerate(nfa.moves):
            for ranges, target in moves:
                bit = 1 << len(self._targets)
                self._targets.append(target)
                self._bits[node] |= bit
                self.reading[ranges] = self.reading.get(ranges, 0) | bit
        self.always = self._bits[nfa.final] | _ENDS
        """the state in which the tree has been found"""
        self._follow: list[int] = [-1] * len(nfa.moves)
        self.after: Made[int, int] = Made(self._behind, _KEPT)
        """the state behind a character that some moves read"""
        self.initial = self._closure(nfa.first, "start")

    def _closure(self, node: int, *guards: str) -> int:
        found, seen, stack = 0, {node}, [node]
        at_end: list[int] = []
        while stack:
            at = stack.pop()
            found |= self._bits[at]
            for target, guard in self._nfa.empty[at]:
                if guard == "end":
                    at_end.append(target)
                elif target not in seen and (not guard or guard in guards):
                    seen.add(target)
                    stack.append(target)
        if self._nfa.final in seen:
            return self.always
        while at_end:
            at = at_end.pop()
            if at not in seen:
                seen.add(at)
                at_end += [t for t, guard in self._nfa.empty[at] if guard in ("", "end", *guards)]
        return found | (_ENDS if self._nfa.final in seen else 0)

    def _behind(self, moves: int) -> int:
        found, follow = 0, self._follow
        while moves:
            bit = moves & -moves
            moves ^= bit
            target = self._targets[bit.bit_length() - 1]
            if follow[target] < 0:
                follow[target] = self._closure(target)
            found |= follow[target]
        return self.always if found & self._bits[self._nfa.final] else found


class Search:
    """`Moves` over an alphabet."""

    def __init__(self, moves: Moves, alphabet: Alphabet) -> None:
        self._alphabet = alphabet
        self._after, self._always, self.initial = moves.after, moves.always, moves.initial
        reads: dict[int, int] = {}
        for ranges, bits in moves.reading.items():
            kinds = alphabet.kinds_of[ranges]
            reads[kinds] = reads.get(kinds, 0) | bits
        self._reads = list(reads.items())
        """(kinds, the moves that read just these)"""
        self._rows: Made[int, list[tuple[int, int]]] = Made(self._read)

    def step(self, state: int, kind: int) -> int:
        return self._after[sum([state & moves for kinds, moves in self._reads if kinds >> kind & 1])]

    def weight(self, state: int) -> int:
        return 0

    def row(self, state: int) -> list[tuple[int, int]]:
        return self._rows[state]

    def _read(self, state: int) -> list[tuple[int, int]]:
        spans = [(self._alphabet.all, 0)]  # kinds, and the moves that read all of them
        for kinds, moves in self._reads:
            if moves := state & moves:
                cut = []
                for span, some in spans:
                    if both := span & kinds:
                        cut.append((both, some | moves))
                    if rest := span & ~kinds:
                        cut.append((rest, some))
                spans = cut
        return [(span, self._after[some]) for span, some in spans]

    def accepts(self, state: int) -> bool:
        return bool(state & _ENDS)

    def fixed(self, state: int) -> bool | None:
        return True if state == self._always else None if state else False


_End = (-1, None)
"""an obligation: the text ends here"""
_Place = tuple[int, frozenset[tuple[int, Any]]]
"""a node, and what is to come: (number of a look-ahead, state of its automaton)"""


class _Places(NamedTuple):
    at: frozenset[_Place]
    behind: tuple[Any, ...]
    """of the automata of what is looked behind for"""


_NOWHERE = _Places(frozenset(), ())


class Looking:
    """A tree that looks around."""

    def __init__(self, tree: Tree, alphabet: Alphabet, searching: bool = True) -> None:
        """`searching`: the tree may begin anywhere; not only where `begin` is called."""
        self._nfa = nfa = _Nfa(tree, searching)
        self._alphabet = alphabet
        self.history: list[Part] = []
        """what is followed from the start of the text, for look-aheads as well"""
        self._ahead: dict[int, Part] = {}
        self._slots: dict[int, int] = {}
        """of each look-around that has a history: where its states begin in those of all"""
        for number, (kind, inner, _) in enumerate(nfa.looks):
            if kind == "behind":
                if holds(inner, "end", "look"):
                    raise UnsupportedPatternError("it looks ahead within what it looks behind for")
                self._slots[number] = len(self.history)
                self.history.append(part_of(("cat", (inner, ("end",))), alphabet))
            elif holds(inner, "start", "behind"):
                ahead = self._ahead[number] = Looking(inner, alphabet, searching=False)
                self._slots[number] = len(self.history)
                self.history += ahead.history
            else:
                self._ahead[number] = part_of(("cat", (("start",), inner)), alphabet)
            if len(self.history) > _MAX_HISTORY:
                raise UnsupportedPatternError("it looks behind in too many places")
        self._always = _Places(frozenset([(nfa.final, frozenset())]), ())
        self._rows: Made[_Places, list[tuple[int, _Places]]] = Made(self._read)
        self._held = 0
        """of all rows that are kept"""
        self.initial = self.begin(tuple([part.initial for part in self.history]), at_start=True)

    def begin(self, behind: tuple[Any, ...], at_start: bool) -> _Places:
        """The first state within a text: `behind` are the states of `history` there."""
        return self._closure([(self._nfa.first, frozenset())], behind, at_start)

    def _closure(self, places: Iterable[_Place], behind: tuple[Any, ...], at_start: bool = False) -> _Places:
        nfa = self._nfa
        seen, stack = set(places), list(places)
        while stack:
            node, owed = stack.pop()
            for target, guard in nfa.empty[node]:
                after = owed
                if guard == "end":
                    after = owed | {_End}
                elif guard == "start":
                    if not at_start:
                        continue
                elif isinstance(guard, int):
                    kind, _, wanted = nfa.looks[guard]
                    if kind == "behind":
                        slot = self._slots[guard]
                        if self.history[slot].accepts(behind[slot]) != wanted:
                            continue
                    else:
                        first = self._first(guard, behind, at_start)
                        fixed = self._ahead[guard].fixed(first)
                        if fixed is None:
                            after = owed | {(guard, first)}
                        elif fixed != wanted:
                            continue
                if (target, after) not in seen:
                    seen.add((target, after))
                    stack.append((target, after))
            if len(seen) > _MAX_PLACES * 10:
                raise UnsupportedPatternError("it looks around in too many places at once")
        owed_at: dict[int, list[frozenset[tuple[int, Any]]]] = {}
        for node, owed in seen:
            if nfa.moves[node] or node == nfa.final:
                owed_at.setdefault(node, []).append(owed)
        if frozenset() in owed_at.get(nfa.final, ()):
            return self._always
        # Who owes more than another one at the same node adds nothing.
        left = [
            (node, one)
            for node, some in owed_at.items()
            for one in some
            if len(some) == 1 or not any(other < one for other in some)
        ]
        if len(left) > _MAX_PLACES:
            raise UnsupportedPatternError("it looks around in too many places at once")
        return _Places(frozenset(left), behind) if left else _NOWHERE

    def _first(self, number: int, behind: tuple[Any, ...], at_start: bool) -> Any:
        """The state in which a look-ahead begins."""
        ahead = self._ahead[number]
        if number not in self._slots or not isinstance(ahead, Looking):
            return ahead.initial
        slot = self._slots[number]
        return ahead.begin(behind[slot : slot + len(ahead.history)], at_start)

    def step(self, state: _Places, kind: int) -> _Places:
        if state in (self._always, _NOWHERE):
            return state
        nfa, kinds_of = self._nfa, self._alphabet.kinds_of
        places = set[_Place]()
        after: dict[frozenset[tuple[int, Any]], frozenset[tuple[int, Any]] | None] = {}
        for node, owed in state.at:
            if owed not in after:
                after[owed] = self._paid(owed, kind)
            left = after[owed]
            if left is not None:
                places.update((target, left) for ranges, target in nfa.moves[node] if kinds_of[ranges] >> kind & 1)
        behind = tuple([part.step(at, kind) for part, at in zip(self.history, state.behind, strict=True)])
        return self._closure(places, behind)

    def _paid(self, owed: frozenset[tuple[int, Any]], kind: int) -> frozenset[tuple[int, Any]] | None:
        """What is left to come behind a character; None if it is not what was to come."""
        left = set[tuple[int, Any]]()
        for number, state in owed:
            if number < 0:
                return None
            part = self._ahead[number]
            after = part.step(state, kind)
            fixed = part.fixed(after)
            if fixed is None:
                left.add((number, after))
            elif fixed != self._nfa.looks[number][2]:
                return None
        return frozenset(left)

    def weight(self, state: _Places) -> int:
        return len(self.history) + sum([1 + len(owed) for _, owed in state.at])

    def row(self, state: _Places) -> list[tuple[int, _Places]]:
        return self._rows[state]

    def _read(self, state: _Places) -> list[tuple[int, _Places]]:
        if state in (self._always, _NOWHERE):
            return [(self._alphabet.all, state)]
        told = {self._alphabet.kinds_of[ranges] for node, _ in state.at for ranges, _ in self._nfa.moves[node]}
        for number, at in {each for _, owed in state.at for each in owed if each != _End}:
            told.update(kinds for kinds, _ in self._ahead[number].row(at))
        for part, at in zip(self.history, state.behind, strict=True):
            told.update(kinds for kinds, _ in part.row(at))
        alike = [self._alphabet.all]  # kinds that nothing here tells apart
        for kinds in told:
            alike = [some for each in alike for some in (each & kinds, each & ~kinds) if some]
        self._held += self.weight(state) * len(alike)
        if self._held > _MAX_HELD:
            self._held = 0
            self._rows.clear()
        return [(some, self.step(state, some.bit_length() - 1)) for some in alike]

    def accepts(self, state: _Places) -> bool:
        final, looks = self._nfa.final, self._nfa.looks
        return any(
            node == final
            and all(number < 0 or self._ahead[number].accepts(at) == looks[number][2] for number, at in owed)
            for node, owed in state.at
        )

    def fixed(self, state: _Places) -> bool | None:
        return True if state == self._always else None if state.at else False
