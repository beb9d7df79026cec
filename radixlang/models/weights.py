"""Weight sources: the tensors of a checkpoint under the names of `layout.py`, whatever the file format.

A source knows names, shapes and dtypes from headers alone; values are read when asked for. `verify` compares
a source with a layout. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from radixlang.errors import WeightError
from radixlang.models.layout import Layout
from radixlang.models.spec import ModelSpec
from radixlang.quant import BlockRows, StoredWeight

#: tensors that old checkpoints carry and that follow from the config
IGNORABLE = re.compile(
    r"(.*\.)?(rotary_emb\.inv_freq|rotary_pos_emb\.inv_freq|embeddings\.position_ids"
    r"|attn\.masked_bias|self_attn\.attention_mask)"
)
_DTYPES = ("F32", "F16", "BF16")


class WeightSource(Protocol):
    """`tensors` maps names to stored weights; `what` names the checkpoint in messages; `skipped` counts the
    tensors left out on purpose."""

    what: str
    tensors: dict[str, StoredWeight]
    skipped: int


def verify(source: WeightSource, layout: Layout, spec: ModelSpec) -> None:
    """Every tensor of the layout is there with its shape, and nothing else is.

    Raises:
        WeightError: naming the first tensor that is missing, misshapen or unexpected.
    """
    for name, shape in layout.items():
        stored = source.tensors.get(name)
        if stored is None:
            missing = sum(name not in source.tensors for name in layout)
            more = f" and {missing - 1} more" if missing > 1 else ""
            raise WeightError(f"{source.what} lacks the tensor {name}{more}, which its config asks for.")
        if stored.shape != shape:
            raise WeightError(
                f"The tensor {stored.name} of {source.what} has shape {list(stored.shape)}; its config asks for "
                f"{list(shape)}."
            )
    for name, stored in source.tensors.items():
        if name in layout or IGNORABLE.fullmatch(name) or (spec.tie_embeddings and name == "lm_head.weight"):
            continue
        raise WeightError(f"{source.what} has a tensor {stored.name} that its config has no place for.")

    if spec.tie_embeddings and "lm_head.weight" in source.tensors:
        head = source.tensors["lm_head.weight"].dense()
        if not torch.equal(head, source.tensors["model.embed_tokens.weight"].dense()):
            raise WeightError(
                f"{source.what} has a tensor lm_head.weight that differs from the embedding, but its config says "
                "tie_word_embeddings; one of the two is wrong."
            )


# ---- safetensors --------------------------------------------------------------------------------------------


Cut = tuple[slice, ...]


def cut_out(shape: tuple[int, ...], dim: int, start: int, stop: int) -> tuple[tuple[int, ...], Cut]:
    """Shape and index of the numbers start … stop - 1 along `dim`."""
    return (*shape[:dim], stop - start, *shape[dim + 1 :]), (*[slice(None)] * dim, slice(start, stop))


@dataclass(frozen=True)
class SafeTensor:
    """One tensor of a safetensors file, or the part `cut` of one."""

    name: str
    shape: tuple[int, ...]
    file: Any
    path: Path
    cut: Cut = ()

    def dense(self) -> torch.Tensor:
        try:
            return self.file.get_slice(self.name)[self.cut] if self.cut else self.file.get_tensor(self.name)
        except Exception as error:
            raise WeightError(f"The tensor {self.name} of {self.path} cannot be read: {error}.") from error

    def blocks(self) -> BlockRows | None:
        return None

    def part(self, dim: int, start: int, stop: int) -> SafeTensor:
        assert not self.cut
        shape, cut = cut_out(self.shape, dim, start, stop)
        return replace(self, shape=shape, cut=cut)


class SafetensorsSource:
    """A Hugging Face folder: one file, or shards with an index."""

    def __init__(self, folder: Path, renames: tuple[tuple[str, str | None], ...] = ()) -> None:
        self.what = str(folder)
        self.tensors: dict[str, StoredWeight] = {}
        self.skipped = 0
        for path, wanted in _shards(folder).items():
            file = _open(path)
            names = set(file.keys())
            for name in sorted(wanted - names):
                raise WeightError(f"{path} lacks the tensor {name}, which the index of the folder says it holds.")
            for name in sorted(names):
                self._add(name, file, path, renames)
        prefix = "model."
        if "embed_tokens.weight" in self.tensors and f"{prefix}embed_tokens.weight" not in self.tensors:
            self.tensors = {  # saved as the bare base model
                name if name.startswith("lm_head.") else prefix + name: t for name, t in self.tensors.items()
            }

    def _add(self, name: str, file: Any, path: Path, renames: tuple[tuple[str, str | None], ...]) -> None:
        new = rename(name, renames)
        if new is None:
            self.skipped += 1
            return
        header = file.get_slice(name)
        if header.get_dtype() not in _DTYPES and not IGNORABLE.fullmatch(new):
            raise WeightError(
                f"The tensor {name} of {path} has dtype {header.get_dtype()}; only {', '.join(_DTYPES)} "
                "can be used."
            )
        if new in self.tensors:
            raise WeightError(f"The tensor {name} of {path} occurs twice.")
        self.tensors[new] = SafeTensor(name, tuple(header.get_shape()), file, path)


def rename(name: str, renames: tuple[tuple[str, str | None], ...]) -> str | None:
    """`name` with the first prefix that fits replaced; None when it is to be left out."""
    for prefix, replacement in renames:
        if name.startswith(prefix):
            return None if replacement is None else replacement + name[len(prefix) :]
    return name


def _open(path: Path) -> Any:
    from safetensors import safe_open

    if not path.is_file():
        raise WeightError(f"The weight file {path} is missing; fetch the model again.")
    try:
        return safe_open(path, framework="pt", device="cpu")
    except Exception as error:
        raise WeightError(f"{path} is damaged or truncated ({error}); fetch it again.") from error


def _shards(folder: Path) -> dict[Path, set[str]]:
    """File → the tensors the index promises in it (none without an index)."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            entries = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            shards: dict[Path, set[str]] = {}
            for name, file in entries.items():
                shards.setdefault(folder / Path(file).name, set()).add(name)
            return shards
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise WeightError(f"{index} is damaged ({type(error).__name__}: {error}); fetch it again.") from None
    single = folder / "model.safetensors"
    if single.is_file():
        return {single: set()}
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return {files[0]: set()}
    if files:
        raise WeightError(f"{folder} has {len(files)} safetensors files but no model.safetensors.index.json.")
    pickles = [p.name for kind in ("*.bin", "*.pt", "*.pth") for p in sorted(folder.glob(kind))]
    if pickles:
        raise WeightError(
            f"{folder} has only pickled weights ({pickles[0]}), which may run code when read; convert them to "
            "safetensors."
        )
    raise WeightError(f"{folder} has no safetensors files; give a complete model folder, or --load-format dummy.")


