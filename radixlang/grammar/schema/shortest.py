"""How long the shortest text of a normalised schema is at most, seen at a glance: only what is required counts.

`grammar/measure.py` says it exactly and takes all of the schema for it. Must not know engines.
"""

from __future__ import annotations

import json
import math
from typing import Any

_PATTERN = 20_000
"""bytes of the shortest string of a pattern that an automaton of ours states"""
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def shortest_at_most(schema: Any) -> float:
    """Bytes that some text of `schema` does not exceed; infinite where that is not easily told."""
    try:
        return _Bound(schema.get("$defs", {}) if isinstance(schema, dict) else {}).of(schema)
    except RecursionError:
        return math.inf


class _Bound:
    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._named: dict[str, float] = {}
        """of definitions; infinite while one is looked at: its shortest text does not hold itself"""

    def of(self, schema: Any) -> float:
        if not isinstance(schema, dict):
            return 1 if schema else math.inf
        if "$ref" in schema:
            return self._reference(schema["$ref"].removeprefix("#/$defs/"))
        if "anyOf" in schema:
            return min(map(self.of, schema["anyOf"]), default=math.inf)
        if "enum" in schema or "const" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            return min((6 * len(json.dumps(value)) for value in values), default=math.inf)
        kinds = schema.get("type", "null")
        return min(self._kind(kind, schema) for kind in ([kinds] if isinstance(kinds, str) else kinds))

    def _reference(self, name: str) -> float:
        found = self._named.get(name)
        if found is None:
            self._named[name] = math.inf
            found = self.of(self._definitions[name])
            if found < math.inf:
                self._named[name] = found
            else:
                del self._named[name]  # something that was being looked at may have been in the way
        return found

    def _kind(self, kind: str, schema: dict[str, Any]) -> float:
        if kind == "string":
            pattern = _PATTERN if "pattern" in schema or "allOf" in schema else 0
            return 2 + schema.get("minLength", 0) + pattern
        if kind in ("number", "integer"):
            return 3 + max((len(str(schema[name])) for name in _NUMBERS if name in schema), default=0)
        if kind == "array":
            prefix, low = schema.get("prefixItems", []), schema.get("minItems", 0)
            rest = max(0, low - len(prefix))
            items = rest * (2 + self.of(schema.get("items", True))) if rest else 0
            return 2 + items + sum(2 + self.of(one) for one in prefix[:low])
        if kind == "object":
            if "minProperties" in schema:
                return math.inf
            known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
            parts = [(name, known.get(name, others)) for name in schema.get("required", ())]
            if "patternProperties" in schema and any(name not in known for name, _ in parts):
                return math.inf
            return 2 + sum(6 * len(name) + 6 + self.of(one) for name, one in parts)
        return len("false")
