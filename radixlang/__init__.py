"""RadixLang: an engine for structured language-model programs.

The public names are loaded on first use, so that `import radixlang` stays cheap; it must not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixlang.config import Config
    from radixlang.lang.api import (
        assistant,
        assistant_begin,
        assistant_end,
        flush_cache,
        function,
        gen,
        gen_int,
        gen_string,
        get_server_info,
        image,
        select,
        separate_reasoning,
        set_default_backend,
        system,
        system_begin,
        system_end,
        user,
        user_begin,
        user_end,
        video,
    )
    from radixlang.lang.backends.anthropic import Anthropic
    from radixlang.lang.backends.crusoe import Crusoe
    from radixlang.lang.backends.litellm import LiteLLM
    from radixlang.lang.backends.openai import OpenAI
    from radixlang.lang.backends.runtime import Runtime
    from radixlang.lang.backends.runtime_endpoint import RuntimeEndpoint
    from radixlang.lang.backends.vertexai import VertexAI
    from radixlang.lang.choices import (
        greedy_token_selection,
        token_length_normalized,
        unconditional_likelihood_normalized,
    )
    from radixlang.lang.global_config import global_config
    from radixlang.lang.show import show
    from radixlang.llm import Engine
    from radixlang.sampling_params import SamplingParams

    ServerArgs = Config.from_flat

__version__ = "0.1.0"

_API = "radixlang.lang.api"
_CHOICES = "radixlang.lang.choices"
_BACKENDS = "radixlang.lang.backends"

#: public name → where it lives ("module:attribute path")
_LAZY = {
    "Engine": "radixlang.llm:Engine",
    "SamplingParams": "radixlang.sampling_params:SamplingParams",
    "ServerArgs": "radixlang.config:Config.from_flat",
    # the frontend language
    "assistant": f"{_API}:assistant",
    "assistant_begin": f"{_API}:assistant_begin",
    "assistant_end": f"{_API}:assistant_end",
    "flush_cache": f"{_API}:flush_cache",
    "function": f"{_API}:function",
    "gen": f"{_API}:gen",
    "gen_int": f"{_API}:gen_int",
    "gen_string": f"{_API}:gen_string",
    "get_server_info": f"{_API}:get_server_info",
    "image": f"{_API}:image",
    "select": f"{_API}:select",
    "separate_reasoning": f"{_API}:separate_reasoning",
    "set_default_backend": f"{_API}:set_default_backend",
    "system": f"{_API}:system",
    "system_begin": f"{_API}:system_begin",
    "system_end": f"{_API}:system_end",
    "user": f"{_API}:user",
    "user_begin": f"{_API}:user_begin",
    "user_end": f"{_API}:user_end",
    "video": f"{_API}:video",
    "global_config": "radixlang.lang.global_config:global_config",
    "greedy_token_selection": f"{_CHOICES}:greedy_token_selection",
    "token_length_normalized": f"{_CHOICES}:token_length_normalized",
    "unconditional_likelihood_normalized": f"{_CHOICES}:unconditional_likelihood_normalized",
    "Runtime": f"{_BACKENDS}.runtime:Runtime",
    "RuntimeEndpoint": f"{_BACKENDS}.runtime_endpoint:RuntimeEndpoint",
    "Anthropic": f"{_BACKENDS}.anthropic:Anthropic",
    "Crusoe": f"{_BACKENDS}.crusoe:Crusoe",
    "LiteLLM": f"{_BACKENDS}.litellm:LiteLLM",
    "OpenAI": f"{_BACKENDS}.openai:OpenAI",
    "VertexAI": f"{_BACKENDS}.vertexai:VertexAI",
    "show": "radixlang.lang.show:show",
}

__all__ = [
    "Anthropic",
    "Crusoe",
    "Engine",
    "LiteLLM",
    "OpenAI",
    "Runtime",
    "RuntimeEndpoint",
    "SamplingParams",
    "ServerArgs",
    "VertexAI",
    "__version__",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "global_config",
    "greedy_token_selection",
    "image",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "show",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
]


def __getattr__(name: str) -> Any:
    target = _LAZY.get(name)
    if target is None:
        raise AttributeError(f"module 'radixlang' has no attribute {name!r}")
    module, _, path = target.partition(":")
    value: Any = importlib.import_module(module)
    for part in path.split("."):
        value = getattr(value, part)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_LAZY))
