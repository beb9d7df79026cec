"""The escapes of a GBNF grammar, spelled so that its translation to Lark keeps them.

The library's translator drops zeros of `\\u00e9` and copies escapes into Lark strings that these do not have.
Knows nothing but text; everything that is no literal and no class stays as it is.
"""

from __future__ import annotations

import re

_PIECE = re.compile(r'#[^\n]*|"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_KEPT = {"\n": r"\n", "\r": r"\r", "\t": r"\t", '"': r"\"", "\\": r"\\"}


def plain_escapes(text: str) -> str:
    """The same grammar, in which literals name characters by themselves and classes name low ones as `\\x01`."""
    return _PIECE.sub(_piece, text)


def _piece(match: re.Match[str]) -> str:
    piece = match[0]
    if piece[0] == "#" or "\\" not in piece:
        return piece
    if piece[0] == "[":
        return _ESCAPE.sub(_in_class, piece)
    written = _ESCAPE.sub(_in_literal, piece)
    return f"({written})" if '" [' in written else written


def _point(match: re.Match[str]) -> int | None:
    """The character that an escape names by its number, None for other escapes and impossible numbers."""
    digits = match[1] or match[2] or match[3]
    point = int(digits, 16) if digits else None
    return None if point is None or point > 0x10FFFF or 0xD800 <= point <= 0xDFFF else point


def _in_literal(match: re.Match[str]) -> str:
    point = _point(match)
    if point is None:
        return match[4] if match[4] and match[4] in "[]" else match[0]
    char = chr(point)
    if char in _KEPT:
        return _KEPT[char]
    return f'" [\\x{point:02x}] "' if point < 0x20 or point == 0x7F else char


def _in_class(match: re.Match[str]) -> str:
    point = _point(match)
    if point is None:
        return match[0]
    return f"\\x{point:02x}" if point < 0x80 else chr(point)
