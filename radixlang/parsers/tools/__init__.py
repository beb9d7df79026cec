"""Tool-call syntaxes, by the names of `--tool-call-parser`: one file each.

A `Syntax` reads calls out of text (`parse`, or `parser` for text that arrives in pieces) and says what they look
like (`structural_tag`), so that what a constrained model writes is read back as it was meant.
"""

from __future__ import annotations

import importlib

from radixlang.errors import ConfigError
from radixlang.parsers.tools.syntax import CallDelta, Delta, Syntax, Tool, ToolParser

__all__ = [
    "NAMES",
    "SYNTAXES",
    "CallDelta",
    "Delta",
    "Syntax",
    "Tool",
    "ToolParser",
    "detect_syntax",
    "find_syntax",
]

SYNTAXES: dict[str, str] = {
    "hermes": "hermes:Hermes",
    "qwen": "hermes:Hermes",
    "qwen25": "hermes:Hermes",
    "qwen3_coder": "qwen_coder:QwenCoder",
    "llama3": "llama:Llama3",
    "pythonic": "pythonic:Pythonic",
    "lfm2": "pythonic:Lfm2",
    "mistral": "mistral:Mistral",
    "deepseekv3": "deepseek:DeepSeekV3",
    "deepseekv31": "deepseek:DeepSeekV31",
    "kimi_k2": "kimi:KimiK2",
    "glm": "glm:Glm",
    "glm45": "glm:Glm",
    "glm47": "glm:Glm47",
    "gpt-oss": "harmony:Harmony",
    "minimax-m2": "minimax:MiniMax",
    "gemma4": "gemma:Gemma4",
    "functiongemma": "gemma:FunctionGemma",
    "cohere_command4": "command:Command",
    "phi4": "phi:Phi",
}
"""SGLang's names, and `functiongemma` and `phi4`. Where a name is missing, its format is not known to us for
certain."""

_MARKERS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<｜tool▁calls▁begin｜>", "```json"), "deepseekv3"),
    (("<｜tool▁calls▁begin｜>",), "deepseekv31"),
    (("<|tool_calls_section_begin|>",), "kimi_k2"),
    (("<minimax:tool_call>",), "minimax-m2"),
    (("<arg_key>", "</arg_key><arg_value>"), "glm47"),
    (("<arg_key>",), "glm45"),
    (("<tool_call>", "<function="), "qwen3_coder"),
    (("<tool_call>",), "qwen"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<|channel|>", "to=functions."), "gpt-oss"),
    (("<|START_ACTION|>",), "cohere_command4"),
    (("<|tool_call>",), "gemma4"),
    (("<start_function_call>",), "functiongemma"),
    (("<|tool|>", "<|/tool|>"), "phi4"),
    (("<|tool_call_start|>",), "lfm2"),
    (("<|tool_list_start|>",), "lfm2"),
    (("[func_name1(",), "pythonic"),
    (("<|python_tag|>",), "llama3"),
    (('{"name": function name, "parameters":',), "llama3"),
)
"""what the source of a chat template must hold, the most telling first"""


def find_syntax(name: str, template: str | None) -> tuple[str, Syntax] | None:
    """(name, syntax) of `--tool-call-parser`; None for `none`, and for `auto` where the chat template's source
    shows no syntax.

    Raises:
        ConfigError: an unknown name; lists the known ones.
    """
    if name == "none":
        return None
    if name == "auto":
        found = detect_syntax(template or "")
        return None if found is None else find_syntax(found, template)
    if name not in SYNTAXES:
        raise ConfigError(f"--tool-call-parser {name!r} is no tool-call parser; known are: {', '.join(NAMES)}.")
    module, _, attribute = SYNTAXES[name].partition(":")
    made: type[Syntax] = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    return name, made(template or "")


def detect_syntax(template: str) -> str | None:
    """The name of the syntax that a chat template's source shows."""
    return next((name for markers, name in _MARKERS if all(marker in template for marker in markers)), None)


NAMES = ("auto", "none", *SYNTAXES)
"""what `--tool-call-parser` takes"""
