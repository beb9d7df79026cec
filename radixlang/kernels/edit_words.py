"""How a row's history of tokens is packed: an int16 word for each token of the vocabulary.

    bits 0 … 13   times the token was generated; stops counting at the largest number
    bit 14        the token ends a text
    bit 15        the token is in the prompt

Host and kernels both read this. Must not import Triton.
"""

from __future__ import annotations

TIMES = (1 << 14) - 1
END = 1 << 14
PROMPT = -(1 << 15)
