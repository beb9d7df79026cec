"""Token -> the exact bytes it stands for, derived from a tokenizer's decoder.

Decoding is then joining bytes and reading them as UTF-8, which can be done token by token. A decoder that cannot
be expressed that way is an error when the model is loaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from tokenizers import Tokenizer

from radixlang.errors import UnsupportedModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[int, int]:
    """Character -> byte of byte-level vocabularies: printable bytes are written as themselves, others from 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: byte for byte in printable}
    hidden = (byte for byte in range(256) if byte not in table)
    return table | {256 + index: byte for index, byte in enumerate(hidden)}


_ALPHABET = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_ALPHABET[ord(character)] for character in token])
    except KeyError:  # not written in the alphabet: an added token, which stands for its own text
        return token.encode("utf-8")


def token_bytes_rule(backend: Tokenizer) -> tuple[Callable[[str], bytes], bool]:
    """(token text -> bytes, whether one leading space of a whole text is dropped) for the decoder of `backend`."""
    if backend.decoder is None:
        return (lambda token: b" " + token.encode("utf-8")), True
    return _rule(json.loads(backend.decoder.__getstate__()))


def _rule(decoder: dict) -> tuple[Callable[[str], bytes], bool]:
    kind = decoder["type"]
    if kind == "ByteLevel":
        return _byte_level, False
    if kind == "WordPiece":
        return _word_piece(decoder["prefix"], bool(decoder.get("cleanup", True))), True
    steps = decoder["decoders"] if kind == "Sequence" else [decoder]
    if any(step["type"] == "ByteLevel" for step in steps):
        return _byte_level, False
    replacements: list[tuple[str, str]] = []
    fallback = strip = False
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": old}, "content": new}:
                replacements.append((old, new))
            case {"type": "Metaspace", "replacement": old, "prepend_scheme": scheme}:
                replacements.append((old, " "))
                strip = strip or scheme != "never"
            case {"type": "Strip", "content": " ", "start": (0 | 1) as start, "stop": 0}:
                strip = strip or start == 1
            case {"type": "ByteFallback"}:
                fallback = True
            case {"type": "Fuse"}:
                pass
            case _:
                raise UnsupportedModelError(
                    f"The tokenizer's decoder {step['type']} is not implemented: "
                    "give another tokenizer folder as --tokenizer-path."
                )

    def piece(token: str) -> bytes:
        match = _BYTE_TOKEN.fullmatch(token) if fallback else None
        if match:
            return bytes([int(match[1], 16)])
        for old, new in replacements:
            token = token.replace(old, new)
        return token.encode("utf-8")

    return piece, strip


def _word_piece(prefix: str, cleanup: bool) -> Callable[[str], bytes]:
    """BERT: words are joined by spaces, pieces with the prefix by nothing; `cleanup` closes up punctuation."""
    closed = (" .", " ?", " !", " ,", " n't", " 'm", " 's", " 've", " 're")

    def piece(token: str) -> bytes:
        text = token.removeprefix(prefix) if token.startswith(prefix) else " " + token
        if cleanup and text in closed:
            text = text[1:]
        return text.encode("utf-8")

    return piece
