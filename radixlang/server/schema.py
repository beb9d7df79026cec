"""The OpenAPI description, built from the route table, and a page that shows it without any download."""

from __future__ import annotations

import html
import re
from typing import Any

import msgspec

from radixlang.sampling_params import MAX_STOPS, SamplingParams
from radixlang.server.web import Route

_STRINGS = {"type": ["string", "array", "null"], "maxItems": MAX_STOPS}
#: what `SamplingParams.parse` and `verify` check beyond types
_SAMPLING: dict[str, dict[str, Any]] = {
    "max_new_tokens": {"minimum": 0},
    "min_new_tokens": {"minimum": 0},
    "stop": {
        "type": ["string", "array", "null"],
        "items": {"type": "string", "minLength": 1},
        "maxItems": MAX_STOPS,
    },
    "stop_token_ids": {"items": {"type": "integer", "minimum": 0}},
    "stop_regex": _STRINGS,
    "temperature": {"minimum": 0},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "top_k": {"minimum": -1, "not": {"const": 0}},
    "min_p": {"minimum": 0, "maximum": 1},
    "frequency_penalty": {"minimum": -2, "maximum": 2},
    "presence_penalty": {"minimum": -2, "maximum": 2},
    "repetition_penalty": {"exclusiveMinimum": 0},
    "n": {"minimum": 1, "maximum": 128},
    "stream_interval": {"minimum": 1},
    "sampling_seed": {"minimum": -(2**63), "maximum": 2**63 - 1},
}


def openapi(routes: list[Route], version: str, root_path: str = "") -> dict[str, Any]:
    """The description of all routes (OpenAPI 3.1)."""
    bodies = [route.body for route in routes if route.body is not None]
    types = [*bodies, SamplingParams]
    _, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    for name, bounds in _SAMPLING.items():
        components["SamplingParams"]["properties"][name] |= bounds
    prompts = {"GenerateBody": ("text", "input_ids"), "EncodeBody": ("text", "input_ids")}
    for name, fields in (prompts | {"PinBody": ("text", "input_ids", "messages")}).items():
        # One of them is required; null is as good as absent.
        components[name]["anyOf"] = [
            {"required": [field], "properties": {field: {"not": {"type": "null"}}}} for field in fields
        ]
    components |= {route.errors.name: route.errors.schema for route in routes}
    paths: dict[str, Any] = {}
    for route in routes:
        item = paths.setdefault(re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path), {})
        for method in route.methods:
            item[method.lower()] = _operation(route, method)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "RadixLang", "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }
    if root_path:
        document["servers"] = [{"url": root_path}]
    return document


def _operation(route: Route, method: str) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": f"#/components/schemas/{route.errors.name}"}}}
    out: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{method.lower()}_{re.sub(r'[^a-z0-9]+', '_', route.path.lower()).strip('_')}",
        "responses": {
            "200": {"description": "The answer.", "content": {route.answer: {}}},
            "4XX": {"description": "The request cannot be served; the message says why.", "content": error},
            "503": {"description": "Overloaded, shutting down, or the engine is gone.", "content": error},
        },
    }
    parameters = [
        {"name": name, "in": "query", "required": False, "schema": schema} for name, schema in route.query.items()
    ]
    for name in re.findall(r"\{(\w+)", route.path):
        parameters.append({"name": name, "in": "path", "required": True, "schema": {"type": "string"}})
    if parameters:
        out["parameters"] = parameters
    if route.body is not None and method != "GET":
        reference = {"$ref": f"#/components/schemas/{route.body.__name__}"}
        out["requestBody"] = {
            "required": not route.optional,
            "content": {"application/json": {"schema": reference}},
        }
    return out


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; width: 100% } tr { border-bottom: 1px solid #ddd }
td, th { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0 }
code { font: 14px ui-monospace, monospace } summary { cursor: pointer }
@media (prefers-color-scheme: dark) {
  body { background: #161616; color: #ddd } tr { border-color: #333 } a { color: #8bf }
}
"""


def docs_page(document: dict[str, Any]) -> str:
    """An HTML page of all routes with the fields of their bodies; needs no network."""
    rows = []
    schemas = document["components"]["schemas"]
    for path, item in document["paths"].items():
        methods = " ".join(method.upper() for method in item)
        operation = next(iter(item.values()))
        operations = list(item.values())
        body = next((o["requestBody"] for o in operations if "requestBody" in o), None)
        fields = ""
        if body is not None:
            name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            fields = f"<details><summary>body</summary>{_fields(schemas[name])}</details>"
        rows.append(
            f"<tr><td><code>{methods}</code></td><td><code>{html.escape(path)}</code></td>"
            f"<td>{html.escape(operation['summary'])}{fields}</td></tr>"
        )
    version = html.escape(document["info"]["version"])
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>RadixLang API</title><style>{_STYLE}</style><h1>RadixLang {version}</h1>"
        "<p>The machine-readable description is <a href='openapi.json'>openapi.json</a>.</p>"
        f"<table><tr><th>Method<th>Path<th>What</tr>{''.join(rows)}</table></html>"
    )


def _fields(schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    rows = []
    for name, field in schema.get("properties", {}).items():
        note = " (required)" if name in required else ""
        rows.append(
            f"<tr><td><code>{html.escape(name)}</code>{note}</td><td>{html.escape(_kind(field))}</td></tr>"
        )
    return f"<table>{''.join(rows)}</table>"


def _kind(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " | ".join(dict.fromkeys(_kind(option) for option in field["anyOf"]))
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    return str(field.get("type", "any"))
