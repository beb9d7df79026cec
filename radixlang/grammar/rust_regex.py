"""A regular expression of Python's in the spelling of the Rust library `regex`, which reads some signs otherwise.

What differs without being refused: `\\w` holds combining marks there and `\\s` lacks four control characters;
inside brackets `[`, `&&`, `--` and `~~` are operators; `\\Z` is `\\z`. Knows nothing but text; what is wrong with
an expression the library says.
"""

from __future__ import annotations

_WORD, _SPACE = r"\p{L}\p{N}_", r"\s\x1c-\x1f"
_OUTSIDE = {"w": f"[{_WORD}]", "W": f"[^{_WORD}]", "s": f"[{_SPACE}]", "S": f"[^{_SPACE}]", "Z": r"\z"}
_INSIDE = _OUTSIDE | {"w": _WORD, "s": _SPACE}


def as_rust(pattern: str) -> str:
    """The same expression for the library."""
    out: list[str] = []
    at, inside = 0, False
    while at < len(pattern):
        char = pattern[at]
        if char == "\\" and at + 1 < len(pattern):
            follows = pattern[at + 1]
            out.append((_INSIDE if inside else _OUTSIDE).get(follows, char + follows))
            at += 2
            continue
        at += 1
        if not inside and char == "[":
            inside = True
            begin = 1 + pattern.startswith("^", at)
            out.append("[^"[:begin])
            at += begin - 1
            if pattern.startswith("]", at):  # the first sign of a class never closes it
                out.append(r"\]")
                at += 1
            continue
        if inside and char == "]":
            inside = False
        elif inside and (char in "[&~" or (char == "-" and pattern.startswith("-", at))):
            char = "\\" + char
        out.append(char)
    return "".join(out)