# ---- random weights -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DummyTensor:
    """Random values that depend on nothing but the name and the shape (of the whole, where this is a `cut`)."""

    name: str
    shape: tuple[int, ...]
    device: str
    dtype: torch.dtype
    norm: float
    whole: tuple[int, ...]
    cut: Cut = ()

    def dense(self) -> torch.Tensor:
        if "norm" in self.name.lower().rpartition(".")[0].rpartition(".")[2]:
            value = self.norm if self.name.endswith(".weight") else 0.0
            return torch.full(self.shape, value, dtype=self.dtype, device=self.device)
        generator = torch.Generator(self.device).manual_seed(zlib.crc32(self.name.encode()))
        values = torch.randn(self.whole, dtype=self.dtype, device=self.device, generator=generator)
        values.mul_(0.02 if len(self.whole) == 1 or "embed" in self.name else self.whole[-1] ** -0.5)
        return values[self.cut] if self.cut else values

    def blocks(self) -> BlockRows | None:
        return None

    def part(self, dim: int, start: int, stop: int) -> DummyTensor:
        assert not self.cut
        shape, cut = cut_out(self.shape, dim, start, stop)
        return replace(self, shape=shape, cut=cut)


class DummySource:
    """Random weights of a spec: for trying speed and memory without a checkpoint."""

    def __init__(self, layout: Layout, spec: ModelSpec, device: str) -> None:
        self.what = f"the random {spec.architecture}"
        self.skipped = 0
        dtype = getattr(torch, spec.checkpoint_dtype)
        self.tensors: dict[str, StoredWeight] = {
            name: DummyTensor(name, shape, device, dtype, 1.0 - spec.norm_offset, shape)
            for name, shape in layout.items()
        }
