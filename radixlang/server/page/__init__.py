"""The page at `/ui`: one HTML document without references to others, and what a browser may do with it."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from string import Template


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


@cache
def ui_page() -> tuple[str, str]:
    """(HTML, its Content-Security-Policy): this script and this style alone, and requests to this server alone."""
    here = files(__name__)
    style, script = (here / "ui.css").read_text("utf-8"), (here / "ui.js").read_text("utf-8")
    text = Template((here / "ui.html").read_text("utf-8")).substitute(style=style, script=script)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy
