"""The walk over the token tree, compiled by numba, whose machine code is kept on disk. Needs numba."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from radixlang.grammar.grammar import Mask
from radixlang.grammar.native.subsets import Subsets, hashed
from radixlang.grammar.native.trie import Ints, TokenTrie
from radixlang.kept_code import compile_kept

_SIGNATURE = "void(u1[::1], i4[::1], i4[::1], i4[::1], i4[:, ::1], i4, i4[:, ::1], i4[::1])"


def _walk(byte: Any, children: Any, first: Any, order: Any, table: Any, state: Any, stack: Any, out: Any) -> None:
    """Depth first. `stack` int32 [longest token + 1, 3]: at each depth the node to look at, the end of its
    siblings, and the state before them."""
    depth = 0
    stack[0, 0], stack[0, 1], stack[0, 2] = children[0], children[1], state
    while depth >= 0:
        node, end, before = stack[depth, 0], stack[depth, 1], stack[depth, 2]
        depth -= 1
        while node < end:
            after = table[before, byte[node]]
            if after >= 0:
                for place in range(first[node], first[node + 1]):
                    out[order[place] >> 5] |= np.int32(1) << (order[place] & 31)
                low, high = children[node], children[node + 1]
                if low < high:
                    depth += 1
                    stack[depth, 0], stack[depth, 1], stack[depth, 2] = node + 1, end, before
                    node, end, before = low, high, after
                    continue
            node += 1


_STACK_SIGNATURE = (
    "i8(u1[::1], i4[::1], i4[::1], i4[::1], i4[:, ::1], i4[:, ::1], i4[:, ::1], i4, i4[:, ::1], i8, "
    "i4[:, ::1], i4[:, ::1], i4[::1])"
)
_hashed = numba.njit("i8(i8, i8)", inline="always")(hashed)
LACKS = 32
"""rows that are made between two walks, at most"""


def _stack_walk(
    byte: Any, children: Any, first: Any, order: Any, table: Any, actions: Any, returns: Any,
    state: Any, stack: Any, height: Any, levels: Any, lacks: Any, out: Any,
) -> Any:  # fmt: skip
    """As `_walk`. `stack` int32 [height + longest token + 1, 2]: frames and the places below them, the first
    `height` given; what the token at depth d puts on it stands at height + d. `levels` int32 [longest + 1, 4]: as
    `stack` of `_walk`, and the top of the stack. `lacks` int32 [n, 2]: gets (state, DEAD) of rows that are UNKNOWN
    and (frame, slots) of such returns; what begins like this is left out. → (lacking << 32) + frames returned
    through. Others may write to the arrays meanwhile, and what they write may point beyond arrays that have since
    been replaced by larger ones: that counts as UNKNOWN."""
    depth = lacking = used = 0
    levels[0, 0], levels[0, 1], levels[0, 2], levels[0, 3] = children[0], children[1], state, height - 1
    while depth >= 0:
        node, end, before, top = levels[depth, 0], levels[depth, 1], levels[depth, 2], levels[depth, 3]
        depth -= 1
        while node < end:
            after, above = table[before, byte[node]], top
            if after == -2 or -3 - after >= len(actions):
                if lacking < len(lacks):
                    lacks[lacking, 0], lacks[lacking, 1] = before, -1
                    lacking += 1
                break
            if after < -2:
                frame, after = actions[-3 - after, 0], actions[-3 - after, 1]
                if frame >= 0:
                    above = np.int32(height + depth + 1)
                    stack[above, 0], stack[above, 1] = frame, top
                else:
                    frame, slots = stack[top, 0], after
                    above = stack[top, 1]
                    if top < height:
                        used = max(used, height - top)
                    at = _hashed(frame, slots) & (len(returns) - 1)
                    one = returns[at, 0]  # read once: it may be written now
                    while one != -2 and (one != frame or returns[at, 1] != slots):
                        at = (at + 1) & (len(returns) - 1)
                        one = returns[at, 0]
                    after = one if one == -2 else returns[at, 2]
                    if after == -2 or after >= len(table):
                        if lacking < len(lacks):
                            lacks[lacking, 0], lacks[lacking, 1] = frame, slots
                            lacking += 1
                        after = np.int32(-1)
            if after >= 0:
                for place in range(first[node], first[node + 1]):
                    out[order[place] >> 5] |= np.int32(1) << (order[place] & 31)
                low, high = children[node], children[node + 1]
                if low < high:
                    depth += 1
                    levels[depth, 0], levels[depth, 1], levels[depth, 2], levels[depth, 3] = (
                        node + 1, end, before, top,
                    )  # fmt: skip
                    node, end, before, top = low, high, after, above
                    continue
            node += 1
    return (lacking << 32) + used


def _compile(signature: str, function: Any) -> Any:
    return compile_kept(
        function, lambda kept: numba.njit(signature, cache=kept, nogil=True, boundscheck=False)(function)
    )


_compiled = _compile(_SIGNATURE, _walk)
_stacks = _compile(_STACK_SIGNATURE, _stack_walk)


def walk(trie: TokenTrie, table: Ints, state: int, out: Mask) -> None:
    """As `trie.walk_levels`."""
    stack = np.empty((trie.longest + 1, 3), np.int32)
    _compiled(trie.byte, trie.children, trie.first, trie.order, table, state, stack, out)


def stack_walk(trie: TokenTrie, subsets: Subsets, state: int, frames: list[int], out: Mask) -> int:
    """As `trie.walk_stacks`."""
    height = len(frames)
    stack = np.empty((height + trie.longest + 1, 2), np.int32)
    stack[:height, 0], stack[:height, 1] = frames, range(-1, height - 1)
    levels, lacks = np.empty((trie.longest + 1, 4), np.int32), np.empty((LACKS, 2), np.int32)
    while True:
        found = _stacks(
            trie.byte, trie.children, trie.first, trie.order,
            subsets.table, subsets.actions, subsets.returns,
            state, stack, height, levels, lacks, out,
        )  # fmt: skip
        for one, slots in lacks[: found >> 32].tolist():
            if slots < 0:
                subsets.expand(one)
            else:
                subsets.back(one, slots)
        if not found >> 32:
            return int(found & 0xFFFFFFFF)
