# ruff: noqa: E501 - texts as models write them
"""One text per syntax, as the models' templates write it, and what must be read out of it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from radixlang.parsers.tools import Tool

WEATHER = Tool(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "units": {"type": "string", "enum": ["metric", "imperial"]},
            "detailed": {"type": "boolean"},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
)
SEARCH = Tool(
    "search",
    {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "filters": {
                "type": "object",
                "properties": {"tags": {"type": "array", "items": {"type": "string"}}, "year": {"type": "number"}},
                "required": ["tags"],
                "additionalProperties": False,
            },
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["query"],
        "additionalProperties": False,
    },
)
CLOCK = Tool("clock", {"type": "object", "properties": {}, "additionalProperties": False})
TOOLS = [WEATHER, SEARCH, CLOCK]

PARIS = ("get_weather", {"city": "Zürich\nWest", "days": 3, "units": "metric", "detailed": True})
FIND = ("search", {"query": 'say "hi" <b>', "filters": {"tags": ["a}", "]b"], "year": 2.5}, "note": None})
Call = tuple[str, dict[str, Any]]


class Sample(NamedTuple):
    """`strict`: the syntax's structural tag accepts it."""

    syntax: str
    text: str
    calls: list[Call]
    said: str = ""
    strict: bool = True


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


P, F = _json(PARIS[1]), _json(FIND[1])
SP, SF = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CB, CS, CE = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
HEAD = "I will look.\n\n"
SAID = "I will look."
FILTERS = _json(FIND[1]["filters"])

