"""From a checkpoint to a running model: source, check against the layout, quantisation method, operations.

`Weights` is what a model builds itself from; it counts what was read, so that every stored tensor is used.
"""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from radixlang.kernels.cpu import available as cpu_kernels
from radixlang.layers.ops import OPS, Ops
from radixlang.layers.sharded import GatheredHead, ReducedLinear, ShardedEmbedding
from radixlang.models import Model, family_of
from radixlang.models.files import read_checkpoint
from radixlang.models.layout import Layout, numbers
from radixlang.models.shards import Shards
from radixlang.models.weights import DummySource, SafetensorsSource, WeightSource, verify
from radixlang.parallel import TensorParallel
from radixlang.quant import METHODS, Embedding, Linear, QuantMethod, StoredWeight

if TYPE_CHECKING:
    from radixlang.config import ModelConfig
    from radixlang.models.spec import ModelSpec

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]


class Weights:
    """The tensors of one checkpoint, handed out as linears, tables and vectors.

    `nbytes` is the memory of everything handed out so far.
    """

    def __init__(
        self,
        source: WeightSource,
        layout: Layout,
        method: QuantMethod,
        device: str,
        dtype: torch.dtype,
        progress: Progress,
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.nbytes = 0
        self._source = source
        self._method = method
        self._left = dict(layout)
        self._progress = progress
        self._total = numbers(layout)
        self._done = 0

    def linear(self, prefix: str, names: Sequence[str], bias: bool = False) -> Linear:
        """One linear out of `prefix + name` for each name, outputs side by side."""
        weights = [self._take(f"{prefix}{name}.weight") for name in names]
        biases = [self._take(f"{prefix}{name}.bias") for name in names] if bias else []
        result = self._method.linear(weights, biases)
        self._count(result.nbytes, [*weights, *biases])
        return result

    def embedding(self, name: str) -> Embedding:
        """The table `name`."""
        weight = self._take(f"{name}.weight")
        result = self._method.embedding(weight)
        self._count(result.nbytes, [weight])
        return result

    def vector(self, name: str) -> torch.Tensor:
        """A small tensor as float32 on the device."""
        stored = self._take(name)
        result = stored.dense().to(self.device, torch.float32, copy=True)
        self._count(result.nbytes, [stored])
        return result

    def norm(self, name: str, offset: float = 0.0) -> torch.Tensor:
        """A norm's weight with `offset` added, float32."""
        weight = self.vector(f"{name}.weight")
        return weight + offset if offset else weight

    def finish(self) -> None:
        """Everything that was laid out has been used: a model that forgets a tensor is a bug."""
        assert not self._left, f"never loaded: {sorted(self._left)}"

    def _take(self, name: str) -> StoredWeight:
        del self._left[name]
        return self._source.tensors[name]

    def _count(self, nbytes: int, used: Sequence[StoredWeight]) -> None:
        self.nbytes += nbytes
        self._done += sum(math.prod(stored.shape) for stored in used)
        self._progress(self._done, self._total)


class ShardedWeights(Weights):
    """Hands out this rank's part of every matrix, in a wrapper where the ranks' results belong together."""

    def __init__(self, *of_all: Any, shards: Shards, parallel: TensorParallel, ops: Ops) -> None:
        super().__init__(*of_all)
        self._shards = shards
        self._parallel = parallel
        self._ops = ops

    def linear(self, prefix: str, names: Sequence[str], bias: bool = False) -> Linear:
        shards, first = self._shards, names[0]
        weights = [self._take(f"{prefix}{name}.weight") for name in names]
        biases = [self._take(f"{prefix}{name}.bias") for name in names] if bias else []
        whole = [*weights, *biases]
        if first in shards.columns:
            weights = [weight.part(1, *shards.columns[first]) for weight in weights]
            biases = biases if shards.rank == 0 else []
        else:
            weights, biases = (
                [part for name, stored in zip(names, kind, strict=False) for part in self._rows(name, stored)]
                for kind in (weights, biases)
            )
        result = self._method.linear(weights, biases)
        self._count(result.nbytes, whole)
        if first in shards.columns:
            return ReducedLinear(result, self._ops, self._parallel)
        if first == "lm_head":
            vocab = shards.spec.vocab_size
            return GatheredHead(result, self._ops, self._parallel, shards.vocab_rows, vocab)
        return result

    def embedding(self, name: str) -> Embedding:
        shards, stored = self._shards, self._take(f"{name}.weight")
        (part,) = self._rows("embed_tokens", stored)
        result = self._method.embedding(part)
        self._count(result.nbytes, [stored])
        vocab = shards.spec.vocab_size
        return ShardedEmbedding(result, self._ops, self._parallel, shards.vocab, shards.vocab_rows, vocab)

    def _rows(self, name: str, stored: StoredWeight) -> list[StoredWeight]:
        return [stored.part(0, *bounds) for bounds in self._shards.rows[name]]


def layout_of(spec: ModelSpec) -> Layout:
    """The tensors that a checkpoint of `spec` must hold."""
    layout: Layout = _resolve(family_of(spec.architecture).layout)(spec)
    return layout


def load(
    spec: ModelSpec,
    model: ModelConfig,
    device: str,
    dtype: torch.dtype,
    progress: Progress,
    parallel: TensorParallel,
    exact: bool,
) -> Model:
    """See `radixlang.models.load_model`."""
    shards = Shards(spec, parallel.rank, parallel.size)
    family, layout = family_of(spec.architecture), layout_of(spec)
    source: WeightSource
    if model.load_format == "dummy":
        source = DummySource(layout, spec, device)
    else:
        checkpoint = read_checkpoint(model)
        if checkpoint.gguf:
            from radixlang.models.gguf_weights import GgufSource

            source = GgufSource(checkpoint.path, spec)
        else:
            source = SafetensorsSource(checkpoint.path, family.renames)
    verify(source, layout, spec)
    if source.skipped:
        log.info("%s: %d tensors of other parts are left out.", source.what, source.skipped)
    method = METHODS.get(choose_method(model, device, dtype, exact))(device, dtype)
    ops = OPS.get(choose_ops(device, dtype, exact))()
    of_all = (source, layout, method, device, dtype, progress)
    weights = (
        Weights(*of_all)
        if parallel.size == 1
        else ShardedWeights(*of_all, shards=shards, parallel=parallel, ops=ops)
    )
    result = _resolve(family.runner)(shards.spec, weights, ops)
    weights.finish()
    return result


def choose_method(model: ModelConfig, device: str, dtype: torch.dtype, exact: bool) -> str:
    """On CPUs float32 keeps the stored form, `--dtype auto` also rounds activations to 16 bits; else dense. What
    CPUs do is exact anyway."""
    if exact and torch.device(device).type != "cpu":
        return "exact"
    if torch.device(device).type != "cpu" or dtype != torch.float32 or not cpu_kernels():
        return "unquantized"
    return "cpu_packed" if model.dtype == "auto" else "cpu_packed_float"


def choose_ops(device: str, dtype: torch.dtype, exact: bool) -> str:
    """The fastest set of layer operations for a device: Triton on GPUs, compiled float32 kernels on CPUs."""
    kind = torch.device(device).type
    if exact:
        return "cpu_exact" if kind == "cpu" else "triton_exact"
    if kind in ("cuda", "xpu") and find_spec("triton") is not None:
        return "triton"
    if kind == "cpu" and dtype == torch.float32 and cpu_kernels():
        return "cpu"
    return "torch"


def _resolve(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
