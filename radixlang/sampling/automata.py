"""The automata that rows of the device follow by themselves: slots for their tables, and each row's state.

Which automaton is in which slot, and when a slot may be used again, is for the host to say. Masking and stepping
never ask the host: they may stand in a CUDA graph. Must not know grammars, plans or requests.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
import torch

from radixlang.errors import EngineError
from radixlang.kernels import reference
from radixlang.kernels.automaton_tables import Tables
from radixlang.plan import AUTOMATON_MASKS, AUTOMATON_STATES, TOKEN_BYTES
from radixlang.platforms import Platform

SPAN = AUTOMATON_STATES


class Automata:
    """`rows` of the table of requests over logits of width `vocab`, `slots` automata.

    Memory: slots * (SPAN * 521 + AUTOMATON_MASKS * words * 4) + 20 * vocab bytes; with 16 slots 18 MB at 49,152
    tokens and 77 MB at 262,144.
    """

    def __init__(self, rows: int, vocab: int, platform: Platform, slots: int) -> None:
        device = platform.device
        self._platform = platform
        self._kernels = device.type != "cpu" and find_spec("triton") is not None
        self._placed: set[int] = set()
        """rows that follow an automaton once all is settled"""
        self._fresh: dict[int, tuple[int, int] | None] = {}
        """row → what it is to follow; not on the device yet"""
        self.slots = slots
        self.words = -(-vocab // 32)

        def filled(shape: tuple[int, ...], value: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.full(shape, value, dtype=dtype, device=device)

        self.tables = Tables(
            state=filled((rows,), -1, torch.int32),
            next_byte=filled((slots * SPAN, 256), -1, torch.int16),
            mask_row=filled((slots * SPAN,), 0, torch.int32),
            masks=filled((slots * AUTOMATON_MASKS, self.words), 0, torch.int32),
            last=filled((slots * SPAN,), 0, torch.int32),
            closed=filled((slots * SPAN,), 0, torch.int8),
            letters=filled((vocab * TOKEN_BYTES,), 0, torch.uint8),
            ends=filled((vocab + 1,), 0, torch.int32),
            span=SPAN,
        )

    def load_tokens(self, letters: npt.NDArray[np.uint8], ends: npt.NDArray[np.int32]) -> None:
        """Each token's bytes, as `plan.LoadTokens` tells. Only inside submitted work."""
        tables = self.tables
        if len(letters) > len(tables.letters) or len(ends) != len(tables.ends):
            raise EngineError(
                f"{len(ends) - 1} tokens of {len(letters)} bytes were sent to a device that has room for "
                f"{len(tables.ends) - 1} of {len(tables.letters)}."
            )
        tables.letters[: len(letters)] = self._platform.upload(letters)
        tables.ends[:] = self._platform.upload(ends)

    def load(
        self,
        slot: int,
        next_byte: npt.NDArray[np.int16],
        mask_row: npt.NDArray[np.int32],
        masks: npt.NDArray[np.int32],
    ) -> None:
        """Put an automaton of n states and m masks into a slot: flat arrays [n * 256], [n] and [m * words], as
        `plan.LoadAutomaton` tells. Only inside submitted work."""
        states, count = len(mask_row), len(masks) // self.words
        fits = states <= SPAN and count <= AUTOMATON_MASKS
        if not (0 <= slot < self.slots and fits and len(next_byte) == 256 * states):
            raise EngineError(f"An automaton of {states} states and {count} masks does not fit into slot {slot}.")
        at, row = slot * SPAN, slot * AUTOMATON_MASKS
        upload, tables = self._platform.upload, self.tables
        following = upload(next_byte).view(states, 256)
        tables.next_byte[at : at + states] = following
        tables.closed[at : at + states] = (following < 0).all(1)
        tables.mask_row[at : at + states] = upload(mask_row + np.int32(row))
        tables.masks[row : row + count] = upload(masks).view(count, self.words)
        tables.last[at : at + states] = states - 1

    def setup(self, row: int, automaton: tuple[int, int] | None) -> None:
        """From the next `settle` on the row stands at (slot, state); None: it follows no automaton."""
        if automaton is not None:
            self._placed.add(row)
        elif row in self._placed:
            self._placed.remove(row)
        else:
            return
        self._fresh[row] = automaton

    def settle(self) -> None:
        """Put rows in place that were set up since the last call. Only inside submitted work."""
        if not self._fresh:
            return
        states = [-1 if one is None else one[0] * SPAN + one[1] for one in self._fresh.values()]
        home = self._platform.upload(np.array([list(self._fresh), states], np.int32))
        self.tables.state[home[0].long()] = home[1]
        self._fresh.clear()

    def mask(self, logits: torch.Tensor, rows: torch.Tensor, drawn: torch.Tensor | None = None) -> None:
        """Set to -inf what may not follow, in logits [B, vocab] of table rows `rows` [B] int32; rows whose `drawn`
        is negative are passed over."""
        if self._kernels:
            from radixlang.kernels import automaton

            automaton.mask_logits(logits, rows, self.tables, drawn)
        else:
            reference.mask_logits(logits, rows, self.tables, drawn)

    def advance(
        self, tokens: torch.Tensor, rows: torch.Tensor, flags: torch.Tensor, drawn: torch.Tensor | None = None
    ) -> None:
        """Move the rows on by the tokens [B] int64 that were drawn for them; `ENDED` is set in flags [B] int32
        where nothing but the end may follow."""
        if self._kernels:
            from radixlang.kernels import automaton

            automaton.advance(tokens, rows, flags, self.tables, drawn)
        else:
            reference.advance(tokens, rows, flags, self.tables, drawn)
