"""What a grammar knows of the tokens: their bytes, which of them end a text, and how text is cut into them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from radixlang.text.tokenizer import Tokenizer


class Vocabulary:
    """The tokens of one model.

    `tokens` [≤ size]: each id's bytes, b"" for special tokens and holes, which no grammar allows by their bytes.
    `size`: width of the model's logits. `encode`: ids of a text that stands inside a longer one, special tokens
    written in it taken as plain text. `special`: name → id of the special tokens.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        eos_ids: Sequence[int],
        encode: Callable[[str], list[int]],
        size: int | None = None,
        special: dict[str, int] | None = None,
    ) -> None:
        self.size = size or len(tokens)
        self.tokens = [*tokens[: self.size], *[b""] * (self.size - len(tokens))]
        self.special = special or {}
        for index in (*self.special.values(), *eos_ids):
            if index < self.size:
                self.tokens[index] = b""
        self.eos_ids = tuple(index for index in eos_ids if index < self.size)
        self.words = -(-self.size // 32)
        self.encode = encode

    @classmethod
    def of(cls, tokenizer: Tokenizer, size: int | None = None) -> Vocabulary:
        """`size`: width of the model's logits, where it differs from the tokenizer's."""
        special = {tokenizer.id_to_token(index) or "": index for index in tokenizer.special_ids}
        special.pop("", None)
        return cls(tokenizer.vocab_bytes(), tokenizer.eos_ids, tokenizer.encode_plain, size, special)

    @cached_property
    def order(self) -> npt.NDArray[np.int32]:
        """Ids of all tokens with bytes, sorted by them: tokens that begin alike stand together."""
        ids = [index for index, token in enumerate(self.tokens) if token]
        return np.array(sorted(ids, key=self.tokens.__getitem__), np.int32)

    @cached_property
    def _sorted(self) -> list[bytes]:
        return [self.tokens[index] for index in self.order.tolist()]

    def beginning_with(self, data: bytes) -> npt.NDArray[np.int32]:
        """Ids of the tokens that begin with `data`, itself included."""
        low = bisect_left(self._sorted, data)
        high = bisect_left(self._sorted, data + b"\xff" * 64)
        return self.order[low:high]

    @cached_property
    def reaching_beyond(self) -> Callable[[bytes], tuple[tuple[int, npt.NDArray[np.int32]], ...]]:
        """For bytes: the places inside, in order, where a token may begin that reaches beyond their end, and which
        these tokens are. None of them: a place where a tokenizer may cut without one, since many leave the last of
        several spaces to the word that follows."""
        return lru_cache(4096)(self._reaching_beyond)

    def _reaching_beyond(self, data: bytes) -> tuple[tuple[int, npt.NDArray[np.int32]], ...]:
        out = []
        for at in range(max(0, len(data) - self.longest + 1), len(data)):
            rest = data[at:]
            ids = self.beginning_with(rest)
            ids = ids[self.lengths[ids] > len(rest)]
            if len(ids):
                out.append((at, ids))
        if len(data) > 1 and data[-2:].isspace():
            at = len(data) - 1
            out = [*(one for one in out if one[0] != at), (at, np.zeros(0, np.int32))]
        return tuple(out)

    @cached_property
    def single(self) -> npt.NDArray[np.int32]:
        """Ids of the tokens of one byte."""
        return np.flatnonzero(self.lengths == 1).astype(np.int32)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int32]:
        """[size] bytes of each token."""
        return np.fromiter(map(len, self.tokens), np.int32, self.size)

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return int(self.lengths.max(initial=0))

    @cached_property
    def eos_mask(self) -> npt.NDArray[np.int32]:
        """[words] the end tokens' bits."""
        return self.mask_of(self.eos_ids)

    @cached_property
    def going_on(self) -> npt.NDArray[np.int32]:
        """[words] the bits of all tokens that do not end a text."""
        return self.mask_of(np.setdiff1d(np.arange(self.size), self.eos_ids))

    def mask_of(self, ids: Sequence[int] | npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        """[words] with the bits of `ids` set."""
        bits = np.zeros(self.words * 32, np.uint8)
        bits[np.asarray(ids, np.int64)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)
