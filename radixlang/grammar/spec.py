"""A request's constraint, as it travels from the server to the engine. Must not know how it is compiled."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import msgspec

from radixlang.grammar.errors import GrammarError

if TYPE_CHECKING:
    from radixlang.sampling_params import SamplingParams

MAX_TEXT = 1 << 20
"""bytes of a constraint; longer ones are refused unread"""


class GrammarSpec(msgspec.Struct, frozen=True, array_like=True):
    """`text` is the schema's JSON, the pattern, a JSON list of choices, a GBNF or Lark grammar, or a tag's JSON.
    The kind `any` holds nothing back: it is for thoughts that have a budget.
    """

    kind: str
    text: str
    any_whitespace: bool = False
    """JSON may be laid out freely; otherwise its separators are exactly `, ` and `: `"""
    refuse_residual: bool = False
    """refuse a schema that no grammar can state exactly, instead of checking values as they are completed"""
    thinking_end: tuple[int, ...] = ()
    """the text begins with thoughts, which end with these token ids; the constraint holds after them"""
    thinking_budget: int | None = None
    """most tokens of the thoughts; then their end is forced"""

    @property
    def key(self) -> str:
        """Equal for constraints that compile to the same grammar."""
        parts = (self.kind, self.text, self.any_whitespace, self.refuse_residual)
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()


def spec_of(sampling: SamplingParams, any_whitespace: bool = False, refuse_residual: bool = False) -> GrammarSpec | None:
    """The constraint in sampling parameters, None if there is none.

    Raises:
        GrammarError: it is too long, or its JSON cannot be read; names the field.
    """
    for kind in ("json_schema", "regex", "ebnf", "structural_tag"):
        text: str | None = getattr(sampling, kind)
        if text is None:
            continue
        if len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT:
            raise GrammarError(f"{kind} has more than {MAX_TEXT >> 20} MiB", param=kind)
        if kind in ("json_schema", "structural_tag"):
            read_json(text, kind)
        return GrammarSpec(kind, text, any_whitespace, refuse_residual)
    return None


def read_json(text: str, param: str) -> object:
    """The value of a JSON text.

    Raises:
        GrammarError: it is no JSON, or nested too deeply to be read.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise GrammarError(f"{param} is not valid JSON: {error}", param=param) from None
    except RecursionError:
        raise GrammarError(f"{param} is nested too deeply", param=param) from None
