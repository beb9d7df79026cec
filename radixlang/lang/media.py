"""Pictures as data URLs, the form in which they travel."""

from __future__ import annotations

import base64
import io
import mimetypes
from pathlib import Path
from typing import Any


def image_url(source: Any) -> str:
    """A URL for a path, URL, base64 text, bytes or PIL image; local ones become data URLs.

    Raises:
        OSError: the file cannot be read. TypeError: no picture.
    """
    if isinstance(source, bytes):
        return _data_url(source, "image/png")
    if hasattr(source, "save"):
        buffer = io.BytesIO()
        source.save(buffer, format="PNG")
        return _data_url(buffer.getvalue(), "image/png")
    if isinstance(source, Path):
        return _from_file(source)
    if not isinstance(source, str):
        raise TypeError(f"An image is a path, URL, base64 text, bytes or PIL image, not {type(source).__name__}.")
    if source.startswith(("http://", "https://", "data:")):
        return source
    if len(source) < 4096 and Path(source).exists():
        return _from_file(Path(source))
    try:
        base64.b64decode(source, validate=True)
    except ValueError:
        raise OSError(f"There is no image at {source[:200]!r}.") from None
    return f"data:image/png;base64,{source}"


def _from_file(path: Path) -> str:
    kind = mimetypes.guess_type(path.name)[0] or "image/png"
    return _data_url(path.read_bytes(), kind)


def _data_url(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
