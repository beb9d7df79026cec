"""The page that shows programs: `layout.py` says where everything goes, the other files draw it in a browser."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib.resources import files
from string import Template

from radixlang.lang.page.layout import page_data
from radixlang.lang.record import Record


def page(records: Sequence[Record], title: str | None = None) -> str:
    """One HTML file without references to others; `title` is the programs' names unless given."""
    data = page_data(records, title)
    here = files(__name__)
    return Template((here / "trace.html").read_text("utf-8")).substitute(
        title=html.escape(data["title"]),
        style=(here / "trace.css").read_text("utf-8"),
        script=(here / "trace.js").read_text("utf-8"),
        data=_embedded(data),
    )


def _embedded(data: object) -> str:
    """JSON that can stand in a script element: nothing in it ends the element or begins a comment."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
