"""The walk over the token tree, compiled by numba, whose machine code is kept on disk. Needs numba."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from radixlang.grammar.grammar import Mask
from radixlang.grammar.native.trie import Ints, TokenTrie

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


def _compile() -> Any:
    options: dict[str, Any] = {"nogil": True, "boundscheck": False}
    try:
        return numba.njit(_SIGNATURE, cache=True, **options)(_walk)
    except RuntimeError:  # no folder can be written to: compile for this process only
        return numba.njit(_SIGNATURE, **options)(_walk)


_compiled = _compile()


def walk(trie: TokenTrie, table: Ints, state: int, out: Mask) -> None:
    """As `trie.walk_levels`."""
    stack = np.empty((trie.longest + 1, 3), np.int32)
    _compiled(trie.byte, trie.children, trie.first, trie.order, table, state, stack, out)
