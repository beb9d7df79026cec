"""How threads share the work of compiled kernels: a leader that publishes, helpers that take what is left.

Work is a list of *operations*, each some independent *chunks* of one kernel. The leader publishes an operation,
takes chunks itself and waits until all are done; then the next. Helpers claim chunks with a compare-and-swap on
one word, serial number and next chunk together. So a helper that the system does not let run costs nothing: its
share is taken by others, and it cannot claim anything late, because the word has moved on. Only a helper
interrupted inside a chunk is waited for, at first busily and then asleep, so that it may have this core.

Knows nothing of what kernels compute, nor how helpers come into being (`pool.py`).
"""

from __future__ import annotations

from radixlang.kernels.cpu.simd import (
    call_number,
    call_work,
    entry,
    exchange_if,
    fetch_add,
    load_i64,
    load_shared,
    pause,
    store_shared,
)

# The board is an int64 array that lives as long as the process; these are on cache lines of their own.
WORD, DONE = 0, 8
FUNCTION, TASK, CHUNKS, HELPERS, USLEEP = range(16, 21)
BOARD = 32
OPERATION = 3
"""int64 of an operation: kernel, task, chunks"""
_BITS = 24
_CLOSED = (1 << _BITS) - 1
"""chunk number of a word that offers nothing"""
_PATIENCE = 4000
"""looks at the board before the leader sleeps for a moment"""
_NAP = 20
"""microseconds"""


@entry
def lead(board, operations, count):  # type: ignore[no-untyped-def]
    """Run `count` operations; with board 0 alone, else with the helpers of the board."""
    for i in range(count):
        at = operations + 8 * OPERATION * i
        function, task, chunks = load_i64(at), load_i64(at + 8), load_i64(at + 16)
        if board == 0 or chunks == 1:
            for chunk in range(chunks):
                call_work(function, task, chunk, 0)
            continue
        serial = ((load_shared(board + 8 * WORD) >> _BITS) + 1) << _BITS
        store_shared(board + 8 * WORD, serial | _CLOSED)
        store_shared(board + 8 * FUNCTION, function)
        store_shared(board + 8 * TASK, task)
        store_shared(board + 8 * CHUNKS, chunks)
        store_shared(board + 8 * DONE, 0)
        store_shared(board + 8 * WORD, serial)
        mine = 0
        while True:
            word = load_shared(board + 8 * WORD)
            if word - serial >= chunks:
                break
            if exchange_if(board + 8 * WORD, word, word + 1) != 0:
                call_work(function, task, word - serial, 0)
                mine += 1
        looks = 0
        while load_shared(board + 8 * DONE) + mine != chunks:
            looks += 1
            if looks < _PATIENCE:
                pause()
            elif load_i64(board + 8 * USLEEP) != 0:
                call_number(load_i64(board + 8 * USLEEP), _NAP)


@entry
def assist(board, helper, patience):  # type: ignore[no-untyped-def]
    """Take chunks as helper number `helper` (from 1) until nothing was found `patience` times in a row."""
    looks = 0
    while looks < patience:
        word = load_shared(board + 8 * WORD)
        chunk = word & _CLOSED
        function, task = load_shared(board + 8 * FUNCTION), load_shared(board + 8 * TASK)
        chunks, helpers = load_shared(board + 8 * CHUNKS), load_shared(board + 8 * HELPERS)
        if helpers < 0:
            break
        if helper <= helpers and chunk < chunks and chunk != _CLOSED:
            # What was read above belongs together if the word has not changed meanwhile.
            if exchange_if(board + 8 * WORD, word, word + 1) != 0:
                call_work(function, task, chunk, helper)
                fetch_add(board + 8 * DONE, 1)
            looks = 0
            continue
        looks += 1
        pause()
