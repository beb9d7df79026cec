"""What a grammar knows of the tokens: their bytes, which of them end a text, and how text is cut into them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
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
    written in it taken as plain text. `encode_batch`: the same for many. `special`: name → id of special tokens.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        eos_ids: Sequence[int],
        encode: Callable[[str], list[int]],
        size: int | None = None,
        special: dict[str, int] | None = None,
        encode_batch: Callable[[list[str]], list[list[int]]] | None = None,
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
        self.encode_batch = encode_batch or (lambda texts: [encode(text) for text in texts])

    @classmethod
    def of(cls, tokenizer: Tokenizer, size: int | None = None) -> Vocabulary:
        """`size`: width of the model's logits, where it differs from the tokenizer's."""
        special = {tokenizer.id_to_token(index) or "": index for index in tokenizer.special_ids}
        special.pop("", None)
        plain = tokenizer.encode_plain, size, special, tokenizer.encode_plain_batch
        return cls(tokenizer.vocab_bytes(), tokenizer.eos_ids, *plain)

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
        low, high = self._range(data)
        return self.order[low:high]

    def _range(self, data: bytes) -> tuple[int, int]:
        return bisect_left(self._sorted, data), bisect_left(self._sorted, data + b"\xff" * 64)

    @cached_property
    def reaching_beyond(self) -> Callable[[bytes], tuple[tuple[int, int | None], ...]]:
        """For bytes: the places inside, in order, where a token may begin that reaches beyond their end, and the
        bytes with which these tokens go on there (bit b: byte b). None: a place where a tokenizer may cut without
        one, since many leave the last of several spaces to the word that follows."""
        return lru_cache(4096)(self._reaching_beyond)

    def _reaching_beyond(self, data: bytes) -> tuple[tuple[int, int | None], ...]:
        out: list[tuple[int, int | None]] = []
        for at in range(max(0, len(data) - self.longest + 1), len(data)):
            nexts = self._bytes_behind(data[at:])
            if nexts:
                out.append((at, nexts))
        if len(data) > 1 and data[-2:].isspace():
            at = len(data) - 1
            out = [*(one for one in out if one[0] != at), (at, None)]
        return tuple(out)

    def _bytes_behind(self, data: bytes) -> int:
        """The bytes with which tokens go on that begin with `data` and are longer."""
        low, high = self._range(data)
        low = bisect_right(self._sorted, data, low, high)
        nexts = 0
        while low < high:
            begun = self._sorted[low][: len(data) + 1]
            nexts |= 1 << begun[-1]
            low = bisect_left(self._sorted, begun + b"\xff" * 64, low, high)
        return nexts

    def next_bytes(self, row: npt.NDArray[np.int32]) -> int:
        """The bytes that may come next by a mask (bit b: byte b), by their tokens of one byte. One without such a
        token may come, for all we know."""
        ids, bytes_, unknown = self._bytes
        bits = np.zeros(256, np.uint8)
        bits[bytes_[(row[ids >> 5] >> (ids & 31)) & 1 != 0]] = 1
        return unknown | int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")

    @cached_property
    def _bytes(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], int]:
        """Tokens of one byte, which these are, and all other bytes' bits."""
        bytes_ = np.array([self.tokens[index][0] for index in self.single.tolist()], np.int64)
        known = sum(1 << byte for byte in set(bytes_.tolist()))
        return self.single, bytes_, ((1 << 256) - 1) & ~known

    def differ(self, row: npt.NDArray[np.int32]) -> bool:
        """Whether the mask allows tokens that begin with different bytes, or one without bytes beside others. Also
        when it allows none."""
        word = int((row != 0).argmax())
        bits = int(row.view(np.uint32)[word])
        if not bits:
            return True
        # The first and the last of a word tell most masks that leave a choice.
        first = self.tokens[32 * word + (bits & -bits).bit_length() - 1]
        last = self.tokens[32 * word + bits.bit_length() - 1]
        if first[:1] != last[:1]:
            return True
        if not first:
            return bits & (bits - 1) != 0 or int(np.count_nonzero(row)) > 1
        return bool(np.count_nonzero(row & self._begin_otherwise(first[0])))

    @cached_property
    def _begin_otherwise(self) -> Callable[[int], npt.NDArray[np.int32]]:
        """[words] the bits of all tokens that do not begin with a byte."""
        return lru_cache(None)(lambda byte: ~self.mask_of(self.beginning_with(bytes([byte]))))

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
