"""Structured output: what a text must look like, as masks over the next token.

A `GrammarSpec` (a request's constraint) is compiled by an engine of the table below into a `Grammar`, which is
shared, and whose `start()` gives each request a `GrammarState`. Must not know the scheduler, HTTP or the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixlang.registry import Registry

if TYPE_CHECKING:
    from radixlang.grammar.grammar import Engine

ENGINES: Registry[type[Engine]] = Registry(
    "grammar backend",
    "grammar",
    {
        "native": "radixlang.grammar.native:NativeEngine",
        "llguidance": "radixlang.grammar.llg:LlguidanceEngine",
        "xgrammar": "radixlang.grammar.xgr:XgrammarEngine",
    },
    extras=["xgrammar"],
)
"""In order of preference; `auto` takes the first that supports the constraint, of those that need no extra."""
