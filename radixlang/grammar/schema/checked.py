"""A schema as a validator is to read it: libraries take `\\w`, `\\d` and `\\b` for Unicode's in patterns that look
around, where ECMA-262 means ASCII's. Such patterns spell their classes out. Must not know what keywords mean.
"""

from __future__ import annotations

from typing import Any

from radixlang.grammar.schema.regex import UnsupportedPatternError, looks, parse, write

_DATA = frozenset(("const", "enum", "default", "examples"))
MAPS = ("properties", "patternProperties", "definitions", "$defs", "dependentSchemas", "dependencies")
"""keywords whose value maps names to schemas"""


def spelt_out(schema: Any, names: bool = False) -> Any:
    """The schema with other texts of `pattern`, and all else as it is. `names`: it is a mapping of names."""
    if isinstance(schema, list):
        return [spelt_out(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if names:
        return {name: spelt_out(one) for name, one in schema.items()}
    return {
        key: one
        if key in _DATA
        else _pattern(one)
        if key == "pattern" and isinstance(one, str)
        else spelt_out(one, key in MAPS)
        for key, one in schema.items()
    }


def _pattern(source: str) -> str:
    if "(?" not in source and "\\b" not in source and "\\B" not in source:
        return source
    try:
        tree = parse(source).tree
        return write(tree, whole=True) if looks(tree) else source
    except UnsupportedPatternError:
        return source
