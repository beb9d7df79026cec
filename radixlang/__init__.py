"""RadixLang: an engine for structured language-model programs.

The public names are loaded on first use, so that `import radixlang` stays cheap; it must not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixlang.config import Config
    from radixlang.llm import Engine
    from radixlang.sampling_params import SamplingParams

    ServerArgs = Config.from_flat

__version__ = "0.1.0"

#: public name → where it lives ("module:attribute path")
_LAZY = {
    "Engine": "radixlang.llm:Engine",
    "SamplingParams": "radixlang.sampling_params:SamplingParams",
    "ServerArgs": "radixlang.config:Config.from_flat",
}

__all__ = ["Engine", "SamplingParams", "ServerArgs", "__version__"]


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