SAMPLES = [
    Sample(
        "hermes",
        HEAD + f'<tool_call>\n{{"name": "get_weather", "arguments": {P}}}\n</tool_call>\n'
        f'<tool_call>\n{{"name": "search", "arguments": {F}}}\n</tool_call>',
        [PARIS, FIND],
        SAID,
    ),
    Sample(
        "qwen", '<tool_call>{"arguments": {}, "name": "clock"}</tool_call> done', [("clock", {})], "done", False
    ),
    Sample(
        "qwen3_coder",
        HEAD
        + "<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich\nWest\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n<parameter=units>\nmetric\n</parameter>\n<parameter=detailed>\ntrue\n</parameter>\n</function>\n"
        f'</tool_call>\n<tool_call>\n<function=search>\n<parameter=query>\nsay "hi" <b>\n</parameter>\n'
        f"<parameter=filters>\n{FILTERS}\n</parameter>\n<parameter=note>\nnull\n</parameter>\n</function>\n</tool_call>",
        [PARIS, FIND],
        SAID,
    ),
    Sample(
        "qwen3_coder",
        "<tool_call><function=get_weather><parameter=city>Rome</parameter><parameter=detailed>False</parameter>"
        "</function></tool_call>",
        [("get_weather", {"city": "Rome", "detailed": False})],
        strict=False,
    ),
    Sample(
        "llama3",
        f'{{"name": "get_weather", "parameters": {P}}}; {{"name": "search", "parameters": {F}}}',
        [PARIS, FIND],
    ),
    Sample("llama3", f'<|python_tag|>{{"name": "search", "parameters": {F}}}', [FIND]),
    Sample("llama3", f'\n{{"type": "function", "name": "search", "parameters": {F}}}', [FIND], strict=False),
    Sample(
        "pythonic",
        '[get_weather(city="Zürich\\nWest", days=3, units="metric", detailed=True), '
        f'search(query="say \\"hi\\" <b>", filters={FILTERS}, note=None), clock()]',
        [PARIS, FIND, ("clock", {})],
    ),
    Sample(
        "pythonic",
        "<|python_start|>[get_weather(city='It\\'s', days=-1)]<|python_end|>",
        [("get_weather", {"city": "It's", "days": -1})],
        strict=False,
    ),
    Sample(
        "lfm2",
        HEAD + '<|tool_call_start|>[get_weather(city="Zürich\\nWest", days=3, units="metric", detailed=True), '
        f'search(query="say \\"hi\\" <b>", filters={FILTERS}, note=None)]<|tool_call_end|>',
        [PARIS, FIND],
        SAID,
    ),
    Sample(
        "mistral",
        HEAD
        + f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {P}}}, {{"name": "search", "arguments": {F}}}]',
        [PARIS, FIND],
        SAID,
    ),
    Sample("mistral", f"[TOOL_CALLS]get_weather[ARGS]{P}[TOOL_CALLS]search{F}", [PARIS, FIND], strict=False),
    Sample(
        "deepseekv3",
        HEAD
        + f"{SP}{CB}function{CS}get_weather\n```json\n{P}\n```{CE}\n{CB}function{CS}search\n```json\n{F}\n```{CE}{SF}",
        [PARIS, FIND],
        SAID,
    ),
    Sample("deepseekv31", HEAD + f"{SP}{CB}get_weather{CS}{P}{CE}{CB}search{CS}{F}{CE}{SF}", [PARIS, FIND], SAID),
    Sample(
        "kimi_k2",
        HEAD
        + f"<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{P}"
        f"<|tool_call_end|><|tool_call_begin|>functions.search:1<|tool_call_argument_begin|>{F}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        [PARIS, FIND],
        SAID,
    ),
    Sample(
        "glm45",
        HEAD
        + "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Zürich\nWest</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n<arg_key>units</arg_key>\n<arg_value>metric</arg_value>\n<arg_key>detailed</arg_key>\n"
        '<arg_value>true</arg_value>\n</tool_call>\n<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>say "hi" <b>'
        f"</arg_value>\n<arg_key>filters</arg_key>\n<arg_value>{FILTERS}</arg_value>\n<arg_key>note</arg_key>\n"
        "<arg_value>null</arg_value>\n</tool_call>",
        [PARIS, FIND],
        SAID,
    ),
    Sample(
        "glm47",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call><tool_call>clock</tool_call>",
        [("get_weather", {"city": "Rome"}), ("clock", {})],
    ),
    Sample(
        "gpt-oss",
        f"<|channel|>commentary to=functions.search <|constrain|>json<|message|>{F}",
        [FIND],
    ),
    Sample(
        "gpt-oss",
        "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant<|channel|>commentary to=functions.search "
        f"<|constrain|>json<|message|>{F}<|call|>",
        [FIND],
        SAID,
        strict=False,  # the last mark is the end token
    ),
    Sample("gpt-oss", "<|channel|>final<|message|>Hello there", [], "Hello there"),
    Sample(
        "minimax-m2",
        HEAD
        + '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Zürich\nWest</parameter>\n'
        '<parameter name="days">3</parameter>\n<parameter name="units">metric</parameter>\n'
        '<parameter name="detailed">true</parameter>\n</invoke>\n<invoke name="search">\n'
        f'<parameter name="query">say "hi" <b></parameter>\n<parameter name="filters">{FILTERS}</parameter>\n'
        '<parameter name="note">null</parameter>\n</invoke>\n</minimax:tool_call>',
        [PARIS, FIND],
        SAID,
    ),
    Sample(
        "gemma4",
        HEAD
        + '<|tool_call>call:get_weather{city:<|"|>Zürich\nWest<|"|>,days:3,units:<|"|>metric<|"|>,detailed:true}<tool_call|>'
        '<|tool_call>call:search{query:<|"|>say "hi" <b><|"|>,filters:{tags:[<|"|>a}<|"|>,<|"|>]b<|"|>],year:2.5},'
        "note:null}<tool_call|>",
        [PARIS, FIND],
        SAID,
    ),
    Sample(
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>Rome<escape>}<end_function_call>",
        [("get_weather", {"city": "Rome"})],
    ),
    Sample(
        "cohere_command4",
        f'<|START_ACTION|>[{{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {P}}}, '
        f'{{"tool_call_id": "1", "tool_name": "search", "parameters": {F}}}]<|END_ACTION|>',
        [PARIS, FIND],
    ),
    Sample("cohere_command4", "<|START_TEXT|>Hello there<|END_TEXT|>", [], "Hello there"),
    Sample(
        "phi4",
        HEAD
        + f'<|tool_call|>[{{"name": "get_weather", "arguments": {P}}}, {{"name": "search", "arguments": {F}}}]'
        "<|/tool_call|>",
        [PARIS, FIND],
        SAID,
    ),
    Sample("phi4", f'functools[{{"name": "search", "arguments": {F}}}]', [FIND], strict=False),
]

PLAIN = f'[{{"name": "get_weather", "parameters": {P}}}, {{"name": "search", "parameters": {F}}}]'
