"""Small tokenizers made on the spot, so that these tests need no model file."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tokenizers import Tokenizer as Backend
from tokenizers import models

from radixlang.text.parts import TokenizerParts, frame
from radixlang.text.pretokenizers import split_for
from radixlang.text.token_bytes import _ALPHABET
from radixlang.text.tokenizer import Tokenizer
from radixlang.text.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    byte_level_bpe,
    sentencepiece_bpe,
)

_CHARACTER = {byte: chr(code) for code, byte in _ALPHABET.items()}


def written(data: bytes) -> str:
    """Bytes in the alphabet of byte-level vocabularies."""
    return "".join(_CHARACTER[byte] for byte in data)


@functools.cache
def byte_level(chat_template: str | None = None) -> Tokenizer:
    """256 byte tokens (id = byte), a few merges, and the markers <s>, </s>, <|im_start|>, <|im_end|>, <tool>."""
    merges = ["h e", "l l", "he ll", "hell o", f"{written(b' ')} w", f"{written(b' ')}w o"]
    tokens = [written(bytes([byte])) for byte in range(256)] + [merge.replace(" ", "") for merge in merges]
    types = [NORMAL] * len(tokens) + [CONTROL] * 4 + [USER_DEFINED]
    tokens += ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<tool>"]
    backend = byte_level_bpe(tokens, types, merges, split_for("smollm", "toy"))
    bos, eos = tokens.index("<s>"), tokens.index("</s>")
    frame(backend, bos, eos, True, False)
    parts = TokenizerParts(backend, "toy", bos, (eos,), True, {}, {"bos_token": "<s>", "eos_token": "</s>"})
    return Tokenizer(parts, chat_template)


SP_TOKENS = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    "▁",
    "h",
    "i",
    "▁h",
    "hi",
    "▁hi",
    "é",
]


@functools.cache
def sentencepiece(space_prefix: bool = True) -> Tokenizer:
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (len(SP_TOKENS) - 259)
    scores = [0.0] * 262 + [-1.0, -3.0, -2.0, -9.0]
    backend = sentencepiece_bpe(SP_TOKENS, types, scores, space_prefix)
    frame(backend, 1, 2, True, False)
    parts = TokenizerParts(backend, "toy", 1, (2,), True, {}, {"bos_token": "<s>", "eos_token": "</s>"})
    return Tokenizer(parts)


def words(tokens: Sequence[str]) -> Backend:
    return Backend(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token=tokens[0]))
