"""Reads a SentencePiece `tokenizer.model` (a small protocol-buffer message) without the sentencepiece library."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers

from radixlang.errors import ModelError, UnsupportedModelError
from radixlang.text.vocabulary import NORMAL, sentencepiece_bpe

# Field numbers of ModelProto, SentencePiece, TrainerSpec and NormalizerSpec that matter here.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = 1, 2, 3
_MODEL_TYPE, _BPE = 3, 2
_DUMMY_PREFIX = 3


def load_sentencepiece(path: Path) -> tokenizers.Tokenizer:
    """The encoder of a BPE `tokenizer.model`. Raises ModelError for a damaged file, UnsupportedModelError for a
    model that is not BPE."""
    tokens: list[str] = []
    types: list[int] = []
    scores: list[float] = []
    model_type, prefix = 1, True
    try:
        for number, value in _fields(path.read_bytes()):
            if number == _PIECES:
                piece = dict(_fields(value))
                tokens.append(piece[_PIECE_TEXT].decode("utf-8"))
                scores.append(struct.unpack("<f", piece[_PIECE_SCORE])[0] if _PIECE_SCORE in piece else 0.0)
                types.append(piece.get(_PIECE_TYPE, NORMAL))
            elif number == _TRAINER:
                model_type = dict(_fields(value)).get(_MODEL_TYPE, 1)
            elif number == _NORMALIZER:
                prefix = bool(dict(_fields(value)).get(_DUMMY_PREFIX, 1))
    except (IndexError, KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
        raise ModelError(f"{path} is not a SentencePiece model or is damaged: fetch it again.") from error
    if not tokens:
        raise ModelError(f"{path} is not a SentencePiece model or is damaged: fetch it again.")
    if model_type != _BPE:
        raise UnsupportedModelError(
            f"{path} is a SentencePiece model that is not BPE: convert it to a tokenizer.json, "
            "and give that folder as --tokenizer-path."
        )
    return sentencepiece_bpe(tokens, types, scores, prefix)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value) of one message: an int for a varint, bytes for everything else."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if at + size > len(data):
            raise ValueError("truncated")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
