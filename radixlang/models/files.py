"""Finding a checkpoint and reading its config: Hugging Face folder, GGUF file or hub id.

Everything here is cheap and happens in both columns, so it must not import torch; nothing of a model folder
is ever executed or unpickled.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radixlang.config import ModelConfig
from radixlang.errors import ModelError, UnsupportedModelError, WeightError
from radixlang.gguf_file import is_gguf
from radixlang.hub_files import resolve_model_path

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True)
class Checkpoint:
    """A located checkpoint: `path` is a folder or a GGUF file, `gguf` says which; `config` in HF spelling."""

    path: Path
    gguf: bool
    config: dict[str, Any]

    @property
    def config_name(self) -> str:
        """What messages call the config."""
        return f"The metadata of {self.path}" if self.gguf else str(self.path / "config.json")


def read_checkpoint(model: ModelConfig) -> Checkpoint:
    """Locate `model`, read its config, apply `json_model_override_args`.

    Raises:
        ModelError: nothing there, an unreadable config, or a load format that does not fit the path.
    """
    path = Path(resolve_model_path(model.model_path, model.download_dir, model.revision))
    single = path.is_file()
    if single and path.suffix in _PICKLES:
        raise WeightError(f"{path} is a pickle, which may run code when read; give safetensors or GGUF instead.")
    if path.is_dir() and not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        if len(files) != 1:
            raise ModelError(f"{path} has no config.json; give a folder in Hugging Face layout or a .gguf file.")
        path, single = files[0], True
    if single and not is_gguf(path):
        raise ModelError(f"{path} is not a GGUF file; give a folder in Hugging Face layout or a .gguf file.")
    if model.load_format not in ("auto", "dummy") and (model.load_format == "gguf") != single:
        kind = "a GGUF file" if single else "a folder"
        raise ModelError(f"--load-format {model.load_format} does not fit {path}, which is {kind}.")
    if single:
        from radixlang.models.gguf_config import config_of

        config = config_of(path)
    else:
        config = _folder_config(path)
    overrides = _overrides(model)
    if "rope_theta" in overrides and '"rope_theta":' in json.dumps((config | overrides).get("rope_parameters")):
        raise ModelError(
            "--json-model-override-args: rope_theta has no effect beside the rope_theta of rope_parameters; "
            "override rope_parameters instead."
        )
    config |= overrides
    return Checkpoint(path, single, config)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object in a file; ModelError naming the file otherwise."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object.")
    return value


def _folder_config(path: Path) -> dict[str, Any]:
    config = read_json(path / "config.json")
    if not config.get("architectures") and "auto_map" in config:
        raise UnsupportedModelError(
            f"{path / 'config.json'} names no architecture but code of its own (auto_map), which is never run."
        )
    generation = path / "generation_config.json"
    if generation.is_file():
        # Chat models end their turn with a token that often stands in this file only.
        merged: list[Any] = []
        for file, source in ((path / "config.json", config), (generation, read_json(generation))):
            value = source.get("eos_token_id")
            ids = value if isinstance(value, list) else [] if value is None else [value]
            if not all(type(index) is int and index >= 0 for index in ids):
                raise ModelError(
                    f"{file} has eos_token_id = {value!r}, which must be a token id or a list of them."
                )
            merged += ids
        if merged:
            config["eos_token_id"] = list(dict.fromkeys(merged))
    return config


def _overrides(model: ModelConfig) -> dict[str, Any]:
    try:
        value = json.loads(model.json_model_override_args or "{}")
    except ValueError as error:
        raise ModelError(f"--json-model-override-args is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise ModelError("--json-model-override-args must be a JSON object.")
    return value
