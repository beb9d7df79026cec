"""Structural tags without free text, as automata over bytes: calls of tools whose schemas are small, for one.

Reads tags that `structural_tag.to_lark` has found right. Must not know tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from radixlang.grammar.native.regex import Unsuitable
from radixlang.grammar.native.schema import Builder
from radixlang.grammar.schema import normalise_text

MAX_TAG_WORK = 100_000
"""looks at nodes while the states outside of JSON are made, beforehand; a fifth of a second"""


class TagBuilder(Builder):
    """Formats as nodes of an automaton."""

    def __init__(self, writable: npt.NDArray[np.bool_], special: Collection[str]) -> None:
        """`special`: names of tokens that no bytes spell."""
        super().__init__(writable)
        self._special = [name for name in special if name]

    def format(self, value: dict[str, Any], follow: int) -> int:
        """The texts of a format.

        Raises:
            Unsuitable: it holds free text, special tokens, or a schema that is not regular or not small.
        """
        kind = value["type"]
        if kind not in self._formats:
            raise Unsuitable(f"it holds the format {kind}")
        return self._formats[kind](self, value, follow)

    def _literal(self, text: str, follow: int) -> int:
        name = next((name for name in self._special if name in text), None)
        if name is not None:
            raise Unsuitable(f"it holds the special token {name}")
        return self.text(text, follow)

    def _const_string(self, value: dict[str, Any], follow: int) -> int:
        return self._literal(value["value"], follow)

    def _json_schema(self, value: dict[str, Any], follow: int) -> int:
        if value.get("style", "json") != "json":
            raise Unsuitable(f"it holds arguments of the style {value['style']}")
        return self.schema(normalise_text(json.dumps(value["json_schema"])).schema, follow)

    def _sequence(self, value: dict[str, Any], follow: int) -> int:
        for one in reversed(value["elements"]):
            follow = self.format(one, follow)
        return follow

    def _or(self, value: dict[str, Any], follow: int) -> int:
        return self.free(*[self.format(one, follow) for one in value["elements"]])

    def _tag(self, value: dict[str, Any], follow: int) -> int:
        ends = value.get("end", "")
        ends = ends if isinstance(ends, list) else [ends]
        end = self.free(*[self._literal(one, follow) for one in ends])
        return self._literal(value["begin"], self.format(value["content"], end))

    def _tags_with_separator(self, value: dict[str, Any], follow: int) -> int:
        behind = self.free(follow)
        tags = self.free(*[self._tag(one, behind) for one in value["tags"]])
        if not value.get("stop_after_first"):
            self.automaton.free[behind] += (self._literal(value["separator"], tags),)
        return tags if value.get("at_least_one") else self.free(tags, follow)

    _formats: ClassVar[dict[str, Callable[[TagBuilder, dict[str, Any], int], int]]] = {
        "const_string": _const_string,
        "json_schema": _json_schema,
        "sequence": _sequence,
        "or": _or,
        "tag": _tag,
        "tags_with_separator": _tags_with_separator,
    }
