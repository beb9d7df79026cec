"""Tensor-parallel parts: which they are, that only they are read, and that together they are the model."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from radixlang.config import ModelConfig
from radixlang.errors import ConfigError
from radixlang.gguf_file import GGUFTensor
from radixlang.models import load_model, load_spec
from radixlang.models import weights as weights_module
from radixlang.models.gguf_weights import GgufWeight
from radixlang.models.shards import Shards
from radixlang.models.spec import LayerSpec, ModelSpec
from tests.models.paged import load, run_paged
from tests.models.test_parity import GEMMA, make, rows_of
from tests.parallel.ranks import as_ranks

SPEC = ModelSpec(
    family="llama",
    architecture="LlamaForCausalLM",
    vocab_size=97,
    hidden_size=48,
    intermediate_size=96,
    num_heads=12,
    num_kv_heads=4,
    head_dim=8,
    layers=(LayerSpec(),),
    context_length=64,
)


@pytest.mark.parametrize(
    ("heads", "kv", "size", "held"),
    [
        (12, 4, 2, [[0, 1], [2, 3]]),
        (12, 4, 4, [[0], [1], [2], [3]]),
        (8, 2, 4, [[0], [0], [1], [1]]),
        (4, 1, 2, [[0], [0]]),
        (6, 2, 3, [[0, 0], [0, 1], [1, 1]]),  # the middle rank's two heads read different ones
        (9, 3, 3, [[0], [1], [2]]),
    ],
)
def test_a_rank_holds_the_kv_heads_its_queries_read(heads, kv, size, held):
    spec = msgspec.structs.replace(SPEC, num_heads=heads, num_kv_heads=kv)
    for rank in range(size):
        shards = Shards(spec, rank, size)
        assert shards.kv_heads == held[rank]
        own, span = shards.spec.num_heads, shards.spec.num_heads // shards.spec.num_kv_heads
        assert [shards.kv_heads[head // span] for head in range(own)] == [
            (rank * own + head) // (heads // kv) for head in range(own)
        ]


@pytest.mark.parametrize(("inner", "size"), [(96, 2), (80, 3), (97, 3), (224, 3), (5, 4)])
def test_the_parts_of_a_size_are_all_of_it(inner, size):
    spec = msgspec.structs.replace(SPEC, intermediate_size=inner)
    parts = [Shards(spec, rank, size) for rank in range(size)]
    for bounds in ([p.columns["down_proj"] for p in parts], [p.vocab for p in parts]):
        assert all(a[1] == b[0] for a, b in itertools.pairwise(bounds))
        assert bounds[0][0] == 0
    assert parts[-1].columns["down_proj"][1] == inner
    assert parts[-1].vocab[1] == SPEC.vocab_size


def test_one_rank_is_the_whole_model():
    assert Shards(SPEC, 0, 1).spec == SPEC


def test_heads_that_do_not_divide():
    with pytest.raises(
        ConfigError, match=r"--tp-size 5 does not divide the 12 attention heads.*1, 2, 3, 4, 6, 12"
    ):
        Shards(SPEC, 0, 5)


def test_encoders_are_refused():
    with pytest.raises(ConfigError, match="--tp-size 2 cannot be used with the encoder"):
        Shards(msgspec.structs.replace(SPEC, encoder=True), 0, 2)


CASES: dict[str, tuple[int, str, dict[str, Any]]] = {
    "llama": (2, "Llama", {}),
    "llama-tied": (2, "Llama", {"tie_word_embeddings": True}),
    "llama-biases": (2, "Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-multi-query": (2, "Llama", {"num_key_value_heads": 1, "head_dim": 20}),
    "llama-three": (3, "Llama", {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8}),
    "qwen2": (2, "Qwen2", {}),
    "qwen3-three": (3, "Qwen3", {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 16}),
    "gemma2-capped": (2, "Gemma2", GEMMA | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    "gemma3": (2, "Gemma3", GEMMA | {"num_hidden_layers": 7}),
}


def parts_of(path: Path, size: int, dtype: str = "float32") -> Any:
    config = ModelConfig(model_path=str(path), dtype=dtype)
    spec = load_spec(config)

    def body(group: Any) -> Any:
        torch.set_num_threads(1)
        model = load_model(spec, config, "cpu", torch.float32, parallel=group)
        return model, run_paged(model, rows_of(spec.vocab_size))

    return body


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_one_rank(case: str, tmp_path: Path) -> None:
    size, *what = CASES[case]
    make(*what, tmp_path)
    whole = load(tmp_path)
    want = run_paged(whole, rows_of(whole.spec.vocab_size))
    ranks = as_ranks(size, tmp_path, parts_of(tmp_path, size))
    for model, got in ranks:
        for a, b, first in zip(got, want, ranks[0][1], strict=True):
            assert (a - b).abs().max() <= 1e-4
            assert torch.equal(a, first), "ranks draw for themselves: their logits must be the same bits"
        assert model.weight_bytes < 0.75 * whole.weight_bytes
        assert model.spec.num_heads == whole.spec.num_heads // size


def test_packed_weights_and_one_rank(tmp_path: Path) -> None:
    """`--dtype auto` on a CPU packs the parts."""
    make("Llama", {}, tmp_path)
    want = run_paged(load(tmp_path), rows_of(97))
    for _, got in as_ranks(2, tmp_path, parts_of(tmp_path, 2, "auto")):
        for a, b in zip(got, want, strict=True):
            assert (a - b).abs().max() <= 1e-4


class CountingFile:
    """A safetensors file that counts the bytes it hands out."""

    def __init__(self, file: Any, counts: list[int]) -> None:
        self._file = file
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._count(self._file.get_tensor(name))

    def get_slice(self, name: str) -> Any:
        whole, count = self._file.get_slice(name), self._count

        class Slice:
            get_shape, get_dtype = whole.get_shape, whole.get_dtype

            def __getitem__(self, index: Any) -> torch.Tensor:
                return count(whole[index])

        return Slice()

    def _count(self, tensor: torch.Tensor) -> torch.Tensor:
        self._counts.append(tensor.nbytes)  # a view of the mapped file: what is not in it is never touched
        return tensor


@dataclass
class Silent:
    """A rank whose collectives nobody calls while loading."""

    rank: int
    size: int


def test_a_rank_reads_its_part_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make("Llama", {"intermediate_size": 96, "vocab_size": 96}, tmp_path)
    config = ModelConfig(model_path=str(tmp_path), dtype="float32")
    spec = load_spec(config)
    shapes = _shapes(tmp_path)
    opened = weights_module._open
    counts: list[int] = []
    monkeypatch.setattr(weights_module, "_open", lambda path: CountingFile(opened(path), counts))

    def read(rank: int, size: int) -> int:
        counts.clear()
        group: Any = Silent(rank, size)
        load_model(spec, config, "cpu", torch.float32, parallel=group)
        return sum(counts)

    whole = read(0, 1)
    norms = 4 * spec.hidden_size * (2 * spec.num_layers + 1)
    assert whole == sum(math.prod(shape) * 4 for shape in shapes)
    assert [read(rank, 2) for rank in range(2)] == [(whole - norms) // 2 + norms] * 2


def _shapes(folder: Path) -> list[tuple[int, ...]]:
    file = weights_module._open(folder / "model.safetensors")
    return [tuple(file.get_slice(name).get_shape()) for name in file.keys()]  # noqa: SIM118


def test_parts_of_blocks() -> None:
    """Rows and whole blocks of columns stay blocks; columns within a block are had as numbers."""
    generator = np.random.default_rng(0)
    data = np.zeros((6, 3, 34), np.uint8)
    data[..., :2] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
    data[..., 2:] = generator.integers(0, 256, (6, 3, 32))
    order = np.array([1, 0, 3, 2, 5, 4])
    weight = GgufWeight("w", (6, 96), GGUFTensor("w", (6, 96), "Q8_0", data.reshape(-1), "file"), None)
    turned = GgufWeight("w", (6, 96), weight.tensor, order)
    whole = weight.dense()
    assert torch.equal(turned.dense(), whole[order])
    rows, own, columns, within = (
        weight.part(0, 2, 5),
        turned.part(0, 2, 5),
        weight.part(1, 32, 96),
        weight.part(1, 30, 70),
    )
    for part, want in (
        (rows, whole[2:5]),
        (own, whole[order][2:5]),
        (columns, whole[:, 32:]),
        (within, whole[:, 30:70]),
    ):
        assert part.shape == tuple(want.shape)
        assert torch.equal(part.dense(), want)
    stored = columns.blocks()
    assert stored is not None
    assert (stored.type, stored.data.shape) == ("Q8_0", (6, 2 * 34))
    assert rows.blocks().data.shape == (3, 3 * 34)
    assert within.blocks() is None


def test_random_weights_are_parts_of_the_same_model(tmp_path: Path) -> None:
    make("Llama", {}, tmp_path)
    config = ModelConfig(model_path=str(tmp_path), dtype="float32", load_format="dummy")
    spec = load_spec(config)
    rows = rows_of(spec.vocab_size)
    want = run_paged(load_model(spec, config, "cpu", torch.float32), rows)

    def body(group: Any) -> Any:
        return run_paged(load_model(spec, config, "cpu", torch.float32, parallel=group), rows)

    for got in as_ranks(2, tmp_path, body):
        assert all((a - b).abs().max() <= 1e-4 for a, b in zip(got, want, strict=True))
