"""Which keywords each draft asserts, and what is said of the rest.

A keyword that its draft does not define has no effect by the specification; it is reported as a warning, never
dropped in silence.
"""

from __future__ import annotations

from typing import Any

from radixlang.grammar.schema.document import Node

# keyword -> (first draft, last draft) in which it asserts something
_ASSERTED = (
    dict.fromkeys(
        ("type", "enum", "allOf", "anyOf", "oneOf", "not", "$ref", "properties", "patternProperties", "required",
         "additionalProperties", "minProperties", "maxProperties", "items", "minItems", "maxItems", "uniqueItems",
         "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum",
         "exclusiveMaximum", "multipleOf"), (4, 9999))
    | dict.fromkeys(("const", "contains", "propertyNames"), (6, 9999))
    | dict.fromkeys(("if", "then", "else"), (7, 9999))
    | {"dependencies": (4, 9999), "additionalItems": (4, 2019), "$recursiveRef": (2019, 2019)}
    | dict.fromkeys(("dependentRequired", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems",
                     "minContains", "maxContains"), (2019, 9999))
    | dict.fromkeys(("prefixItems", "$dynamicRef"), (2020, 9999))
)  # fmt: skip
_ANNOTATIONS = frozenset(
    ("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$comment", "$defs", "definitions",
     "$vocabulary", "title", "description", "default", "examples", "example", "readOnly", "writeOnly",
     "deprecated", "contentMediaType", "contentEncoding", "contentSchema")
)  # fmt: skip


def asserted(node: Node, warnings: dict[str, None]) -> dict[str, Any]:
    """The node's keywords that its draft asserts, in their order; the rest is warned of in `warnings`."""
    schema, draft = node.schema, node.draft
    if draft < 2019 and "$ref" in schema:
        for key in schema:
            if key in _ASSERTED and key != "$ref":
                warnings[f"#{node.pointer}/{key}: has no effect beside $ref before draft 2019-09."] = None
        return {"$ref": schema["$ref"]}
    out = {}
    for key, value in schema.items():
        drafts = _ASSERTED.get(key)
        if drafts is not None and drafts[0] <= draft <= drafts[1]:
            out[key] = value
        elif key not in _ANNOTATIONS:
            warnings[f"#{node.pointer}/{key}: draft {draft} does not define this keyword; it has no effect."] = (
                None
            )
    return out


def listed(keywords: dict[str, Any]) -> list[Any] | None:
    """The values of `const` or `enum`; None without either."""
    return [keywords["const"]] if "const" in keywords else keywords.get("enum")
