"""A request's constraint, read from its sampling parameters. Must not know how it is compiled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from radixlang.grammar.errors import GrammarError
from radixlang.messages import GrammarSpec

if TYPE_CHECKING:
    from radixlang.sampling_params import SamplingParams

MAX_TEXT = 1 << 20
"""bytes of a constraint; longer ones are refused unread"""


def key_of(spec: GrammarSpec) -> str:
    """Equal for constraints that compile to the same grammar."""
    parts = (spec.kind, spec.text, spec.any_whitespace, spec.refuse_residual)
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()


def spec_of(
    sampling: SamplingParams, any_whitespace: bool = False, refuse_residual: bool = False
) -> GrammarSpec | None:
    """The constraint in sampling parameters, None if there is none.

    Raises:
        GrammarError: it is too long, or its JSON cannot be read; names the field.
    """
    for kind in ("json_schema", "regex", "ebnf", "structural_tag"):
        text: str | None = getattr(sampling, kind)
        if text is None:
            continue
        return make_spec(kind, text, any_whitespace, refuse_residual)
    return None


def make_spec(
    kind: str, text: str, any_whitespace: bool = False, refuse_residual: bool = False, param: str | None = None
) -> GrammarSpec:
    """A constraint of a known kind. `param`: what the client calls it.

    Raises:
        GrammarError: it is too long, or its JSON cannot be read.
    """
    param = param or kind
    if len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT:
        raise GrammarError(f"{param} has more than {MAX_TEXT >> 20} MiB", param=param)
    if kind in ("json_schema", "structural_tag"):
        read_json(text, param)
    return GrammarSpec(kind, text, any_whitespace, refuse_residual)


def read_choices(text: str) -> list[str]:
    """The texts of a `choice`.

    Raises:
        GrammarError: it is no JSON list of texts, or an empty one.
    """
    choices = read_json(text, "choice")
    if not isinstance(choices, list) or not choices or not all(isinstance(one, str) for one in choices):
        raise GrammarError("choice must be a list of texts that is not empty", param="choice")
    return choices


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


def check_residual(spec: GrammarSpec, places: Sequence[tuple[str, str | None]]) -> None:
    """Refuse a schema that no grammar states in some places (pointer, keyword), where the server wants that.

    Raises:
        GrammarError: names the first place.
    """
    if places and spec.refuse_residual:
        raise GrammarError(
            "The schema cannot be stated as a grammar, and this server refuses such schemas",
            *places[0],
            "json_schema",
        )
