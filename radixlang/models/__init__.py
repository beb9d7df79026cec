"""Models: the table of families, and the two front doors `load_spec` and `load_model`.

`load_spec` reads configs only and imports no torch, so the host column's builder may call it. Loading weights
is `load_model`, for the device column.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from radixlang.errors import ConfigError, ModelError, UnsupportedModelError
from radixlang.models.spec import ModelSpec
from radixlang.registry import Registry

if TYPE_CHECKING:
    import torch

    from radixlang.config import ModelConfig
    from radixlang.models.family import Family
    from radixlang.models.files import Checkpoint
    from radixlang.parallel import TensorParallel

FAMILIES: Registry[Family] = Registry(
    "architecture",
    "models",
    {
        "LlamaForCausalLM": "radixlang.models.llama:FAMILY",
        "MistralForCausalLM": "radixlang.models.mistral:FAMILY",
        "Qwen2ForCausalLM": "radixlang.models.qwen2:FAMILY",
        "Qwen3ForCausalLM": "radixlang.models.qwen3:FAMILY",
        "GemmaForCausalLM": "radixlang.models.gemma:FAMILY",
        "Gemma2ForCausalLM": "radixlang.models.gemma2:FAMILY",
        "Gemma3ForCausalLM": "radixlang.models.gemma3:FAMILY",
        "Gemma3ForConditionalGeneration": "radixlang.models.gemma3:FAMILY",
        "BertModel": "radixlang.models.bert:FAMILY",
    },
)
"""By the name a checkpoint's config gives under `architectures`."""


class Model(Protocol):
    """A loaded model. Call it inside `with forwarding(...)`."""

    spec: ModelSpec
    weight_bytes: int

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """input_ids [T], positions [T], both int64 → hidden states [T, hidden] after the final norm."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [S, hidden] → [S, vocab] float32, soft-capped. An encoder has none: EngineError."""
        ...

    def scores(self, hidden: torch.Tensor) -> torch.Tensor:
        """The same numbers in whatever float type they were computed in; for kernels that take any."""
        ...


def load_spec(model: ModelConfig) -> ModelSpec:
    """What the checkpoint of `model` is, from its config alone.

    Raises:
        ModelError: nothing usable is there.
        UnsupportedModelError: the architecture, or a key of the config, is not implemented.
        ConfigError: `context_length` is above what the model can do.
    """
    from radixlang.models.files import read_checkpoint

    return spec_of(read_checkpoint(model), model)


def spec_of(checkpoint: Checkpoint, model: ModelConfig) -> ModelSpec:
    """The spec of a located checkpoint, with the operator's wishes (`context_length`) applied."""
    from radixlang.models.fields import Fields

    fields = Fields(checkpoint.config, checkpoint.config_name)
    names = fields.items("architectures", [])
    if not names:
        raise ModelError(f"{fields.what} names no architectures, so its kind of model is unknown.")
    spec = family_of(str(names[0])).spec(fields)
    fields.finish()
    if not checkpoint.gguf:
        spec = msgspec.structs.replace(spec, **_sentence_settings(checkpoint, spec))
    if model.context_length is not None:
        if model.context_length > spec.context_length:
            raise ConfigError(
                f"--context-length {model.context_length} is above the model's {spec.context_length} tokens; "
                "lower it, or extend the model with --json-model-override-args."
            )
        spec = msgspec.structs.replace(spec, context_length=model.context_length)
    return spec


def family_of(architecture: str) -> Family:
    """The family of an architecture name; UnsupportedModelError lists the known ones."""
    if architecture not in FAMILIES:
        raise UnsupportedModelError(
            f"The architecture {architecture!r} is not supported; supported are: {', '.join(FAMILIES.names())}."
        )
    return FAMILIES.get(architecture)


def _sentence_settings(checkpoint: Checkpoint, spec: ModelSpec) -> dict[str, Any]:
    """Pooling, normalisation and length of a sentence-transformers folder, as `ModelSpec` arguments."""
    from radixlang.models.fields import Fields
    from radixlang.models.files import read_json

    out: dict[str, Any] = {}
    pooling = checkpoint.path / "1_Pooling" / "config.json"
    if pooling.is_file():
        c = Fields(read_json(pooling), str(pooling))
        modes = {
            "pooling_mode_cls_token": "cls",
            "pooling_mode_mean_tokens": "mean",
            "pooling_mode_lasttoken": "last",
        }
        chosen = [mode for key, mode in modes.items() if c.flag(key, False)]
        others = [key for key, on in c.values.items() if key.startswith("pooling_mode_") and on is True]
        if len(chosen) != 1 or len(others) != 1:
            raise UnsupportedModelError(
                f"{pooling} asks for {', '.join(others) or 'no pooling'}; one of {', '.join(modes)} is supported."
            )
        out["pooling"] = chosen[0]
        out["normalize"] = (checkpoint.path / "2_Normalize").is_dir() or _has_normalize(checkpoint)
    limit = checkpoint.path / "sentence_bert_config.json"
    if limit.is_file():
        most = Fields(read_json(limit), str(limit)).whole("max_seq_length", None)
        if most is not None:
            out["context_length"] = min(most, spec.context_length)
    return out


def _has_normalize(checkpoint: Checkpoint) -> bool:
    import json

    modules = checkpoint.path / "modules.json"
    try:
        entries = json.loads(modules.read_text(encoding="utf-8")) if modules.is_file() else []
    except ValueError as error:
        raise ModelError(f"{modules} is not valid JSON: {error}.") from None
    return any(str(entry.get("type", "")).endswith("Normalize") for entry in entries if isinstance(entry, dict))


def weight_numbers(spec: ModelSpec) -> int:
    """How many numbers the weights of `spec` are."""
    from radixlang.models.layout import numbers
    from radixlang.models.loader import layout_of

    return numbers(layout_of(spec))


def load_model(
    spec: ModelSpec,
    model: ModelConfig,
    device: str,
    dtype: torch.dtype,
    progress: Callable[[int, int], None] = lambda done, total: None,
    parallel: TensorParallel | None = None,
    exact: bool = False,
) -> Model:
    """Load the weights of `model` on `device`, computing in `dtype`.

    With the other ranks of `parallel` (None: alone) only this rank's part is read; the model's `spec` is then the
    part's (see `models.shards`).

    `exact`: a token's numbers do not depend on what else is in the step.

    `progress(done, total)` is called with numbers of weights as they are read. On the CPU with
    `model.dtype` "auto" the weights stay as they are stored and the arithmetic is float32.

    Raises:
        WeightError: a tensor or file is missing, unexpected, misshapen or damaged; before any work is done.
    """
    from radixlang.models.loader import load
    from radixlang.parallel import Solo

    return load(spec, model, device, dtype, progress, parallel or Solo(), exact)
