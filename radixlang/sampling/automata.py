"""The automata that rows of the device follow by themselves: slots for their tables, and each row's state.

Which automaton is in which slot, and when a slot may be used again, is for the host to say. Masking and stepping
never ask the host: they may stand in a CUDA graph. Must not know grammars, plans or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
import torch

from radixlang.errors import EngineError
from radixlang.kernels import reference
from radixlang.kernels.automaton_tables import Tables
from radixlang.platforms import Platform

SPAN = 512
"""states of one automaton at most, the one for ended texts included"""


class Automata:
    """`rows` of the table of requests, `slots` automata of up to `mask_rows` different masks each.

    Memory: slots * (SPAN * 520 + mask_rows * words * 4) bytes; with 16 slots of 128 masks 17 MB at 49,152 tokens
    and 71 MB at 262,144. `tokens`: each token's bytes, b"" for end tokens and those no automaton allows.
    """

    def __init__(
        self,
        rows: int,
        tokens: Sequence[bytes],
        platform: Platform,
        slots: int = 16,
        mask_rows: int = 128,
    ) -> None:
        device = platform.device
        self._platform = platform
        self._kernels = device.type != "cpu" and find_spec("triton") is not None
        self.slots = slots
        self.mask_rows = mask_rows
        self.words = -(-len(tokens) // 32)
        ends = np.cumsum([0, *map(len, tokens)]).astype(np.int32)
        letters = np.frombuffer(b"".join(tokens) or b"\0", np.uint8)

        def filled(shape: tuple[int, ...], value: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.full(shape, value, dtype=dtype, device=device)

        self.tables = Tables(
            state=filled((rows,), -1, torch.int32),
            next_byte=filled((slots * SPAN, 256), -1, torch.int16),
            mask_row=filled((slots * SPAN,), 0, torch.int32),
            masks=filled((slots * mask_rows, self.words), 0, torch.int32),
            last=filled((slots * SPAN,), 0, torch.int32),
            letters=torch.from_numpy(letters.copy()).to(device),
            ends=torch.from_numpy(ends).to(device),
            span=SPAN,
        )

    def fits(self, states: int, masks: int) -> bool:
        """Whether an automaton of so many states and different masks has room in a slot."""
        return states <= SPAN and masks <= self.mask_rows

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
        if not (0 <= slot < self.slots and self.fits(states, count) and len(next_byte) == 256 * states):
            raise EngineError(f"An automaton of {states} states and {count} masks does not fit into slot {slot}.")
        at, row = slot * SPAN, slot * self.mask_rows
        upload, tables = self._platform.upload, self.tables
        tables.next_byte[at : at + states] = upload(next_byte).view(states, 256)
        tables.mask_row[at : at + states] = upload(mask_row + np.int32(row))
        tables.masks[row : row + count] = upload(masks).view(count, self.words)
        tables.last[at : at + states] = states - 1

    def place(self, rows: Sequence[int], automata: Sequence[tuple[int, int] | None]) -> None:
        """Put distinct rows into (slot, state), None: the row follows no automaton. Only inside submitted work."""
        states = [-1 if one is None else one[0] * SPAN + one[1] for one in automata]
        home = self._platform.upload(np.array([rows, states], np.int32))
        self.tables.state[home[0].long()] = home[1]

    def mask(self, logits: torch.Tensor, rows: torch.Tensor, drawn: torch.Tensor | None = None) -> None:
        """Set to -inf what may not follow, in logits [B, vocab] of table rows `rows` [B] int32; rows whose `drawn`
        is negative are passed over."""
        if self._kernels:
            from radixlang.kernels import automaton

            automaton.mask_logits(logits, rows, self.tables, drawn)
        else:
            reference.mask_logits(logits, rows, self.tables, drawn)

    def advance(self, tokens: torch.Tensor, rows: torch.Tensor, drawn: torch.Tensor | None = None) -> None:
        """Move the rows on by the tokens [B] int64 that were drawn for them."""
        if self._kernels:
            from radixlang.kernels import automaton

            automaton.advance(tokens, rows, self.tables, drawn)
        else:
            reference.advance(tokens, rows, self.tables, drawn)
